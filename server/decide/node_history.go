package decide

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// historyKept bounds the ended allocations of a node to learn from, newest first. Each new end weighs an eighth, so
// older ones would change nothing.
const historyKept = 64

// nodeHistory records how work ended on each node (search.Past), for policies that learn from it. It follows from the
// state alone, from the allocations that ended on the node and have not been collected, so a new leader has the same
// history. Results are cached until the node's ended allocations change.
type nodeHistory struct {
	mu    sync.Mutex
	of    map[structs.NodeID]search.Past
	known map[structs.NodeID]bool // of has the current value, or none because nothing ended
	out   map[structs.NodeID]search.Past
}

// load clears the cache.
func (p *nodeHistory) load() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of, p.known, p.out = map[structs.NodeID]search.Past{}, map[structs.NodeID]bool{}, nil
}

// feed invalidates nodes on which work ended or was collected.
func (p *nodeHistory) feed(d *structs.Delta) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range d.Allocs {
		c := &d.Allocs[i]
		if a := c.Either(); a.ClientTerminal() || c.After == nil {
			p.forget(a.NodeID)
		}
	}
	for i := range d.Nodes {
		p.forget(d.Nodes[i].Either().ID)
	}
}

func (p *nodeHistory) forget(n structs.NodeID) {
	if p.known[n] {
		delete(p.known, n)
		p.out = nil
	}
}

// at returns the history of all nodes of a state that have one. The caller must not change it.
func (p *nodeHistory) at(snap *state.Snapshot) map[structs.NodeID]search.Past {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.of, p.known = map[structs.NodeID]search.Past{}, map[structs.NodeID]bool{}
	}
	for n := range snap.Nodes() {
		if p.known[n.ID] {
			continue
		}
		p.known[n.ID], p.out = true, nil
		if x := pastOf(snap.AllocsByNode(n.ID)); x.Ends > 0 {
			p.of[n.ID] = x
		} else {
			delete(p.of, n.ID)
		}
	}
	if p.out == nil {
		p.out = maps.Clone(p.of)
	}
	return p.out
}

// pastOf learns from the allocations of a node, in the order of their ends. Only those count that ended by themselves
// or were lost with the node; stops by servers say nothing about the node.
func pastOf(as []*structs.Allocation) (x search.Past) {
	var ended []*structs.Allocation
	for _, a := range as {
		lost := a.Client == structs.ClientLost
		if a.ClientTerminal() && a.StartedAt != 0 && (lost || !a.ServerTerminal() || !a.Lineage().Next.IsZero() && a.Client == structs.ClientFailed) {
			ended = append(ended, a)
		}
	}
	slices.SortFunc(ended, func(a, b *structs.Allocation) int {
		return cmp.Or(cmp.Compare(a.FinishedAt, b.FinishedAt), slices.Compare(a.ID[:], b.ID[:]))
	})
	for _, a := range ended[max(0, len(ended)-historyKept):] {
		x = x.Learn(a.Client == structs.ClientComplete, a.Expect, a.Ran())
	}
	return x
}

// learns reports whether the policy of some pending job uses the history of nodes.
func learns(pol search.Policy, pending []contend.Workload) bool {
	for i := range pending {
		c := pol.Capabilities()
		if c.ForJob != nil {
			c = c.ForJob(pending[i].Job).Capabilities()
		}
		if c.UsesHistory {
			return true
		}
	}
	return false
}
