package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// TestNodeReturnsDuringAPass: a node is down when a pass begins, and ready again when its decision is made. Its work, which ran on,
// is neither stopped nor lost, and no other takes its place.
func TestNodeReturnsDuringAPass(t *testing.T) {
	for name, edit := range map[string]func(*structs.Job){
		"service": func(*structs.Job) {},
		"batch":   func(j *structs.Job) { j.Type = structs.JobBatch },
		"gang":    func(j *structs.Job) { j.Type, j.Groups[0].Gang = structs.JobBatch, &structs.Gang{} },
		"away":    func(j *structs.Job) { j.Groups[0].Disconnect = &structs.Disconnect{LostAfter: time.Hour} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *Server
				var lost atomic.Pointer[structs.NodeID]
				gone := structs.NodeDown
				if name == "away" {
					gone = structs.NodeDisconnected
				}
				s = testServer(t, func(c *Config) {
					c.Testing.Decide.BeforeSchedule = func(in scheduler.Input) {
						id := lost.Load()
						if id == nil || in.View.Node(*id).Status != gone || !lost.CompareAndSwap(id, nil) {
							return
						}
						mustApply(t, s, &structs.NodeStatusCommand{ID: *id, Status: structs.NodeReady})
					}
				})
				newFleet(t, one(s), 3)
				register(t, s, passJob("work", 2, func(j *structs.Job) {
					j.Groups[0].Tasks[0].Resources.CPU = 3000 // one to a node
					edit(j)
				}))
				waitFor(t, 10*time.Second, "work", func() bool { return running(s, "work") == 2 })
				a := live(s, "work")[0]
				lost.Store(&a.NodeID)
				mustApply(t, s, &structs.NodeStatusCommand{ID: a.NodeID, Status: gone})
				waitFor(t, 10*time.Second, "pass in which the node returned", func() bool { return lost.Load() == nil })
				time.Sleep(time.Minute)
				made := len(s.Published().Snapshot.AllocsByJob(a.JobKey()))
				if a = s.Published().Snapshot.AllocByID(a.ID); a.Client != structs.ClientRunning || a.Desired != structs.DesiredRun || running(s, "work") != 2 {
					t.Errorf("the allocation is %s and to %s, and %d run; want it running, and 2", a.Client, a.Desired, running(s, "work"))
				}
				if made > 2 && name != "away" { // what runs in addition to work that is away ends when that is back
					t.Errorf("%d allocations were made, want 2", made)
				}
				if n := openEvals(s); n != 0 {
					t.Errorf("%d evaluations are open", n)
				}
			})
		})
	}
}
