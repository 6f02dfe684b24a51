package queue

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// What was used an hour ago counts less with a half-life of an hour than with one of a day.
func TestHalfLifeOfShares(t *testing.T) {
	const now = structs.LogTime(1_000_000 * int64(time.Second))
	e := &Entity{Weight: 1, Usage: &structs.QueueUsage{Used: structs.Amount{GPUMilli: 4000 * 3600 * 24}, At: now.Add(-4 * time.Hour)}}
	share := func(half time.Duration) int64 {
		return Fair{}.Share(e, &Scene{Now: now, Queue: structs.Queue{HalfLife: half}, Total: structs.Amount{GPUMilli: 1_000_000}})
	}
	short, long := share(2*time.Hour), share(48*time.Hour)
	if short == 0 || short == long || share(24*time.Hour) == short {
		t.Errorf("shares %d and %d with half-lives of 2 and 48 hours: the half-life changes nothing", short, long)
	}
}

// Work that has had more GPU time than a level allows goes after work that has had none.
func TestServiceSinksLevels(t *testing.T) {
	of := func(attained int64) *contend.Workload {
		return &contend.Workload{Job: &structs.Job{Type: structs.JobBatch}, Queue: &structs.Workload{Attained: attained}}
	}
	at := &Scene{Now: 1}
	if fresh, served := (MLFQ{}).Key(of(0), at), (MLFQ{}).Key(of(2*levels[1]), at); !fresh.Less(served) {
		t.Errorf("key %v without service, %v with service beyond all levels", fresh, served)
	}
}
