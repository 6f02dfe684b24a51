package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestSuspendedWithoutAllocations: who suspended a job, and why, is reported even after all frozen allocations have
// ended.
func TestSuspendedWithoutAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: testNode(1)})
		j := apiJob("web", 1)
		j.Groups[0].Reschedule = structs.Reschedule{Unlimited: true, Delay: time.Hour, DelayFunction: structs.DelayConstant} // without it the failure ends the job
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
		k := structs.JobKey{Namespace: "default", ID: "web"}
		waitFor(t, time.Minute, "its place", func() bool { return len(s.Published().Snapshot.AllocsByJob(k)) == 1 })
		a := s.Published().Snapshot.AllocsByJob(k)[0]
		observe := func(c structs.ClientStatus) {
			t.Helper()
			if _, err := s.apply(t.Context(), replica.LaneUser, structs.Command{Body: &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: c, StartedAt: s.Published().Snapshot.Time()}}}}); err != nil {
				t.Fatal(err)
			}
		}
		observe(structs.ClientRunning)
		if _, err := s.apply(t.Context(), replica.LaneUser, structs.Command{By: structs.Submitter{Name: "op"}, Body: &structs.SuspendCommand{Namespace: "default", JobID: "web", Reason: "a leak"}}); err != nil {
			t.Fatal(err)
		}
		for _, allocs := range []int64{1, 0} {
			time.Sleep(time.Second) // for passes
			if got := endpoint.SuspendedOf(s.Published().Snapshot, k); got == nil || got.Allocs != allocs || !got.All || got.By != "op" || got.Reason != "a leak" {
				t.Errorf("%d stand still: %+v", allocs, got)
			}
			observe(structs.ClientFailed)
		}
	})
}
