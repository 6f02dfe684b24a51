package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestLeaderPrepares: a leader without anything to decide has prepared decisions for work like the work that runs.
func TestLeaderPrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 4)
		f.batch("a", "", "ann", 1, time.Hour)
		time.Sleep(5 * time.Second)
		if len(s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: "a"})) == 0 {
			t.Fatal("nothing runs")
		}
		if !scheduler.Prepare(s.Published().View, s.Published().Snapshot.SchedulerConfig(), func(structs.PoolName) search.Policy {
			t.Error("there is work to prepare")
			return nil
		}) {
			t.Error("a pass runs for ever")
		}
	})
}
