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

// TestPlanKnowsANodesPast: a node that was lost is shown as less reliable than the cluster, and a plan that uses it expects more
// losses; after it has been ready for a while it is shown as better than before.
func TestPlanKnowsANodesPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 8)
		node := f.nodes[0].ID
		next := passJob("next", 1, func(j *structs.Job) {
			j.Type, j.Runtime.Expected = structs.JobBatch, 10*time.Hour
			j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
		})
		look := func() (*structs.NodeRisk, structs.GroupRisk) {
			t.Helper()
			r := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: next}).Risk
			if r == nil || len(r.Groups) != 1 {
				t.Fatalf("the risk is %+v", r)
			}
			return call(t, s, methods.NodeGet, rpc.Header{}, &methods.NodeGetRequest{NodeID: node}).Risk, r.Groups[0]
		}
		f.batch("good", "", "u", 1, 2*time.Hour)
		time.Sleep(3 * time.Hour)
		if n, g := look(); n == nil || n.Lost != 0 || n.Typical != 0 || n.Expected != 0 || n.Ready < 2*time.Hour || g.Worst != nil || g.NodeLosses != 0 {
			t.Errorf("no loss was seen: %+v, %+v", n, g)
		}
		f.batch("bad", "", "u", 1, 2*time.Hour) // it starts again from the beginning
		time.Sleep(time.Minute)
		f.set(func() { f.dead[node] = true })
		time.Sleep(10 * time.Minute)
		f.set(func() { f.dead[node] = false })
		mustApply(t, s, &structs.NodeStatusCommand{ID: node, Status: structs.NodeReady})
		time.Sleep(3 * time.Hour)
		n, g := look()
		if n.Lost != 1 || n.Ready < 6*time.Hour || n.Ready > 7*time.Hour || n.Expected != (n.Ready+n.Typical)/2 || n.Typical < 4*time.Hour || n.Typical > 5*time.Hour {
			t.Errorf("after a loss: %+v", n)
		}
		if g.Worst == nil || g.Worst.Node != node || g.Worst.Lost != 1 || g.NodeLosses < 800_000 || g.LostGPUSeconds == 0 {
			t.Errorf("after a loss: %+v, worst %+v", g, g.Worst)
		}
		time.Sleep(6 * time.Hour)
		if after, h := look(); after.Expected < n.Expected+3*time.Hour-time.Second || h.NodeLosses >= g.NodeLosses || h.LostGPUSeconds >= g.LostGPUSeconds {
			t.Errorf("six hours later: %+v, %+v", after, h)
		}
	})
}
