package server

import (
	"slices"
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
	t.Parallel() // it takes long, and shares nothing with other tests
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

// TestLostNodeComesLast: with the configuration of a fresh cluster new work avoids a node that was lost, until no other has room,
// and each of its scores says so. A node on which programs failed is as good as others.
func TestLostNodeComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		f.set(func() { f.fails["fails"] = true })
		on := func(id string) (name string, terms []string) {
			t.Helper()
			time.Sleep(10 * time.Second)
			as := live(s, id)
			if len(as) != 1 {
				t.Fatalf("%d allocations of %s are live", len(as), id)
			}
			for _, r := range s.Published().Snapshot.EvalByID(as[0].EvalID).PlacedGroups {
				for _, x := range r.Scores[0].Terms {
					terms = append(terms, x.Name)
				}
			}
			return s.Published().Snapshot.NodeByID(as[0].NodeID).Name, terms
		}
		stop := func(id string) {
			mustApply(t, s, &structs.JobDeregisterCommand{Namespace: structs.NamespaceDefault, JobID: id})
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Second) // until decisions know the nodes
		register(t, s, passJob("first", 1, nil))
		best, _ := on("first")
		stop("first")
		register(t, s, passJob("fails", 1, func(j *structs.Job) {
			j.Constraints = []structs.Constraint{{LTarget: "${node.unique.name}", Operand: "=", RTarget: best}}
		}))
		time.Sleep(10 * time.Minute)
		stop("fails")
		lost := f.nodes[slices.IndexFunc(f.nodes, func(n *structs.Node) bool { return n.Name == best })].ID
		if n := len(s.Published().Snapshot.AllocsByNode(lost)); n < 3 {
			t.Fatalf("%d allocations ended on %s", n, best)
		}
		register(t, s, passJob("second", 1, nil))
		if node, terms := on("second"); node != best || slices.Contains(terms, "reliability") {
			t.Errorf("after programs failed on %s the first of equal nodes is %s, by %v", best, node, terms)
		}

		f.set(func() { f.dead[lost] = true })
		time.Sleep(10 * time.Minute)
		f.set(func() { f.dead[lost] = false })
		mustApply(t, s, &structs.NodeStatusCommand{ID: lost, Status: structs.NodeReady})
		stop("second")
		register(t, s, passJob("third", 1, nil))
		if node, terms := on("third"); node == best || !slices.Contains(terms, "reliability") {
			t.Errorf("after %s was lost the best of equal nodes is %s, by %v", best, node, terms)
		}
		register(t, s, passJob("all", 3, func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 3000 }))
		time.Sleep(10 * time.Second)
		if as := live(s, "all"); len(as) != 3 {
			t.Errorf("%d of 3 allocations have a place; one is on the node that was lost", len(as))
		}
	})
}
