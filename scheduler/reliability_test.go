package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// lostLately makes a node that was lost so often, after a day each time.
func lostLately(n *structs.Node, now structs.LogTime, times int) {
	n.Periods = nil
	for range times {
		n.Periods = append(n.Periods, structs.ReadyPeriod{From: now.Add(-24 * time.Hour), To: now, Lost: true})
	}
}

// reliabilityInput is a random cluster in which some nodes were lost, and a job of equal allocations with GPUs.
func reliabilityInput(r *rand.Rand) scheduler.Input {
	now := structs.LogTime(1_700_000_000_000_000_000)
	var nodes []*structs.Node
	var held []*structs.Allocation
	for i := range 4 + r.IntN(12) {
		n := node(i)
		n.Resources.CPU, n.Resources.MemoryMiB, n.StatusAt = 64_000, 512_000, now
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for k := range 1 + r.IntN(8) {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: r.IntN(12) > 0, MemoryMiB: 80_000})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		lostLately(n, now, max(0, r.IntN(7)-3))
		nodes = append(nodes, n)
		for k := range g.Instances {
			if g.Instances[k].Healthy && r.IntN(3) == 0 {
				held = append(held, &structs.Allocation{ID: structs.AllocID(id("held", 100*i+k)), NodeID: n.ID, JobID: "other", Group: "g", Client: structs.ClientRunning, Desired: structs.DesiredRun,
					Resources: structs.Vector{CPU: 1000, MemoryMiB: 1000}, Grants: []structs.Grant{{Task: "t", Device: g.ID(), Instance: g.Instances[k].ID, SizeMiB: 80_000}}})
			}
		}
	}
	j := job("j", 1+r.IntN(12))
	j.Type, j.Runtime.Expected = structs.JobBatch, time.Duration(1+r.IntN(2000))*time.Hour
	j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 10, MemoryMiB: 10, GPU: []structs.GPURequest{{Count: int64(1 + r.IntN(4))}}}
	if r.IntN(2) == 0 {
		j.Groups[0].Gang = &structs.Gang{Min: j.Groups[0].Count}
	}
	e := &structs.Evaluation{ID: structs.EvalID(id("eval", 1)), Namespace: j.Namespace, JobID: j.ID, Status: structs.EvalPending}
	return scheduler.Input{View: model.NewView(1, nodes, held, nil), Now: now, Typical: time.Duration(1+r.IntN(3000)) * time.Hour,
		Pending: []contend.Workload{{Key: j.Key(), Job: j, Evals: []*structs.Evaluation{e}}}}
}

// placedBy returns where a pass places allocations, and its plan as bytes.
func placedBy(in scheduler.Input, name string) (at []structs.NodeID, plan string) {
	p, _ := scheduler.Schedule(in, policy.Builtin[name])
	for _, e := range p.Entries {
		for i := range e.Parts {
			for _, x := range e.Parts[i].Places {
				at = append(at, e.Nodes[x.Node].ID)
			}
		}
	}
	return at, string(scheduler.AppendPlan(nil, p))
}

// TestReliabilityMakesNothingWait: on random clusters in which nodes were lost as much of a job is placed as if nothing were known. Where
// no node was lost, the plan is the same, byte for byte.
func TestReliabilityMakesNothingWait(t *testing.T) {
	const first = 20261128
	differ, placed := 0, 0
	for seed := uint64(first); seed < first+600; seed++ {
		r := rand.New(rand.NewPCG(seed, 5))
		in := reliabilityInput(r)
		name := []string{structs.AlgorithmDefault, "binpack", "spread", "fgd"}[r.IntN(4)]
		with, _ := placedBy(in, name)
		off := in
		off.Config.Weights.Reliability = structs.WeightOff
		without, _ := placedBy(off, name)
		if len(with) != len(without) {
			t.Fatalf("seed %d, %s: %d placed, %d when reliability does not count", seed, name, len(with), len(without))
		}
		if !slices.Equal(with, without) {
			differ++
		}
		placed += len(with)

		var sound []*structs.Node
		var held []*structs.Allocation
		for _, c := range in.View.Chunks {
			for i := range c.Nodes {
				n := *c.Nodes[i]
				n.Periods = nil
				sound = append(sound, &n)
				for h := range c.Hold[i].All() {
					a := h.Alloc()
					a.NodeID = n.ID
					held = append(held, a)
				}
			}
		}
		in.View = model.NewView(1, sound, held, nil)
		off.View = in.View
		_, plan := placedBy(in, name)
		if _, other := placedBy(off, name); plan != other {
			t.Fatalf("seed %d, %s: no node was lost, but the plan depends on reliability", seed, name)
		}
	}
	t.Logf("seeds from %d on: %d placements, %d plans of 600 differ", uint64(first), placed, differ)
	if differ < 100 || placed < 1000 {
		t.Error("the property was hardly tried")
	}
}
