package planner

import (
	"reflect"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestTrim: what is left of a plan numbers its nodes from 0, with the evaluations that its stops refer to. The plan itself,
// which its pass still reads, does not change.
func TestTrim(t *testing.T) {
	make := func() *structs.PlanEntry {
		return &structs.PlanEntry{JobID: "j", Nodes: []structs.PlanNode{{ID: structs.NodeID{1}}, {ID: structs.NodeID{2}}, {ID: structs.NodeID{3}}},
			Parts: []structs.PlanPart{
				{Places: []structs.PlanPlace{{Node: 0}, {Node: 1}}},
				{Places: []structs.PlanPlace{{Node: 2}, {Node: 1}}, Stops: []structs.PlanStop{{ID: structs.AllocID{7}, Followup: structs.EvalID{8}}}},
			},
			Evals:    []*structs.Evaluation{{ID: structs.EvalID{8}}, {ID: structs.EvalID{9}}},
			Workload: &structs.Workload{}}
	}
	e := make()
	if got := trim(e, []bool{true, true}, true); got != e {
		t.Error("a whole plan is not the same plan")
	}
	got := trim(e, []bool{false, true}, false)
	want := &structs.PlanEntry{JobID: "j", Nodes: []structs.PlanNode{{ID: structs.NodeID{3}}, {ID: structs.NodeID{2}}},
		Parts: []structs.PlanPart{{Places: []structs.PlanPlace{{Node: 0}, {Node: 1}}, Stops: []structs.PlanStop{{ID: structs.AllocID{7}, Followup: structs.EvalID{8}}}}},
		Evals: []*structs.Evaluation{{ID: structs.EvalID{8}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("left is %+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(e, make()) {
		t.Errorf("the plan has changed: %+v", e)
	}
}
