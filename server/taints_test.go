package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestTaintsMove: work that does not tolerate a no-execute taint leaves at once, even if no other node has room. Work
// that tolerates it for a time leaves after that time, and work that tolerates it stays. Other effects move nothing.
// When the taint is removed, work comes back.
func TestTaintsMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		tolerate := func(tol ...structs.Toleration) func(*structs.Job) {
			return func(j *structs.Job) { j.Tolerations, j.Type = tol, structs.JobBatch }
		}
		register(t, s, passJob("plain", 2, tolerate()))
		register(t, s, passJob("other", 1, tolerate(structs.Toleration{Key: "disk"})))
		register(t, s, passJob("while", 1, tolerate(structs.Toleration{Key: "broken", Effect: structs.TaintNoExecute, For: 10 * time.Minute})))
		register(t, s, passJob("stays", 1, tolerate(structs.Toleration{Key: "broken"})))
		register(t, s, passJob("sys", 1, func(j *structs.Job) { j.Type = structs.JobSystem }))
		all := []string{"plain", "other", "while", "stays", "sys"}
		counts := func() (out [5]int) {
			for i, id := range all {
				out[i] = running(s, id)
			}
			return out
		}
		wait := func(why string, want [5]int) {
			t.Helper()
			waitFor(t, 15*time.Minute, why, func() bool { return counts() == want })
		}
		wait("everything", [5]int{2, 1, 1, 1, 1})
		id := f.nodes[0].ID
		taint := func(add, remove []structs.Taint) {
			mustApply(t, s, &structs.NodeTaintCommand{ID: id, Add: add, Remove: remove})
		}
		taint([]structs.Taint{{Key: "broken", Effect: structs.TaintNoSchedule}, {Key: "broken", Effect: structs.TaintPreferNoSchedule}}, nil)
		time.Sleep(time.Minute)
		wait("all but what a system job does where it may not be", [5]int{2, 1, 1, 1, counts()[4]})
		began := time.Now()
		taint([]structs.Taint{{Key: "broken", Effect: structs.TaintNoExecute}}, nil)
		wait("the first to leave", [5]int{0, 0, 1, 1, 0})
		if d := time.Since(began); d > time.Minute {
			t.Errorf("they left after %v", d)
		}
		wait("the second to leave", [5]int{0, 0, 0, 1, 0})
		if d := time.Since(began); d < 10*time.Minute {
			t.Errorf("what may stay for 10 minutes left after %v", d)
		}
		time.Sleep(time.Hour)
		if got := counts(); got != [5]int{0, 0, 0, 1, 0} {
			t.Errorf("with the taint: %v", got)
		}
		taint(nil, []structs.Taint{{Key: "broken"}})
		wait("everything again", [5]int{2, 1, 1, 1, 1})
	})
}
