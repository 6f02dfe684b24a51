package model

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// A view that was advanced over batches is the view of the state after them, also where a batch changes an allocation
// several times and where nodes are not known.
func TestAdvanceIsANewView(t *testing.T) {
	job := &structs.Job{ID: "j"}
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		var nodes []*structs.Node
		for i := range 30 {
			nodes = append(nodes, &structs.Node{ID: structs.NodeID{byte(i)}, Resources: structs.NodeResources{Networks: []structs.NodeNetwork{{IP: "10.0.0.1"}}}})
		}
		v := NewView(1, nodes, nil, nil)
		state := map[structs.AllocID]*structs.Allocation{}
		for step := range 300 {
			d := structs.Delta{Index: structs.Index(step + 2)}
			for range rnd.IntN(60) {
				var id structs.AllocID
				binary.BigEndian.PutUint64(id[:], rnd.Uint64N(400)*0x9e3779b97f4a7c15)
				before := state[id]
				a := &structs.Allocation{ID: id, NodeID: structs.NodeID{byte(rnd.IntN(33))}, Job: job, Desired: structs.DesiredRun, Client: structs.ClientPending}
				if before != nil {
					*a = *before
				}
				switch {
				case rnd.IntN(4) == 0:
					a.Client = structs.ClientComplete
				case rnd.IntN(3) == 0:
					a.Client, a.StartedAt = structs.ClientRunning, structs.LogTime(1+step)
				case before == nil || rnd.IntN(3) == 0:
					a.Resources = structs.Vector{CPU: rnd.Int64N(100), MemoryMiB: rnd.Int64N(100)}
					if rnd.IntN(3) == 0 {
						a.Ports = []structs.PortGrant{{Value: 1000 + rnd.IntN(50)}}
					}
				}
				d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{Before: before, After: a})
				if state[id] = a; a.ClientTerminal() && rnd.IntN(2) == 0 {
					d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{Before: a})
					delete(state, id)
				}
			}
			v = v.Advance(d)
		}
		var all []*structs.Allocation
		for _, a := range state {
			if structs.Holds(a) {
				all = append(all, a)
			}
		}
		slices.SortFunc(all, func(x, y *structs.Allocation) int { return CompareID(x.ID, y.ID) })
		want := NewView(v.Index(), nodes, all, nil)
		same := func(a, b []*Held) bool {
			return slices.EqualFunc(a, b, func(x, y *Held) bool { return x.ID == y.ID && x.same(y) })
		}
		for k, c := range want.Chunks {
			for i := range c.Nodes {
				got := v.Chunks[k]
				if got.Used[i] != c.Used[i] || !same(got.Hold[i].List(), c.Hold[i].List()) || !slices.Equal(HoldingOr(got.Hold[i]).ports, HoldingOr(c.Hold[i]).ports) {
					t.Fatalf("seed %d: row %d uses %+v of %d allocations, want %+v of %d", seed, i, got.Used[i], got.Hold[i].Size(), c.Used[i], c.Hold[i].Size())
				}
			}
		}
		if len(v.orphans) != len(want.orphans) {
			t.Fatalf("seed %d: orphans of %d nodes, want %d", seed, len(v.orphans), len(want.orphans))
		}
		for id, hs := range want.orphans {
			if !same(v.orphans[id], hs) {
				t.Fatalf("seed %d: node %s: %d orphans, want %d", seed, id, len(v.orphans[id]), len(hs))
			}
		}
	}
}

// A batch makes one new Holding of a node, not one for each allocation.
func TestAdvanceCopiesOnce(t *testing.T) {
	const n = 100
	node := &structs.Node{ID: structs.NodeID{1}}
	var d structs.Delta
	for i := range n {
		d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: &structs.Allocation{ID: structs.AllocID{byte(i)}, NodeID: node.ID, Desired: structs.DesiredRun, Client: structs.ClientPending}})
	}
	v := NewView(1, []*structs.Node{node}, nil, nil)
	if got := testing.AllocsPerRun(100, func() { v.Advance(d) }); got > n+50 {
		t.Errorf("%.0f objects for a batch of %d allocations of one node, want one each and a few more", got, n)
	}
}
