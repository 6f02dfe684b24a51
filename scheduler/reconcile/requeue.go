package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Returning to the queue. A batch job names the ends after which its work returns (Job.Requeue), and a user may requeue
// it. Work that still runs is stopped first and is decided when it has ended: two allocations of one index never run at
// once.

const (
	descRequeued    = "alloc was requeued"
	requeueDelayMin = 5 * time.Second // before work that failed starts again, when the job's reschedule block names no delay
)

// Reasons of a restart that are not ends of Requeue.On.
const (
	restartByHand = structs.RequeueByHand
	restartDrain  = "drain"
	restartUpdate = "update"
	restartStop   = "stop"
)

// requeue decides about an allocation whose work returns, or may return, to the queue; ok is false when only the
// reschedule policy applies.
func (r *reconciler) requeue(g *GroupPlan, a *structs.Allocation, place where) (s slot, fills, ok bool) {
	if !a.Lineage().Next.IsZero() || r.job.Type != structs.JobBatch || place != nodeFine || a.Transition.ForceReschedule && !a.ServerTerminal() {
		return slot{}, false, false
	}
	wait := func() (slot, bool, bool) { return slot{a: a, kind: slotWaiting}, true, true }
	again := func(delay time.Duration) (slot, bool, bool) {
		st := StopOf(a, descRequeued)
		w := Want{Index: a.NameIndex, Prev: a, Prefer: r.sticky(g.Tg, a)}
		if !a.ServerTerminal() {
			w.Stop = &st
		}
		if q := r.job.Requeue; q != nil && q.AvoidFailedNodes && !a.Transition.Requeue {
			r.track(&w, g.Tg, a, delay)
		}
		g.Counts.Reschedule++
		return slot{a: a, kind: slotReplace, want: w}, true, true
	}
	reason := r.endOf(a, place)
	switch {
	case a.Transition.Requeue && a.ClientTerminal() && (a.Client != structs.ClientComplete || a.ServerTerminal()):
		return again(0)
	case a.Transition.Requeue && a.ServerTerminal():
		return wait()
	case a.Transition.Requeue && !a.ClientTerminal():
		g.Stops = append(g.Stops, StopOf(a, descRequeued))
		g.Counts.Stop++
		return wait()
	case r.older(a):
		return slot{}, false, false
	case reason == structs.RequeueLimit:
		switch {
		case !a.Terminal(): // overtime stops it
			return slot{}, false, false
		case !r.mayRequeue(a, reason):
			r.giveUp(a, reason)
			return slot{a: a, kind: slotDone}, true, true
		case !a.ClientTerminal():
			return wait()
		}
		return again(0)
	case a.Desired == structs.DesiredEvict && a.ClientTerminal() && r.giveUp(a, reason):
		return slot{a: a, kind: slotDone}, true, true
	case a.Client == structs.ClientFailed && !a.ServerTerminal() && r.giveUp(a, reason):
		return slot{a: a, kind: slotDone}, true, true
	case a.Client == structs.ClientFailed && !a.ServerTerminal() && r.mayRequeue(a, reason):
		when, delay, _ := r.nextTry(g.Tg, a, reason)
		due := r.now
		if !a.Lineage().FollowupEval.IsZero() && r.answering(a.Lineage().FollowupEval) {
			due = due.Add(FollowupWindow)
		}
		if r.force || when <= due {
			return again(delay)
		}
		g.Counts.Delayed++
		if a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval) {
			r.Later = append(r.Later, Later{At: when, Trigger: structs.TriggerRetryFailed, Desc: "work that failed returns to the queue", Group: g.Name,
				Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
		}
		return wait()
	}
	return slot{}, false, false
}

// mayRequeue reports whether the job's work returns after this end, and has not returned too often.
func (r *reconciler) mayRequeue(a *structs.Allocation, reason string) bool {
	return listed(r.job.Requeue, a, reason) && a.Lineage().Requeues < int64(r.job.Requeue.Max)
}

// giveUp reports whether work would have to return to the queue but has done so as often as its job allows. It has then
// failed for good, and the queue entry says why.
func (r *reconciler) giveUp(a *structs.Allocation, reason string) bool {
	q := r.job.Requeue
	if r.job.Type != structs.JobBatch || !listed(q, a, reason) || a.Lineage().Requeues < int64(q.Max) || r.force || a.Transition.ForceReschedule {
		return false
	}
	if r.Spent == "" {
		name := a.Name()
		switch tg := r.job.Group(a.Group); {
		case tg != nil && tg.Joint:
			name = "the all_at_once job"
		case tg.IsGang():
			name = fmt.Sprintf("gang %q", a.Group)
		}
		r.Spent = fmt.Sprintf("%s ended by %q and does not return to the queue: it has %d times, requeue.max is %d", name, reason, a.Lineage().Requeues, q.Max)
	}
	return true
}

// nextTry is NextReschedule for work that failed, and that may return to the queue by the job's requeue block instead.
func (r *reconciler) nextTry(tg *structs.Group, a *structs.Allocation, reason string) (when structs.LogTime, delay time.Duration, may bool) {
	p := tg.Reschedule
	if r.job.Type == structs.JobBatch && listed(r.job.Requeue, a, reason) {
		if r.giveUp(a, reason) {
			return 0, 0, false
		}
		p.Unlimited, p.Delay = true, max(p.Delay, requeueDelayMin)
	}
	return NextReschedule(&p, a)
}

// listed reports whether a requeue block names an end. It may name a failure by its kind, by its exit code, or as any.
func listed(q *structs.Requeue, a *structs.Allocation, reason string) bool {
	if q == nil || reason == "" {
		return false
	}
	if slices.Contains(q.On, reason) {
		return true
	}
	failed := a.Client == structs.ClientFailed && reason != structs.RequeueLimit && reason != structs.RequeuePreempt
	return failed && (slices.Contains(q.On, structs.RequeueFailure) || slices.Contains(q.On, fmt.Sprint(structs.RequeueExit, exitCode(a))))
}

// endOf returns why an allocation ended, or is meant to, in the words of Requeue.On or of the restart constants; "" for
// one that runs or ended well.
func (r *reconciler) endOf(a *structs.Allocation, place where) string {
	limit := time.Duration(0)
	if j := a.Job; j != nil {
		if tg := j.Group(a.Group); tg != nil {
			limit = j.RunLimit(tg)
		}
	}
	switch {
	case a.Transition.Requeue:
		return restartByHand
	case a.Desired == structs.DesiredEvict || !a.Lineage().PreemptedBy.IsZero():
		return structs.RequeuePreempt
	case a.Client == structs.ClientLost || place == nodeLost && !a.ClientTerminal():
		return structs.RequeueNodeLost
	case a.DesiredDesc == descMaxRun, a.Client == structs.ClientFailed && limit > 0 && a.StartedAt != 0 && a.Ran() >= limit:
		return structs.RequeueLimit // by the server, or by the agent, which also checks the time
	case a.Transition.Migrate:
		return restartDrain
	case a.Client == structs.ClientFailed && gpuError(a):
		return structs.RequeueGPUError
	case a.Client == structs.ClientFailed:
		if code := exitCode(a); code != 0 {
			return fmt.Sprint(structs.RequeueExit, code)
		}
		return structs.RequeueFailure
	case a.ServerTerminal():
		return restartStop
	}
	return ""
}

// exitCode returns the exit code of the task that failed the allocation; 0 when unknown.
func exitCode(a *structs.Allocation) int64 {
	for _, s := range a.TaskStates.All() {
		if s == nil || !s.Failed {
			continue
		}
		for i := len(s.Events) - 1; i >= 0; i-- {
			if c := s.Events[i].ExitCode; c != 0 {
				return c
			}
		}
	}
	return 0
}

// gpuError reports whether a task failed because of its GPU: its agent has reported so since the task started last.
func gpuError(a *structs.Allocation) bool {
	for _, s := range a.TaskStates.All() {
		for i := range s.Events {
			if e := &s.Events[i]; e.Type == structs.TaskEventGPUError && e.Time >= s.StartedAt {
				return true
			}
		}
	}
	return false
}

// restart fills in what a placement has to know of the work that it continues.
func (r *reconciler) restart(p *structs.PlanPlace, w *Want) {
	prev := w.Prev
	if r.job == nil {
		return
	}
	if w.gang != nil {
		p.Reason, p.Restarts, p.Requeues = w.gang.reason, w.gang.restarts, w.gang.requeues
		return
	}
	if prev == nil {
		return
	}
	if r.older(prev) && !prev.ClientTerminal() && !prev.Transition.Requeue {
		p.Reason = restartUpdate // the count begins again
		return
	}
	p.Reason = r.endOf(prev, r.where(prev))
	p.Restarts, p.Requeues = prev.Lineage().Restarts+1, prev.Lineage().Requeues
	if prev.Transition.Requeue || listed(r.job.Requeue, prev, p.Reason) {
		p.Requeues++
	}
}

// Restart fills in on a place what the work that is placed there continues.
func (w *Work) Restart(p *structs.PlanPlace, by *Want) { w.from.restart(p, by) }
