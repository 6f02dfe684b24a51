package decide

import (
	"cmp"
	"context"
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// dryRunWaiting bounds the waiting jobs that a dry run looks at; a pass takes as many.
const dryRunWaiting = 10_000

// DryRun is a pass about a job as if it were registered. Its plan is not written.
type DryRun struct {
	s *Service

	// Set by Decide.
	Input  *scheduler.Input // like the input of a pass, with all jobs that wait in the job's node pool
	At     int              // index of the job in Input.Pending
	Plan   scheduler.Plan
	Report *scheduler.WorkloadReport // of the job; nil if there is nothing to report
	pol    search.Policy
}

// NewDryRun waits until a dry run may begin. Call Close at its end.
func (s *Service) NewDryRun(ctx context.Context) (*DryRun, error) {
	if err := s.dryRuns.enter(ctx); err != nil {
		return nil, err
	}
	return &DryRun{s: s}, nil
}

// Close ends the dry run.
func (r *DryRun) Close() { r.s.dryRuns.leave() }

// Decide decides about a job on a state. eval is the evaluation that its registration would make.
func (r *DryRun) Decide(p *replica.Published, j *structs.Job, eval *structs.Evaluation) {
	r.Input, r.At = r.s.dryInput(p, j, eval)
	r.pol = policy.For(p.View.Pool(j.NodePool), r.Input.Config)
	find := func(rep *scheduler.Report) {
		for i := range rep.Workloads {
			if rep.Workloads[i].Key == r.Input.Pending[r.At].Key {
				r.Report = &rep.Workloads[i]
			}
		}
	}
	plan, rep := scheduler.Schedule(*r.Input, r.pol)
	if find(&rep); r.Report == nil { // the budget ended before the job's turn: decide about it alone
		alone := *r.Input
		alone.Pending, alone.Line, alone.Steps = r.Input.Pending[r.At:r.At+1], nil, 0
		plan, rep = scheduler.Schedule(alone, r.pol)
		find(&rep)
	}
	r.Plan = plan
}

// Advise searches for changes that would start the job. It returns nil if too many searches run. w is the job's queue
// entry after the run.
func (r *DryRun) Advise(w *structs.Workload) *suggest.Advice {
	if !r.s.advisings.tryEnter() {
		return nil
	}
	defer r.s.advisings.leave()
	load := r.Input.Pending[r.At]
	if load.Gate == nil {
		load.Gate = passedOver(w, r.Report.Groups)
	}
	advice := suggest.Find(*r.Input, r.pol, load)
	return &advice
}

// ask asks the decider what a pass of a domain would see. Without a decider, or if it is too busy, the answer comes
// from the state.
func (s *Service) ask(domain structs.PoolName) reply {
	if d := s.decider.Load(); d != nil {
		answer := make(chan reply, 1)
		select {
		case d.inbox.questions <- question{domain, answer}:
			select {
			case r := <-answer:
				return r
			case <-d.inbox.closed:
			}
		default: // the owner has a backlog
		}
	}
	p := s.env.Replica.Published()
	r := reply{known: passContext{pub: p, reservations: reservationsOf(p.Snapshot, domain, s.env.Replica.Now())}}
	loadContenders(p.Snapshot).fill(&r.known.contenders, domain)
	for _, w := range Pending(p.Snapshot) {
		if domain == broker.DomainAll || w.Domain == domain {
			r.waiting = append(r.waiting, w)
		}
	}
	return r
}

// dryInput returns the input of the pass that would decide about a job if it were submitted on a state, and the job's
// index in Pending.
func (s *Service) dryInput(p *replica.Published, j *structs.Job, eval *structs.Evaluation) (in *scheduler.Input, at int) {
	r := s.ask(j.NodePool)
	r.known.pub, r.known.losses = p, nil // the decider's sums belong to another state
	snap, key, now := p.Snapshot, j.Key(), max(s.env.Replica.Now(), p.Time)
	var ws []contend.Workload
	add := func(w contend.Workload) {
		w.Allocs, w.Rosters = snap.AllocsByJob(w.Key), snap.RostersByJob(w.Key)
		s.predict(snap, &w)
		fillGate(&w, snap, now)
		ws = append(ws, w)
	}
	for _, o := range r.waiting[:min(len(r.waiting), dryRunWaiting)] {
		w := contend.Workload{Key: structs.JobKey{Namespace: o.Namespace, ID: o.JobID}, Queue: o}
		if w.Job = snap.JobByKey(w.Key); w.Key == key || w.Job == nil {
			continue
		}
		if newest := snap.Workload(w.Key); newest != nil {
			w.Queue = newest // the decider may not have been fed the state that says why the job waits
		}
		for _, e := range snap.EvalsByJob(w.Key) {
			switch {
			case e.Status == structs.EvalBlocked:
				w.Blocked = e
			case e.Status == structs.EvalPending && e.WaitUntil <= now:
				w.Evals = append(w.Evals, e)
			}
		}
		slices.SortFunc(w.Evals, func(a, b *structs.Evaluation) int {
			return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), slices.Compare(a.ID[:], b.ID[:]))
		})
		if w.Blocked != nil || len(w.Evals) > 0 {
			add(w)
		}
	}
	own := contend.Workload{Key: key, Job: j, Evals: []*structs.Evaluation{eval}, Queue: dryEntry(snap.Workload(key), snap.JobByKey(key), j, p, now)}
	if b := own.Queue.BlockedEval; !b.IsZero() {
		own.Blocked = snap.EvalByID(b)
	}
	at = len(ws)
	add(own)
	if r.known.flight.HasJob(key) {
		r.known.flight = model.Overlay{} // a job with a plan in flight would not be decided
	}
	in = s.input(&r.known, ws, now, uint64(p.Index)<<16)
	in.EstimateFor, in.Steps = key, passSteps
	if learns(policy.For(in.View.Pool(j.NodePool), in.Config), ws) {
		in.History = new(nodeHistory).at(snap)
	}
	return in, at
}

// dryEntry returns the queue entry that a job would have: its current one with changes, or a new one at the end of the
// line.
func dryEntry(have *structs.Workload, old, j *structs.Job, p *replica.Published, now structs.LogTime) *structs.Workload {
	w := structs.Workload{Namespace: j.Namespace, JobID: j.ID, SubmitIndex: p.Index + 1, SubmitTime: now, Held: j.Hold}
	if have != nil {
		w = *have
		if old != nil && old.Hold != j.Hold {
			w.Held = j.Hold
		}
		w.Met = w.Met && old != nil && slices.Equal(old.Depends, j.Depends)
	}
	w.Domain, w.Priority, w.Queue = j.NodePool, j.Priority, j.Queue
	return &w
}
