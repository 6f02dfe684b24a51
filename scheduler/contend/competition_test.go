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
		return &Contest{Competition: Competition{Pool: n.Pool}, unit: 1, runs: []*contenderRun{{allocs: as, losses: make([]int64, len(as))}}}
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

// TestSettled: a workload that was refused before is not decided again while those that should hold places have all that
// would be room for it. One that has something new to decide is, as is one that waited for something else than room: what it
// waits for now must be written down, or nothing would wake it. All are where one of the others found no place or moves.
func TestSettled(t *testing.T) {
	blocked := func(evals ...*structs.Evaluation) Workload {
		return Workload{Key: structs.JobKey{ID: "b"}, Blocked: &structs.Evaluation{}, Evals: evals}
	}
	fresh, dependent := blocked(), blocked()
	fresh.Blocked = nil
	dependent.Blocked.FailedGroups = []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{CuredBy: structs.EventJobEnded}}}}
	for name, c := range map[string]struct {
		w    Workload
		r    Contest
		want bool
	}{
		"the others leave too little on every node": {blocked(), Contest{rest: []int64{1, 0, 1}}, true},
		"they leave enough on one":                  {blocked(), Contest{rest: []int64{1, 2, 1}}, false},
		"it was never refused":                      {fresh, Contest{rest: []int64{1}}, false},
		"it changed":                                {blocked(&structs.Evaluation{}), Contest{rest: []int64{1}}, false},
		"it waited for another job":                 {dependent, Contest{rest: []int64{1}}, false},
		"one of the others found no place":          {blocked(), Contest{rest: []int64{1}, missed: true}, false},
		"one of the others moves":                   {blocked(), Contest{rest: []int64{1}, moved: true}, false},
	} {
		cs := &Contests{env: &Env{Pending: []Workload{{}, c.w}}}
		c.r.pending, c.r.each = []int{-1, 0, 1}, []int64{7, 1, 2} // running work, another that waits, and this one
		if got := cs.settled(&c.r, 1); got != c.want {
			t.Errorf("%s: settled is %v, want %v", name, got, c.want)
		}
	}
}

// TestMayStop: work is stopped for a contender only if it loses less than that gains, has no higher priority, and is not protected.
// What this pass stops anyway may go in any case.
func TestMayStop(t *testing.T) {
	load, other := gpuWork("new", "q", 1, structs.GPURequest{Count: 1}), gpuWork("old", "q", 1, structs.GPURequest{Count: 1})
	load.Job.Priority, other.Job.Priority = 50, 50
	r := &Contest{gpu: true, unit: 1000}
	gain := r.gain(load, 1, 0)
	if gain <= 0 {
		t.Fatalf("a job that starts gains %d", gain)
	}
	for name, c := range map[string]struct {
		run  contenderRun
		more int // priority of the other
		want bool
	}{
		"it loses less":            {contenderRun{lost: gain - 1}, 0, true},
		"it loses as much":         {contenderRun{lost: gain}, 0, false},
		"it loses more":            {contenderRun{lost: gain + 1}, 0, false},
		"it is stopped anyway":     {contenderRun{lost: gain + 1, gone: true}, 0, true},
		"it is protected":          {contenderRun{fixed: true}, 0, false},
		"it has a higher priority": {contenderRun{}, 1, false},
		"it has a lower priority":  {contenderRun{lost: gain - 1}, -1, true},
	} {
		o := *other.Job
		o.Priority += c.more
		c.run.load = &Workload{Key: o.Key(), Job: &o}
		if got := c.run.lost < r.lossLimit(load, 1, &c.run); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestDraw: the lotteries have the seed of the draw in force, and the one given where none is.
func TestDraw(t *testing.T) {
	in := &QueueTable{Usage: []*structs.QueueUsage{{Path: structs.QueueRoot, Draw: 7}}}
	none := &QueueTable{Usage: []*structs.QueueUsage{{Path: structs.QueueRoot}}}
	if a, b, c := in.Draw(3), none.Draw(3), (&QueueTable{}).Draw(3); a != 7 || b != 3 || c != 3 {
		t.Errorf("seeds %d, %d and %d, want 7, 3 and 3", a, b, c)
	}
}

// TestPlacesOfJointJobs: a group without GPUs takes none of the GPUs that its job competes for, waiting or running.
func TestPlacesOfJointJobs(t *testing.T) {
	task := func(gpus int64) []*structs.Task {
		x := &structs.Task{Name: "t", Resources: structs.Resources{CPU: 100}}
		if gpus > 0 {
			x.Resources.GPU = []structs.GPURequest{{Count: gpus}}
		}
		return []*structs.Task{x}
	}
	j := &structs.Job{ID: "joint", AllAtOnce: true, Groups: []*structs.Group{{Name: "cpu", Count: 3, Tasks: task(0)}, {Name: "gpu", Count: 2, Tasks: task(2)}}}
	run := &contenderRun{}
	for _, gpus := range []int64{0, 0, 0, 2, 2} {
		a := &structs.Allocation{Resources: structs.Vector{CPU: 100}}
		for k := range gpus {
			a.Grants = append(a.Grants, structs.Grant{Device: "nvidia/gpu", Instance: string(rune('a' + k))})
		}
		run.allocs = append(run.allocs, a)
	}
	r := &Contest{}
	r.add(&Workload{Job: j}, nil, 0)
	r.add(&Workload{Job: j}, run, -1)
	r.measure(nil)
	for i := range r.Contenders {
		if c := &r.Contenders[i]; c.Count != 2 || c.Each != 2 || r.each[i] != 2000 {
			t.Errorf("contender %d has %d places of %d units, %d thousandths of GPUs each; want 2 of 2, 2000", i, c.Count, c.Each, r.each[i])
		}
	}
}
