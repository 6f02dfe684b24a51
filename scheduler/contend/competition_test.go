package contend

import (
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestRoomOfContests: the contests of a node pool count what its nodes hold once. In each, what its own work holds is room, and
// what others hold is not; what ends is about to become free for all.
func TestRoomOfContests(t *testing.T) {
	n, far := gpuNode(1, 1, 80_000), gpuNode(2, 1, 80_000)
	n.Resources.CPU, far.Resources.CPU, far.Pool = 1000, 1000, "far"
	var allocs []*structs.Allocation
	hold := func(id byte, on *structs.Node, cpu int64) *structs.Allocation {
		a := running(lowJob(string(rune('a'+id)), 1, 1), id, 0, on, 0, 0, 0)
		a.Resources = structs.Vector{CPU: cpu}
		allocs = append(allocs, a)
		return a
	}
	ours, theirs, ends := hold(1, n, 100), hold(2, n, 20), hold(3, n, 3)
	hold(4, n, 400)
	hold(5, far, 50)
	ends.Desired = structs.DesiredStop
	w := search.NewPass(model.NewView(1, []*structs.Node{n, far}, allocs, nil), model.Overlay{})
	t.Cleanup(w.Release)
	cs := &Contests{env: &Env{W: w}}
	contest := func(as ...*structs.Allocation) *Contest {
		return &Contest{Competition: Competition{Pool: n.Pool}, unit: 1, runs: []*contenderRun{{allocs: as}}}
	}
	for _, c := range []struct {
		r      *Contest
		room   int64
		coming int64
	}{{contest(ours), 580, 3}, {contest(theirs), 500, 3}, {contest(ours, theirs), 600, 3}, {contest(), 480, 3}} {
		c.r.room(cs.pool(c.r), w)
		if !slices.Equal(c.r.Room, []int64{c.room}) || c.r.coming != c.coming || len(c.r.runs[0].holds) != len(c.r.runs[0].allocs) {
			t.Errorf("room %d, %d about to become free, %d holdings; want %d, %d, %d", c.r.Room, c.r.coming, len(c.r.runs[0].holds), c.room, c.coming, len(c.r.runs[0].allocs))
		}
	}
	if len(cs.pools) != 1 {
		t.Errorf("the nodes of one pool were counted %d times", len(cs.pools))
	}
}
