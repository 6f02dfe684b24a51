package contend

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// BenchmarkEarliestFree computes when 2 GPUs become free on 2,000 busy nodes, of which one has changed since, with and
// without the cached times of nodes.
func BenchmarkEarliestFree(b *testing.B) {
	for _, on := range []bool{true, false} {
		b.Run(fmt.Sprint(on), func(b *testing.B) {
			nodes, allocs := make([]*structs.Node, 2000), []*structs.Allocation(nil)
			for i := range nodes {
				nodes[i] = gpuNode(1, 8, 80_000)
				nodes[i].ID = structs.NodeID{byte(i >> 8), byte(i)}
				for k := range 8 {
					a := running(lowJob("low", 1, 1), 0, 0, nodes[i], k, 1, time.Hour)
					a.ID, a.Expect = structs.AllocID{1, byte(i >> 8), byte(i), byte(k)}, time.Duration(2+(i*7+k*13)%97)*time.Hour
					allocs = append(allocs, a)
				}
			}
			v := model.NewView(1, nodes, allocs, nil)
			load := gpuWork("high", "high", 1, structs.GPURequest{Count: 2})
			missing := []Missing{{Count: 1, Ask: match.CompileAsk(load.Job, load.Job.Groups[0], "")}}
			rows := make([]int, v.Rows)
			for row := range rows {
				rows[row] = row
			}
			var cpu time.Duration
			n := 0
			for b.Loop() {
				n++
				v = v.Advance(structs.Delta{Index: v.Index() + 1, Allocs: []structs.Changed[structs.Allocation]{{After: &structs.Allocation{ID: structs.AllocID{3, byte(n >> 8), byte(n)}, NodeID: nodes[n%2000].ID,
					JobID: "o", Group: "g", Resources: structs.Vector{CPU: 1}, Client: structs.ClientRunning, Desired: structs.DesiredRun}}}})
				w := search.NewPass(v, model.Overlay{})
				r := NewReservations(&Env{W: w, Now: testNow, Rules: &Rules{Config: &structs.SchedulerConfig{}}})
				if !on {
					q := earliestFree{b: r, ask: missing[0].Ask, missing: 1, devices: 2}
					q.memo(load.Job).Soon = nil
				}
				runtime.LockOSThread()
				var from, to unix.Timespec
				_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from)
				r.earliestFree(load.Job, missing, rows)
				_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
				runtime.UnlockOSThread()
				cpu += time.Duration(to.Nano() - from.Nano())
				w.Release()
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}

// BenchmarkAnyEnds looks for a known end on 10,000 nodes with 80,000 services, of which one has changed since the last pass. It is
// what a reservation costs first when a job finds no room.
func BenchmarkAnyEnds(b *testing.B) {
	nodes, allocs := make([]*structs.Node, 10_000), []*structs.Allocation(nil)
	service := lowJob("service", 1, 1)
	service.Type = structs.JobService
	for i := range nodes {
		nodes[i] = gpuNode(1, 8, 80_000)
		nodes[i].ID = structs.NodeID{byte(i >> 8), byte(i)}
		for k := range 8 {
			a := running(service, 0, 0, nodes[i], k, 1, time.Hour)
			a.ID = structs.AllocID{1, byte(i >> 8), byte(i), byte(k)}
			allocs = append(allocs, a)
		}
	}
	v := model.NewView(1, nodes, allocs, nil)
	n := 0
	for b.Loop() {
		n++
		v = v.Advance(structs.Delta{Index: v.Index() + 1, Allocs: []structs.Changed[structs.Allocation]{{After: &structs.Allocation{ID: structs.AllocID{3, byte(n >> 8), byte(n)}, NodeID: nodes[n%len(nodes)].ID,
			JobID: "o", Group: "g", Resources: structs.Vector{CPU: 1}, Client: structs.ClientRunning, Desired: structs.DesiredRun}}}})
		w := search.NewPass(v, model.Overlay{})
		if NewReservations(&Env{W: w, Now: testNow, Rules: &Rules{Config: &structs.SchedulerConfig{}}}).anyEnds() {
			b.Fatal("a service ends")
		}
		w.Release()
	}
}

// TestAnyEnds: a prediction or a limit is a known end wherever it is, also one that comes or goes, and one of this pass.
func TestAnyEnds(t *testing.T) {
	nodes := make([]*structs.Node, 600)
	for i := range nodes {
		nodes[i] = gpuNode(1, 1, 80_000)
		nodes[i].ID = structs.NodeID{byte(i >> 8), byte(i)}
	}
	v := model.NewView(1, nodes, nil, nil)
	ends := func(v *model.View, in *model.Held) bool {
		w := search.NewPass(v, model.Overlay{})
		defer w.Release()
		if in != nil {
			o := w.Get(599)
			next, _ := model.Fits(nodes[599], structs.Vector{CPU: 8000, MemoryMiB: 64_000, DiskMiB: 100_000}, 0, o, in)
			w.Set(599, next)
		}
		return NewReservations(&Env{W: w, Now: testNow, Rules: &Rules{Config: &structs.SchedulerConfig{}}}).anyEnds()
	}
	step := func(before, after *structs.Allocation) {
		v = v.Advance(structs.Delta{Index: v.Index() + 1, Allocs: []structs.Changed[structs.Allocation]{{Before: before, After: after}}})
	}
	forever := running(lowJob("forever", 1, 1), 1, 0, nodes[0], 0, 1, time.Hour)
	step(nil, forever)
	if ends(v, nil) {
		t.Error("work without a prediction or limit ends")
	}
	predicted := running(lowJob("predicted", 1, 1), 2, 0, nodes[300], 0, 1, time.Hour)
	predicted.Expect = 2 * time.Hour
	limited := running(lowJob("limited", 1, 1), 3, 0, nodes[599], 0, 1, time.Hour)
	limited.Job.Runtime.Limit = 2 * time.Hour
	for _, a := range []*structs.Allocation{predicted, limited} {
		if step(nil, a); !ends(v, nil) {
			t.Errorf("the end of %s is not seen", a.JobID)
		}
		if step(a, nil); ends(v, nil) {
			t.Errorf("the end of %s is seen when it is gone", a.JobID)
		}
	}
	if !ends(v, &model.Held{ID: structs.AllocID{9}, Need: structs.Vector{CPU: 1}, Work: model.HeldWork{Job: forever.Job, Expect: time.Hour, Began: testNow}}) {
		t.Error("the end of what the pass has placed is not seen")
	}
}
