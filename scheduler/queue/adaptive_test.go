package queue

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

func TestAdaptive(t *testing.T) {
	const at = structs.LogTime(1_700_000_000_000_000_000)
	of := func(after, run time.Duration, cpu int64) *contend.Workload {
		j := &structs.Job{Type: structs.JobBatch, Runtime: structs.Runtime{Limit: run},
			Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: cpu}}}}}}
		return &contend.Workload{Job: j, Queue: &structs.Workload{SubmitTime: at.Add(after), Priority: 50}}
	}
	scene := &Scene{Now: at.Add(time.Hour), Turnover: time.Hour}
	before := func(what string, a, b *contend.Workload, want bool) {
		t.Helper()
		if got := (Adaptive{}).Key(a, scene).Less((Adaptive{}).Key(b, scene)); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	long := of(0, 8*time.Hour, 1000)
	before("short work passes long work that was there before", of(time.Hour, time.Minute, 1000), long, true)
	before("a doubling of the run time is two doublings of the cost, so worth two turnovers", of(2*time.Hour-time.Minute, 4*time.Hour, 1000), long, true)
	before("and no more", of(2*time.Hour+time.Minute, 4*time.Hour, 1000), long, false)
	before("four times the size is worth one turnover", of(time.Hour-time.Minute, 8*time.Hour, 250), long, true)
	before("and no more", of(time.Hour+time.Minute, 8*time.Hour, 250), long, false)
	told := of(0, 8*time.Hour, 1000)
	told.Cost = predict.CostOf(time.Minute.Milliseconds())
	before("what was predicted counts before the limit", told, of(0, time.Hour, 1000), true)
	urgent := of(3*time.Hour, 8*time.Hour, 1000)
	urgent.Queue.Priority = 51
	before("priority is before all", urgent, of(0, time.Minute, 1), true)
	// Nothing starves: the dearest possible work goes before the cheapest that is submitted late enough.
	dear, cheap := of(0, 100*24*time.Hour, 1<<40), of(100*time.Hour, time.Second, 1)
	before("nothing starves", dear, cheap, true)
	// Nothing is known of the cluster yet: first come, first served.
	scene.Turnover = 0
	before("without turnover", long, of(time.Second, time.Second, 1), true)
}

// An order that knows run times limits waiting by itself; in others, work that waits too long goes first.
func TestLateGoesFirst(t *testing.T) {
	now := structs.LogTime(1_700_000_000_000_000_000)
	w := func(name string, waited time.Duration, limit time.Duration, i structs.Index) contend.Workload {
		j := &structs.Job{ID: name, Type: structs.JobBatch, Priority: 50, Runtime: structs.Runtime{Limit: limit}, Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t"}}}}}
		return contend.Workload{Key: j.Key(), Job: j, Queue: &structs.Workload{JobID: name, SubmitTime: now.Add(-waited), SubmitIndex: i, Priority: 50}}
	}
	pending := []contend.Workload{w("old", 30*time.Hour, 100*time.Hour, 1), w("new", time.Hour, time.Minute, 2)}
	for order, want := range map[structs.Order]int{structs.OrderAdaptive: 1, structs.OrderFCFS: 0} {
		l := NewLine(&contend.QueueTable{Turnover: 24 * time.Hour}, structs.SchedulerConfig{Order: order}, pending, now, 0)
		if got := l.Next(); got != want {
			t.Errorf("%s: %s is first", order, pending[got].Key.ID)
		}
	}
}

// Behind a blocked workload, easy-sjf tries the shortest first; pruning a line keeps the order of the others.
func TestBlockedAndPruned(t *testing.T) {
	now := structs.LogTime(1_700_000_000_000_000_000)
	var pending []contend.Workload
	for i, limit := range []time.Duration{time.Hour, 9 * time.Hour, 0, 2 * time.Hour, time.Hour} {
		j := &structs.Job{ID: string(rune('a' + i)), Type: structs.JobBatch, Priority: 50, CreateIndex: structs.Index(i + 1), Runtime: structs.Runtime{Limit: limit},
			Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t"}}}}}
		pending = append(pending, contend.Workload{Key: j.Key(), Job: j})
	}
	for _, c := range []struct{ backfill, want string }{{structs.BackfillSJF, "aedbc"}, {structs.BackfillEASY, "abcde"}} {
		l := NewLine(nil, structs.SchedulerConfig{Order: structs.OrderFCFS, Backfill: c.backfill}, pending, now, 0)
		got := ""
		for i := l.Next(); i >= 0; i = l.Next() {
			got += pending[i].Key.ID
			l.Blocked(i)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.backfill, got, c.want)
		}
		l = NewLine(nil, structs.SchedulerConfig{Order: structs.OrderFCFS, Backfill: c.backfill}, pending, now, 0)
		l.Next()
		l.Prune(func(i int) bool { return i%2 == 1 })
		got = ""
		for i := l.Next(); i >= 0; i = l.Next() {
			got += pending[i].Key.ID
		}
		if got != "ce" {
			t.Errorf("pruned: %s", got)
		}
		l.Prune(func(int) bool { return true })
	}
}
