package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestForecastWork: however little work is allowed, the first pass of each node pool is made.
func TestForecastWork(t *testing.T) {
	var nodes []*structs.Node
	var pending []contend.Workload
	for k, pool := range []structs.PoolName{"a", "b", "c"} {
		n, j := node(k+1), job(string(pool), 1)
		n.Pool, j.NodePool, j.Type = pool, pool, structs.JobBatch
		nodes, pending = append(nodes, n), append(pending, load(j, k+1))
	}
	starts := scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, nodes, nil, nil), Pending: pending, Now: 1}, Work: 1,
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line: func(in *scheduler.Input) contend.Line {
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: func(structs.AllocID) *structs.Allocation { return nil },
	}.Starts()
	if len(starts) != len(pending) {
		t.Errorf("%v start, want one of each of %d pools", starts, len(pending))
	}
}

// TestForecastWorkOfEnds: allocations of one job that end together are listed again one by one, so their ends use up the work, too.
func TestForecastWorkOfEnds(t *testing.T) {
	const running = 4000
	n, array, waits := node(1), job("array", running), job("waits", 1)
	n.Resources.CPU, n.Resources.MemoryMiB = running, running
	array.Type, array.Preemptible, waits.Type = structs.JobBatch, true, structs.JobBatch
	var allocs []*structs.Allocation
	for i := range running {
		allocs = append(allocs, &structs.Allocation{ID: structs.AllocID{byte(i >> 8), byte(i), 1}, Namespace: "default", JobID: "array", Job: array, Group: "g", NameIndex: i, NodeID: n.ID,
			Resources: structs.Vector{CPU: 1, MemoryMiB: 1}, Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateTime: 1, StartedAt: 1, Expect: time.Hour})
	}
	ended := 0
	scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, []*structs.Node{n}, allocs, nil), Now: 2, Pending: []contend.Workload{load(waits, 1)},
			Running: []contend.Workload{{Key: array.Key(), Job: array, Allocs: allocs}}},
		Work:   running,
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line: func(in *scheduler.Input) contend.Line {
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: func(id structs.AllocID) *structs.Allocation {
			ended++
			return allocs[int(id[0])<<8|int(id[1])]
		},
	}.Starts()
	if ended == 0 || ended > 100 {
		t.Errorf("%d of %d allocations ended, want a few", ended, running)
	}
}

// TestForecastOfPart: a job that starts in part holds back its queue until something ends, although its submitter is no longer the first.
func TestForecastOfPart(t *testing.T) {
	n := node(1)
	runs, part, small := timed("runs", 1, 1000, 0, time.Hour), timed("part", 2, 2000, 0, time.Hour), timed("small", 1, 500, 0, time.Hour)
	runs.Submitter.Name, part.Submitter.Name, small.Submitter.Name = "cat", "ann", "bob"
	part.SpecIndex, small.SpecIndex = 6, 7
	small.SubmitTime++
	held := holds(n, runs, 1, 10*time.Minute, nil)
	config := rules(structs.BackfillNone)
	config.Order = structs.OrderFair
	starts := scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, []*structs.Node{n}, []*structs.Allocation{held}, nil), Pending: []contend.Workload{load(part, 1), load(small, 2)}, Now: bookNow, Config: config,
			Queues: &contend.QueueTable{Total: structs.Amount{CPU: 4000, MemoryMiB: 8192}}},
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line: func(in *scheduler.Input) contend.Line {
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: func(structs.AllocID) *structs.Allocation { return held },
	}.Starts()
	want := []scheduler.Start{{At: bookNow, Load: 0}, {At: bookNow.Add(10 * time.Minute), Load: 1}}
	if !slices.Equal(starts, want) {
		t.Errorf("starts %v, want %v", starts, want)
	}
}

// TestForecastOfArray: an array waits again when one of its indices ends, and no longer when it has started the last.
func TestForecastOfArray(t *testing.T) {
	n := node(1)
	array, waits := timed("array", 1, 4000, 0, time.Hour), timed("waits", 1, 4000, 0, time.Hour)
	array.Array = &structs.Array{Count: 2, Concurrency: 1}
	waits.SpecIndex = 7
	held := holds(n, array, 1, 10*time.Minute, nil)
	var decided []structs.LogTime // passes that decide about the array
	starts := scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, []*structs.Node{n}, []*structs.Allocation{held}, nil), Pending: []contend.Workload{load(waits, 1)}, Now: bookNow, Config: rules(structs.BackfillNone),
			Queues: &contend.QueueTable{Total: structs.Amount{CPU: 4000, MemoryMiB: 8192}}},
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line: func(in *scheduler.Input) contend.Line {
			for i := range in.Pending {
				if in.Pending[i].Key == array.Key() {
					decided = append(decided, in.Now)
				}
			}
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: func(structs.AllocID) *structs.Allocation { return held },
		Load: func(structs.JobKey) contend.Workload {
			return contend.Workload{Key: array.Key(), Job: array, Allocs: []*structs.Allocation{held}}
		},
	}.Starts()
	if want := []structs.LogTime{bookNow.Add(10 * time.Minute)}; !slices.Equal(decided, want) {
		t.Errorf("the array is decided at %v, want %v", decided, want)
	}
	if want := []scheduler.Start{{At: bookNow.Add(70 * time.Minute), Load: 0}}; !slices.Equal(starts, want) {
		t.Errorf("starts %v, want %v", starts, want)
	}
}

// TestForecastOfFormerArray: when an index of an array ends whose job is none any more, nothing of it waits again.
func TestForecastOfFormerArray(t *testing.T) {
	n := node(1)
	array, waits := timed("array", 1, 4000, 0, time.Hour), timed("waits", 1, 4000, 0, time.Hour)
	newer := *array
	newer.Version++
	array.Array = &structs.Array{Count: 2, Concurrency: 1}
	held := holds(n, array, 1, 10*time.Minute, nil)
	starts := scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, []*structs.Node{n}, []*structs.Allocation{held}, nil), Pending: []contend.Workload{load(waits, 1)}, Now: bookNow, Config: rules(structs.BackfillNone),
			Queues: &contend.QueueTable{Total: structs.Amount{CPU: 4000, MemoryMiB: 8192}}},
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line:   func(in *scheduler.Input) contend.Line { return line(in) },
		Alloc:  func(structs.AllocID) *structs.Allocation { return held },
		Load: func(structs.JobKey) contend.Workload {
			return contend.Workload{Key: array.Key(), Job: &newer, Allocs: []*structs.Allocation{held}}
		},
	}.Starts()
	if want := []scheduler.Start{{At: bookNow.Add(10 * time.Minute), Load: 0}}; !slices.Equal(starts, want) {
		t.Errorf("starts %v, want %v", starts, want)
	}
}
