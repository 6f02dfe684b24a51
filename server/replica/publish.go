package replica

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Published is the state of the cluster at one index, as store and as columns. Nothing reads one without the other
// (D2). It is immutable.
type Published struct {
	Index    structs.Index
	Time     structs.LogTime // of the last entry
	Snapshot *state.Snapshot
	View     *model.View
}

// Published is the newest state that this server has applied. It never goes backwards, except when an operator restores
// a snapshot (the cluster's RestoreEpoch rises then).
func (r *Replica) Published() *Published { return r.pub.Load() }

// Applied is one applied batch as subscribers see it.
type Applied struct {
	*Published
	Delta structs.Delta
	Lost  bool // batches before this one were dropped because the subscriber was slow: rebuild from Published
}

// viewOf builds the columns from nothing.
func viewOf(snap *state.Snapshot) *model.View {
	var nodes []*structs.Node
	for n := range snap.Nodes() {
		nodes = append(nodes, n)
	}
	var allocs []*structs.Allocation
	for a := range snap.Allocs() {
		if structs.Holds(a) {
			allocs = append(allocs, a)
		}
	}
	return model.NewView(snap.Index(), nodes, allocs, slices.Collect(snap.Pools()))
}
