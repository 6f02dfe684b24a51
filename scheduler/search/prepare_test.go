package search_test

import (
	"testing"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// preparer counts what is prepared.
type preparer struct{ works []*model.HeldWork }

func (p *preparer) compile(h *model.HeldWork) (*match.Ask, search.Policy) {
	p.works = append(p.works, h)
	return match.CompileAsk(h.Job, h.Job.Groups[0], ""), policy.Builtin[structs.AlgorithmDefault]
}

// TestPrepare: each kind of running work is prepared once for a mix, never while a pass runs, and a pass waits for what is in
// preparation.
func TestPrepare(t *testing.T) {
	j := &structs.Job{Namespace: "default", ID: "j", Type: structs.JobBatch, NodePool: structs.NodePoolDefault, Datacenters: []string{"dc1"}}
	j.Groups = []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 100, GPU: []structs.GPURequest{{Count: 1}}}}}}}
	start := func(v *model.View, n, cpu int64) *model.View {
		d := structs.Delta{Index: v.Index() + 1}
		for i := range n {
			d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: &structs.Allocation{ID: structs.AllocID{3, byte(cpu >> 8), byte(cpu), byte(i)}, NodeID: structs.NodeID{0, byte(i)}, JobID: j.ID,
				Job: j, Group: "g", Resources: structs.Vector{CPU: cpu, MemoryMiB: 1}, Client: structs.ClientRunning, Desired: structs.DesiredRun}})
		}
		return v.Advance(d)
	}
	v := start(start(gpuNodes(), 1, 100), 30, 300)
	pass := search.NewPass(v, model.Overlay{})
	var p preparer
	if search.Prepare(v, p.compile) || len(p.works) > 0 {
		t.Error("prepared while a pass runs")
	}
	pass.Release()
	if !search.Prepare(v, p.compile) || len(p.works) == 0 || search.PreparedAsks(v) == 0 {
		t.Fatalf("prepared %d kinds of work", len(p.works))
	}
	if cpu := p.works[0]; cpu.Job != j {
		t.Errorf("prepared %+v first", cpu)
	}
	n := len(p.works)
	if v = start(v, 1, 100); !search.Prepare(v, p.compile) || len(p.works) != n {
		t.Errorf("prepared %d more although the mix is the same", len(p.works)-n)
	}
	if v = start(v, 40, 1000); !search.Prepare(v, p.compile) || len(p.works) == n {
		t.Error("nothing prepared for a new mix")
	}

	v = start(v, 40, 3000) // a new mix again
	waits := false
	search.Prepare(v, func(*model.HeldWork) (*match.Ask, search.Policy) {
		waits = search.PassWaits(v)
		return nil, nil
	})
	if !waits || search.PassWaits(v) {
		t.Errorf("a pass waits for what is in preparation: %v; afterwards: %v", waits, search.PassWaits(v))
	}
}

// gpuNodes are nodes with 8 GPUs, of which none is held.
func gpuNodes() *model.View {
	v := busyNodes(50)
	var nodes []*structs.Node
	v.EachNode(func(n *structs.Node) bool { nodes = append(nodes, n); return true })
	return model.NewView(1, nodes, nil, nil)
}
