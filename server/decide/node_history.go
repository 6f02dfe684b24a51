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

// historyKept is how many ended allocations of a node are learned from, the newest ones. An end counts for an eighth, so that
// older ones would say nothing more.
const historyKept = 64

// nodeHistory records how work ended on each node (search.Past), for policies that learn from it. It follows from the state
// alone, from the allocations that ended there and have not been collected: a new leader says the same as the old one. What
// was computed is kept until something changes on the node.
type nodeHistory struct {
	mu    sync.Mutex
	of    map[structs.NodeID]search.Past
	known map[structs.NodeID]bool // of is right for it
	out   map[structs.NodeID]search.Past
}

// load forgets everything.
func (p *nodeHistory) load() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of, p.known, p.out = map[structs.NodeID]search.Past{}, map[structs.NodeID]bool{}, nil
}

// feed forgets the nodes on which work ended or was collected.
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

// at is the past of all nodes of a state. The caller must not change it.
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

// pastOf is what the allocations of a node teach, in the order of their ends: those that ended by themselves or were lost with
// the node. What servers stopped says nothing about it.
func pastOf(as []*structs.Allocation) (x search.Past) {
	var ended []*structs.Allocation
	for _, a := range as {
		lost := a.Client == structs.ClientLost
		if a.ClientTerminal() && a.StartedAt != 0 && (lost || !a.ServerTerminal() || !a.Next.IsZero() && a.Client == structs.ClientFailed) {
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

// learns reports whether the policy of some pending job looks at the past of nodes.
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
