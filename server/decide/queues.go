package decide

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/server/replica"
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
func (s *Service) Order(pub *replica.Published, ws []*structs.Workload, now structs.LogTime) (order []int) {
	line := s.Line(pub, ws, now)
	for i := line.Next(); i >= 0; i = line.Next() {
		order = append(order, i)
		line.Taken(i)
	}
	return order
}

// ShownLine is a line of waiting work: that of a pass, in which work that competes with preemptible work comes in the order in which it
// gets places as they become free.
type ShownLine struct {
	*queue.Line
	turns   contend.Line
	pending []contend.Workload
	table   *contend.QueueTable
	seed    uint64
}

// Next returns the workload whose turn it is.
func (l *ShownLine) Next() int { return l.turns.Next() }

// Line returns the line of workloads, with all of them waiting.
func (s *Service) Line(pub *replica.Published, ws []*structs.Workload, now structs.LogTime) *ShownLine {
	snap := pub.Snapshot
	pending := make([]contend.Workload, len(ws))
	for i, w := range ws {
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		pending[i] = contend.Workload{Key: k, Job: snap.JobByKey(k), Queue: w, Allocs: snap.AllocsByJob(k)}
		s.predict(snap, &pending[i])
	}
	l := &ShownLine{pending: pending, seed: uint64(snap.Index())}
	if !preempts(snap) {
		l.table = s.QueueTable(snap)
		l.Line = queue.NewLine(l.table, *snap.SchedulerConfig(), pending, now, l.seed)
		l.turns = l.Line
		return l
	}
	in := s.shownInput(pub, slices.Clone(pending), now, l.seed)
	l.table = in.Queues
	l.Line = queue.NewLine(in.Queues, in.Config, pending, now, l.seed)
	l.turns = scheduler.Shown(in, l.Line)
	return l
}

// shownInput returns the input of a pass that decides on all waiting work.
func (s *Service) shownInput(pub *replica.Published, pending []contend.Workload, now structs.LogTime, seed uint64) *scheduler.Input {
	c := passContext{pub: pub}
	loadContenders(pub.Snapshot).fill(&c.contenders, structs.NodePoolAll)
	in := s.input(&c, pending, now, seed)
	for i := range in.Pending {
		fillGate(&in.Pending[i], pub.Snapshot, now)
		in.Pending[i].Blocked = &structs.Evaluation{} // each will be decided on
	}
	return in
}

// preempts reports whether some job that has not ended may be preempted.
func preempts(snap *state.Snapshot) bool {
	for j := range snap.Jobs("", "") {
		if j.MayPreempt() && j.Status != structs.JobDead {
			return true
		}
	}
	return false
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

// PendingSince returns since when a job waits: its submission or, if it has run, the end of what it held last. While a
// part of it runs, it is when the rest began to wait.
func PendingSince(snap *state.Snapshot, j *structs.Job, w *structs.Workload) structs.LogTime {
	since, holds := w.SubmitTime, false
	for _, a := range snap.AllocsByJob(j.Key()) {
		switch {
		case a.CreateIndex < j.CreateIndex: // of a purged job of the same name
		case structs.Holds(a):
			holds = true
		default:
			since = max(since, cmp.Or(a.FinishedAt, a.ModifyTime))
		}
	}
	if e := snap.EvalByID(w.BlockedEval); holds && e != nil {
		return max(w.SubmitTime, e.CreateTime)
	}
	return since
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
