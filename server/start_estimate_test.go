package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
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
		waitFor(t, 10*time.Second, "decision", func() bool {
			w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: "a"})
			return w != nil && w.Waiting == 1
		})
		why := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "a"})
		if want := "when queue research is raised: this asks for more than all of it"; why.Starts != want || why.StartEst != 0 {
			t.Errorf("starts %q at %d, want %q", why.Starts, why.StartEst, want)
		}
	})
}
