package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestSavesTakeTurns: what is preempted or drained waits for its turn at the storage and for its save, by hand. A save takes 2 minutes. On
// two nodes with 2 GPUs each, a gang of all GPUs comes after 30 minutes, or node-0 drains.
func TestSavesTakeTurns(t *testing.T) {
	saver := func(name string, gpus int64, grace time.Duration) *Job {
		j := gpuJob(name, 0, 10*time.Hour, gpus)
		j.Job.Preemptible, j.Job.Priority = true, 10
		j.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: grace, Storage: "lustre1"}
		return j
	}
	gang := func(name string, members int, gpus int64) *Job {
		j := saver(name, gpus, 5*time.Minute)
		j.Job.Groups[0].Count, j.Job.Groups[0].Gang = members, &structs.Gang{}
		return j
	}
	joint := func(name string, both bool) *Job { // its second group is on the other node
		j := saver(name, 1, 5*time.Minute)
		g := *j.Job.Groups[0]
		if g.Name = "second"; !both {
			g.Checkpoint = nil
		}
		g.Tasks = gpuJob("", 0, 0, 2).Job.Groups[0].Tasks
		j.Job.Groups, j.Job.AllAtOnce = append(j.Job.Groups, &g), true
		return j
	}
	a, b, urgent := saver("a", 2, 5*time.Minute), saver("b", 2, 5*time.Minute), gpuJob("urgent", 30*time.Minute, time.Minute, 2)
	urgent.Job.Priority, urgent.Job.Groups[0].Count, urgent.Job.Groups[0].Gang = 90, 2, &structs.Gang{}
	drain := func(deadline time.Duration) []NodeEvent {
		return []NodeEvent{{At: 30 * time.Minute, Node: 0, What: EventDrain, Deadline: deadline}}
	}
	lustre1 := map[string]int64{"lustre1": 1}
	for _, c := range []struct {
		what   string
		jobs   []*Job
		limit  map[string]int64
		events []NodeEvent
		until  time.Duration
		want   string
	}{
		{"no limit", []*Job{a, b, urgent}, nil, nil, 33 * time.Minute,
			"30m a.g0 is stopped, 30m b.g0 is stopped, 32m a.g0 ends, 32m urgent.g0 starts, 32m b.g0 ends, 32m urgent.g1 starts"},
		{"one at a time", []*Job{a, b, urgent}, lustre1, nil, 35 * time.Minute,
			"30m a.g0 is stopped, 30m b.g0 is stopped, 32m a.g0 ends, 32m urgent.g0 starts, 34m b.g0 ends, 34m urgent.g1 starts"},
		{"another storage is limited", []*Job{a, b, urgent}, map[string]int64{"nfs": 1}, nil, 33 * time.Minute,
			"30m a.g0 is stopped, 30m b.g0 is stopped, 32m a.g0 ends, 32m urgent.g0 starts, 32m b.g0 ends, 32m urgent.g1 starts"},
		{"a save ends with its grace", []*Job{saver("a", 2, time.Minute), b, urgent}, lustre1, nil, 34 * time.Minute,
			"30m a.g0 is stopped, 30m b.g0 is stopped, 31m a.g0 ends, 31m urgent.g0 starts, 33m b.g0 ends, 33m urgent.g1 starts"},
		{"who waits for half an hour saves in any case", []*Job{saver("a-slow", 2, 3*time.Hour), b, urgent}, lustre1, nil, 63 * time.Minute,
			"30m a-slow.g0 is stopped, 30m b.g0 is stopped, 1h2m b.g0 ends, 1h2m urgent.g0 starts"},
		{"a gang saves together, although it is larger than the limit", []*Job{gang("a", 2, 1), b, urgent}, lustre1, nil, 35 * time.Minute,
			"30m a.g0 is stopped, 30m a.g1 is stopped, 30m b.g0 is stopped, 32m a.g0 ends, 32m a.g1 ends, 32m urgent.g1 starts, 34m b.g0 ends, 34m urgent.g0 starts"},
		{"a drain at once waits for no turn", []*Job{saver("a", 1, 5*time.Minute), saver("c", 1, 5*time.Minute), b}, lustre1, drain(-1), time.Hour,
			"30m a.g0 is stopped, 30m c.g0 is stopped, 32m a.g0 ends, 32m c.g0 ends"},
		{"with a deadline all have their turn before it", []*Job{saver("a", 1, 5*time.Minute), saver("c", 1, 5*time.Minute), b}, lustre1, drain(30 * time.Minute), 2 * time.Hour,
			"49m40s a.g0 is stopped, 49m40s c.g0 is stopped, 51m40s a.g0 ends, 53m40s c.g0 ends"},
		{"a gang of which one node drains is stopped as a whole", []*Job{gang("a", 2, 2)}, lustre1, drain(-1), time.Hour,
			"30m a.g0 is stopped, 30m a.g1 is stopped, 32m a.g0 ends, 32m a.g1 ends"},
		{"and so are all groups of a job", []*Job{joint("a", true), saver("x", 1, 5*time.Minute)}, lustre1, drain(-1), time.Hour,
			"30m a.g0 is stopped, 30m a.second0 is stopped, 30m x.g0 is stopped, 32m a.g0 ends, 32m a.second0 ends, 32m x.g0 ends, 32m x.g0 starts"},
		{"of which one saves nothing", []*Job{joint("a", false), saver("x", 1, 5*time.Minute)}, lustre1, drain(-1), time.Hour,
			"30m a.g0 is stopped, 30m a.second0 ends, 30m x.g0 is stopped, 32m a.g0 ends, 32m x.g0 starts"},
	} {
		var log []string
		cfg := Config{Nodes: nodes(t, "2x2"), Source: &list{jobs: c.jobs}, Scheduler: *structs.DefaultSchedulerConfig(), Events: c.events, Notice: true,
			Queues: []*structs.Queue{{Path: structs.QueueDefault, Preempt: structs.PreemptPriority, PreemptMinRuntime: time.Second}}}
		cfg.Scheduler.CheckpointStorage = c.limit
		cfg.Policy = policy.Builtin["first-fit"]
		cfg.SaveTime = func(l *Live, _ *structs.Allocation) time.Duration {
			if l.Key.ID == "a-slow" {
				return 2 * time.Hour
			}
			return 2 * time.Minute
		}
		was := map[string]string{}
		look := func(e *Engine) { // for what has changed
			is := map[string]string{}
			for _, r := range e.runs {
				name := fmt.Sprintf("%s.%s%d", r.live.Key.ID, r.alloc.Group, r.alloc.NameIndex)
				switch {
				case r.ending:
					is[name] = "is stopped"
				case r.started && is[name] == "": // a drain places the next one at once
					is[name] = "starts"
				}
			}
			for name := range was {
				if is[name] == "" {
					is[name] = "ends"
				}
			}
			for _, name := range slices.Sorted(maps.Keys(is)) {
				if was[name] != is[name] && Since(e.now) >= 30*time.Minute && Since(e.now) < c.until {
					log = append(log, fmt.Sprintf("%s %s %s", strings.Replace(Since(e.now).String(), "m0s", "m", 1), name, is[name]))
				}
			}
			was = is
		}
		cfg.Hooks.Event = func(e *Engine, _ Kind, _ *Live) { look(e) }
		cfg.Hooks.Passed = func(e *Engine, _ *scheduler.Input, _ *scheduler.Plan, _ *scheduler.Report) { look(e) }
		e := NewEngine(cfg)
		if err := e.Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := strings.Join(log, ", "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.what, got, c.want)
		}
	}
}

// TestWaitingIsChargedOnce: what waits for the place of work that saves its state is not charged in addition to it. Of 4 GPUs "a" holds 2 and
// saves for 5 minutes, "urgent" waits for them, and the queue may hold 4, so that "third" starts at once.
func TestWaitingIsChargedOnce(t *testing.T) {
	four := structs.Unlimited
	four.GPUMilli = 4000
	a, urgent, third := gpuJob("a", 0, 10*time.Hour, 2), gpuJob("urgent", 30*time.Minute, time.Hour, 2), gpuJob("third", 31*time.Minute, time.Hour, 1)
	other := gpuJob("other", 0, 10*time.Hour, 1) // of another queue
	for _, j := range []*Job{a, urgent, third} {
		j.Job.Queue = "lab"
	}
	a.Job.Preemptible, a.Job.Priority, urgent.Job.Priority = true, 10, 90
	a.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: 5 * time.Minute}
	cfg := Config{Nodes: nodes(t, "1x4"), Source: &list{jobs: []*Job{a, other, urgent, third}}, Scheduler: *structs.DefaultSchedulerConfig(), Notice: true,
		Queues: []*structs.Queue{{Path: structs.QueueDefault}, {Path: "lab", Preempt: structs.PreemptPriority, PreemptMinRuntime: time.Second, Limit: &four}}}
	cfg.Policy = policy.For(nil, cfg.Scheduler)
	var log []string
	cfg.Hooks.Placed = func(e *Engine, l *Live, a *structs.Allocation) {
		if Since(e.now) > 0 && Since(e.now) < time.Hour {
			log = append(log, fmt.Sprintf("%s at %v, waits for %d", l.Key.ID, Since(e.now), len(a.WaitsOn)))
		}
	}
	cfg.Hooks.Passed = func(e *Engine, _ *scheduler.Input, _ *scheduler.Plan, _ *scheduler.Report) {
		if e.stats.now > e.stats.capacity {
			t.Errorf("at %v %v GPUs are in use, of %v", Since(e.now), e.stats.now, e.stats.capacity)
		}
	}
	if err := NewEngine(cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(log, "; "), "urgent at 30m0s, waits for 1; third at 31m0s, waits for 0"; got != want {
		t.Errorf("placed: %s, want %s", got, want)
	}
}
