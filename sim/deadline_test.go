package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestDeadlinesThatCanBeMet: jobs are cut out of a timetable in which each of them has its place, with 94 % of the GPUs
// in use, so that a clairvoyant scheduler can meet all deadlines. Earliest deadline first, which is not clairvoyant,
// misses fewer than one in a hundred; first come, first served misses many more, or the workload would prove nothing.
func TestDeadlinesThatCanBeMet(t *testing.T) {
	missed := map[structs.Order][2]int64{}
	for seed := range uint64(2) {
		for _, order := range []structs.Order{structs.OrderEDF, structs.OrderFCFS} {
			for _, backfill := range []string{structs.BackfillEASY, structs.BackfillSJF} {
				cfg := Config{Whole: true, Nodes: nodes(t, "2x8"), Policy: policy.Builtin["binpack"], Source: &list{jobs: timetable(seed, 16)},
					Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: order, Backfill: backfill}}}
				e := NewEngine(cfg)
				if err := e.Run(context.Background()); err != nil {
					t.Fatal(err)
				}
				m := missed[order]
				missed[order] = [2]int64{m[0] + e.stats.Missed, m[1] + e.stats.Deadlines}
				t.Logf("seed %d, %s, %s: %d of %d missed", seed, order, backfill, e.stats.Missed, e.stats.Deadlines)
			}
		}
	}
	rate := func(order structs.Order) float64 {
		return 100 * float64(missed[order][0]) / float64(max(missed[order][1], 1))
	}
	t.Logf("missed: edf %.2f %%, fcfs %.2f %%", rate(structs.OrderEDF), rate(structs.OrderFCFS))
	if n := missed[structs.OrderEDF][1]; n < 2000 || rate(structs.OrderEDF) >= 1 {
		t.Errorf("edf missed %.2f %% of %d deadlines that could be met", rate(structs.OrderEDF), n)
	}
	if rate(structs.OrderFCFS) < 3*max(1, rate(structs.OrderEDF)) {
		t.Errorf("fcfs missed %.2f %%: no order is needed for this workload", rate(structs.OrderFCFS))
	}
}

// timetable lays jobs of one GPU out on GPUs, one behind the other with gaps, over three days. All whose places
// begin in the same eight hours come together, at the beginning of them. Each is due when its place has ended and half as
// long again as it runs, a third of them up to a day later.
func timetable(seed uint64, gpus int) []*Job {
	rng := rand.New(rand.NewPCG(seed, 7))
	var jobs []*Job
	for g := range gpus {
		at := time.Duration(rng.Int64N(int64(time.Hour)))
		for at < 72*time.Hour {
			run := 10*time.Minute + time.Duration(rng.Int64N(int64(3*time.Hour)))
			slack := run / 2
			if rng.IntN(3) == 0 {
				slack += time.Duration(rng.Int64N(int64(24 * time.Hour)))
			}
			j := gpuJob(fmt.Sprintf("j%d-%d", g, len(jobs)), at/(8*time.Hour)*(8*time.Hour), run, 1)
			j.Job.Runtime.Expected = run
			j.Job.Deadline = Epoch.Add(at + run + slack)
			jobs = append(jobs, j)
			at += run + time.Duration(rng.Int64N(int64(run)/8))
		}
	}
	slices.SortStableFunc(jobs, func(a, b *Job) int { return cmp.Compare(a.At, b.At) })
	return jobs
}
