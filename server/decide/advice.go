package decide

import (
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/structs"
)

// advisingsMax bounds the concurrent searches for advice. Beyond it, answers come without advice.
const advisingsMax = 2

// Advise searches for changes that would start a waiting job, on the newest state and with what the newest pass of its
// domain knew. It returns nil if the job does not wait, or if too many searches run.
func (s *Service) Advise(k structs.JobKey) *suggest.Advice {
	if !s.advisings.tryEnter() {
		return nil
	}
	defer s.advisings.leave()
	p := s.env.Replica.Published()
	w := p.Snapshot.Workload(k)
	if w == nil {
		return nil
	}
	in := scheduler.Input{Config: *p.Snapshot.SchedulerConfig(), Seed: 1}
	load := contend.Workload{Key: k}
	if newest := s.inputs.of(w.Domain); newest != nil {
		in = *newest
		for i := range newest.Pending {
			if newest.Pending[i].Key == k {
				load = newest.Pending[i]
			}
		}
	}
	in.View, in.Flight, in.Now, in.Pending = p.View, model.Overlay{}, s.env.Replica.Now(), nil
	in.Queues, in.Reserved, in.Evicted = s.QueueTable(p.Snapshot), reservationsOf(p.Snapshot, w.Domain, in.Now), slices.Collect(p.Snapshot.Preempted())
	load.Job, load.Queue, load.Allocs = p.Snapshot.JobByKey(k), w, p.Snapshot.AllocsByJob(k)
	load.Evals, load.Blocked = nil, p.Snapshot.EvalByID(w.BlockedEval)
	if load.Job == nil {
		return nil
	}
	if fillGate(&load, p.Snapshot, in.Now); load.Gate == nil {
		load.Gate = passedOver(w, s.reports.of(k))
	}
	advice := suggest.Find(in, policy.For(p.View.Pool(w.Domain), in.Config), load)
	return &advice
}

// passedOver returns the refusal in a workload's newest reports that names the jobs to be served before it. A decision
// about the workload alone cannot find that out.
func passedOver(w *structs.Workload, reports []*structs.GroupReport) *structs.Refusal {
	if w.Reason != structs.ReasonPriority {
		return nil
	}
	for _, g := range reports {
		for i := range g.Refusals {
			if r := &g.Refusals[i]; r.Code == w.Reason && r.Nodes == 0 && g.Considered == 0 {
				return r
			}
		}
	}
	return nil
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
