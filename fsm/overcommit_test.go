package fsm

import (
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// TestOvercommitFollowsThePool changes the ratio of a pool: its nodes get it, and plans that were verified with the old
// one are refused, as their epochs have moved. A node that joins later, or says otherwise, gets the pool's too.
func TestOvercommitFollowsThePool(t *testing.T) {
	f := New(Options{})
	index := structs.Index(0)
	apply := func(body structs.CommandBody) structs.Result {
		t.Helper()
		index++
		data, err := Encode(structs.Command{Time: structs.LogTime(index), Seed: structs.Seed{byte(index)}, Body: body}, feature.Newest)
		if err != nil {
			t.Fatal(err)
		}
		res, _, _ := f.ApplyBatch([]Entry{{Index: index, Data: data}})
		return res[0]
	}
	node := func(b byte, over int64) *structs.Node {
		return &structs.Node{ID: structs.NodeID{b}, SecretID: structs.SecretID{b}, Pool: "p", Overcommit: structs.Overcommit{Memory: over}}
	}
	apply(&structs.NodeRegisterCommand{Node: node(1, 900)})
	if n := f.Snapshot().NodeByID(structs.NodeID{1}); n.Overcommit.Memory != 0 {
		t.Errorf("a node gave itself an overcommit of %d %%", n.Overcommit.Memory)
	}
	before := f.Snapshot().NodeByID(structs.NodeID{1}).Epoch
	apply(&structs.PoolUpsertCommand{Pools: []*structs.NodePool{{Name: "p", Overcommit: structs.Overcommit{CPU: 150, Memory: 120}}}})
	n := f.Snapshot().NodeByID(structs.NodeID{1})
	if n.Overcommit != (structs.Overcommit{CPU: 150, Memory: 120}) || n.Epoch <= before {
		t.Errorf("the pool's ratio reached the node as %+v, epoch %d after %d", n.Overcommit, n.Epoch, before)
	}
	apply(&structs.NodeRegisterCommand{Node: node(2, 0)})
	if n := f.Snapshot().NodeByID(structs.NodeID{2}); n.Overcommit.CPU != 150 {
		t.Errorf("a node that joined later has %+v", n.Overcommit)
	}
	for _, pct := range []int64{9, 1001, -5} {
		if res := apply(&structs.PoolUpsertCommand{Pools: []*structs.NodePool{{Name: "p", Overcommit: structs.Overcommit{CPU: pct}}}}); res.Err == nil {
			t.Errorf("an overcommit of %d %% was accepted", pct)
		}
	}
}
