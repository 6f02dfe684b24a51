package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// oneGang is a cluster that a gang of one user fills, and a job of another user that waits for one GPU.
func oneGang(t testing.TB, members int) *floor {
	f := newFloor(t, members/8, 8)
	gang := f.submit(1, members, 1000*time.Hour, true)
	g := gang.job.Groups[0]
	gang.job.AllAtOnce, g.Joint, g.Gang = false, false, &structs.Gang{}
	gang.job.Submitter.Name = "ann"
	f.settle("fair")
	if len(gang.allocs) != members {
		t.Fatalf("%d members run, want %d", len(gang.allocs), members)
	}
	f.wait(10*time.Minute, func(*floorJob) bool { return false })
	f.sharer("bob", structs.QueueDefault, 1, time.Hour, nil)
	return f
}

// oneElastic is a cluster that an elastic group fills, and a job of another queue and a higher priority that waits for one GPU,
// which the group may shrink for. The guarantee of the group's queue is in GPUs; 0: none. Other limits exist in any case.
func oneElastic(t testing.TB, members int, guarantee int64) *floor {
	f := newFloor(t, members/8, 8)
	team := &structs.Queue{Path: "team", Preempt: structs.PreemptNone}
	if guarantee > 0 {
		team.Guarantee = &structs.Amount{GPUMilli: 1000 * guarantee}
	}
	f.queues = append(f.queues, team, &structs.Queue{Path: "other", Guarantee: &structs.Amount{GPUMilli: 1000}})
	j := f.submit(1, members, 1000*time.Hour, true)
	g := j.job.Groups[0]
	j.job.Queue, j.entry.Queue = "team", "team"
	j.job.AllAtOnce, g.Joint, g.Elastic = false, false, &structs.Elastic{Min: 1, Max: members}
	f.settle(structs.OrderFCFS)
	if len(j.allocs) != members {
		t.Fatalf("%d members run, want %d", len(j.allocs), members)
	}
	f.wait(10*time.Minute, func(*floorJob) bool { return false })
	high := f.submit(1, 1, time.Hour, false)
	high.job.Priority, high.entry.Priority = 60, 60
	return f
}

// BenchmarkShares decides about a job for which members of one large group may be preempted: a gang by shares, and an elastic group
// that shrinks, with and without a guarantee of its queue.
func BenchmarkShares(b *testing.B) {
	for _, c := range []struct {
		name  string
		order structs.Order
		floor func(members int) *floor
	}{
		{"", structs.OrderFair, func(n int) *floor { return oneGang(b, n) }},
		{", elastic", structs.OrderFCFS, func(n int) *floor { return oneElastic(b, n, 0) }},
		{", elastic and guaranteed", structs.OrderFCFS, func(n int) *floor { return oneElastic(b, n, 1) }},
	} {
		for _, members := range []int{256, 1024} {
			b.Run(fmt.Sprint(members, " members", c.name), func(b *testing.B) {
				f := c.floor(members)
				in := f.input(c.order)
				for b.Loop() {
					again := in
					again.Line = NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
					scheduler.Schedule(again, policy.Builtin["binpack"])
				}
			})
		}
	}
}

// TestSharesCountSteps: what a preemption looks at counts in the budget of the pass, and is linear in the size of a gang, and of an
// elastic group whose queue has a guarantee: there, too, what the members hold that stop with each is not added up for each.
func TestSharesCountSteps(t *testing.T) {
	steps := func(f *floor, order structs.Order) int {
		_, rep := scheduler.Schedule(f.input(order), policy.Builtin["binpack"])
		return rep.Steps
	}
	linear := func(what string, small, large int) {
		t.Helper()
		if small < 64 || large < 512 || large > 9*small {
			t.Errorf("%d steps for %s of 64, %d for one of 512: want at least as many as members, and 8 times as many", small, what, large)
		}
	}
	linear("a gang", steps(oneGang(t, 64), structs.OrderFair), steps(oneGang(t, 512), structs.OrderFair))
	more := func(members int) int {
		return steps(oneElastic(t, members, 1), structs.OrderFCFS) - steps(oneElastic(t, members, 0), structs.OrderFCFS)
	}
	linear("the guarantee of an elastic group", more(64), more(512))
}
