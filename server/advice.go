package server

import (
	"slices"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/structs"
)

// adviceMax is how many searches for advice run at a time; who comes then gets an answer without.
const adviceMax = 2

// advise looks for what would start a job that waits, on the newest state, with what the newest pass of its domain knew
// of queues and promises; nil when too many ask at a time.
func (s *Server) advise(k structs.JobKey) *methods.Advice {
	if s.decide.advising.Add(1) > adviceMax {
		s.decide.advising.Add(-1)
		return nil
	}
	defer s.decide.advising.Add(-1)
	p := s.Published()
	w := p.Snapshot.Workload(k)
	if w == nil {
		return nil
	}
	in := scheduler.Input{Config: *p.Snapshot.SchedulerConfig(), Seed: 1}
	load := contend.Workload{Key: k}
	if newest := s.decide.inputs.of(w.Domain); newest != nil {
		in = *newest
		for i := range newest.Pending {
			if newest.Pending[i].Key == k {
				load = newest.Pending[i]
			}
		}
	}
	in.View, in.Flight, in.Now, in.Pending = p.View, model.Overlay{}, s.replica.Now(), nil
	in.Queues, in.Reserved, in.Evicted = s.queueTable(p.Snapshot), reservationsOf(p.Snapshot, w.Domain, in.Now), slices.Collect(p.Snapshot.Preempted())
	load.Job, load.Queue, load.Allocs = p.Snapshot.JobByKey(k), w, p.Snapshot.AllocsByJob(k)
	load.Evals, load.Blocked = nil, p.Snapshot.EvalByID(w.BlockedEval)
	if load.Job == nil {
		return nil
	}
	if fillGate(&load, p.Snapshot, in.Now); load.Gate == nil {
		load.Gate = passedOver(w, s.decide.reports.of(k))
	}
	return adviceOf(suggest.Find(in, policy.For(p.View.Pool(w.Domain), in.Config), load))
}

// passedOver is what its newest report says of who must be served before a workload: it cannot be seen by deciding about
// the workload alone.
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

func adviceOf(a suggest.Advice) *methods.Advice {
	out := &methods.Advice{Starts: a.Starts, Never: a.Never}
	for i := range a.Changes {
		c := &a.Changes[i]
		out.Changes = append(out.Changes, methods.AdviceChange{Kind: c.Kind, Text: c.Text, Cost: c.Cost, Job: c.Job})
	}
	return out
}

// waitingAsk is what the allocations of a job that wait ask for together; of a job of several groups what all of them ask.
func waitingAsk(j *structs.Job, w *structs.Workload) structs.Amount {
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
