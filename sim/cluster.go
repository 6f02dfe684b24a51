package sim

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/server/drain"
	"github.com/muster-sched/muster/structs"
)

// Cluster is what an operator has configured in addition to nodes and scheduler: the objects of a real cluster, for a replay.
type Cluster struct {
	Queues       []*structs.Queue     // valid by themselves; nil: one queue with the defaults
	Quotas       []*structs.QuotaSpec // valid by themselves
	Namespaces   map[string]string    // quota by namespace, "" for none; nil: jobs may name any namespace
	Reservations []Reserve
	Events       string // file with node events; "": none

	CheckpointStorage map[string]int64 // most saves at a time, by storage
	MaxCheckpoints    int64            // most saves at a time; 0: no limit
}

// Reserve is an operator's reservation. Virtual time begins at Epoch.
type Reserve struct {
	*structs.Reservation          // without Nodes
	Names                []string // of its nodes, or their ids
}

// given names what of a cluster is given; "" for nothing.
func (c *Cluster) given() string {
	switch {
	case c == nil:
	case len(c.Queues) > 0:
		return "queues"
	case len(c.Quotas) > 0 || c.Namespaces != nil:
		return "quotas and namespaces"
	case len(c.Reservations) > 0:
		return "reservations"
	case c.Events != "":
		return "node events"
	}
	return ""
}

// beyondQueues names what is given apart from queues; "" for nothing.
func (c *Cluster) beyondQueues() string {
	rest := *c
	rest.Queues = nil
	return rest.given()
}

// configure sets up a run on the cluster. It returns an error for what a server would refuse.
func (c *Cluster) configure(cfg *Config) error {
	if c == nil {
		return nil
	}
	if c.CheckpointStorage != nil {
		cfg.Scheduler.CheckpointStorage = c.CheckpointStorage
	}
	if c.MaxCheckpoints != 0 {
		cfg.Scheduler.MaxCheckpoints = c.MaxCheckpoints
	}
	if err := checkpoint.CheckLimits(&cfg.Scheduler); err != nil {
		return err
	}
	if len(c.Queues) > 0 {
		queues, err := sortedQueues(c.Queues)
		if err != nil {
			return err
		}
		cfg.Queues = queues
	}
	if len(c.Quotas) > 0 || c.Namespaces != nil {
		tenants, err := c.tenants()
		if err != nil {
			return err
		}
		cfg.Tenants = tenants
	}
	nodes := map[string]int{}
	for i, n := range cfg.Nodes {
		nodes[n.Name], nodes[n.ID.String()] = i, i
	}
	for _, r := range c.Reservations {
		held := *r.Reservation
		for _, name := range r.Names {
			i, known := nodes[name]
			if !known {
				return fmt.Errorf("reservation %q: there is no node %q", held.ID, name)
			}
			held.Nodes = append(held.Nodes, cfg.Nodes[i].ID)
		}
		if err := held.Check(); err != nil {
			return err
		}
		cfg.Reservations = append(cfg.Reservations, &held)
	}
	if c.Events == "" {
		return nil
	}
	if cfg.Failures.MTBF > 0 {
		return errors.New("node events are given, and failures are to be drawn, too: give one of -events and -mtbf")
	}
	events, err := readEvents(c.Events, nodes)
	cfg.Events = events
	return err
}

// sortedQueues returns queues by path. Each parent must be there, as on a server.
func sortedQueues(in []*structs.Queue) ([]*structs.Queue, error) {
	known := map[structs.QueuePath]bool{"": true, structs.QueueRoot: true}
	for _, q := range in {
		if q.Path != structs.QueueRoot && known[q.Path] {
			return nil, fmt.Errorf("queue %q is there twice", q.Path)
		}
		known[q.Path] = true
	}
	for _, q := range in {
		if err := q.Check(); err != nil {
			return nil, err
		}
		if err := q.CheckRoot(); err != nil {
			return nil, err
		}
		switch parent := q.Path.Parent(); {
		case parent == structs.QueueDefault:
			return nil, fmt.Errorf("queue %q: queue %q cannot have children, because jobs that name no queue are in it", q.Path, parent)
		case !known[parent]:
			return nil, fmt.Errorf("queue %q: its parent %q does not exist", q.Path, parent)
		}
	}
	out := slices.Clone(in)
	if !known[structs.QueueDefault] {
		out = append(out, &structs.Queue{Path: structs.QueueDefault})
	}
	byPath(out)
	return out, nil
}

// byPath puts queues in the order that contend.QueueTable wants.
func byPath(queues []*structs.Queue) {
	slices.SortFunc(queues, func(a, b *structs.Queue) int { return strings.Compare(string(a.Path), string(b.Path)) })
}

// tenants returns the namespaces with a quota, by name. Of a quota with several regions, that of the default one counts.
func (c *Cluster) tenants() (out []contend.Tenant, err error) {
	limits := map[string]*structs.QuotaLimit{}
	for _, q := range c.Quotas {
		l := q.Limit(structs.RegionDefault)
		if l == nil && len(q.Limits) == 1 {
			l = &q.Limits[0]
		}
		if l == nil {
			return nil, fmt.Errorf("quota %q has no limit for region %q", q.Name, structs.RegionDefault)
		}
		limits[q.Name] = l
	}
	for _, name := range slices.Sorted(maps.Keys(c.Namespaces)) {
		quota := c.Namespaces[name]
		switch l := limits[quota]; {
		case quota == "":
		case l == nil:
			return nil, fmt.Errorf("namespace %q names quota %q, which does not exist", name, quota)
		default:
			out = append(out, contend.Tenant{Namespace: name, Quota: quota, Hard: l.Hard, Soft: l.Soft, HardModels: l.HardModels, SoftModels: l.SoftModels})
		}
	}
	return out, nil
}

// admits returns an error if a job names a queue or a namespace that the cluster does not have.
func (c *Cluster) admits(namespace string, queue structs.QueuePath) error {
	switch {
	case c == nil:
	case len(c.Queues) > 0 && queue != "" && queue != structs.QueueDefault && !slices.ContainsFunc(c.Queues, func(q *structs.Queue) bool { return q.Path == queue }):
		return fmt.Errorf("there is no queue %q", queue)
	case c.Namespaces != nil && namespace != structs.NamespaceDefault:
		if _, known := c.Namespaces[namespace]; !known {
			return fmt.Errorf("there is no namespace %q", namespace)
		}
	}
	return nil
}

// NodeEvent is what happens to a node at a time.
type NodeEvent struct {
	At   time.Duration // since the beginning
	Node int           // index of Config.Nodes
	What string        // EventDown, EventUp, EventDrain

	Deadline time.Duration // of EventDrain: what still runs there then is stopped; 0: none; negative: at once
}

// What may happen to a node.
const (
	EventDown  = "down"  // what runs there is lost, and waits again
	EventUp    = "up"    // it is ready, unless it has failed (Config.Failures), and eligible
	EventDrain = "drain" // it gets no new work; what runs there runs to its end, or to the deadline
)

// readEvents reads a CSV file with the columns at, node and event, and for drains deadline. nodes are the indices of nodes by name and id.
func readEvents(name string, nodes map[string]int) (out []NodeEvent, err error) {
	f, err := openTrace(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := newTable(name, f.in, nil)
	if err != nil {
		return nil, err
	}
	if err := t.need("at", "node", "event"); err != nil {
		return nil, err
	}
	for {
		if err := t.next(); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if err := t.must("at", "node", "event"); err != nil {
			return nil, err
		}
		ev := NodeEvent{What: t.text("event")}
		if ev.At, err = t.span("at"); err != nil {
			return nil, err
		}
		var known bool
		if ev.Node, known = nodes[t.text("node")]; !known {
			return nil, t.wrong("node", "is not a node of the cluster")
		}
		switch ev.What {
		case EventDown, EventUp, EventDrain:
		default:
			return nil, t.wrong("event", "is none of down, up and drain")
		}
		if t.text("deadline") != "" {
			if ev.What != EventDrain {
				return nil, t.wrong("deadline", "is given, and the event is no drain")
			}
			if ev.Deadline, err = t.span("deadline"); err != nil {
				return nil, err
			}
			if ev.Deadline == 0 {
				ev.Deadline = -1 // at once
			}
		}
		out = append(out, ev)
	}
}

// startOperated puts on the agenda what the operator of the cluster has planned.
func (e *Engine) startOperated() {
	operate := func(at structs.LogTime, do func()) {
		e.agenda.add(event{at: max(at, e.now), kind: Operated, do: do})
	}
	for i := range e.cfg.Events {
		ev := &e.cfg.Events[i]
		operate(e.now.Add(ev.At), func() { e.operate(ev) })
	}
	for _, r := range e.cfg.Reservations {
		e.book(r)
		operate(r.Start, func() {
			for _, id := range r.Nodes {
				if i, known := e.rows[id]; known && r.Maintenance {
					e.drain(i, structs.DrainStrategy{Deadline: drain.Maintenance(r)})
				}
			}
		})
		operate(r.End, func() {
			for _, id := range r.Nodes {
				if i, known := e.rows[id]; known && r.Maintenance {
					e.undrain(i)
				}
			}
			e.freedAll()
		})
	}
}

// operate lets an event happen to a node.
func (e *Engine) operate(ev *NodeEvent) {
	i := ev.Node
	switch ev.What {
	case EventDown:
		if e.nodes[i].node.Status == structs.NodeReady {
			e.takeDown(i)
		}
	case EventUp:
		if !e.nodes[i].failed {
			e.setStatus(i, structs.NodeReady)
		}
		e.undrain(i)
	case EventDrain:
		e.drain(i, structs.DrainStrategy{Deadline: ev.Deadline})
	}
}
