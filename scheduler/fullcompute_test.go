package scheduler_test

import (
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestShareWithoutCompute: a share that reserves no compute fits on a GPU whose compute is all reserved, as long as there is
// memory. It goes there rather than to a GPU that other work could use.
func TestShareWithoutCompute(t *testing.T) {
	n := modelNode(1, "H100:1")
	holder := job("holder", 1)
	holder.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 10_000, Compute: 100}}
	a := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "holder", Job: holder, Group: "g", NodeID: n.ID, Resources: structs.GroupVector(holder.Groups[0]),
		Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateIndex: 6,
		Grants: []structs.Grant{{Task: "t", Device: n.Resources.Devices[0].ID(), Instance: n.Resources.Devices[0].Instances[0].ID, SizeMiB: 80_000, MemoryMiB: 10_000, Compute: 100}}}
	j := job("memory", 1)
	j.Type = structs.JobBatch
	j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 20_000}}
	v := model.NewView(7, []*structs.Node{n, modelNode(2, "H100:1")}, []*structs.Allocation{a}, nil)
	plan, _ := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{load(j, 1)}}, keepsFree{binpack})
	if e := plan.Entries[0]; len(e.Parts) == 0 || e.Nodes[e.Parts[0].Places[0].Node].ID != n.ID {
		t.Errorf("it is not placed where all compute is reserved: %+v", e.Parts)
	}
}

// keepsFree is a policy that values what is free of GPUs.
type keepsFree struct{ search.Policy }

func (k keepsFree) Rater(*model.Mix) search.GPURater { return k }

func (keepsFree) Value(g *model.GPUState) int64 {
	sum := int64(10_000)
	for _, f := range g.Free {
		sum += f
	}
	return sum
}

func (keepsFree) Score(before, after int64) int64 { return max(0, model.Micro-100*(before-after)) }
