package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

// An array of many short tasks on a whole server: never more at once than its concurrency, every index runs once, ended
// allocations are collected while it runs, and failed indices run again on request.
func TestArray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 20)
		const count, together = 3_000, 200
		f.set(func() { f.runs["sweep"], f.odd["sweep"] = 100*time.Millisecond, 1_000 })
		key := structs.JobKey{Namespace: "default", ID: "sweep"}
		register(t, s, passJob("sweep", 1, func(j *structs.Job) {
			j.Type, j.Array = structs.JobBatch, &structs.Array{Count: count, Concurrency: together}
			j.Groups[0].Reschedule = structs.Reschedule{}
			j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 10, MemoryMiB: 10}
		}))
		most, kept := 0, 0
		dead := func() bool {
			snap := s.Published().Snapshot
			holding := 0
			for _, a := range snap.AllocsByJob(key) {
				if structs.Holds(a) {
					holding++
				}
			}
			most, kept = max(most, holding), max(kept, len(snap.AllocsByJob(key)))
			return snap.JobByKey(key).Status == structs.JobDead
		}
		waitFor(t, 10*time.Minute, "the end of the array", dead)
		if most > together || most < together/2 {
			t.Errorf("%d ran at once; the cap is %d", most, together)
		}
		if kept > structs.ArrayKept+structs.ArrayKept/4+2*together {
			t.Errorf("%d allocations were kept; want about %d", kept, structs.ArrayKept)
		}
		sum := func() (complete, failed, queued int) {
			snap := s.Published().Snapshot
			g := endpoint.Summarize(snap, snap.JobByKey(key)).Groups["g"]
			return g.Complete, g.Failed, g.Queued
		}
		if c, x, q := sum(); c != count-3 || x != 3 || q != 0 {
			t.Errorf("%d complete, %d failed, %d queued; want %d, 3, 0", c, x, q, count-3)
		}
		if state := s.Published().Snapshot.ArrayByKey(key); state == nil || len(state.Ended) > 10 {
			t.Errorf("ends are not kept as runs: %+v", state)
		}
		f.set(func() { f.odd["sweep"] = 0 })
		mustApply(t, s, &structs.WorkloadCommand{Namespace: "default", JobID: "sweep", Action: structs.ActionRetry})
		waitFor(t, time.Minute, "the end of the retry", func() bool {
			c, x, _ := sum()
			return dead() && c == count && x == 0
		})
	})
}
