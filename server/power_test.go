package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

// TestPowerBudget: the power limits of the GPUs in use of a node pool never exceed its budget, `job why` reports by how
// much one more would, and waiting work starts when the budget is raised or work ends.
func TestPowerBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		budget := func(w int64) {
			mustApply(t, s, &structs.PoolUpsertCommand{Pools: []*structs.NodePool{{Name: "hot", PowerBudgetW: w}}})
		}
		budget(2500)
		f := newFleet(t, one(s), 2)
		f.set(func() {
			for i, n := range f.nodes {
				n := *n
				n.Pool = "hot"
				g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]structs.Attribute{"power": {Kind: "int", Int: 700, Unit: "W"}}}
				for k := range 4 {
					g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 80_000})
				}
				n.Resources.Devices = []structs.DeviceGroup{g}
				mustApply(t, s, &structs.NodeRegisterCommand{Node: &n})
			}
		})
		train := func(id string, n int) *structs.Job {
			return passJob(id, n, func(j *structs.Job) {
				j.Type, j.NodePool = structs.JobBatch, "hot"
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})
		}
		most := 0
		all := func() int {
			n := running(s, "train") + running(s, "more")
			most = max(most, n)
			return n
		}
		register(t, s, train("train", 2))
		register(t, s, train("more", 6))
		waitFor(t, 10*time.Second, "three to run", func() bool { return all() == 3 })
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			all()
		}
		if most != 3 {
			t.Fatalf("%d GPUs of 700 W were in use under a budget of 2500 W", most)
		}
		key := structs.JobKey{Namespace: structs.NamespaceDefault, ID: "more"}
		eval, _ := endpoint.LastDecision(s.Published().Snapshot, key)
		rep := s.endpoints.ReportsOf(key, eval)
		if len(rep) != 1 || rep[0].Code != structs.ReasonPower || len(rep[0].Refusals) == 0 || rep[0].Refusals[0].Text() != "power in node pool hot" || rep[0].Refusals[0].Short != 300 {
			t.Errorf("why it waits: %+v, want 300 W missing", rep)
		}
		budget(2800)
		waitFor(t, 10*time.Second, "one more under the higher budget", func() bool { return all() == 4 })
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: structs.NamespaceDefault, JobID: "train"})
		waitFor(t, 10*time.Second, "others in the place of what ended", func() bool { return running(s, "train") == 0 && all() == 4 })
		if most != 4 {
			t.Errorf("%d GPUs of 700 W were in use under a budget of 2800 W", most)
		}
		budget(700)
		time.Sleep(10 * time.Second)
		if n := all(); n != 4 {
			t.Errorf("%d run after the budget was lowered, want the 4 that did", n)
		}
	})
}
