package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// BenchmarkQuickReject is a pass over 1,000 blocked workloads for which no node has room, with and without the refusal
// that needs no decision. Half of them ask for the same, so that search.NoFit answers for that half.
func BenchmarkQuickReject(b *testing.B) {
	for _, on := range []bool{true, false} {
		b.Run(fmt.Sprint(on), func(b *testing.B) {
			in := scheduler.Input{View: benchView(500), Now: bookNow, Config: rules(structs.BackfillGreedy)}
			for i := range 1000 {
				j := job(fmt.Sprintf("j%d", i), 1)
				j.Type, j.SubmitTime = structs.JobBatch, bookNow
				j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: int64(100_000 + i%2*i), MemoryMiB: 10}
				in.Pending = append(in.Pending, load(j, i))
			}
			plan, _ := scheduler.Schedule(in, binpack)
			for i, e := range plan.Entries { // they were decided once
				l := &in.Pending[i]
				l.Evals, l.Queue = nil, e.Workload
				for _, ev := range e.Evals {
					if ev.Status == structs.EvalBlocked {
						l.Blocked = ev
					}
				}
				if on {
					l.Least = contend.LeastOf(l.Job)
				}
			}
			var cpu time.Duration
			n := 0
			defer onThread()()
			for b.Loop() {
				start := threadTime()
				plan, _ := scheduler.Schedule(in, binpack)
				cpu += threadTime() - start
				if n++; len(plan.Entries) > 0 {
					b.Fatalf("%d workloads have a new answer", len(plan.Entries))
				}
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}

// BenchmarkNoFit is a pass over 200 blocked workloads for which no node has room and QuickReject does not apply:
// search.NoFit answers if they ask for the same, and cannot if each asks for another amount.
func BenchmarkNoFit(b *testing.B) {
	for _, alike := range []bool{true, false} {
		b.Run(fmt.Sprint(alike), func(b *testing.B) {
			in := scheduler.Input{View: benchView(500), Now: bookNow, Config: rules(structs.BackfillGreedy)}
			for i := range 200 {
				j := job(fmt.Sprintf("j%d", i), 1)
				j.Type, j.SubmitTime = structs.JobBatch, bookNow
				cpu := int64(100_000)
				if !alike {
					cpu += int64(i)
				}
				j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: cpu, MemoryMiB: 10}
				in.Pending = append(in.Pending, load(j, i))
			}
			scheduler.Schedule(in, binpack) // the caches that last from pass to pass are filled for both
			var cpu time.Duration
			n := 0
			defer onThread()()
			for b.Loop() {
				start := threadTime()
				scheduler.Schedule(in, binpack)
				cpu += threadTime() - start
				n++
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}
