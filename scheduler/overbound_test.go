package scheduler

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestBeyondCountsJobsOnce: a job that is decided about again, because it may take the places of others, is one job.
func TestBeyondCountsJobsOnce(t *testing.T) {
	in := &Input{Queues: &QueueTable{Queues: []*structs.Queue{{Path: structs.QueueRoot, BackfillMaxJobs: 2}}}}
	b := &reservations{in: in, rules: map[structs.QueuePath]*structs.Queue{}}
	load := func(id string) *Workload {
		return &Workload{Key: structs.JobKey{ID: id}, Job: &structs.Job{ID: id}}
	}
	b.heads(load("head"))
	for _, c := range []struct {
		id  string
		may bool
	}{{"a", true}, {"a", true}, {"a", true}, {"b", true}, {"b", true}, {"c", false}} {
		if why := b.overBound(load(c.id)); (why == nil) != c.may {
			t.Errorf("job %s: %+v", c.id, why)
		}
	}
}
