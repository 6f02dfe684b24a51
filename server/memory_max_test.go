package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// memory_max counts only if the scheduler configuration allows oversubscription. The caller's job is not changed.
func TestMemoryMaxNeedsOversubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster(t, 1, nil).servers[0]
		waitFor(t, 30*time.Second, "a leader", s.IsLeader)
		task := &structs.Task{Name: "t", Resources: structs.Resources{MemoryMiB: 32, MemoryMaxMiB: 64}}
		group := &structs.Group{Name: "g", Tasks: []*structs.Task{{Name: "other"}, task}}
		for _, on := range []bool{false, true} {
			if _, err := s.apply(t.Context(), replica.LaneUser, structs.Command{Body: &structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{Algorithm: "binpack", MemoryOversub: on}}}); err != nil {
				t.Fatal(err)
			}
			j := &structs.Job{Groups: []*structs.Group{group}}
			warnings := s.endpoints.DropMemoryMax(j)
			want, notes := int64(0), 1
			if on {
				want, notes = 64, 0
			}
			if got := j.Groups[0].Tasks[1].Resources.MemoryMaxMiB; got != want || len(warnings) != notes {
				t.Errorf("oversubscription %t: memory_max %d, want %d; warnings %q", on, got, want, warnings)
			}
		}
		if task.Resources.MemoryMaxMiB != 64 {
			t.Errorf("the job that was given has changed: got %v, want 64", task.Resources.MemoryMaxMiB)
		}
	})
}
