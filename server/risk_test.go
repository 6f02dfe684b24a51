package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestPlanSaysTheRisk: once jobs have ended, a plan says what losses of nodes and preemptions are expected to cost, and not
// before.
func TestPlanSaysTheRisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.set(func() { f.runs["first"] = time.Hour })
		job := func(id string) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Expected = structs.JobBatch, 10*time.Hour
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})
		}
		plan := func() *structs.JobRisk {
			return call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: job("next")}).Risk
		}
		if r := plan(); r != nil {
			t.Errorf("nothing was measured, and the risk is %+v", r)
		}
		first := job("first")
		first.Groups[0].Tasks[0].Resources.GPU = nil
		register(t, s, first)
		time.Sleep(2 * time.Hour)
		r := plan()
		if r == nil || r.AllocTime < 59*time.Minute || r.Lost != 0 || len(r.Groups) != 1 || r.Groups[0].Run != 10*time.Hour || r.Groups[0].NodeLosses != 0 {
			t.Errorf("after a job of an hour: %+v", r)
		}
	})
}
