package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/structs"
)

// TestLimitStarts: the list, job why and the plan before submission agree on when work behind a limit or cap may start.
// If work runs for its declared time, it starts then.
func TestLimitStarts(t *testing.T) {
	free := structs.AmountNoLimit
	for name, q := range map[string]*structs.Queue{
		"limit": {Path: "research", Order: structs.OrderFCFS, Limit: &structs.Amount{CPU: 200, GPUMilli: free, GPUMemoryMiB: free, MemoryMiB: free}},
		"cap":   {Path: "research", Order: structs.OrderFCFS, RunningMax: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				f := newFleet(t, one(s), 4)
				mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{q}})
				// Two run at a time: a until 10, b until 14, c from 10 to 15, d from 14 to 34, e from 15 to 21, f from
				// 21 on.
				minutes := []int{10, 14, 5, 20, 6, 3}
				starts := []int{0, 0, 10, 14, 15, 21}
				work := func(i int) *structs.Job {
					return passJob(string(rune('a'+i)), 1, func(j *structs.Job) {
						j.Type, j.Queue, j.Runtime.Expected = structs.JobBatch, "research", time.Duration(minutes[i])*time.Minute
					})
				}
				began := time.Now()
				near := func(what string, at structs.LogTime, want int) {
					t.Helper()
					if off := at.Time().Sub(began) - time.Duration(want)*time.Minute; off < -time.Minute || off > time.Minute {
						t.Errorf("%s at %s, want %d min", what, at.Time().Sub(began).Round(time.Second), want)
					}
				}
				for i := range minutes {
					id := string(rune('a' + i))
					f.set(func() { f.runs[id] = time.Duration(minutes[i]) * time.Minute })
					if i >= 2 {
						plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: work(i)})
						near("the plan of "+id, plan.Why.StartEst, starts[i])
					}
					register(t, s, work(i))
					waitFor(t, 10*time.Second, "decision about "+id, func() bool {
						w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: id})
						// A job waits from its registration on. The first two must have been placed: plans in flight have no end.
						return running(s, id) == 1 || i >= 2 && w != nil && w.Waiting == 1
					})
				}
				told := map[string]structs.LogTime{}
				for _, it := range call(t, s, methods.QueueList, rpc.Header{}, &methods.ListRequest{}).Items {
					told[it.Job.ID] = it.StartEst
				}
				for i := 2; i < len(minutes); i++ {
					id := string(rune('a' + i))
					near("in the list "+id, told[id], starts[i])
					why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: id})
					near(fmt.Sprintf("job why of %s (%s)", id, why.Starts), why.StartEst, starts[i])
				}
				time.Sleep(time.Hour)
				for i := range minutes {
					for _, a := range s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: string(rune('a' + i))}) {
						near("in truth "+a.JobID, a.StartedAt, starts[i])
					}
				}
			})
		})
	}
}

// TestLimitNeverStarts: no end of others lets start what asks for more than the limit.
func TestLimitNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 4)
		free := structs.AmountNoLimit
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", Order: structs.OrderFCFS,
			Limit: &structs.Amount{CPU: 50, GPUMilli: free, GPUMemoryMiB: free, MemoryMiB: free}}}})
		register(t, s, passJob("a", 1, func(j *structs.Job) { j.Type, j.Queue = structs.JobBatch, "research" }))
		time.Sleep(time.Second) // the refusal and the reports of it are known a moment after each other
		why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "a"})
		if want := "when queue research is raised: this asks for more than all of it"; why.Starts != want || why.StartEst != 0 {
			t.Errorf("starts %q at %d, want %q", why.Starts, why.StartEst, want)
		}
	})
}

// TestPendingAgain: a job that ran and waits again has been pending since then, not since its submission.
func TestPendingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 1)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab", Preempt: structs.PreemptPriority}}})
		submit := func(id string, priority int) structs.LogTime {
			f.set(func() { f.runs[id] = 2 * time.Hour })
			mustApplyBy(t, s, "ada", &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Priority, j.Preemptible, j.Runtime.Limit, j.Groups[0].Reschedule = structs.JobBatch, "lab", priority, true, 2*time.Hour, structs.Reschedule{}
				j.Requeue = &structs.Requeue{On: []string{structs.RequeuePreempt}, Max: 10}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})})
			return structs.LogTimeOf(time.Now())
		}
		near := func(when string, since, want structs.LogTime) {
			t.Helper()
			if d := since.Sub(want); d < -time.Minute || d > time.Minute {
				t.Errorf("%s, it has been pending since %v, want %v", when, since.Time(), want.Time())
			}
		}
		submitted := submit("low", 20)
		waitFor(t, time.Minute, "the first run", func() bool { return running(s, "low") == 1 })
		time.Sleep(30 * time.Minute)
		preempted := submit("high", 80)
		waitFor(t, time.Minute, "the other job", func() bool { return running(s, "high") == 1 })
		waitedOnly := submit("third", 20)
		time.Sleep(10 * time.Minute)
		why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "low"})
		if why.Workload.Waiting != 1 {
			t.Fatalf("it does not wait: %+v", why.Workload)
		}
		near("preempted", why.Since, preempted)
		if why.Workload.SubmitTime.Sub(submitted).Abs() > time.Minute {
			t.Errorf("its submission is %v, want %v", why.Workload.SubmitTime.Time(), submitted.Time())
		}
		near("never run", call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "third"}).Since, waitedOnly)
	})
}

// TestLateStart: the estimate of a start is not in the past, also while no pass runs and what the job waits for runs longer
// than predicted.
func TestLateStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 1)
		submit := func(id string) {
			f.set(func() { f.runs[id] = 24 * time.Hour })
			mustApplyBy(t, s, "ada", &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Expected, j.Groups[0].Reschedule = structs.JobBatch, 20*time.Minute, structs.Reschedule{}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})})
		}
		submit("first")
		waitFor(t, time.Minute, "the first job", func() bool { return running(s, "first") == 1 })
		began := time.Now()
		submit("second")
		told := func() (at structs.LogTime, starts string) {
			t.Helper()
			why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "second"})
			for _, it := range call(t, s, methods.QueueList, rpc.Header{}, &methods.ListRequest{}).Items {
				if it.Starts != why.Starts {
					t.Errorf("the list says %q, job why %q", it.Starts, why.Starts)
				}
				now := structs.LogTimeOf(time.Now())
				if it.StartEst < now || why.StartEst < now {
					t.Errorf("after %s the start is in the past: %v in the list, %v in job why", time.Since(began), it.StartEst.Time(), why.StartEst.Time())
				}
			}
			return why.StartEst, why.Starts
		}
		time.Sleep(10 * time.Minute)
		at, starts := told()
		if d := at.Time().Sub(began); starts != "" || d < 19*time.Minute || d > 21*time.Minute {
			t.Errorf("it starts after %s (%q), want 20 minutes", d, starts)
		}
		for range 6 {
			time.Sleep(10 * time.Minute)
			if at, starts = told(); starts != decide.RunsLonger {
				t.Errorf("after %s it starts at %v: %q", time.Since(began), at.Time(), starts)
			}
		}
	})
}
