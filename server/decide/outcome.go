package decide

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// After a decision, its plans go to the planner and from there into the log. The broker is answered for each job once
// the outcome of all its plans is known.

// Limits of the follow-ups of failed evaluations.
const (
	failedChainMax = 6               // failed evaluations of one job in a row; beyond it no other follows
	failedWaitMin  = 5 * time.Second // delay of the first follow-up; doubles
	failedWaitMax  = 5 * time.Minute
)

// finish handles the result of a pass.
func (d *decider) finish(x *decided) {
	now := d.now()
	d.endPass(x, now)
	jobs := d.propose(x, now)
	deferred := make(map[structs.JobKey]bool, len(x.plan.Deferred))
	for _, k := range x.plan.Deferred {
		deferred[k] = true
	}
	for i := range x.pass.Items {
		it := &x.pass.Items[i]
		a := jobs[it.Key]
		why, failed := x.failed[it.Key]
		switch {
		case failed:
			d.fail(it, why)
		case a.waits > 0: // answered once its plans are
		case a.refused:
			d.broker.Nack(it.Key, a.at, now)
		case deferred[it.Key]:
			d.broker.Defer(it.Key, now)
		default:
			d.broker.Done(it.Key, 0, now)
		}
	}
}

// endPass counts a pass, keeps its reports and ends it in the broker.
func (d *decider) endPass(x *decided, now structs.LogTime) {
	d.s.env.Observe.Pass(x.took.Seconds())
	d.cursors[x.pass.Domain] = x.plan.Cursor
	d.broker.EndPass(x.pass.ID)
	d.broker.WakeAt(x.pass.Domain, wakeAt(x, now))
	d.s.reports.keep(&x.report)
	for i := range x.report.Workloads {
		if x.report.Workloads[i].Passed {
			d.metrics.Backfilled++
		}
	}
}

// propose gives the plans of a pass to the planner. It returns the state of each job of the pass.
func (d *decider) propose(x *decided, now structs.LogTime) map[structs.JobKey]*answering {
	items := make(map[structs.JobKey]*broker.Item, len(x.pass.Items))
	jobs := make(map[structs.JobKey]*answering, len(x.pass.Items))
	for i := range x.pass.Items {
		it := &x.pass.Items[i]
		items[it.Key], jobs[it.Key] = it, &answering{key: it.Key}
	}
	var newest *replica.Published
	var bound []*structs.Reservation // reservations in newest
	for _, e := range x.plan.Entries {
		key := structs.JobKey{Namespace: e.Namespace, ID: e.JobID}
		it, a := items[key], jobs[key]
		if a == nil {
			d.s.log.Error("a pass decided about a job that it was not given; its plan is dropped", "job", key)
			continue
		}
		speculative := it.Spec != nil
		if speculative {
			e.JobCreate = 0
		}
		if p := d.s.env.Replica.Published(); p != newest {
			newest, bound = p, d.binding(p.Snapshot, &x.pass, now)
		}
		id, ans, done := d.planner.Propose(newest.View, newest.Snapshot.JobByKey(key), e, speculative, bound, now)
		if done {
			a.refused, a.at = true, max(a.at, ans.Index)
			d.logRefusal(&ans)
			continue
		}
		a.waits++
		d.flight.jobs[id] = a
		if slices.ContainsFunc(e.Evals, func(e *structs.Evaluation) bool { return e.Status == structs.EvalBlocked }) {
			d.broker.Returns(key)
		}
	}
	return jobs
}

func (d *decider) logRefusal(a *planner.Answer) {
	d.s.log.Debug("plan refused; its job is decided again", "job", a.Job, "why", a.Why, "index", a.Index)
}

// send puts queued plans into the log.
func (d *decider) send() {
	for !d.lost {
		b, ok := d.planner.Next()
		if !ok {
			return
		}
		depth, _ := d.planner.Depth()
		d.s.env.Observe.PlanDepth(float64(depth))
		d.s.env.Observe.PlanPlans(float64(len(b.Entries)))
		d.write(purpose{batch: b.Seq}, &structs.PlansCommand{Entries: b.Entries})
	}
}

// write proposes a command. Its outcome is sent to the owner.
func (d *decider) write(p purpose, body structs.CommandBody) {
	o := outcome{purpose: p, began: time.Now()}
	prop := d.s.env.Replica.Propose(replica.LanePriority, structs.Command{By: structs.Submitter{Name: "scheduler"}, Body: body})
	d.flight.writes++
	go func() {
		<-prop.Done()
		o.res, o.err = prop.Result()
		d.flight.outcomes <- o
	}()
}

// answer handles the outcome of a command.
func (d *decider) answer(o *outcome) {
	switch {
	case o.never != nil:
		d.answerNever(o)
	case o.fail != nil:
		d.answerFail(o)
	default:
		d.answerBatch(o)
	}
}

// answerBatch answers the broker for the jobs of a batch of plans.
func (d *decider) answerBatch(o *outcome) {
	now := d.now()
	d.s.env.Observe.Commit(time.Since(o.began).Seconds())
	for _, a := range d.planned(o) {
		if a.Outcome != planner.Accepted {
			d.logRefusal(&a)
		}
		j := d.flight.jobs[a.ID]
		delete(d.flight.jobs, a.ID)
		if j == nil {
			continue
		}
		if a.Freed {
			if w := d.pub.Snapshot.Workload(a.Job); w != nil && w.Domain != "" {
				d.broker.Freed(w.Domain, now)
			} else {
				d.broker.Freed(broker.DomainAll, now)
			}
		}
		j.waits--
		j.refused = j.refused || a.Outcome != planner.Accepted
		j.at = max(j.at, a.Index)
		switch {
		case j.waits > 0:
		case j.refused:
			d.broker.Nack(j.key, j.at, now)
		default:
			d.broker.Done(j.key, j.at, now)
		}
	}
}

// planned reports the outcome of a batch to the planner, and returns the answer for each plan.
func (d *decider) planned(o *outcome) []planner.Answer {
	switch code := structs.CodeOf(o.err); {
	case o.err == nil && o.res.Err == nil:
		return d.planner.Landed(o.batch, o.res.Index, o.res.Plans, d.pub.Index)
	case o.err == nil, code == structs.CodeBusy, code == structs.CodeTooLarge, code == structs.CodeInvalid:
		// Nothing was written.
		err := o.err
		if err == nil {
			err = o.res.Err
		}
		d.s.log.Error("plans were not written", "error", err)
		return d.planner.Rejected(o.batch, err.Error())
	}
	d.lost = true
	return d.planner.Lost(o.batch)
}

// fail ends the evaluation of a job whose decision panicked, and adds another one for later, up to failedChainMax in a
// row.
func (d *decider) fail(it *broker.Item, why string) {
	d.metrics.Panics++
	e := it.Deciding()
	d.s.log.Error("deciding about a job panicked; its evaluation fails", "job", it.Key, "eval", e.ID, "panic", why)
	if it.Spec != nil { // it is decided again after its commit
		d.broker.Nack(it.Key, 0, d.now())
		return
	}
	chain := 0
	for prev := e; prev != nil && prev.Trigger == structs.TriggerFailedFollowUp && chain < failedChainMax; chain++ {
		prev = d.pub.Snapshot.EvalByID(prev.PreviousEval)
	}
	failed := *e
	failed.Status, failed.StatusDesc = structs.EvalFailed, "deciding failed by a fault of the server; its log has the detail"
	evals := []*structs.Evaluation{&failed}
	for _, old := range it.Evals {
		if old.ID != e.ID {
			c := *old
			c.Status, c.Successor = structs.EvalCanceled, e.ID
			evals = append(evals, &c)
		}
	}
	if chain < failedChainMax {
		next := d.followUp(it, e, chain)
		failed.NextEval = next.ID
		evals = append(evals, next)
	} else {
		failed.StatusDesc += fmt.Sprintf("; it failed %d times in a row and is not tried again before the job changes", chain)
	}
	d.write(purpose{fail: &it.Key}, &structs.EvalUpsertCommand{Evals: evals})
}

// followUp returns the evaluation that follows a failed one, the chain-th in a row.
func (d *decider) followUp(it *broker.Item, e *structs.Evaluation, chain int) *structs.Evaluation {
	wait := min(failedWaitMin<<chain, failedWaitMax)
	return &structs.Evaluation{
		ID:        structs.DeriveID[structs.EvalID](structs.Seed(e.ID), "failed-follow-up", it.Key.String(), uint64(d.pub.Index)),
		Namespace: e.Namespace, JobID: e.JobID, Type: e.Type, Priority: e.Priority, Trigger: structs.TriggerFailedFollowUp,
		JobSpecIndex: e.JobSpecIndex, Status: structs.EvalPending, Wait: wait, WaitUntil: d.now().Add(wait), PreviousEval: e.ID,
	}
}

func (d *decider) answerFail(o *outcome) {
	switch code := structs.CodeOf(o.err); {
	case o.err == nil && o.res.Err == nil:
		d.broker.Done(*o.fail, o.res.Index, d.now())
	case o.err == nil, code == structs.CodeBusy:
		d.broker.Nack(*o.fail, 0, d.now())
	default:
		d.lost = true
	}
}

// failJob stops a job that can never start. Passes see the job until that is in the state, but only one command at a
// time is in flight.
func (d *decider) failJob(k structs.JobKey, why string) {
	if d.flight.failing[k] {
		return
	}
	d.flight.failing[k] = true
	d.write(purpose{never: &k}, &structs.WorkloadCommand{Namespace: k.Namespace, JobID: k.ID, Action: structs.ActionFail, Reason: why})
}

func (d *decider) answerNever(o *outcome) {
	delete(d.flight.failing, *o.never)
	err := o.err
	if err == nil && o.res.Err != nil {
		err = o.res.Err
	}
	if err != nil {
		d.s.log.Warn("a job that can never start was not stopped; the next pass tries again", "job", *o.never, "error", err)
	}
}
