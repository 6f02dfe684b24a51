package client

import (
	"context"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// nodeState builds the node's description from the configuration, the dynamic metadata and the fingerprints. A node
// that it has returned is never changed.
type nodeState struct {
	cfg *Config

	mu      sync.Mutex
	base    structs.Node                  // from the configuration
	facts   map[string]*fingerprint.Facts // by fingerprinter, as last seen
	dynamic map[string]*string            // overrides Meta; nil hides a key
	node    *structs.Node                 // the result
}

func newNodeState(cfg *Config, id identity, dynamic map[string]*string) *nodeState {
	n := &nodeState{cfg: cfg, facts: map[string]*fingerprint.Facts{}, dynamic: maps.Clone(dynamic)}
	if n.dynamic == nil {
		n.dynamic = map[string]*string{}
	}
	n.base = structs.Node{
		ID: id.id, SecretID: id.secret, Start: id.start, Place: id.place, Name: cfg.Node.Name,
		Datacenter: cfg.Node.Datacenter, Pool: cfg.Node.Pool, Class: cfg.Node.Class,
		HTTPAddr: cfg.Node.HTTPAddr, TLSEnabled: cfg.Node.TLSEnabled, Version: cfg.Node.Version,
		Reserved: cfg.Node.Reserved, HostVolumes: cfg.Node.HostVolumes,
		Status: structs.NodeReady, Eligibility: structs.NodeEligible,
	}
	if n.base.Name == "" {
		n.base.Name, _ = os.Hostname()
	}
	n.build()
	return n
}

// current returns the node's current description. It must not be changed.
func (n *nodeState) current() *structs.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node
}

// look runs all fingerprinters.
func (n *nodeState) look(ctx context.Context, log hclog.Logger) {
	for _, f := range n.cfg.Host.Fingerprinters {
		n.lookOne(ctx, log, f)
	}
}

// lookPatience limits one fingerprint, so that a driver or device that hangs does not block the others for ever.
const lookPatience = 20 * time.Second

// lookOne runs one fingerprinter and reports whether the node has changed. If it fails, its earlier result is kept.
func (n *nodeState) lookOne(ctx context.Context, log hclog.Logger, f fingerprint.Fingerprinter) bool {
	lctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	facts := fingerprint.NewFacts()
	if err := f.Look(lctx, facts); err != nil {
		if ctx.Err() == nil {
			log.Warn("fingerprint failed; what was seen before still counts", "fingerprint", f.Name, "error", err)
		}
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.facts[f.Name]
	if old != nil {
		for name, d := range facts.Drivers { // a changing timestamp would make every fingerprint a change
			if o, ok := old.Drivers[name]; ok && sameDriver(o, d) {
				facts.Drivers[name] = o
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(facts.Drivers)) {
		d := facts.Drivers[name]
		if d.UpdatedAt != 0 {
			continue
		}
		d.UpdatedAt = structs.LogTimeOf(time.Now())
		was := old != nil && old.Drivers[name] != nil && old.Drivers[name].Healthy
		switch {
		case !d.Healthy && was:
			log.Warn("a driver is lost", "driver", name, "why", d.HealthDesc)
		case !d.Healthy && old == nil:
			log.Info("a driver is not available", "driver", name, "why", d.HealthDesc)
		case d.Healthy && old != nil && !was:
			log.Info("a driver is available", "driver", name)
		}
	}
	if old != nil && reflect.DeepEqual(old, facts) {
		return false
	}
	n.facts[f.Name] = facts
	n.build()
	return true
}

func sameDriver(a, b *structs.DriverInfo) bool {
	x, y := *a, *b
	x.UpdatedAt, y.UpdatedAt = 0, 0
	return reflect.DeepEqual(x, y)
}

// build merges the fingerprints, in order, into a new description. The caller holds mu.
func (n *nodeState) build() {
	node := n.base
	node.Attributes = map[string]string{}
	node.Drivers = map[string]*structs.DriverInfo{}
	for _, f := range n.cfg.Host.Fingerprinters {
		if facts := n.facts[f.Name]; facts != nil {
			merge(&node, facts)
		}
	}
	node.Meta = maps.Clone(n.cfg.Node.Meta)
	if node.Meta == nil {
		node.Meta = map[string]string{}
	}
	for k, v := range n.dynamic {
		if v == nil {
			delete(node.Meta, k)
		} else {
			node.Meta[k] = *v
		}
	}
	node.Resources.DynamicPortMin, node.Resources.DynamicPortMax = n.cfg.Node.DynamicPortMin, n.cfg.Node.DynamicPortMax
	n.node = &node
}

func merge(node *structs.Node, f *fingerprint.Facts) {
	maps.Copy(node.Attributes, f.Attributes)
	maps.Copy(node.Drivers, f.Drivers)
	if f.BootID != "" {
		node.BootID = f.BootID
	}
	r, s := &node.Resources, f.Resources
	if s.CPU != 0 {
		r.CPU, r.Cores, r.MHzPerCore, r.ReservableCPUs = s.CPU, s.Cores, s.MHzPerCore, s.ReservableCPUs
	}
	if s.MemoryMiB != 0 {
		r.MemoryMiB = s.MemoryMiB
	}
	if s.DiskMiB != 0 {
		r.DiskMiB = s.DiskMiB
	}
	if s.Networks != nil {
		r.Networks = s.Networks
	}
	if s.Devices != nil {
		r.Devices = s.Devices
	}
}

// Limits of dynamic metadata.
const (
	metaKeyMax   = 256
	metaValueMax = 16 << 10
)

// setMeta changes dynamic metadata and stores it.
func (c *Client) setMeta(changes map[string]*string) error {
	n := c.node
	n.mu.Lock()
	next := maps.Clone(n.dynamic)
	n.mu.Unlock()
	for k, v := range changes {
		if k == "" || len(k) > metaKeyMax || v != nil && len(*v) > metaValueMax {
			return structs.Errorf(structs.CodeInvalid, "metadata key %.40q: a key has 1 to %d bytes, a value at most %d", k, metaKeyMax, metaValueMax)
		}
		if _, static := c.cfg.Node.Meta[k]; v == nil && !static {
			delete(next, k) // there is no static key to hide
			continue
		}
		next[k] = v
	}
	if len(next) > structs.NodeMetaKeysMax {
		return structs.Errorf(structs.CodeInvalid, "a node has at most %d keys of dynamic metadata", structs.NodeMetaKeysMax)
	}
	if err := c.store.PutMeta(next); err != nil {
		return err
	}
	n.mu.Lock()
	n.dynamic = next
	n.build()
	n.mu.Unlock()
	c.nodeChanged()
	return nil
}

// nodeChanged makes the agent register again.
func (c *Client) nodeChanged() {
	select {
	case c.reregister <- struct{}{}:
	default:
	}
}

// fingerprintLoop runs the periodic fingerprinters.
func (c *Client) fingerprintLoop(ctx context.Context) {
	next := map[string]time.Time{}
	soonest := func() time.Duration {
		d := time.Hour
		for _, f := range c.cfg.Host.Fingerprinters {
			if f.Period > 0 {
				d = min(d, time.Until(next[f.Name]))
			}
		}
		return max(d, 0)
	}
	periodic := false
	for _, f := range c.cfg.Host.Fingerprinters {
		next[f.Name] = time.Now().Add(f.Period)
		periodic = periodic || f.Period > 0
	}
	if !periodic {
		return
	}
	for {
		woken, ok := c.waitLook(ctx, soonest())
		if !ok {
			return
		}
		if woken != "" {
			next[woken] = time.Time{}
		}
		changed := false
		for _, f := range c.cfg.Host.Fingerprinters {
			if f.Period == 0 || time.Now().Before(next[f.Name]) {
				continue
			}
			before := c.node.current()
			if c.node.lookOne(ctx, c.log, f) {
				changed = true
				c.driverEvents(ctx, before, c.node.current())
			}
			next[f.Name] = time.Now().Add(f.Period)
		}
		if changed {
			c.nodeChanged()
		}
	}
}

// waitLook waits for d, or until a fingerprinter asks to be run, which it names. ok is false when ctx has ended. Only
// the first fingerprinter with a Wake channel is supported: the one of devices.
func (c *Client) waitLook(ctx context.Context, d time.Duration) (woken string, ok bool) {
	var wake <-chan struct{}
	name := ""
	for _, f := range c.cfg.Host.Fingerprinters {
		if f.Wake != nil {
			wake, name = f.Wake, f.Name
			break
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return "", false
	case <-t.C:
		return "", true
	case <-wake:
		return name, true
	}
}

// driverEvents reports drivers whose health has changed, best effort: the registration that follows carries the health
// itself.
func (c *Client) driverEvents(ctx context.Context, before, after *structs.Node) {
	var events []structs.NodeEvent
	for name, d := range after.Drivers {
		old, ok := before.Drivers[name]
		if !ok || old.Healthy == d.Healthy && old.Detected == d.Detected {
			continue
		}
		events = append(events, structs.NodeEvent{
			Subsystem: "Driver", Message: d.HealthDesc, Time: structs.LogTimeOf(time.Now()), Details: map[string]string{"driver": name},
		})
	}
	c.sendEvents(ctx, events)
}

func (c *Client) sendEvents(ctx context.Context, events []structs.NodeEvent) {
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	req := methods.NodeEventRequest{NodeAuth: c.Auth(), Events: events}
	if _, err := rpc.Invoke(ctx, c.conn, methods.NodeEvent, c.header(), &req); err != nil && ctx.Err() == nil {
		c.log.Warn("node events were not delivered", "events", len(events), "error", err)
	}
}

// Auth authenticates the node, in its own calls and in those that the agent makes for a user.
func (c *Client) Auth() methods.NodeAuth {
	return methods.NodeAuth{NodeID: c.id.id, Secret: c.id.secret, Start: c.id.start}
}
