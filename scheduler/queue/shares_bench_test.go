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

// BenchmarkShares decides about a job for which members of one large gang may be preempted by shares.
func BenchmarkShares(b *testing.B) {
	for _, members := range []int{256, 1024} {
		b.Run(fmt.Sprint(members, " members"), func(b *testing.B) {
			f := oneGang(b, members)
			in := f.input("fair")
			for b.Loop() {
				again := in
				again.Line = NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
				scheduler.Schedule(again, policy.Builtin["binpack"])
			}
		})
	}
}

// TestSharesCountSteps: what a preemption by shares looks at counts in the budget of the pass, and is linear in the size of a
// gang.
func TestSharesCountSteps(t *testing.T) {
	steps := func(members int) int {
		f := oneGang(t, members)
		_, rep := scheduler.Schedule(f.input("fair"), policy.Builtin["binpack"])
		return rep.Steps
	}
	small, large := steps(64), steps(512)
	if small < 64 || large < 512 || large > 9*small {
		t.Errorf("%d steps for a gang of 64, %d for one of 512: want at least as many as members, and 8 times as many", small, large)
	}
}
