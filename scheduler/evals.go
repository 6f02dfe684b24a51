package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// laterEvals makes the delayed evaluations that the reconciliation asked for, and names them in the stops that refer to
// them. Requests with the same trigger within a short window share one.
func (d *decision) laterEvals() []*structs.Evaluation {
	slices.SortStableFunc(d.work.Later, func(a, b reconcile.Later) int {
		return cmp.Or(cmp.Compare(a.Trigger, b.Trigger), cmp.Compare(a.At, b.At))
	})
	var out []*structs.Evaluation
	for i := range d.work.Later {
		l := &d.work.Later[i]
		var e *structs.Evaluation
		if n := len(out); n > 0 && out[n-1].Trigger == l.Trigger && l.At <= out[n-1].WaitUntil.Add(reconcile.FollowupWindow) {
			e = out[n-1]
		} else {
			e = d.newEval(structs.DeriveID[structs.EvalID](structs.Seed(d.eval.ID), "followup", string(l.Trigger), uint64(d.in.View.Index())<<16^uint64(len(out))))
			e.Trigger, e.WaitUntil, e.StatusDesc = l.Trigger, l.At, l.Desc
			e.Status, e.PreviousEval = structs.EvalPending, d.eval.ID
			out = append(out, e)
		}
		for k := range l.Stops {
			l.Stops[k].Followup = e.ID
		}
	}
	return out
}

func (d *decision) newEval(id structs.EvalID) *structs.Evaluation {
	e := &structs.Evaluation{ID: id, Namespace: d.load.Key.Namespace, JobID: d.load.Key.ID, Type: d.eval.Type, Priority: d.eval.Priority,
		SnapshotIndex: d.in.View.Index(), CreateTime: d.in.Now, ModifyTime: d.in.Now}
	if j := d.load.Job; j != nil {
		e.Type, e.Priority, e.JobSpecIndex = j.Type, j.Priority, j.SpecIndex
	}
	return e
}

// answers returns the evaluations of the job as the decision leaves them: the deciding one answered, those it
// superseded canceled, and the blocked one waiting or ended.
func (d *decision) answers(later []*structs.Evaluation) []*structs.Evaluation {
	var out []*structs.Evaluation
	e := *d.eval
	e.StatusDesc, e.ModifyTime, e.SnapshotIndex = "", d.in.Now, d.in.View.Index()
	e.FailedGroups, e.PlacedGroups, e.Queued, e.BlockedEval = nil, nil, nil, structs.EvalID{}
	for _, g := range d.groups {
		if g.Tg == nil {
			continue
		}
		if e.Queued == nil {
			e.Queued = make(map[structs.GroupName]int)
		}
		e.Queued[g.Name] = int(d.misses[g.Name])
	}
	for _, r := range d.report.Groups {
		if r.Placed < r.Wanted {
			e.FailedGroups = append(e.FailedGroups, r)
		}
		if r.Placed > 0 {
			won := *r
			won.Code, won.Refusals, won.Coalesced = structs.ReasonNone, nil, 0
			e.PlacedGroups = append(e.PlacedGroups, &won)
		}
	}
	for _, l := range later {
		if l.Trigger == structs.TriggerRollingUpdate {
			e.NextEval = l.ID
		}
	}
	woken := d.load.Blocked != nil && d.load.Blocked.ID == e.ID
	switch {
	case d.report.Failed && woken:
		e.Status = structs.EvalBlocked
		e.StatusDesc, e.WaitUntil = d.waitText(), d.lookAgain()
		if sameAnswer(d.load.Blocked, &e) && len(d.placed) == 0 {
			break // nothing new to write
		}
		out = append(out, &e)
	case d.report.Failed:
		e.Status = structs.EvalComplete
		blocked := d.blocked(&e)
		e.BlockedEval = blocked.ID
		out = append(out, &e, blocked)
	default:
		e.Status = structs.EvalComplete
		out = append(out, &e)
		if b := d.load.Blocked; b != nil && !woken {
			out = append(out, d.canceled(b))
		}
	}
	for _, old := range d.load.Evals[:max(0, len(d.load.Evals)-1)] {
		if old.ID != e.ID && (d.load.Blocked == nil || old.ID != d.load.Blocked.ID) {
			out = append(out, d.canceled(old))
		}
	}
	return out
}

func (d *decision) canceled(old *structs.Evaluation) *structs.Evaluation {
	c := *old
	c.Status, c.Successor, c.ModifyTime = structs.EvalCanceled, d.eval.ID, d.in.Now
	c.StatusDesc = fmt.Sprintf("superseded by evaluation %s", d.eval.ID.Short())
	return &c
}

// blocked returns the workload's blocked evaluation, whose ID stays the same while the workload waits.
func (d *decision) blocked(e *structs.Evaluation) *structs.Evaluation {
	var b *structs.Evaluation
	if old := d.load.Blocked; old != nil {
		c := *old
		b = &c
	} else {
		id := structs.DeriveID[structs.EvalID](structs.Seed(e.ID), "blocked", d.load.Key.String(), 0)
		if q := d.load.Queue; q != nil && !q.BlockedEval.IsZero() {
			id = q.BlockedEval
		}
		b = d.newEval(id)
	}
	b.Trigger, b.Status, b.PreviousEval = structs.TriggerQueued, structs.EvalBlocked, e.ID
	b.StatusDesc, b.WaitUntil = d.waitText(), d.lookAgain()
	b.Priority, b.ModifyTime, b.SnapshotIndex = e.Priority, d.in.Now, d.in.View.Index()
	b.FailedGroups, b.Queued = e.FailedGroups, e.Queued
	return b
}

// sameAnswer reports whether the new answer of a blocked evaluation equals the old one.
func sameAnswer(a, b *structs.Evaluation) bool {
	if a.StatusDesc != b.StatusDesc || a.WaitUntil != b.WaitUntil || !maps.Equal(a.Queued, b.Queued) || len(a.FailedGroups) != len(b.FailedGroups) {
		return false
	}
	for i := range a.FailedGroups {
		x, y := a.FailedGroups[i], b.FailedGroups[i]
		if x.Group != y.Group || x.Code != y.Code || x.Wanted-x.Placed != y.Wanted-y.Placed ||
			curedBy(x, structs.EventNone) != curedBy(y, structs.EventNone) || curedBy(x, structs.EventSaved) != curedBy(y, structs.EventSaved) {
			return false
		}
	}
	return true
}

// curedBy reports whether an event cures one of the refusals of a group. EventNone stands for any event: the group, or a
// workload ahead of it, has a reservation.
func curedBy(g *structs.GroupReport, event structs.EventKind) bool {
	return slices.ContainsFunc(g.Refusals, func(r structs.Refusal) bool { return r.CuredBy == event })
}

// waitText returns what a blocked evaluation waits for.
func (d *decision) waitText() string {
	if d.load.Gate != nil {
		return "waiting: " + d.reasonText()
	}
	return "waiting for capacity: " + d.reasonText()
}

// lookAgain returns when a blocked evaluation is decided again even if nothing happens.
func (d *decision) lookAgain() structs.LogTime {
	if d.overBound {
		return d.in.Now.Add(contend.OverBoundRetry)
	}
	if d.load.Gate == nil {
		return d.growsAt
	}
	return d.load.Until
}

// reasonText returns the main reason in few words.
func (d *decision) reasonText() string {
	for _, r := range d.report.Groups {
		if r.Placed >= r.Wanted || d.givenBack(r) {
			continue
		}
		text := strconv.FormatInt(r.Wanted-r.Placed, 10) + " of group " + strconv.Quote(string(r.Group)) + ", " + string(r.Code)
		for _, x := range r.Refusals {
			if x.Code == r.Code {
				return text + " (" + x.Text() + ")"
			}
		}
		return text
	}
	return ""
}

// givenBack reports whether a group fits and only waits for another of its all_at_once job.
func (d *decision) givenBack(r *structs.GroupReport) bool {
	return slices.ContainsFunc(d.groups, func(g *groupWork) bool { return g.Name == r.Group && g.search != nil && g.search.GivenBack != "" })
}

// queueEntry returns the workload's new queue entry, or nil when it does not change.
func (d *decision) queueEntry() *structs.Workload {
	q := queueUpdate{structs.Workload{Namespace: d.load.Key.Namespace, JobID: d.load.Key.ID, SubmitTime: d.in.Now, Domain: structs.NodePoolDefault}}
	if d.load.Queue != nil {
		q.Workload = *d.load.Queue
	} else if j := d.load.Job; j != nil {
		q.SubmitIndex, q.SubmitTime = j.SpecIndex, j.SubmitTime
	}
	if j := d.load.Job; j != nil {
		q.Priority, q.Queue = j.Priority, j.Queue
		if j.NodePool != "" {
			q.Domain = j.NodePool
		}
	}
	q.BlockedEval, q.Reason, q.Waiting, q.StartEst, q.Amount = structs.EvalID{}, structs.ReasonNone, 0, 0, 0
	if d.reserved != nil {
		q.StartEst = d.reserved.Start
	}
	if d.work.Spent != "" {
		q.Spent = d.work.Spent
	}
	if j := d.load.Job; j != nil && len(j.Depends) > 0 {
		q.Met = q.Met || d.load.Met
	}
	if d.report.Failed {
		for _, r := range d.report.Groups {
			if r.Placed < r.Wanted {
				q.Waiting += r.Wanted - r.Placed
				if q.Reason == structs.ReasonNone {
					q.Reason, q.Amount = r.Code, shortOf(r)
				}
			}
		}
		q.BlockedEval = d.eval.ID
		if d.load.Blocked != nil {
			q.BlockedEval = d.load.Blocked.ID
		} else if d.load.Queue != nil && !d.load.Queue.BlockedEval.IsZero() {
			q.BlockedEval = d.load.Queue.BlockedEval
		} else {
			q.BlockedEval = structs.DeriveID[structs.EvalID](structs.Seed(d.eval.ID), "blocked", d.load.Key.String(), 0)
		}
	}
	if old := d.load.Queue; old != nil {
		q.throttle(old, d.in.Now)
		if q.Workload == *old {
			return nil
		}
	} else if !d.report.Failed && q.Spent == "" {
		return nil
	}
	return &q.Workload
}

// queueUpdateEvery is how often the missing amount and the estimated start of one workload are written (D23).
const queueUpdateEvery = time.Minute

// queueUpdate is a queue entry under construction.
type queueUpdate struct{ structs.Workload }

// throttle keeps the amount and start that were written last, unless the reason has changed or they were written a
// while ago.
func (q *queueUpdate) throttle(old *structs.Workload, now structs.LogTime) {
	switch {
	case q.Reason == structs.ReasonNone:
		q.Told = 0
	case q.Amount == old.Amount && q.StartEst == old.StartEst:
	case q.Reason == old.Reason && q.Waiting == old.Waiting && now.Sub(old.Told) < queueUpdateEvery:
		q.Amount, q.StartEst = old.Amount, old.StartEst
	default:
		q.Told = now
	}
}

// shortOf returns how much is missing for the main reason of a report, on the node where it is least; 0 when the reason
// has no amount.
func shortOf(r *structs.GroupReport) int64 {
	for i := range r.Refusals {
		if x := &r.Refusals[i]; x.Code == r.Code && x.Short > 0 {
			return x.Short
		}
	}
	return 0
}
