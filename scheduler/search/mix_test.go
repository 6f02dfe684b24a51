package search

import (
	"testing"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestMixOfAnIdleCluster: while nothing runs, the work that is placed stands for what is usual: whole GPUs, or shares.
func TestMixOfAnIdleCluster(t *testing.T) {
	w := NewPass(model.NewView(1, nil, nil, nil), model.Overlay{})
	for share, want := range map[int64]int64{0: 1000, 30: 300} {
		j := &structs.Job{Namespace: "default", ID: "j", Type: structs.JobBatch, NodePool: structs.NodePoolDefault, Datacenters: []string{"*"}}
		j.Groups = []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 100, GPU: []structs.GPURequest{{Count: 2, Share: share}}}}}}}
		m := w.mixFor(match.CompileAsk(j, j.Groups[0], ""))
		if len(m.Shapes) != 1 || m.Shapes[0].Milli != want || m.Shapes[0].GPUs != 2 || m.Shapes[0].CPU != 100 {
			t.Errorf("a share of %d percent gives %+v", share, m.Shapes)
		}
	}
}
