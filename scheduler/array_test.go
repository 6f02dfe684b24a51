package scheduler_test

import (
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

func array(name string, count, concurrency int) *structs.Job {
	j := job(name, 1)
	j.Type = structs.JobBatch
	j.Array = &structs.Array{Count: count, Concurrency: concurrency}
	return j
}

// arrayCluster is an array of 100,000 in the middle of its life: 90,000 have ended, of which 1,000 still are
// allocations, 1,000 run, and there is room for a few more on 1,000 nodes.
func arrayCluster(nodes int) scheduler.Input {
	j := array("sweep", 100_000, 0)
	var ns []*structs.Node
	for i := range nodes {
		ns = append(ns, node(i))
	}
	var allocs []*structs.Allocation
	var ends []structs.ArrayEnd
	for i := range 89_000 {
		ends = append(ends, structs.ArrayEnd{Index: i, Failed: i%100 == 0})
	}
	for i := range 2_000 {
		a := &structs.Allocation{ID: structs.AllocID(id("alloc", i)), Namespace: "default", JobID: j.ID, Job: j, Group: "g", NameIndex: 89_000 + i,
			NodeID: ns[i%nodes].ID, Desired: structs.DesiredRun, Client: structs.ClientComplete, Resources: structs.GroupVector(j.Groups[0])}
		if i >= 1_000 {
			a.Client, a.StartedAt = structs.ClientRunning, 1
		}
		allocs = append(allocs, a)
	}
	l := load(j, 1, allocs...)
	l.Ended = &structs.ArrayState{Namespace: "default", JobID: j.ID, Ended: (*structs.ArrayState)(nil).With(ends)}
	return scheduler.Input{View: model.NewView(10, ns, allocs, nil), Now: 10, Pending: []contend.Workload{l}}
}

func TestArrayPass(t *testing.T) {
	// A new array on an empty cluster: a batch is placed, and a further evaluation continues.
	j := array("a", 100_000, 0)
	var ns []*structs.Node
	for i := range 1_000 {
		ns = append(ns, node(i))
	}
	count := func(p scheduler.Plan) (places int, indices map[int]bool, again bool) {
		indices = map[int]bool{}
		for _, e := range p.Entries {
			for _, part := range e.Parts {
				for _, pl := range part.Places {
					places++
					indices[pl.Index] = true
				}
			}
			for _, ev := range e.Evals {
				again = again || ev.Trigger == structs.TriggerArray && ev.Status == structs.EvalPending && ev.WaitUntil <= 10
			}
		}
		return places, indices, again
	}
	in := scheduler.Input{View: model.NewView(10, ns, nil, nil), Now: 10, Pending: []contend.Workload{load(j, 1)}}
	plan, rep := scheduler.Schedule(in, binpack)
	if n, idx, again := count(plan); n != 2_000 || !idx[0] || !idx[1_999] || !again || rep.Workloads[0].Failed {
		t.Errorf("first batch: %d placed, goes on: %v", n, again)
	}
	// A cap holds the rest back, and nothing is blocked.
	j.Array.Concurrency = 10
	plan, rep = scheduler.Schedule(in, binpack)
	if n, _, again := count(plan); n != 10 || again || rep.Workloads[0].Failed {
		t.Errorf("capped: %d placed, goes on: %v, failed: %v", n, again, rep.Workloads[0].Failed)
	}
	if q := plan.Entries[0].Evals[0].Queued["g"]; q != 0 {
		t.Errorf("capped: %d queued for want of room", q)
	}
	// In the middle of its life: indices that have ended, as runs or allocations, are not started again, and all
	// indices without room are counted.
	in = arrayCluster(130) // 130 x 8 fit by CPU; 1,000 run
	plan, rep = scheduler.Schedule(in, binpack)
	n, idx, again := count(plan)
	if n != 40 || again || !idx[91_000] || !idx[91_039] || !rep.Workloads[0].Failed {
		t.Errorf("middle: %d placed (%v), goes on: %v", n, idx, again)
	}
	g := rep.Workloads[0].Groups[0]
	if g.Wanted != 9_000 || g.Placed != 40 {
		t.Errorf("middle: %d of %d placed in the report, want 40 of 9000", g.Placed, g.Wanted)
	}
	// Retried: holes in the runs are filled first.
	l := &in.Pending[0]
	var kept []structs.ArrayRun
	for _, r := range l.Ended.Ended {
		if !r.Failed {
			kept = append(kept, r)
		}
	}
	l.Ended = &structs.ArrayState{Ended: kept}
	plan, _ = scheduler.Schedule(in, binpack)
	if n, idx, _ := count(plan); n != 40 || !idx[0] || !idx[100] || idx[1] {
		t.Errorf("retry: %d placed: %v", n, idx)
	}
}

// One decision about an array of 100,000, mostly ended, on 1,000 nodes.
func BenchmarkArrayPass(b *testing.B) {
	in := arrayCluster(1_000)
	for b.Loop() {
		plan, _ := scheduler.Schedule(in, binpack)
		if len(plan.Entries) == 0 {
			b.Fatal("nothing was placed")
		}
	}
}

// The same when the cluster is full: nothing can be placed.
func BenchmarkArrayPassFull(b *testing.B) {
	in := arrayCluster(125)
	for b.Loop() {
		if _, rep := scheduler.Schedule(in, binpack); !rep.Workloads[0].Failed {
			b.Fatal("something was placed")
		}
	}
}
