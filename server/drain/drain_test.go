package drain

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestProven checks moments in the life of a replacement.
func TestProven(t *testing.T) {
	at := func(s int64) structs.LogTime { return structs.LogTime(0).Add(time.Duration(s) * time.Second) }
	m := &structs.Migrate{MaxParallel: 1, HealthCheck: "task_states", MinHealthyTime: 10 * time.Second, HealthyDeadline: 300 * time.Second}
	state := func(tasks ...*structs.TaskState) *structs.Allocation {
		a := &structs.Allocation{CreateTime: at(100), StartedAt: at(105), Client: structs.ClientRunning}
		states := map[string]*structs.TaskState{}
		for i, x := range tasks {
			states[string(rune('a'+i))] = x
		}
		a.TaskStates.Compact(states)
		return a
	}
	run := &structs.TaskState{State: "running", StartedAt: at(105)}
	for _, c := range []struct {
		name string
		a    *structs.Allocation
		now  int64
		ok   bool
		next structs.LogTime
	}{
		{"young", state(run), 110, false, at(115)},
		{"old enough", state(run), 115, true, 0},
		{"restarted", state(run, &structs.TaskState{State: "running", Restarts: 1, StartedAt: at(120)}), 125, false, at(130)},
		{"waits to be restarted", state(run, &structs.TaskState{State: "pending", Restarts: 1}), 125, false, at(400)},
		{"a task has failed", state(run, &structs.TaskState{State: "dead", Failed: true}), 125, false, at(400)},
		{"one that came first has ended", state(run, &structs.TaskState{State: "dead"}), 125, true, 0},
		{"pending", &structs.Allocation{CreateTime: at(100), Client: structs.ClientPending}, 200, false, at(400)},
		{"pending for too long", &structs.Allocation{CreateTime: at(100), Client: structs.ClientPending}, 400, true, 0},
		{"out of touch", &structs.Allocation{CreateTime: at(100), StartedAt: at(105), Client: structs.ClientUnknown}, 9000, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if ok, next := proven(c.a, m, at(c.now)); ok != c.ok || next != c.next {
				t.Errorf("%s: %v, %v; want %v, %v", c.name, ok, next, c.ok, c.next)
			}
		})
	}
}
