package server

import (
	"context"
	"slices"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Dry runs: what a pass would decide about a job that nobody has submitted yet. The input is made by what makes the input
// of passes, with everything that waits in the job's node pool, its queues, quotas, reservations and plans in flight; the
// plan is thrown away.

// dryMax is how many dry runs compute at a time; further ones wait their turn.
const dryMax = 2

// turnstile lets a few in at a time.
type turnstile chan struct{}

func (t turnstile) enter(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return structs.Errorf(structs.CodeBusy, "too many dry runs at a time: %v", ctx.Err())
	}
}

func (t turnstile) leave() { <-t }

// mayQueue refuses a job that its registration would refuse for what its queue does not allow.
func (s *Server) mayQueue(snap *state.Snapshot, j, old *structs.Job, by string) error {
	seen := fsm.Submissions{Queue: snap.QueueByPath, Submitted: func(r structs.UseRow) (n int64) {
		for o := range snap.Jobs("", "") {
			if o.Status != structs.JobDead && !o.IsPeriodic() && !o.IsParameterized() && slices.Contains(structs.UseRowsOf(o.Namespace, o.QueueName(), o.Submitter.Name), r) {
				n++
			}
		}
		return n
	}}
	if err := fsm.Admit(j, old, by, seen); err != nil {
		return err
	}
	return nil
}

// askPasses asks the owner of the queue what it knows of a node pool and what waits there. A server that does not decide
// answers from the state.
func (s *Server) askPasses(domain structs.PoolName) (k passKnown, waiting []*structs.Workload) {
	now := s.replica.Now()
	type answer struct {
		k       passKnown
		waiting []*structs.Workload
	}
	if p := s.decide.decider.Load(); p != nil {
		ch := make(chan answer, 1)
		ask := func() {
			names := []structs.PoolName{domain}
			if domain == broker.DomainAll {
				names = p.broker.Domains()
			}
			a := answer{k: p.known(domain, now)}
			for _, name := range names {
				a.waiting = append(a.waiting, p.broker.Queue(name, 0)...)
			}
			ch <- a
		}
		select {
		case p.asks <- ask:
			select {
			case a := <-ch:
				return a.k, a.waiting
			case <-p.ended:
			}
		default: // the owner is far behind
		}
	}
	k.pub = s.Published()
	snap := k.pub.Snapshot
	k.reservations = reservationsOf(snap, domain, now)
	loadContenders(snap).fill(&k.contenders, domain)
	for _, w := range pending(snap) {
		if domain == broker.DomainAll || w.Domain == domain {
			waiting = append(waiting, w)
		}
	}
	return k, waiting
}

// dryWaiting is how many others that wait a dry run looks at, as many as a pass takes.
const dryWaiting = 10_000

// dryPass is the input of the pass that would decide about a job, were it submitted at the given state, and the place of
// the job in it.
func (s *Server) dryPass(p *replica.Published, j *structs.Job, eval *structs.Evaluation) (in *scheduler.Input, at int) {
	k, others := s.askPasses(j.NodePool)
	k.pub = p
	snap, key, now := p.Snapshot, j.Key(), max(s.replica.Now(), p.Time)
	var ws []contend.Workload
	add := func(w contend.Workload) {
		w.Allocs, w.Rosters = snap.AllocsByJob(w.Key), snap.RostersByJob(w.Key)
		s.decide.predictor.tell(&w)
		fillGate(&w, snap, now)
		ws = append(ws, w)
	}
	for _, o := range others[:min(len(others), dryWaiting)] {
		w := contend.Workload{Key: structs.JobKey{Namespace: o.Namespace, ID: o.JobID}, Queue: o}
		if w.Job = snap.JobByKey(w.Key); w.Key == key || w.Job == nil {
			continue
		}
		for _, e := range snap.EvalsByJob(w.Key) {
			switch {
			case e.Status == structs.EvalBlocked:
				w.Blocked = e
			case e.Status == structs.EvalPending && e.WaitUntil <= now:
				w.Evals = append(w.Evals, e)
			}
		}
		slices.SortFunc(w.Evals, byCreation)
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
	if k.flight.HasJob(key) {
		k.flight = model.Overlay{} // a job with a plan in flight is not decided; the newest state will have to do
	}
	in = s.passInput(&k, ws, now, uint64(p.Index)<<16)
	in.Tell, in.Steps = key, passSteps
	if learns(policy.For(in.View.Pool(j.NodePool), in.Config), ws) {
		in.History = new(nodeHistory).at(snap)
	}
	return in, at
}

// dryEntry is the queue entry that a job would have: its own, or one at the end of the line.
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

// dryRun decides. The report of the job is nil only when it has nothing to tell.
func dryRun(in *scheduler.Input, at int, pol search.Policy) (plan scheduler.Plan, own *scheduler.WorkloadReport) {
	find := func(rep *scheduler.Report) {
		for i := range rep.Workloads {
			if rep.Workloads[i].Key == in.Pending[at].Key {
				own = &rep.Workloads[i]
			}
		}
	}
	plan, rep := scheduler.Schedule(*in, pol)
	if find(&rep); own == nil { // the budget ended before its turn: decide about it alone
		alone := *in
		alone.Pending, alone.Line, alone.Steps = in.Pending[at:at+1], nil, 0
		plan, rep = scheduler.Schedule(alone, pol)
		find(&rep)
	}
	return plan, own
}

// dryWhy is what `job why` would tell of the job after the pass.
func dryWhy(in *scheduler.Input, at int, rep *scheduler.WorkloadReport, starts *startEstimates, reports func(structs.JobKey) []*structs.GroupReport, may func(string) bool) *methods.JobWhyResponse {
	snap := starts.snap
	load := &in.Pending[at]
	w := *load.Queue
	w.StartEst, w.Waiting, w.Reason = rep.Start, 0, structs.ReasonNone
	why := &methods.JobWhyResponse{Job: load.Job, Workload: &w, Reports: rep.Groups, NodeNames: nodeNames(snap, rep.Groups)}
	for _, g := range rep.Groups {
		if n := g.Wanted - g.Placed; n > 0 {
			w.Waiting += n
			if w.Reason == structs.ReasonNone {
				w.Reason = g.Code
			}
		}
	}
	if w.Waiting == 0 {
		return why
	}
	why.Asks = waitingAsk(load.Job, &w)
	line := queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	for i := line.Next(); i >= 0; i = line.Next() {
		o := &in.Pending[i]
		switch {
		case i == at:
			why.Terms = line.Terms(i)
			if w.StartEst == 0 {
				why.StartEst, why.Starts = estimateStart(snap, load.Job, &w, rep.Groups, in.Now, starts)
			}
		case why.Position == 0 && o.Job != nil && o.Queue != nil && o.Queue.Reason == structs.ReasonQuota && o.Queue.StartEst == 0:
			estimateStart(snap, o.Job, o.Queue, reports(o.Key), in.Now, starts)
		}
		line.Placed(i, structs.Amount{})
		why.QueueLen++
		switch {
		case i == at:
			why.Position = why.QueueLen
		case why.Position == 0 && len(why.Ahead) < 10 && may(o.Key.Namespace):
			why.Ahead = append(why.Ahead, o.Key)
			why.AheadAsk = append(why.AheadAsk, waitingAsk(o.Job, o.Queue))
		}
	}
	return why
}

// nodeNames are the names of the nodes whose scores some reports tell.
func nodeNames(snap *state.Snapshot, reports []*structs.GroupReport) map[string]string {
	names := map[string]string{}
	for _, r := range reports {
		for _, sc := range r.Scores {
			if n := snap.NodeByID(sc.NodeID); n != nil {
				names[n.ID.String()] = n.Name
			}
		}
	}
	return names
}
