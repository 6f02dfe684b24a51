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
