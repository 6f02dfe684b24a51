package reconcile

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// system reconciles a group of a system or sysbatch job: one allocation on every feasible node. Name indices are unique
// within the group, as in other jobs; they do not depend on the node.
func (r *reconciler) system(g *GroupPlan, as []*structs.Allocation) {
	if g.Tg.Count == 0 {
		r.stopAll(g, as, descNotNeeded)
		return
	}
	filled := make(map[structs.NodeID]bool)
	taken := make(map[int]bool)
	var stale, fresh []*structs.Allocation
	unsettled := 0
	update := RollingUpdate(r.job, g.Tg)
	replaces := make(map[structs.NodeID]Want)
	for _, a := range as {
		if !a.ClientTerminal() {
			taken[a.NameIndex] = true
		}
		if r.where(a) == nodeLost {
			if !a.ClientTerminal() {
				g.Stops = append(g.Stops, lostOf(a))
				g.Counts.Stop++
			}
			continue
		}
		if r.where(a) == nodeSilent {
			r.hold(g, a)
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
			if (wait || w != nil) && r.unsettled(a, update) {
				unsettled++
			}
			switch {
			case wait:
				filled[a.NodeID] = true
				g.Counts.Ignore++
			case w != nil:
				replaces[a.NodeID] = *w
			}
		case a.Transition.Migrate || n.Drain != nil && !n.Drain.IgnoreSystemJobs && n.Drain.Deadline < 0:
			g.Stops = append(g.Stops, StopOf(a, descMigrating))
			g.Counts.Migrate++
			filled[a.NodeID] = true
		case !g.Ask.MayStay(n):
			g.Stops = append(g.Stops, StopOf(a, descNodeMismatch))
			g.Counts.Stop++
			filled[a.NodeID] = true
		case filled[a.NodeID]:
			g.Stops = append(g.Stops, StopOf(a, descDuplicate))
			g.Counts.Stop++
		case r.overtime(g, a):
			g.Stops = append(g.Stops, StopOf(a, descMaxRun))
			g.Counts.Stop++
			filled[a.NodeID] = true
		case !r.older(a):
			filled[a.NodeID] = true
			g.Staying = append(g.Staying, a)
			g.Counts.Ignore++
			fresh = append(fresh, a)
		case r.inPlace(g, a):
			filled[a.NodeID] = true
			g.Staying = append(g.Staying, a)
			g.Updates = append(g.Updates, structs.PlanUpdate{ID: a.ID})
			g.Counts.InPlace++
		default:
			filled[a.NodeID] = true
			g.Staying = append(g.Staying, a)
			stale = append(stale, a)
		}
	}
	// A node that accepts nothing new keeps what it has: nothing on it is replaced.
	stale = slices.DeleteFunc(stale, func(a *structs.Allocation) bool { return !r.view.Node(a.NodeID).Ready() })
	if len(stale) > 0 { // task states are read only while there is something to replace
		for _, a := range fresh {
			if r.unsettled(a, update) {
				unsettled++
			}
		}
	}
	r.replace(g, stale, unsettled, 0, update)
	next := 0
	suits := make(map[[16]byte]bool)
	for _, c := range r.view.Chunks {
		for i, n := range c.Nodes {
			if !c.Ready[i] || filled[n.ID] {
				continue
			}
			ok, known := suits[c.Hash[i]]
			if !known {
				ok = g.Ask.Suits(n)
				suits[c.Hash[i]] = ok
			}
			if !ok || !g.Ask.SuitsNode(n) {
				continue
			}
			w, have := replaces[n.ID]
			if !have {
				for taken[next] {
					next++
				}
				w = Want{Index: next}
			} else if taken[w.Index] {
				for taken[next] {
					next++
				}
				w.Index = next
			}
			taken[w.Index] = true
			w.Pinned = n.ID
			g.Wants = append(g.Wants, w)
			g.Counts.Place++
		}
	}
	g.Nowhere = len(g.Wants)+len(filled) == 0
}

// systemEnded decides what follows when a system allocation ended by itself. wait means that nothing is placed on its
// node for now; else w is its replacement, or nil for a fresh start.
func (r *reconciler) systemEnded(g *GroupPlan, a *structs.Allocation) (w *Want, wait bool) {
	sysbatch := r.job.Type == structs.JobSysBatch
	if r.older(a) || !a.Lineage().Next.IsZero() {
		return nil, false
	}
	if a.Client != structs.ClientFailed {
		return nil, sysbatch && a.Client == structs.ClientComplete
	}
	again := func(delay time.Duration) *Want {
		w := &Want{Index: a.NameIndex, Prev: a}
		r.track(w, g.Tg, a, delay)
		w.Avoid = nil
		g.Counts.Reschedule++
		return w
	}
	if r.force || a.Transition.ForceReschedule {
		return again(0), false
	}
	when, delay, may := NextReschedule(&g.Tg.Reschedule, a)
	if !may {
		if sysbatch || g.Tg.Reschedule.Attempts > 0 {
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
	if a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval) {
		r.Later = append(r.Later, Later{At: when, Trigger: structs.TriggerRetryFailed, Desc: "a failed allocation will be started again", Group: g.Name,
			Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
	}
	g.Counts.Delayed++
	return nil, true
}
