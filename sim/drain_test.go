package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestDrains: what a drain does with work, by hand. Of two nodes with 2 GPUs each, node-0 drains after 10 s, and takes work again after 60 s.
func TestDrains(t *testing.T) {
	service := func(j *Job) *Job {
		j.Job.Type = structs.JobService
		return j
	}
	gang := func(name string, members int, gpus int64) *Job {
		j := gpuJob(name, 0, 30*time.Second, gpus)
		j.Job.Groups[0].Count, j.Job.Groups[0].Gang = members, &structs.Gang{}
		return j
	}
	a := func(gpus int64) *Job { return gpuJob("a", 0, 30*time.Second, gpus) }
	b := func(run time.Duration) *Job { return gpuJob("b", 0, run, 2) } // on the other node
	for _, c := range []struct {
		what     string
		jobs     []*Job
		deadline time.Duration
		want     string
		moved    int64
	}{
		{"without a deadline it runs to its end", []*Job{a(2)}, 0, "a placed 0s on 0, a ended 30s", 0},
		{"at the deadline it moves, and goes on where it was", []*Job{a(2)}, 5 * time.Second, "a placed 0s on 0, a placed 15s on 1, a ended 30s", 1},
		{"at once", []*Job{a(2)}, -1, "a placed 0s on 0, a placed 10s on 1, a ended 30s", 1},
		{"without room it is stopped, and waits", []*Job{a(2), b(40 * time.Second)}, 5 * time.Second,
			"a placed 0s on 0, b placed 0s on 1, b ended 40s, a placed 40s on 1, a ended 55s", 1},
		{"it ends before the deadline", []*Job{a(2), b(time.Minute)}, 25 * time.Second, "a placed 0s on 0, b placed 0s on 1, a ended 30s, b ended 1m0s", 0},
		{"a service moves when the drain begins", []*Job{service(a(2))}, 20 * time.Second, "a placed 0s on 0, a placed 10s on 1, a ended 30s", 1},
		{"a service without room stays until the deadline", []*Job{service(a(2)), b(40 * time.Second)}, 20 * time.Second,
			"a placed 0s on 0, b placed 0s on 1, a ended 30s, b ended 40s", 0},
		{"and moves when there is room before", []*Job{service(a(2)), b(18 * time.Second)}, 20 * time.Second,
			"a placed 0s on 0, b placed 0s on 1, b ended 18s, a placed 18s on 1, a ended 30s", 1},
		{"a gang is stopped as a whole, and waits for the node", []*Job{gang("g", 2, 2)}, 5 * time.Second,
			"g placed 0s on 0, g placed 0s on 1, g placed 1m0s on 0, g placed 1m0s on 1, g ended 1m15s", 1},
		{"all members of a gang move together", []*Job{gang("g", 2, 1)}, 5 * time.Second,
			"g placed 0s on 0, g placed 0s on 0, g placed 15s on 1, g placed 15s on 1, g ended 30s", 2},
	} {
		var log []string
		cfg := Config{Nodes: nodes(t, "2x2"), Policy: policy.Builtin["first-fit"], Source: &list{jobs: c.jobs}, Events: []NodeEvent{
			{At: 10 * time.Second, Node: 0, What: EventDrain, Deadline: c.deadline}, {At: time.Minute, Node: 0, What: EventUp}}}
		cfg.Hooks.Placed = func(e *Engine, l *Live, a *structs.Allocation) {
			log = append(log, fmt.Sprintf("%s placed %v on %d", l.Key.ID, Since(e.now), e.rows[a.NodeID]))
		}
		cfg.Hooks.Ended = func(e *Engine, l *Live) {
			log = append(log, fmt.Sprintf("%s ended %v", l.Key.ID, Since(e.now)))
		}
		e := NewEngine(cfg)
		if err := e.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := strings.Join(log, ", "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.what, got, c.want)
		}
		if s := e.Stats(); s.Moved != c.moved || s.Preemptions != 0 || s.Drained != 1 {
			t.Errorf("%s: %d allocations moved, want %d; %d preemptions, and %d drains ended, want 0 and 1", c.what, s.Moved, c.moved, s.Preemptions, s.Drained)
		}
	}
}
