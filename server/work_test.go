package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Begin times, holds and dependencies on a whole server: each job starts when its gate opens and not before, woken by
// the clock, by a command, or by the result of another job.
func TestGatesOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 4)
		batch := func(id string, edit func(*structs.Job)) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type = structs.JobBatch
				j.Groups[0].Reschedule = structs.Reschedule{}
				if edit != nil {
					edit(j)
				}
			})
		}
		job := func(id string) *structs.Job {
			return s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id})
		}
		f.set(func() {
			f.runs["prep"], f.runs["bad"] = time.Minute, time.Minute
			f.fails["bad"] = true
		})
		begin := time.Now().Add(30 * time.Second)
		register(t, s, batch("late", func(j *structs.Job) { j.Begin = structs.LogTimeOf(begin) }))
		register(t, s, batch("held", func(j *structs.Job) { j.Hold = true }))
		after := func(id string, d ...structs.Dependency) {
			register(t, s, batch(id, func(j *structs.Job) { j.Depends = d }))
		}
		after("started", structs.Dependency{Name: "prep", When: structs.WhenStarted})
		after("well", structs.Dependency{Name: "prep"})
		after("rescue", structs.Dependency{Name: "bad", When: structs.WhenFailed})
		after("never", structs.Dependency{Name: "bad"})
		after("cascade", structs.Dependency{Name: "never"})
		after("either", structs.Dependency{Name: "bad", Group: "x", AtLeast: 1}, structs.Dependency{Name: "prep", Group: "x", AtLeast: 1})
		after("patient", structs.Dependency{Name: "nobody", Timeout: 2 * time.Minute, OnTimeout: structs.OnTimeoutRun})
		after("impatient", structs.Dependency{Name: "nobody", Timeout: 2 * time.Minute})
		time.Sleep(10 * time.Second)
		for _, id := range []string{"late", "held", "started", "well", "rescue", "never", "cascade", "either", "patient", "impatient"} {
			if n := len(live(s, id)); n != 0 {
				t.Errorf("%s runs before its gate opened", id)
			}
		}
		for id, want := range map[string]structs.ReasonCode{"late": structs.ReasonBeginTime, "held": structs.ReasonHeld, "well": structs.ReasonDependency} {
			w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: id})
			if w == nil || w.Reason != want || w.Waiting != 1 {
				t.Errorf("%s waits for %+v, want %s", id, w, want)
			}
		}
		time.Sleep(25 * time.Second)
		if got := len(live(s, "late")); got != 1 {
			t.Errorf("its begin time is over, and it does not run: got %v, want 1", got)
		}
		mustApply(t, s, &structs.WorkloadCommand{Namespace: "default", JobID: "held", Action: structs.ActionRelease})
		register(t, s, batch("prep", nil))
		register(t, s, batch("bad", nil))
		time.Sleep(10 * time.Second)
		for id, want := range map[string]int{"held": 1, "started": 1, "well": 0, "rescue": 1, "either": 0} {
			if n := len(live(s, id)); n != want {
				t.Errorf("%s: %d run after its job started, want %d", id, n, want)
			}
		}
		for id, why := range map[string]string{"never": `job "bad" never ended well: it failed`, "cascade": `job "never" never ended well: it was stopped, job "bad"`} {
			if j := job(id); !j.Stop || !strings.Contains(j.StatusDesc, why) || j.Status != structs.JobDead {
				t.Errorf("%s is %s, %q; want it stopped because %s", id, j.Status, j.StatusDesc, why)
			}
		}
		time.Sleep(time.Minute)
		for _, id := range []string{"well", "either"} {
			if len(live(s, id)) != 1 {
				t.Errorf("%s does not run after prep ended well", id)
			}
		}
		time.Sleep(time.Minute)
		if got := len(live(s, "patient")); got != 1 {
			t.Errorf("the timeout is over, and it does not go on without: got %v, want 1", got)
		}
		if j := job("impatient"); !j.Stop || !strings.Contains(j.StatusDesc, "it was waited for until") {
			t.Errorf("impatient: %+v", j.StatusDesc)
		}
		// A met condition stays met when the job that was waited for is gone.
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: "prep", Purge: true})
		mustApply(t, s, &structs.WorkloadCommand{Namespace: "default", JobID: "well", Action: structs.ActionRequeue})
		time.Sleep(20 * time.Second)
		as := live(s, "well")
		if len(as) != 1 || as[0].Lineage().Restarts != 1 || as[0].Lineage().RestartReason != "requeue" {
			t.Errorf("a requeued job is back: %+v", as)
		}
	})
}

// TestPriorityOfWhatRuns: running work gives its place to waiting work as soon as its priority is low enough, and not
// before. Of two waiting jobs, the one that was raised goes first.
func TestPriorityOfWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.set(func() { f.kill = time.Second })
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "default", Order: structs.OrderFCFS, Preempt: structs.PreemptPriority, PreemptMinRuntime: time.Second}}})
		whole := func(id string) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Groups[0].Reschedule, j.Preemptible = structs.JobBatch, structs.Reschedule{}, true
				j.Groups[0].Tasks[0].Resources.CPU = 3000
			})
		}
		set := func(id string, n int) {
			mustApply(t, s, &structs.JobPriorityCommand{Namespace: "default", JobID: id, Priority: n})
		}
		register(t, s, whole("runs"))
		time.Sleep(time.Minute)
		register(t, s, whole("early"))
		register(t, s, whole("late"))
		time.Sleep(time.Minute)
		if len(live(s, "runs")) != 1 || len(live(s, "early"))+len(live(s, "late")) != 0 {
			t.Fatalf("work of equal priority took the place: got %v, %v; want 1, 0", len(live(s, "runs")), len(live(s, "early"))+len(live(s, "late")))
		}
		set("late", 45) // both lowered: now late is first
		set("early", 44)
		time.Sleep(time.Minute)
		if got := len(live(s, "runs")); got != 1 {
			t.Fatalf("work of lower priority took the place: got %v, want 1", got)
		}
		set("runs", 20)
		time.Sleep(time.Minute)
		if running(s, "late") != 1 || len(live(s, "runs"))+len(live(s, "early")) != 0 {
			t.Errorf("runs %d, late %d, early %d; want only late", len(live(s, "runs")), len(live(s, "late")), len(live(s, "early")))
		}
		if v := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "runs"}).Version; v != 0 {
			t.Errorf("the job has version %d", v)
		}
	})
}

// TestRequeueOfAService: a service does not return to a queue, and the refusal names what restarts it.
func TestRequeueOfAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		register(t, s, passJob("web", 1, nil))
		_, err := callErr(s, methods.JobWorkload, rpc.Header{}, &methods.JobWorkloadRequest{JobID: "web", Action: structs.ActionRequeue})
		if want := `job "web" is of type service, and only batch jobs return to the queue; muster job restart web restarts what runs of it`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("requeue of a service: %v, want %q", err, want)
		}
	})
}
