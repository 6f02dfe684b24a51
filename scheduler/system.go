package scheduler

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// system reconciles a group of a system or sysbatch job: one allocation on every node that may have it. Name indexes
// are unique within the group, like those of other jobs; they say nothing about the node.
func (r *reconciler) system(g *groupPlan, as []*structs.Allocation) {
	if g.tg.Count == 0 {
		r.stopAll(g, as, descNotNeeded)
		return
	}
	filled := make(map[structs.NodeID]bool)
	taken := make(map[int]bool)
	var stale []*structs.Allocation
	unsettled := 0
	update := r.update(g.tg)
	replaces := make(map[structs.NodeID]want)
	for _, a := range as {
		if !a.ClientTerminal() {
			taken[a.NameIndex] = true
		}
		if r.where(a) == nodeLost {
			if !a.ClientTerminal() {
				g.stops = append(g.stops, lostOf(a))
				g.counts.Stop++
			}
			continue
		}
		n := r.view.Node(a.NodeID)
		switch {
		case a.ServerTerminal():
			if r.job.Type == structs.JobSysBatch && a.DesiredDesc == descMaxRun && !r.older(a) {
				filled[a.NodeID] = true
			}
		case a.ClientTerminal():
			w, wait := r.systemEnded(g, a)
			switch {
			case wait:
				filled[a.NodeID] = true
				g.counts.Ignore++
			case w != nil:
				replaces[a.NodeID] = *w
			}
		case a.Transition.Migrate || n.Drain != nil && !n.Drain.IgnoreSystemJobs && n.Drain.Deadline < 0:
			g.stops = append(g.stops, stopOf(a, descMigrating))
			g.counts.Migrate++
			filled[a.NodeID] = true
		case !g.ask.MayStay(n):
			g.stops = append(g.stops, stopOf(a, descNodeMismatch))
			g.counts.Stop++
			filled[a.NodeID] = true
		case filled[a.NodeID]:
			g.stops = append(g.stops, stopOf(a, descDuplicate))
			g.counts.Stop++
		case r.overtime(g, a):
			g.stops = append(g.stops, stopOf(a, descMaxRun))
			g.counts.Stop++
			filled[a.NodeID] = true
		case !r.older(a):
			filled[a.NodeID] = true
			g.staying = append(g.staying, a)
			g.counts.Ignore++
			if r.unsettled(a, update) {
				unsettled++
			}
		case r.inPlace(g, a):
			filled[a.NodeID] = true
			g.staying = append(g.staying, a)
			g.updates = append(g.updates, structs.PlanUpdate{ID: a.ID})
			g.counts.InPlace++
		default:
			filled[a.NodeID] = true
			g.staying = append(g.staying, a)
			stale = append(stale, a)
		}
	}
	// A node that takes nothing new keeps what it has; it is not asked to replace it.
	stale = slices.DeleteFunc(stale, func(a *structs.Allocation) bool { return !r.view.Node(a.NodeID).Ready() })
	r.replace(g, stale, unsettled, update)
	next := 0
	suits := make(map[[16]byte]bool)
	for _, c := range r.view.Chunks {
		for i, n := range c.Nodes {
			if !c.Ready[i] || filled[n.ID] {
				continue
			}
			ok, known := suits[c.Hash[i]]
			if !known {
				ok = g.ask.Suits(n)
				suits[c.Hash[i]] = ok
			}
			if !ok || !g.ask.SuitsNode(n) {
				continue
			}
			w, have := replaces[n.ID]
			if !have {
				for taken[next] {
					next++
				}
				w = want{index: next}
			} else if taken[w.index] {
				for taken[next] {
					next++
				}
				w.index = next
			}
			taken[w.index] = true
			w.pinned = n.ID
			g.wants = append(g.wants, w)
			g.counts.Place++
		}
	}
	g.nowhere = len(g.wants)+len(filled) == 0
}

// systemEnded tells what follows when a system allocation ended by itself: wait means that nothing is placed on its node
// for now; else a want is what it is replaced by, or nil for a fresh start.
func (r *reconciler) systemEnded(g *groupPlan, a *structs.Allocation) (w *want, wait bool) {
	sysbatch := r.job.Type == structs.JobSysBatch
	if r.older(a) || !a.Next.IsZero() {
		return nil, false
	}
	if a.Client != structs.ClientFailed {
		return nil, sysbatch && a.Client == structs.ClientComplete
	}
	again := func(delay time.Duration) *want {
		w := &want{index: a.NameIndex, prev: a}
		r.track(w, g.tg, a, delay)
		w.avoid = nil
		g.counts.Reschedule++
		return w
	}
	if r.force || a.Transition.ForceReschedule {
		return again(0), false
	}
	when, delay, may := NextReschedule(&g.tg.Reschedule, a)
	if !may {
		if sysbatch || g.tg.Reschedule.Attempts > 0 {
			return nil, true
		}
		delay = systemRetryDelay
		end := a.FinishedAt
		if end == 0 {
			end = a.ModifyTime
		}
		when = end.Add(delay)
	}
	if when <= r.now {
		return again(delay), false
	}
	if a.FollowupEval.IsZero() || r.answering(a.FollowupEval) {
		r.Later = append(r.Later, later{at: when, trigger: structs.TriggerRetryFailed, desc: "a failed allocation will be started again", group: g.name,
			stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
	}
	g.counts.Delayed++
	return nil, true
}
