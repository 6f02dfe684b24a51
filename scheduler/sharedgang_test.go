package scheduler_test

import (
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestGangThatMayShareWithOthers: members of one gang never share a GPU, so a gang finds no place with its own member. A
// gang that asks for the same and has no member there does.
func TestGangThatMayShareWithOthers(t *testing.T) {
	n := modelNode(1, "H100:1")
	shares := func(name string, count int) *structs.Job {
		j := job(name, count)
		j.Groups[0].Gang = &structs.Gang{}
		j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 20_000}}
		return j
	}
	old, grown := shares("grown", 1), shares("grown", 2)
	grown.Version, grown.SpecIndex = 1, 9
	a := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "grown", Job: old, Group: "g", NodeID: n.ID, Resources: structs.GroupVector(old.Groups[0]),
		Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateIndex: 6,
		Grants: []structs.Grant{{Task: "t", Device: n.Resources.Devices[0].ID(), Instance: n.Resources.Devices[0].Instances[0].ID, SizeMiB: 80_000, MemoryMiB: 20_000}}}
	v := model.NewView(7, []*structs.Node{n}, []*structs.Allocation{a}, nil)
	plan, rep := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{load(grown, 1, a), load(shares("other", 1), 2)}}, binpack)
	places := map[string]int{}
	for _, e := range plan.Entries {
		for _, p := range e.Parts {
			places[e.JobID] += len(p.Places)
		}
	}
	for _, w := range rep.Workloads {
		if w.Key.ID != "grown" {
			continue
		}
		want := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionMembersGPU}, Nodes: 1, Short: 1, Unit: structs.UnitDevices, CuredBy: structs.EventAllocStopped}
		if rs := w.Groups[0].Refusals; len(rs) == 0 || rs[len(rs)-1] != want {
			t.Errorf("grown is refused for %+v, want %+v: there is memory and compute on the GPU", rs, want)
		}
	}
	if places["grown"] != 0 || places["other"] != 1 {
		t.Errorf("placed %v, want one of other", places)
		for _, w := range rep.Workloads {
			for _, g := range w.Groups {
				t.Logf("%s: %s %v", w.Key.ID, g.Code, g.Refusals)
			}
		}
	}
}
