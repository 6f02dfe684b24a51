package decide

import (
	"maps"
	"slices"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
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

// Total returns the resources of all ready nodes.
func (s *Service) Total(snap *state.Snapshot) structs.Amount {
	sum, _ := s.totals.of(snap)
	return sum
}

// QueueTable returns the queues, their usage and their limits for a decision.
func (s *Service) QueueTable(snap *state.Snapshot) *contend.QueueTable {
	total, models := s.totals.of(snap)
	t := &contend.QueueTable{Total: total, Models: models, Turnover: s.predictor.turnover()}
	for q := range snap.Queues() {
		t.Queues = append(t.Queues, q)
	}
	for u := range snap.QueueUses() {
		t.Usage = append(t.Usage, u)
	}
	for n := range snap.Namespaces() {
		if n.Quota == "" {
			continue
		}
		if spec := snap.Quota(n.Quota); spec != nil {
			if l := spec.Limit(s.env.Region); l != nil {
				t.Tenants = append(t.Tenants, contend.Tenant{Namespace: n.Name, Quota: spec.Name, Hard: l.Hard, Soft: l.Soft})
			}
		}
	}
	return t
}

// Order returns the indices of workloads in the order in which a pass would serve them. It places nothing.
func (s *Service) Order(snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) (order []int) {
	line := s.Line(snap, ws, now)
	for i := line.Next(); i >= 0; i = line.Next() {
		order = append(order, i)
		line.Taken(i)
	}
	return order
}

// Line returns the line of workloads, with all of them waiting.
func (s *Service) Line(snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) *queue.Line {
	pending := make([]contend.Workload, len(ws))
	for i, w := range ws {
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		pending[i] = contend.Workload{Key: k, Job: snap.JobByKey(k), Queue: w, Allocs: snap.AllocsByJob(k)}
		s.predictor.predict(&pending[i])
	}
	return queue.NewLine(s.QueueTable(snap), *snap.SchedulerConfig(), pending, now, uint64(snap.Index()))
}
