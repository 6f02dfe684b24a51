package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// A job that asks for what no node has leaves room for those that ask for less, in its pass and in later ones.
func TestRefusalIsNotPassedOnToAsksForLess(t *testing.T) {
	for name, more := range map[string]func(*structs.Resources){
		"rdma":        func(r *structs.Resources) { r.RDMA = true },
		"gpu rdma":    func(r *structs.Resources) { r.GPU[0].RDMA = structs.RDMARequired },
		"power limit": func(r *structs.Resources) { r.GPU[0].PowerLimitW = 5000 },
	} {
		t.Run(name, func(t *testing.T) {
			var ns []*structs.Node
			for i := range 20 {
				ns = append(ns, gpuNode(i, 4))
			}
			of := func(id string) *structs.Job {
				j := job(id, 1)
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
				return j
			}
			greedy := of("a")
			more(&greedy.Groups[0].Tasks[0].Resources)
			in := scheduler.Input{View: model.NewView(10, ns, nil, nil), Now: 1, Pending: []contend.Workload{load(greedy, 0), load(of("b"), 1)}}
			for pass := range 2 {
				_, rep := scheduler.Schedule(in, binpack)
				if len(rep.Workloads) != 2 || !rep.Workloads[0].Failed {
					t.Fatalf("pass %d: %+v", pass, rep.Workloads)
				}
				if r := rep.Workloads[1]; r.Failed || r.Groups[0].Placed != 1 {
					t.Errorf("pass %d: the one that asks for less was not placed: %s", pass, fmt.Sprintf("%+v", r.Groups[0]))
				}
			}
		})
	}
}
