package decide

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Total returns the resources of all ready nodes.
func (s *Service) Total(snap *state.Snapshot) structs.Amount {
	sum, _ := s.totals.of(snap)
	return sum
}

// QueueTable returns the queues, their usage and their limits for a decision.
func (s *Service) QueueTable(snap *state.Snapshot) *contend.QueueTable {
	total, models := s.totals.of(snap)
	t := &contend.QueueTable{Total: total, Models: models, Turnover: s.predictor.turnover(), HalfLife: snap.HalfLifeDefault()}
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
				t.Tenants = append(t.Tenants, contend.Tenant{Namespace: n.Name, Quota: spec.Name, Hard: l.Hard, Soft: l.Soft, HardModels: l.HardModels, SoftModels: l.SoftModels})
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
		s.predict(snap, &pending[i])
	}
	return queue.NewLine(s.QueueTable(snap), *snap.SchedulerConfig(), pending, now, uint64(snap.Index()))
}

// Pending returns the waiting jobs, in no particular order.
func Pending(snap *state.Snapshot) (all []*structs.Workload) {
	for w := range snap.Workloads() {
		if w.Waiting > 0 || !w.BlockedEval.IsZero() {
			all = append(all, w)
		}
	}
	return all
}

// WaitingAsk returns what the waiting allocations of a job ask for in total. For a job of several groups it is what all
// of its allocations ask for.
func WaitingAsk(j *structs.Job, w *structs.Workload) structs.Amount {
	var sum structs.Amount
	if j == nil {
		return sum
	}
	for _, g := range j.Groups {
		n := int64(g.Count)
		if len(j.Groups) == 1 && w.Waiting > 0 {
			n = w.Waiting
		}
		sum = sum.Add(structs.GroupAmount(g).Times(n))
	}
	return sum
}
