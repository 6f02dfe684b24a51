package search_test

import (
	"maps"
	"testing"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestReportCountsDatacenters: a report names the datacenters in which ready nodes were looked at, with how many. It does not
// name one whose nodes are all down, nor one that the job does not list.
func TestReportCountsDatacenters(t *testing.T) {
	var nodes []*structs.Node
	for i, dc := range []string{"east", "east", "north", "south"} {
		n := &structs.Node{ID: structs.NodeID{byte(i)}, Datacenter: dc, Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible}
		if dc == "north" {
			n.Status = structs.NodeDown
		}
		nodes = append(nodes, n)
	}
	j := &structs.Job{Namespace: "default", ID: "j", Type: structs.JobBatch, NodePool: structs.NodePoolDefault, Datacenters: []string{"east", "north"}}
	j.Groups = []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 100}}}}}
	w := search.NewPass(model.NewView(1, nodes, nil, nil), model.Overlay{})
	defer w.Release()
	s := search.New(match.CompileAsk(j, j.Groups[0], ""), w, policy.Builtin[structs.AlgorithmDefault], 0)
	defer s.Done()
	s.Place(structs.AllocID{1}, nil, -1)
	if got, want := s.Report(1, 0).Available, map[string]int64{"east": 2}; !maps.Equal(got, want) {
		t.Errorf("%v nodes are available, want %v", got, want)
	}
}
