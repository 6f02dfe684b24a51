package decide

import (
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/structs"
)

// Advise searches for changes that would start a waiting job, on the newest state and with what the newest pass of its
// domain knew. It returns nil if the job does not wait, or if too many searches run.
func (s *Service) Advise(k structs.JobKey) *suggest.Advice {
	if !s.advisings.tryEnter() {
		return nil
	}
	defer s.advisings.leave()
	in, load, p := s.question(k)
	if load.Job == nil {
		return nil
	}
	advice := suggest.Find(in, p, load)
	return &advice
}

// Excluded lists the nodes that cannot take an allocation of a waiting job now, each with the reason. It returns nil if
// the job does not wait, or if too many searches run.
func (s *Service) Excluded(k structs.JobKey) []suggest.Excluded {
	if !s.advisings.tryEnter() {
		return nil
	}
	defer s.advisings.leave()
	in, load, p := s.question(k)
	return suggest.Nodes(in, p, load.Job)
}

// question returns the input of a decision about one waiting job: the newest state, and what the newest pass of its
// domain knew. The workload has no job if it does not wait.
func (s *Service) question(k structs.JobKey) (in scheduler.Input, load contend.Workload, policyOf search.Policy) {
	p := s.env.Replica.Published()
	w := p.Snapshot.Workload(k)
	if w == nil {
		return in, load, nil
	}
	in = scheduler.Input{Config: *p.Snapshot.SchedulerConfig(), Seed: 1}
	load.Key = k
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
		return in, load, nil
	}
	if fillGate(&load, p.Snapshot, in.Now); load.Gate == nil {
		load.Gate = passedOver(w, s.reports.of(k))
	}
	return in, load, policy.For(p.View.Pool(w.Domain), in.Config)
}
