package server

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// A new leader foretells from state what the old one had learned from the log.
func TestForetell(t *testing.T) {
	job := &structs.Job{ID: "train-1", Name: "train-1", Type: structs.JobBatch, Submitter: structs.Submitter{Name: "ann"},
		Runtime: structs.Runtime{Limit: 10 * time.Hour}, Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 500}}}}}}
	var old, next foretell
	old.load(slices.Values([]*structs.Allocation(nil)))
	var all []*structs.Allocation
	for i := range 10 {
		began := structs.LogTime(1 + i*int(time.Hour))
		a := &structs.Allocation{ID: structs.AllocID{byte(i)}, Job: job, Group: "g", Client: structs.ClientRunning, Desired: structs.DesiredRun, StartedAt: began, Expect: 10 * time.Hour}
		b := *a
		b.Client, b.FinishedAt = structs.ClientComplete, began.Add(30*time.Minute)
		if i == 3 { // stopped by somebody: says nothing
			b.Desired = structs.DesiredStop
		}
		old.feed(&structs.Delta{Allocs: []structs.Changed[structs.Allocation]{{Before: a, After: &b}}})
		old.feed(&structs.Delta{Allocs: []structs.Changed[structs.Allocation]{{Before: &b, After: &b}}}) // told again
		all = append(all, &b)
	}
	slices.Reverse(all)
	next.load(slices.Values(all))
	again := *job
	again.ID, again.Name = "train-2", "train-2"
	for name, f := range map[string]*foretell{"the leader": &old, "the next one": &next} {
		w := scheduler.Workload{Key: again.Key(), Job: &again}
		f.tell(&w)
		if w.Expect != 30*time.Minute || w.Cost <= 0 || w.Least == nil || f.turnover() != 15*time.Minute {
			t.Errorf("%s expects %v, cost %d, turnover %v", name, w.Expect, w.Cost, f.turnover())
		}
		if f.errors.N != 9 {
			t.Errorf("%s counts %d predictions", name, f.errors.N)
		}
		service := again
		service.Type = structs.JobService
		w = scheduler.Workload{Key: again.Key(), Job: &service}
		if f.tell(&w); w.Expect != 0 {
			t.Errorf("%s expects a service to end after %v", name, w.Expect)
		}
	}
}
