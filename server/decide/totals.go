package decide

import (
	"maps"
	"slices"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// totals caches the resources of the cluster until a node changes.
type totals struct {
	mu  sync.Mutex
	at  structs.Index
	sum structs.Amount
	gpu []structs.GPUCount // of sum, by model
	has bool
}

// of returns the resources of all ready nodes, and their GPUs by model.
func (t *totals) of(snap *state.Snapshot) (structs.Amount, []structs.GPUCount) {
	at := snap.TableIndex(state.Nodes)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has && t.at == at {
		return t.sum, t.gpu
	}
	t.at, t.has, t.sum = at, true, structs.Amount{}
	models := map[string]int64{}
	for n := range snap.Nodes() {
		if n.Status != structs.NodeReady {
			continue
		}
		t.sum.CPU += n.Resources.CPU
		t.sum.MemoryMiB += n.Resources.MemoryMiB
		for _, g := range n.Resources.Devices {
			if g.Type != "gpu" {
				continue
			}
			models[g.Name] += int64(len(g.Instances))
			for i := range g.Instances {
				t.sum.GPUMilli += 1000
				t.sum.GPUMemoryMiB += g.Instances[i].MemoryMiB
			}
		}
	}
	t.gpu = nil
	for _, m := range slices.Sorted(maps.Keys(models)) {
		t.gpu = append(t.gpu, structs.GPUCount{Model: m, Count: models[m]})
	}
	return t.sum, t.gpu
}
