package decide

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/structs"
)

// context collects what the owner knows about a node pool.
func (d *decider) context(domain structs.PoolName, now structs.LogTime) passContext {
	c := passContext{pub: d.pub, flight: d.planner.Overlay(), cursor: d.cursors[domain], reservations: d.reservationsOf(d.pub.Snapshot, domain, now),
		starved: d.broker.Starved(domain), freed: d.freed, losses: &d.losses}
	d.contenders.fill(&c.contenders, domain)
	return c
}

// input collects everything that a pass may depend on.
func (d *decider) input(pass *broker.Pass, now structs.LogTime) *scheduler.Input {
	snap := d.pub.Snapshot
	d.passes++
	pending := make([]contend.Workload, len(pass.Items))
	for i := range pass.Items {
		it := &pass.Items[i]
		w := contend.Workload{Key: it.Key, Job: snap.JobByKey(it.Key), Evals: it.Evals, Blocked: it.Blocked,
			Queue: it.Workload, Allocs: snap.AllocsByJob(it.Key), Rosters: snap.RostersByJob(it.Key)}
		if it.Spec != nil {
			w.Job, w.Evals = it.Spec.Job, []*structs.Evaluation{it.Spec.Eval}
		}
		d.s.predict(snap, &w)
		if never := fillGate(&w, snap, now); never != "" && it.Spec == nil {
			d.failJob(it.Key, never)
		}
		pending[i] = w
	}
	c := d.context(pass.Domain, now)
	in := d.s.input(&c, pending, now, uint64(d.pub.Index)<<16^d.passes)
	in.Steps, in.Places = passSteps, passPlaces
	if learns(policy.For(in.View.Pool(pass.Domain), in.Config), pending) {
		in.History = d.s.history.at(snap)
	}
	return in
}

// input returns the input of a pass or a dry run.
func (s *Service) input(c *passContext, pending []contend.Workload, now structs.LogTime, seed uint64) *scheduler.Input {
	snap := c.pub.Snapshot
	in := &scheduler.Input{
		View: c.pub.View, Flight: c.flight, Config: *snap.SchedulerConfig(), Now: now, Seed: seed, Cursor: c.cursor, Pending: pending,
		Evicted: slices.Collect(snap.Preempted()), Waits: c.starved && anyGrowing(pending), Queues: s.QueueTable(snap), Reserved: c.reservations,
		OldEvents: !snap.Has(feature.EventSaved), OldLimits: !snap.Has(feature.MoveCharges), Power: hasPowerBudget(snap), Running: c.contenders.Running, Chooser: c.contenders.Chooser,
	}
	if in.View.AnyLost() {
		in.Typical = cmp.Or(c.losses, &s.ended).of(snap, &structs.Job{}).MeanTimeToLoss()
	}
	if anyGrowing(pending) {
		in.Freed = c.freed
	}
	in.GangTimes = contend.NewGangTimes(snap.Rosters())
	in.Line = queue.NewLine(in.Queues, in.Config, in.Pending, now, in.Seed)
	return in
}

// hasPowerBudget reports whether some node pool has a power budget.
func hasPowerBudget(snap *state.Snapshot) bool {
	for p := range snap.Pools() {
		if p.PowerBudgetW > 0 {
			return true
		}
	}
	return false
}

// anyGrowing reports whether some job may grow beyond its minimum.
func anyGrowing(ws []contend.Workload) bool {
	return slices.ContainsFunc(ws, func(w contend.Workload) bool {
		return w.Job != nil && slices.ContainsFunc(w.Job.Groups, func(g *structs.Group) bool {
			return (g.IsGang() || g.Elastic != nil) && g.Most() > g.Least()
		})
	})
}

// compute decides a pass, on the pass's goroutine. After a panic, the pass is decided job by job, each seeing the plans
// before it, so that only the evaluation that caused the panic fails.
func (s *Service) compute(pass broker.Pass, in *scheduler.Input) decided {
	x := decided{pass: pass, input: in}
	pol := policy.For(in.View.Pool(pass.Domain), in.Config)
	var why string
	if x.plan, x.report, why = s.schedule(*in, pol); why == "" {
		return x
	}
	x.plan, x.report, x.failed = scheduler.Plan{Cursor: in.Cursor}, scheduler.Report{}, map[structs.JobKey]string{}
	alone := *in
	alone.Line = nil // jobs are decided one by one, in order of submission
	for i := range in.Pending {
		alone.Pending = in.Pending[i : i+1]
		plan, report, why := s.schedule(alone, pol)
		if why != "" {
			x.failed[in.Pending[i].Key] = why
			continue
		}
		for _, e := range plan.Entries {
			alone.Flight = alone.Flight.Add(^uint64(0)-uint64(len(x.plan.Entries)), e, nil)
			x.plan.Entries = append(x.plan.Entries, e)
		}
		x.plan.Deferred = append(x.plan.Deferred, plan.Deferred...)
		x.plan.Cursor, alone.Cursor = plan.Cursor, plan.Cursor
		x.report.Workloads = append(x.report.Workloads, report.Workloads...)
		x.report.Steps += report.Steps
	}
	return x
}

// schedule is scheduler.Schedule that returns a panic as text.
func (s *Service) schedule(in scheduler.Input, pol search.Policy) (plan scheduler.Plan, report scheduler.Report, why string) {
	defer func() {
		if r := recover(); r != nil {
			why = fmt.Sprintf("%v\n%s", r, debug.Stack())
		}
	}()
	if before := s.env.Testing.BeforeSchedule; before != nil {
		before(in)
	}
	plan, report = scheduler.Schedule(in, pol)
	return plan, report, ""
}
