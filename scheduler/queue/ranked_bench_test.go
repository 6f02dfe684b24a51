package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// crowd is a cluster with preemptible jobs that hold all its GPUs, and as many that wait, in queues in turn.
func crowd(t testing.TB, order structs.Order, nodes, jobs, queues int) scheduler.Input {
	f := newFloor(t, nodes, 32)
	for i := range queues {
		f.queues = append(f.queues, &structs.Queue{Path: structs.QueuePath(fmt.Sprint("q", i))})
	}
	submit := func() {
		for i := range jobs {
			j := f.submit(1, nodes*32/jobs, time.Hour, true)
			path := f.queues[1+i%queues].Path
			j.job.Queue, j.entry.Queue, j.job.Submitter.Name = path, path, fmt.Sprint("user", i)
		}
	}
	submit()
	f.settle(order)
	f.wait(10*time.Minute, func(*floorJob) bool { return false })
	submit()
	in := f.input(order)
	for i := range in.Pending {
		in.Pending[i].Blocked = &structs.Evaluation{}
	}
	return in
}

// BenchmarkRanked orders waiting work as users see it, with 200 preemptible jobs that hold 8000 GPUs and as many that wait, in one
// queue and in many.
func BenchmarkRanked(b *testing.B) {
	for _, c := range []struct {
		order  structs.Order
		queues int
	}{{structs.OrderAdaptive, 1}, {structs.OrderAdaptive, 200}, {structs.OrderFair, 200}} {
		b.Run(fmt.Sprint(c.order, ", queues: ", c.queues), func(b *testing.B) {
			in := crowd(b, c.order, 250, 200, c.queues)
			for b.Loop() {
				line := scheduler.Shown(&in, NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed))
				if line.Next() < 0 {
					b.Fatal("no work waits")
				}
			}
		})
	}
}

// sharesCounted counts how often shares are asked for.
type sharesCounted struct {
	Choosers
	asked *int
}

func (c sharesCounted) Sharing(q *structs.Queue, t *contend.QueueTable, now structs.LogTime) contend.Sharing {
	*c.asked++
	return c.Choosers.Sharing(q, t, now)
}

// TestRankedMeasuresNoShares: the order that users see does not depend on the shares by which work gives way, so they are not
// measured for it: that looks at all running work for each queue.
func TestRankedMeasuresNoShares(t *testing.T) {
	in, asked := crowd(t, structs.OrderFair, 2, 4, 4), 0
	in.Chooser = sharesCounted{asked: &asked}
	scheduler.Shown(&in, in.Line)
	if asked != 0 {
		t.Errorf("shares of %d queues were measured", asked)
	}
	if scheduler.Schedule(in, policy.Builtin["binpack"]); asked == 0 {
		t.Error("a pass measures no shares")
	}
}

// BenchmarkForecast predicts starts of as many waiting jobs and with as much work as `muster queue` allows for it, on a full cluster of
// 8000 GPUs where everything may be preempted. It is to cost no more than the line of 10,000 jobs (BenchmarkLine).
func BenchmarkForecast(b *testing.B) {
	in := crowd(b, structs.OrderFair, 250, 200, 20)
	for i := range in.Pending {
		in.Pending[i].Least = contend.LeastOf(in.Pending[i].Job)
	}
	held := map[structs.AllocID]*structs.Allocation{}
	for i := range in.Running {
		for _, a := range in.Running[i].Allocs {
			held[a.ID] = a
		}
	}
	starts := 0
	for b.Loop() {
		f := scheduler.Forecast{
			Input: &in, Work: 200_000, Policy: func(structs.PoolName) search.Policy { return policy.Builtin["binpack"] },
			Line: func(in *scheduler.Input) contend.Line {
				return NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
			},
			Alloc: func(id structs.AllocID) *structs.Allocation { return held[id] },
		}
		starts = len(f.Starts())
	}
	b.ReportMetric(float64(starts), "starts")
}
