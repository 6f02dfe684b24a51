package contend

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestBeyondCountsJobsOnce: a job that is decided twice, because it may take the places of others, counts as one job.
func TestBeyondCountsJobsOnce(t *testing.T) {
	b := &Reservations{rules: &Rules{Queues: &QueueTable{Queues: []*structs.Queue{{Path: structs.QueueRoot, BackfillMaxJobs: 2}}}, Config: &structs.SchedulerConfig{}}}
	load := func(id string) *Workload {
		return &Workload{Key: structs.JobKey{ID: id}, Job: &structs.Job{ID: id}}
	}
	b.noteHead(load("head"))
	for _, c := range []struct {
		id  string
		may bool
	}{{"a", true}, {"a", true}, {"a", true}, {"b", true}, {"b", true}, {"c", false}} {
		if why := b.OverBound(load(c.id)); (why == nil) != c.may {
			t.Errorf("job %s: %+v", c.id, why)
		}
	}
}
