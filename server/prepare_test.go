package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
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
		wantPrepared(t, s)
	})
}

// TestFollowersPrepare: servers that do not lead have prepared decisions too, so that the first decision after an election is
// as fast as later ones.
func TestFollowersPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		f := newGPUFleet(t, c.servers[lead], 4)
		f.batch("a", "", "ann", 1, time.Hour)
		time.Sleep(5 * time.Second)
		for _, s := range c.servers {
			wantPrepared(t, s)
		}
	})
}

// wantPrepared checks that a server has prepared its newest view, on which a job runs.
func wantPrepared(t *testing.T, s *Server) {
	t.Helper()
	if len(s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: "a"})) == 0 {
		t.Fatal("nothing runs")
	}
	if !scheduler.Prepare(s.Published().View, s.Published().Snapshot.SchedulerConfig(), func(structs.PoolName) search.Policy {
		t.Error("there is work to prepare")
		return policy.Builtin[structs.AlgorithmDefault]
	}) {
		t.Error("a pass runs for ever")
	}
}
