package sim

import (
	"iter"
	"slices"

	"github.com/muster-sched/muster/server/drain"
	"github.com/muster-sched/muster/structs"
)

// state is the cluster as the decisions of servers about drains and checkpoints read it.
type state struct{ *Engine }

func (s state) SchedulerConfig() *structs.SchedulerConfig { return &s.cfg.Scheduler }

func (s state) Pools() iter.Seq[*structs.NodePool] { return slices.Values(s.cfg.Pools) }

func (s state) Pool(name structs.PoolName) *structs.NodePool {
	if i := slices.IndexFunc(s.cfg.Pools, func(p *structs.NodePool) bool { return p.Name == name }); i >= 0 {
		return s.cfg.Pools[i]
	}
	return nil
}

func (s state) NodeByID(id structs.NodeID) *structs.Node {
	if i, known := s.rows[id]; known {
		return s.nodes[i].node
	}
	return nil
}

func (s state) JobByKey(key structs.JobKey) *structs.Job {
	if l := s.live[key]; l != nil {
		return l.Job.Job
	}
	return nil
}

// Jobs returns the jobs that hold resources, in the order in which they got them.
func (s state) Jobs(string, string) iter.Seq[*structs.Job] {
	return func(yield func(*structs.Job) bool) {
		for l := s.holders; l != nil && yield(l.Job.Job); l = l.nextHolder {
		}
	}
}

// Allocs returns the allocations of these jobs.
func (s state) Allocs() iter.Seq[*structs.Allocation] {
	return func(yield func(*structs.Allocation) bool) {
		for l := s.holders; l != nil; l = l.nextHolder {
			for _, a := range l.work.Allocs {
				if !yield(a) {
					return
				}
			}
		}
	}
}

func (s state) AllocsByNode(id structs.NodeID) (out []*structs.Allocation) {
	i, known := s.rows[id]
	if !known {
		return nil
	}
	for _, r := range s.nodes[i].list {
		out = append(out, r.alloc)
	}
	slices.SortFunc(out, func(a, b *structs.Allocation) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return out
}

func (s state) AllocsByJob(key structs.JobKey) []*structs.Allocation {
	if l := s.live[key]; l != nil {
		return l.work.Allocs
	}
	return nil
}

// drains is what is known of draining nodes.
type drains struct {
	drain.Decider
	nodes []structs.NodeID // in order
	look  structs.LogTime  // when time alone may change what is decided; 0: never
}

// byDrain marks the event at which drains are decided again; another time may have been set since.
const byDrain = -2

// drain begins a drain, as Apply does.
func (e *Engine) drain(i int, d structs.DrainStrategy) {
	d.StartedAt = e.now
	switch {
	case d.Deadline > 0:
		d.ForceAt = e.now.Add(d.Deadline)
	case d.Deadline < 0:
		d.ForceAt = e.now
	}
	e.setNode(i, func(n *structs.Node) { n.Drain, n.Eligibility = &d, structs.NodeIneligible })
	id := e.nodes[i].node.ID
	if at, found := e.draining.find(id); !found {
		e.draining.nodes = slices.Insert(e.draining.nodes, at, id)
	}
}

func (d *drains) find(id structs.NodeID) (int, bool) {
	return slices.BinarySearchFunc(d.nodes, id, func(a, b structs.NodeID) int { return slices.Compare(a[:], b[:]) })
}

// undrain makes a node take work again.
func (e *Engine) undrain(i int) {
	e.endDrain(i)
	e.setNode(i, func(n *structs.Node) { n.Eligibility = structs.NodeEligible })
	e.freeOn(i)
}

func (e *Engine) endDrain(i int) {
	if at, found := e.draining.find(e.nodes[i].node.ID); found {
		e.draining.nodes = slices.Delete(e.draining.nodes, at, at+1)
		e.setNode(i, func(n *structs.Node) { n.Drain = nil })
	}
}

// drained carries out what a leader would decide about draining nodes. It reports whether anything was asked of an allocation.
func (e *Engine) drained() bool {
	if len(e.draining.nodes) == 0 {
		return false
	}
	act := e.draining.Decide(state{e}, e.draining.nodes, e.now)
	for _, id := range act.Migrate {
		e.transition(id, structs.Transition{Migrate: true})
	}
	for _, id := range act.Leave {
		e.transition(id, structs.Transition{Migrate: true, Leave: true})
	}
	for _, id := range act.Complete {
		e.stats.Drained++
		e.endDrain(e.rows[id])
	}
	if act.Next != e.draining.look {
		if e.draining.look = act.Next; act.Next != 0 {
			e.agenda.add(event{at: act.Next, kind: Woken, node: byDrain})
		}
	}
	return len(act.Migrate)+len(act.Leave) > 0
}

// transition asks something of an allocation, as Apply does.
func (e *Engine) transition(id structs.AllocID, t structs.Transition) {
	r := e.runs[id]
	a := *r.alloc
	a.Transition.Migrate = a.Transition.Migrate || t.Migrate
	a.Transition.Leave = a.Transition.Leave || t.Leave
	e.changes = e.changes[:0]
	e.changed(r, &a)
	e.commit()
	e.ask(r.live, structs.TriggerNodeDrain)
}

// moving reports whether an allocation of the job was asked to leave its node, and has not been stopped.
func (l *Live) moving() bool {
	return slices.ContainsFunc(l.work.Allocs, func(a *structs.Allocation) bool { return a.Transition.Migrate && !a.ServerTerminal() })
}
