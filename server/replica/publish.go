package replica

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Published is the state of the cluster at one index, as store and as columns; the two are always read together (D2).
// It is immutable.
type Published struct {
	Index    structs.Index
	Time     structs.LogTime // of the last entry
	Snapshot *state.Snapshot
	View     *model.View
}

// Published returns the newest state that this server has applied. Its index never goes backwards, except when an
// operator restores a snapshot, which raises the cluster's RestoreEpoch.
func (r *Replica) Published() *Published { return r.pub.Load() }

// Applied is one applied batch, as subscribers receive it.
type Applied struct {
	*Published
	Delta structs.Delta
	Lost  bool // earlier batches were dropped because the subscriber was slow, or replaced by a restore: rebuild from Published
}

// viewOf builds the columns of a state from scratch.
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
