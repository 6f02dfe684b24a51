package reconcile

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestListed: a requeue list names reasons, every failure, or failures with an exit code.
func TestListed(t *testing.T) {
	ended := func(client structs.ClientStatus, code int64) *structs.Allocation {
		return &structs.Allocation{Client: client, TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{
			"t": {Failed: client == structs.ClientFailed, Events: []structs.TaskEvent{{ExitCode: code}}}})}
	}
	failed := ended(structs.ClientFailed, 75)
	for _, c := range []struct {
		on     string
		a      *structs.Allocation
		reason string
		want   bool
	}{
		{structs.RequeueNodeLost, failed, structs.RequeueNodeLost, true},
		{structs.RequeuePreempt, failed, structs.RequeueNodeLost, false},
		{structs.RequeueFailure, failed, structs.RequeueNodeLost, true},
		{structs.RequeueExit + "75", failed, structs.RequeueNodeLost, true},
		{structs.RequeueExit + "74", failed, structs.RequeueNodeLost, false},
		{structs.RequeueFailure, failed, structs.RequeueLimit, false},
		{structs.RequeueFailure, failed, structs.RequeuePreempt, false},
		{structs.RequeueFailure, ended(structs.ClientComplete, 0), structs.RequeueNodeLost, false},
		{structs.RequeueFailure, failed, "", false},
	} {
		if got := listed(&structs.Requeue{On: []string{c.on}}, c.a, c.reason); got != c.want {
			t.Errorf("on %s, %s with reason %q: %t", c.on, c.a.Client, c.reason, got)
		}
	}
}

// TestKeep: of several allocations of one index, the best stays; among equals, the one that the strategy names.
func TestKeep(t *testing.T) {
	j := &structs.Job{Version: 1}
	r := &reconciler{job: j}
	at := func(started structs.LogTime, client structs.ClientStatus, version uint64) slot {
		return slot{a: &structs.Allocation{Job: j, JobVersion: version, Client: client, StartedAt: started}}
	}
	for _, c := range []struct {
		strategy string
		same     []slot
		want     int
	}{
		{"longest_running", []slot{at(20, structs.ClientRunning, 1), at(10, structs.ClientRunning, 1)}, 1},
		{"longest_running", []slot{at(10, structs.ClientRunning, 1), at(20, structs.ClientRunning, 1)}, 0},
		{"longest_running", []slot{at(0, structs.ClientPending, 1), at(20, structs.ClientPending, 1)}, 1},
		{"longest_running", []slot{at(20, structs.ClientPending, 1), at(0, structs.ClientPending, 1)}, 0},
		{"longest_running", []slot{at(10, structs.ClientRunning, 0), at(20, structs.ClientRunning, 1)}, 1}, // of the job's version
		{"keep_replacement", []slot{at(10, structs.ClientRunning, 1), at(20, structs.ClientRunning, 1)}, 1},
		{"keep_replacement", []slot{at(10, structs.ClientRunning, 1), at(20, structs.ClientPending, 1)}, 0}, // running before pending
		{"keep_original", []slot{at(20, structs.ClientRunning, 1), at(10, structs.ClientRunning, 1)}, 0},
	} {
		if got := r.keep(&structs.Group{Disconnect: &structs.Disconnect{Reconcile: c.strategy}}, nil, c.same); got != c.want {
			t.Errorf("%q keeps %d of %d and %d", c.strategy, got, c.same[0].a.StartedAt, c.same[1].a.StartedAt)
		}
	}
}

// TestKeepBestScore: of two that run, the one on the node that meets the affinities better stays, by default, too; among
// equals the original.
func TestKeepBestScore(t *testing.T) {
	ssd, plain := &structs.Node{ID: structs.NodeID{1}, Meta: map[string]string{"disk": "ssd"}}, &structs.Node{ID: structs.NodeID{2}}
	tg := &structs.Group{Affinities: []structs.Affinity{{LTarget: "${meta.disk}", RTarget: "ssd", Operand: structs.OperandEqual, Weight: 50}}}
	j := &structs.Job{Groups: []*structs.Group{tg}}
	r := &reconciler{job: j, view: model.NewView(1, []*structs.Node{ssd, plain}, nil, nil)}
	on := func(n *structs.Node) slot {
		return slot{a: &structs.Allocation{Job: j, NodeID: n.ID, Client: structs.ClientRunning}}
	}
	for _, c := range []struct {
		strategy string
		same     []slot
		want     int
	}{
		{"best_score", []slot{on(plain), on(ssd)}, 1},
		{"best_score", []slot{on(ssd), on(plain)}, 0},
		{"best_score", []slot{on(plain), on(plain)}, 0},
		{"", []slot{on(plain), on(ssd)}, 1},
		{"keep_original", []slot{on(plain), on(ssd)}, 0},
	} {
		tg.Disconnect = &structs.Disconnect{Reconcile: c.strategy}
		if got := r.keep(tg, match.CompileAsk(j, tg, ""), c.same); got != c.want {
			t.Errorf("%q keeps %d, want %d", c.strategy, got, c.want)
		}
	}
}

// TestUnsettled: an update waits until an allocation has run, or was healthy, for min_healthy_time.
func TestUnsettled(t *testing.T) {
	r := &reconciler{now: 100 * structs.LogTime(time.Second), job: &structs.Job{Version: 1}}
	u := &structs.Update{MinHealthyTime: 10 * time.Second}
	for i, c := range []struct {
		client  structs.ClientStatus
		started time.Duration
		want    bool
	}{
		{structs.ClientPending, 0, true}, {structs.ClientPending, time.Second, true}, {structs.ClientRunning, 0, true},
		{structs.ClientRunning, 91 * time.Second, true}, {structs.ClientRunning, 90 * time.Second, false}, {structs.ClientRunning, time.Second, false},
		{structs.ClientFailed, time.Second, true},
	} {
		a := &structs.Allocation{Client: c.client, JobVersion: 1, StartedAt: structs.LogTime(c.started)}
		if got := r.unsettled(a, u); got != c.want || r.unsettled(a, nil) {
			t.Errorf("case %d: %t, want %t", i, got, c.want)
		}
	}
}

// TestSettledAt: min_healthy_time counts from the newest start of any task. Neither a task that waits for its restart nor a main
// task that has not started is healthy, also if the checks pass.
func TestSettledAt(t *testing.T) {
	at := func(s int64) structs.LogTime { return structs.LogTime(s * int64(time.Second)) }
	tg := &structs.Group{Name: "g", Services: []structs.Service{{Name: "s", Checked: true}},
		Tasks: []*structs.Task{{Name: "main"}, {Name: "side", Lifecycle: &structs.Lifecycle{Hook: "prestart", Sidecar: true}}, {Name: "last", Lifecycle: &structs.Lifecycle{Hook: "poststop"}}}}
	runs := func(start, restarts int64) *structs.TaskState {
		return &structs.TaskState{State: "running", StartedAt: at(start), Restarts: restarts}
	}
	waits, crashed := &structs.TaskState{State: "pending"}, &structs.TaskState{State: "pending", StartedAt: at(20), Restarts: 1}
	for _, c := range []struct {
		name       string
		main, side *structs.TaskState
		healthy    int64
		want       structs.LogTime // without checks
		checked    structs.LogTime
	}{
		{"runs", runs(20, 0), runs(19, 0), 25, at(30), at(35)},
		{"between crashes", crashed, runs(19, 0), 25, 0, 0},
		{"restarted", runs(50, 1), runs(19, 0), 25, at(60), at(60)},
		{"a sidecar crashed", runs(20, 0), crashed, 25, 0, 0},
		{"a sidecar was restarted", runs(20, 0), runs(70, 3), 25, at(80), at(80)},
		{"a sidecar failed for good", runs(20, 0), &structs.TaskState{State: "dead", Failed: true}, 25, 0, 0},
		{"what comes first has ended", runs(20, 0), &structs.TaskState{State: "dead"}, 25, at(30), at(35)},
		{"only what comes first runs", waits, runs(19, 0), 0, 0, 0},
		{"checks do not pass", runs(20, 0), runs(19, 0), 0, at(30), 0},
	} {
		a := &structs.Allocation{Client: structs.ClientRunning, StartedAt: at(19), HealthySince: at(c.healthy), Group: "g", Job: &structs.Job{Groups: []*structs.Group{tg}},
			TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"main": c.main, "side": c.side, "last": waits})}
		if got := SettledAt(a, &structs.Update{MinHealthyTime: 10 * time.Second, HealthCheck: "task_states"}); got != c.want {
			t.Errorf("%s: from %d, want %d", c.name, got, c.want)
		}
		if got := SettledAt(a, &structs.Update{MinHealthyTime: 10 * time.Second, HealthCheck: structs.HealthByChecks}); got != c.checked {
			t.Errorf("%s: with checks from %d, want %d", c.name, got, c.checked)
		}
	}
}

// TestTrack: an allocation remembers its last reschedules, and avoids their nodes.
func TestTrack(t *testing.T) {
	r := &reconciler{now: 1}
	a := &structs.Allocation{ID: structs.AllocID{99}, NodeID: structs.NodeID{99}}
	for n := range reschedulesKept + 2 {
		w := &Want{Prefer: structs.NodeID{5}}
		r.track(w, &structs.Group{Disk: structs.EphemeralDisk{Sticky: n%2 == 0}}, a, time.Second)
		if want := min(n+1, reschedulesKept); len(w.Resched) != want || w.Resched[len(w.Resched)-1].PrevAlloc != a.ID {
			t.Errorf("after %d reschedules: %d are kept, want %d", n+1, len(w.Resched), want)
		}
		if len(w.Avoid) != len(w.Resched) {
			t.Errorf("after %d reschedules %d nodes are avoided, want %d", n+1, len(w.Avoid), len(w.Resched))
		}
		if sticky := n%2 == 0; w.Prefer.IsZero() == sticky {
			t.Errorf("sticky %t: prefers %v", sticky, w.Prefer)
		}
		a = &structs.Allocation{ID: structs.AllocID{byte(n)}, NodeID: structs.NodeID{byte(n + 1)}}
		a.OwnLineage().Reschedules = w.Resched
	}
}

// TestSettled: an ended index of an array is settled if it does not start again.
func TestSettled(t *testing.T) {
	for _, c := range []struct {
		name    string
		on      string
		desired structs.DesiredStatus
		want    bool
	}{
		{"it failed, and may not return", structs.RequeueFailure, structs.DesiredRun, true},
		{"it failed, and nothing lists that", structs.RequeuePreempt, structs.DesiredRun, true},
		{"it failed because it was preempted, and may not return", structs.RequeuePreempt, structs.DesiredEvict, false},
	} {
		j := &structs.Job{Version: 1, Type: structs.JobBatch, Groups: []*structs.Group{{Name: "g"}}, Requeue: &structs.Requeue{On: []string{c.on}}}
		a := &structs.Allocation{Group: "g", Job: j, JobVersion: 1, Client: structs.ClientFailed, Desired: c.desired}
		if got := Settled(j, a); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// TestLost: batch work that its agent reported as lost is placed again; that of an older version is not.
func TestLost(t *testing.T) {
	j := &structs.Job{Version: 1, Type: structs.JobBatch}
	for version, want := range map[uint64]bool{0: false, 1: true} {
		g := &GroupPlan{Tg: &structs.Group{Name: "g"}}
		s, replaced := (&reconciler{job: j}).lost(g, &structs.Allocation{Job: &structs.Job{Version: version}, JobVersion: version, Client: structs.ClientLost})
		if replaced != want || replaced && s.kind != slotReplace {
			t.Errorf("version %d: replaced %t", version, replaced)
		}
	}
}

// TestHealthyFor: with each restart an allocation must run twice as long to count as healthy, up to healthy_deadline.
func TestHealthyFor(t *testing.T) {
	u := &structs.Update{MinHealthyTime: 10 * time.Second, HealthyDeadline: time.Minute}
	for restarts, want := range map[int64]time.Duration{0: 10 * time.Second, 1: 20 * time.Second, 2: 40 * time.Second, 3: time.Minute, 1000: time.Minute} {
		a := &structs.Allocation{Client: structs.ClientRunning, StartedAt: 1, TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"t": {State: "running", StartedAt: 100, Restarts: restarts}})}
		if got := SettledAt(a, u).Sub(100); got != want {
			t.Errorf("%d restarts: %s, want %s", restarts, got, want)
		}
	}
}
