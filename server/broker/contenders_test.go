package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestContendersComeTogether: where running work competes, a pass takes every job that waits for capacity, and none
// that waits for something else. WakeAt wakes them once, at its time.
func TestContendersComeTogether(t *testing.T) {
	compete := false
	b := New(Limits{}, Env{Competition: func(domain structs.PoolName) bool { return compete && domain == "default" }})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	n := byte(0)
	wait := func(job string, cure structs.EventKind) {
		n++
		b.Feed(made(10+structs.Index(n), eval(n, job, blockedOn(cure, 100))), 1)
	}
	wait("room", structs.EventAllocStopped)
	wait("quota", structs.EventQueueUsage)
	wait("late", structs.EventTime)
	wait("changed", structs.EventJobChanged)
	drain := func(now structs.LogTime) []string {
		p, ok := b.Take(now)
		if !ok {
			return nil
		}
		got := keys(p)
		slices.Sort(got)
		b.EndPass(p.ID)
		for _, it := range p.Items {
			n++
			b.Done(it.Key, 0, now)
			if len(it.Evals) > 0 {
				b.Feed(made(200+structs.Index(n), eval(it.Evals[0].ID[0], it.Key.ID, func(e *structs.Evaluation) { e.Status = structs.EvalComplete })), now)
			}
		}
		return got
	}
	check := func(now structs.LogTime, want ...string) {
		t.Helper()
		if got := drain(now); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("a pass took %v, want %v", got, want)
		}
	}
	check(1)
	n++
	b.Feed(made(150, eval(n, "new", nil)), 1)
	check(1, "new")
	compete = true
	check(1) // nothing is ready, so there is no competition
	n++
	b.Feed(made(151, eval(n, "newer", nil)), 1)
	check(1, "newer", "quota", "room")
	b.WakeAt("default", 50)
	b.WakeAt("default", 60)
	if at, ok := b.NextWake(); !ok || at != 60 {
		t.Fatalf("the next wake is at %d, want 60", at)
	}
	check(55)
	check(60, "quota", "room")
	check(70)
	if b.Counters.Roused != 4 {
		t.Errorf("%d roused, want 4", b.Counters.Roused)
	}
	b.WakeAt("default", 80)
	b.WakeAt("default", 0)
	check(90)
	b.WakeAt(DomainAll, 95)
	check(95, "quota", "room")
}
