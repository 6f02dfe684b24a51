package reconcile

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Arrays (D22). Naive: want a place for each of 100,000 indices in every pass. Instead a pass looks at the indices that
// are allocations, skips the runs of those that have ended and were collected, and wants places for the next few: as
// many as the cap allows, at most startsMax. When all of those are placed, an evaluation continues with the next.

// array reconciles the one group of an array.
func (r *reconciler) array(g *GroupPlan, as []*structs.Allocation) {
	spec := r.job.Array
	slots := r.dedupe(g, r.slots(g, as))
	taken := make([]int, 0, len(slots))
	var stale []*structs.Allocation
	begun := 0 // indices that hold something, or will
	for _, s := range slots {
		if s.index() >= spec.Count { // the array became smaller
			switch {
			case s.kind == slotLive:
				g.Stops = append(g.Stops, StopOf(s.a, descNotNeeded))
				g.Counts.Stop++
			case s.kind == slotReplace && s.want.Stop != nil:
				g.Stops = append(g.Stops, *s.want.Stop)
				g.Counts.Stop++
			}
			continue
		}
		taken = append(taken, s.index())
		if structs.Holds(s.a) || s.kind == slotReplace {
			begun++
		}
		switch s.kind {
		case slotDone, slotWaiting:
			g.Counts.Ignore++
		case slotReplace:
			g.Wants = append(g.Wants, s.want)
		case slotLive:
			g.Staying = append(g.Staying, s.a)
			switch {
			case !r.older(s.a):
				g.Counts.Ignore++
			case r.inPlace(g, s.a):
				g.Updates = append(g.Updates, structs.PlanUpdate{ID: s.a.ID})
				g.Counts.InPlace++
			default:
				stale = append(stale, s.a)
			}
		}
	}
	r.replace(g, stale, 0, 0, nil)
	room := startsMax
	if spec.Concurrency > 0 {
		room = min(room, spec.Concurrency-begun)
		g.Capped = spec.Concurrency-begun <= startsMax
	}
	// Walk over what has ended and what exists: both ascend.
	next, at := 0, 0
	fill := func(to int) { // indices next..to-1, less those taken
		for ; at < len(taken) && taken[at] < next; at++ {
		}
		for next < to {
			stop := to
			if at < len(taken) && taken[at] < to {
				stop = taken[at]
			}
			for ; next < stop && room > 0; next++ {
				g.Wants = append(g.Wants, Want{Index: next, Prev: g.former[next]})
				g.Counts.Place++
				room--
			}
			g.More += int64(stop - next)
			next = stop
			if next < to { // taken
				next++
				at++
			}
		}
	}
	if r.ended != nil {
		for _, run := range r.ended.Ended {
			if run.From >= spec.Count {
				break
			}
			fill(run.From)
			next = max(next, run.To+1)
			for at < len(taken) && taken[at] < next {
				at++
			}
		}
	}
	fill(spec.Count)
	slices.SortStableFunc(g.Wants, func(a, b Want) int { return cmp.Compare(a.Index, b.Index) })
}

// Settled reports whether an allocation of an array needs no further action, so that only how it ended needs to be
// kept.
func Settled(j *structs.Job, a *structs.Allocation) bool {
	if !a.ClientTerminal() || a.Transition.ForceReschedule {
		return false
	}
	if !a.Lineage().Next.IsZero() || a.Client == structs.ClientComplete && a.Desired == structs.DesiredRun {
		return true
	}
	tg := j.Group(a.Group)
	if tg == nil || a.Client != structs.ClientFailed || a.Transition.Requeue || a.JobVersion != j.Version {
		return tg == nil
	}
	r := reconciler{job: j}
	reason := r.endOf(a, nodeFine)
	if listed(j.Requeue, a, reason) {
		return !r.mayRequeue(a, reason) && a.Desired == structs.DesiredRun || reason == structs.RequeueLimit && !r.mayRequeue(a, reason)
	}
	_, _, may := NextReschedule(&tg.Reschedule, a)
	return reason == structs.RequeueLimit || !may && a.Desired == structs.DesiredRun
}
