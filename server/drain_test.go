package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// holdsOn returns the allocations that hold resources on a node.
func holdsOn(s *Server, id structs.NodeID) []*structs.Allocation {
	return heldOn(s.Published().Snapshot, id)
}

// heldOn is holdsOn in one state, for what is true of several nodes at once.
func heldOn(snap *state.Snapshot, id structs.NodeID) (as []*structs.Allocation) {
	for _, a := range snap.AllocsByNode(id) {
		if structs.Holds(a) {
			as = append(as, a)
		}
	}
	return as
}

func startDrain(t *testing.T, s *Server, id structs.NodeID, d *structs.DrainStrategy) {
	t.Helper()
	mustApply(t, s, &structs.NodeDrainCommand{ID: id, Strategy: d})
}

// TestDrainMovesServiceGently: max_parallel holds at every moment, system jobs go last, and the drain completes only
// when everything on the node is client-terminal (I7).
func TestDrainMovesServiceGently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.kill = 3 * time.Second
		register(t, s, passJob("web", 6, func(j *structs.Job) { j.Groups[0].Migrate = &structs.Migrate{MaxParallel: 2} }))
		register(t, s, passJob("sys", 1, func(j *structs.Job) { j.Type = structs.JobSystem }))
		waitFor(t, 5*time.Second, "web and sys", func() bool { return running(s, "web") == 6 && running(s, "sys") == 1 })
		f.join(s, 1)
		first := f.nodes[0].ID
		startDrain(t, s, first, &structs.DrainStrategy{Deadline: time.Hour})
		least, sysAlone := 6, false
		waitFor(t, 2*time.Minute, "end of the drain", func() bool {
			least = min(least, running(s, "web"))
			sys := false
			now := holdsOn(s, first)
			for _, a := range now {
				sys = sys || a.JobID == "sys" && a.Transition.Migrate
			}
			for _, a := range now {
				if sys && a.JobID == "web" {
					t.Fatal("the system job was told to go before the service had gone")
				}
			}
			sysAlone = sysAlone || sys
			return s.Published().Snapshot.NodeByID(first).Drain == nil
		})
		n := s.Published().Snapshot.NodeByID(first)
		if n.LastDrain == nil || n.LastDrain.Status != "complete" || n.Eligibility != structs.NodeIneligible {
			t.Errorf("after the drain: %+v, %s", n.LastDrain, n.Eligibility)
		}
		if left := holdsOn(s, first); len(left) > 0 {
			t.Errorf("drain called complete with %d allocations that have not ended", len(left))
		}
		if least < 4 {
			t.Errorf("only %d of 6 ran at some moment, want at least 4", least)
		}
		if !sysAlone {
			t.Error("the system job was never told to go")
		}
		waitFor(t, 10*time.Second, "web", func() bool { return running(s, "web") == 6 })
	})
}

// TestDrainWithinQuota: a quota that is used up does not hold up a drain. It is exceeded only by what ends on the node.
func TestDrainWithinQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.kill = 3 * time.Second
		j := passJob("web", 3, nil)
		most := structs.Unlimited
		most.CPU = 3 * structs.GroupAmount(j.Groups[0]).CPU
		mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: most}}}}})
		mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "q"}}})
		register(t, s, j)
		waitFor(t, 5*time.Second, "web", func() bool { return running(s, "web") == 3 })
		register(t, s, passJob("other", 1, nil))
		second := f.join(s, 1)
		first := f.nodes[0].ID
		startDrain(t, s, first, &structs.DrainStrategy{Deadline: time.Hour})
		waitFor(t, 2*time.Minute, "end of the drain", func() bool {
			snap := s.Published().Snapshot
			held, ends := structs.Amount{}, structs.Amount{}
			for _, id := range []structs.NodeID{first, second.ID} {
				for _, a := range heldOn(snap, id) {
					if held = held.Add(structs.AmountOf(a)); a.ServerTerminal() {
						ends = ends.Add(structs.AmountOf(a))
					}
				}
			}
			if held.CPU-ends.CPU > most.CPU {
				t.Fatalf("%d MHz are held, without what ends on the node, and the quota is %d", held.CPU-ends.CPU, most.CPU)
			}
			return snap.NodeByID(first).Drain == nil
		})
		if n := running(s, "web"); n != 3 || running(s, "other") != 0 {
			t.Errorf("after the drain %d of web run, and %d of other", n, running(s, "other"))
		}
	})
}

// TestDrainWaitsForHealth: replacements count once they have been healthy for min_healthy_time, by checks or by their
// tasks, and after healthy_deadline in any case.
func TestDrainWaitsForHealth(t *testing.T) {
	for _, c := range []struct {
		name        string
		migrate     structs.Migrate
		checked     bool
		wellAfter   time.Duration // time from the start; 0: checks never pass
		least, most time.Duration // time that the drain may take
	}{
		{"task_states", structs.Migrate{MaxParallel: 1, HealthCheck: "task_states", MinHealthyTime: 40 * time.Second, HealthyDeadline: 5 * time.Minute}, false, 0, 120 * time.Second, 150 * time.Second},
		{"checks", structs.Migrate{MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute}, true, 50 * time.Second, 180 * time.Second, 210 * time.Second},
		{"checks of a group without any", structs.Migrate{MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute}, false, 0, 30 * time.Second, 60 * time.Second},
		{"never well", structs.Migrate{MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 2 * time.Minute}, true, 0, 350 * time.Second, 400 * time.Second},
		{"two at a time", structs.Migrate{MaxParallel: 2, HealthCheck: "task_states", MinHealthyTime: 40 * time.Second, HealthyDeadline: 5 * time.Minute}, false, 0, 40 * time.Second, 70 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				f := newFleet(t, one(s), 1)
				register(t, s, passJob("web", 4, func(j *structs.Job) {
					j.Groups[0].Migrate = &c.migrate
					if c.checked {
						j.Groups[0].Services = []structs.Service{{Name: "web", Checked: true}}
					}
				}))
				waitFor(t, 5*time.Second, "web", func() bool { return running(s, "web") == 4 })
				first := f.nodes[0].ID
				healthy := func(a *structs.Allocation, since structs.LogTime) structs.AllocObserved {
					return structs.AllocObserved{ID: a.ID, Client: a.Client, StartedAt: a.StartedAt, HealthySince: since}
				}
				for _, a := range holdsOn(s, first) { // existing work has been healthy for long
					mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{healthy(a, a.StartedAt)}})
				}
				time.Sleep(10 * time.Minute)
				second := f.join(s, 1)
				begun := time.Now()
				startDrain(t, s, first, &structs.DrainStrategy{Deadline: time.Hour})
				waitFor(t, 20*time.Minute, "end of the drain", func() bool {
					for _, a := range holdsOn(s, second.ID) {
						if c.wellAfter > 0 && a.HealthySince == 0 && a.StartedAt > 0 && s.replica.Now() >= a.StartedAt.Add(c.wellAfter) {
							mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{healthy(a, s.replica.Now())}})
						}
					}
					return s.Published().Snapshot.NodeByID(first).Drain == nil
				})
				if took := time.Since(begun); took < c.least || took > c.most {
					t.Errorf("the drain took %s, want %s to %s", took, c.least, c.most)
				}
			})
		})
	}
}

// TestDrainDeadline: batch work may finish until the deadline, then it is stopped; with force, at once.
func TestDrainDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.kill = 2 * time.Second
		register(t, s, passJob("long", 2, func(j *structs.Job) { j.Type = structs.JobBatch }))
		waitFor(t, 5*time.Second, "long", func() bool { return running(s, "long") == 2 })
		id := f.nodes[0].ID
		began := time.Now()
		startDrain(t, s, id, &structs.DrainStrategy{Deadline: time.Minute})
		time.Sleep(50 * time.Second)
		if got := running(s, "long"); got != 2 {
			t.Fatalf("batch work was moved before the deadline: got %v, want 2", got)
		}
		waitFor(t, time.Minute, "end of the drain", func() bool { return s.Published().Snapshot.NodeByID(id).Drain == nil })
		if d := time.Since(began); d > time.Minute+f.kill+2*time.Second || len(holdsOn(s, id)) > 0 {
			t.Errorf("done after %s, want the deadline, the kill timeout and at most 2 s", d)
		}
		mustApply(t, s, &structs.NodeEligibilityCommand{ID: id, Eligibility: structs.NodeEligible})
		waitFor(t, time.Minute, "long again", func() bool { return running(s, "long") == 2 })
		began = time.Now()
		startDrain(t, s, id, &structs.DrainStrategy{Deadline: -1})
		waitFor(t, time.Minute, "end of the forced drain", func() bool { return s.Published().Snapshot.NodeByID(id).Drain == nil })
		if d := time.Since(began); d > f.kill+2*time.Second {
			t.Errorf("forced drain took %s", d)
		}
	})
}

// TestDrainIgnoresSystemJobs: system jobs keep running.
func TestDrainIgnoresSystemJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		register(t, s, passJob("sys", 1, func(j *structs.Job) { j.Type = structs.JobSystem }))
		waitFor(t, 5*time.Second, "sys", func() bool { return running(s, "sys") == 1 })
		id := f.nodes[0].ID
		startDrain(t, s, id, &structs.DrainStrategy{Deadline: -1, IgnoreSystemJobs: true})
		waitFor(t, 10*time.Second, "end of the drain", func() bool { return s.Published().Snapshot.NodeByID(id).Drain == nil })
		if got := running(s, "sys"); got != 1 {
			t.Errorf("the system job was stopped: got %v, want 1", got)
		}
	})
}

// TestExpiry: a batch allocation over max_run_duration is stopped and not replaced.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 2)
		began := time.Now()
		register(t, s, passJob("limited", 3, func(j *structs.Job) {
			j.Type, j.Groups[0].MaxRunDuration = structs.JobBatch, time.Minute
		}))
		waitFor(t, 5*time.Second, "limited", func() bool { return running(s, "limited") == 3 })
		waitFor(t, 2*time.Minute, "the end", func() bool { return len(live(s, "limited")) == 0 })
		if d := time.Since(began); d < time.Minute || d > 63*time.Second {
			t.Errorf("stopped after %s, want one minute", d)
		}
		time.Sleep(10 * time.Minute)
		if n := len(s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: "limited"})); n != 3 {
			t.Errorf("%d allocations, want the 3 that were stopped", n)
		}
	})
}

// TestPeriodicLaunches: one child every minute, none while another is live under prohibit_overlap, and after a pause of
// the service one launch for all that were missed.
func TestPeriodicLaunches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.runs["plain/"] = 0
		periodic := func(id string, overlap bool) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type = structs.JobBatch
				j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}, ProhibitOverlap: overlap, TimeZone: "UTC"}
			})
		}
		mustApply(t, s, &structs.JobRegisterCommand{Job: periodic("plain", false)})
		mustApply(t, s, &structs.JobRegisterCommand{Job: periodic("alone", true)})
		time.Sleep(5*time.Minute + 10*time.Second)
		children := func(id string) (n int) {
			for range s.Published().Snapshot.ChildrenOf(structs.JobKey{Namespace: "default", ID: id}) {
				n++
			}
			return n
		}
		if n := children("plain"); n != 5 {
			t.Errorf("%d children after five minutes, want 5", n)
		}
		if n := children("alone"); n != 1 {
			t.Errorf("%d children beside a live one, want 1", n)
		}
		call(t, s, methods.JobPeriodic, rpc.Header{}, &methods.JobGetRequest{JobID: "alone"})
		if n := children("alone"); n != 2 {
			t.Errorf("%d children after a forced launch, want 2", n)
		}
	})
}

// TestCollectSettings: what is configured is the age from which things go, and how many accounting records stay.
func TestCollectSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) {
			c.Collect = duty.CollectLimits{Interval: 10 * time.Second, JobAge: time.Minute, AcctAge: time.Hour, AcctKept: 1}
		})
		f := newFleet(t, one(s), 1)
		f.runs["a"], f.runs["b"] = time.Second, time.Second
		for _, id := range []string{"a", "b"} {
			register(t, s, passJob(id, 1, func(j *structs.Job) { j.Type = structs.JobBatch }))
		}
		state := func() string {
			snap := s.Published().Snapshot
			jobs := 0
			for range snap.Jobs("", "") {
				jobs++
			}
			return fmt.Sprintf("%d jobs, %d records", jobs, snap.AcctCount())
		}
		for _, c := range []struct {
			after time.Duration
			want  string
		}{{40 * time.Second, "2 jobs, 1 records"}, {time.Minute, "0 jobs, 1 records"}, {time.Hour, "0 jobs, 0 records"}} {
			time.Sleep(c.after)
			if got := state(); got != c.want {
				t.Errorf("%s later: %s, want %s", c.after, got, c.want)
			}
		}
	})
}

// TestCollect: ages count unless forced, and live objects stay.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.runs["done"] = time.Second
		register(t, s, passJob("done", 2, func(j *structs.Job) { j.Type = structs.JobBatch }))
		register(t, s, passJob("web", 2, nil))
		waitFor(t, 20*time.Second, "the batch job's end", func() bool {
			j := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "done"})
			return j.Status == structs.JobDead
		})
		has := func(id string) bool {
			return s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id}) != nil
		}
		time.Sleep(3 * time.Hour)
		if !has("done") {
			t.Fatal("a dead job was collected before its age")
		}
		time.Sleep(time.Hour + 10*time.Minute)
		if has("done") {
			t.Error("a dead job was not collected after four hours")
		}
		if !has("web") || running(s, "web") != 2 {
			t.Error("something alive was collected")
		}
		f.set(func() { f.runs["more"] = time.Second })
		register(t, s, passJob("more", 1, func(j *structs.Job) { j.Type = structs.JobBatch }))
		waitFor(t, 20*time.Second, "the end", func() bool {
			return s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "more"}).Status == structs.JobDead
		})
		if err := s.collectNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if has("more") {
			t.Error("a forced collection left a dead job")
		}
		if got := running(s, "web"); got != 2 {
			t.Errorf("a forced collection took something alive: got %v, want 2", got)
		}
	})
}
