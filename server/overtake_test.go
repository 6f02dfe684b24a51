package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// TestRoomFreedDuringPass: room that becomes free while a pass refuses a job goes to that job, not to one behind it which the event
// wakes first. The job that was refused is decided again as soon as its refusal is committed.
func TestRoomFreedDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Server
		var armed atomic.Bool
		s = testServer(t, func(c *Config) {
			c.Testing.Decide.BeforeSchedule = func(in scheduler.Input) {
				for i := range in.Pending {
					if in.Pending[i].Key.ID != "first" || !armed.CompareAndSwap(true, false) {
						continue
					}
					var ends []structs.AllocObserved // after the pass has got its input
					for _, a := range live(s, "before") {
						ends = append(ends, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, FinishedAt: in.Now})
					}
					mustApply(t, s, &structs.AllocObservedCommand{Updates: ends})
				}
			}
		})
		newGPUFleet(t, s, 1)
		job := func(id string, priority int) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Priority, j.Groups[0].Reschedule = structs.JobBatch, priority, structs.Reschedule{}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})
		}
		register(t, s, job("before", 50))
		waitFor(t, 10*time.Second, "first run", func() bool { return running(s, "before") == 1 })
		register(t, s, job("behind", 10))
		time.Sleep(5 * time.Second)
		armed.Store(true)
		register(t, s, job("first", 90))
		began := time.Now()
		waitFor(t, 10*time.Second, "second run", func() bool { return len(live(s, "first"))+len(live(s, "behind")) > 0 })
		if len(live(s, "first")) != 1 || time.Since(began) > 100*time.Millisecond {
			t.Errorf("after %s, the room that became free during the pass is held by %d of the first job and %d of the one behind it", time.Since(began), len(live(s, "first")), len(live(s, "behind")))
		}
	})
}
