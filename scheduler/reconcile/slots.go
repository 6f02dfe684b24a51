package reconcile

import (
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

// slots decides for every allocation whether it fills its index, and how.
func (r *reconciler) slots(g *GroupPlan, as []*structs.Allocation) []slot {
	var out []slot
	for _, a := range as {
		if s, fills := r.slotOf(g, a); fills {
			out = append(out, s)
		}
	}
	return out
}

func (r *reconciler) slotOf(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	batch := r.job.Type == structs.JobBatch || r.job.Type == structs.JobSysBatch
	place := r.where(a)
	replace := func(desc string, st structs.PlanStop, must bool) (slot, bool) {
		st.Desc = desc
		return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, StopAnyway: must, Prefer: r.sticky(g.Tg, a)}}, true
	}
	if s, fills, ok := r.requeue(g, a, place); ok {
		return s, fills
	}
	switch {
	case place == nodeSilent:
		r.hold(g, a)
		return slot{a: a, kind: slotWaiting}, a.Lineage().Next.IsZero() && (!a.ServerTerminal() || a.NameIndex < g.Tg.Most())

	case a.ServerTerminal():
		if !a.ClientTerminal() && place == nodeLost {
			g.Stops = append(g.Stops, lostOf(a))
		}
		if batch && a.DesiredDesc == descMaxRun && !r.older(a) {
			return slot{a: a, kind: slotDone}, true
		}
		if batch && a.Desired == structs.DesiredEvict && !a.ClientTerminal() && place == nodeFine {
			return slot{a: a, kind: slotWaiting}, true // it saves its state; then it returns to the queue
		}
		lost := a.Client == structs.ClientLost && a.DesiredDesc == descLost && a.Lineage().Next.IsZero() && !r.older(a)
		if lost && !r.force && !a.Transition.ForceReschedule && (g.Tg.PreventLostResch || r.giveUp(a, structs.RequeueNodeLost)) {
			return slot{a: a, kind: slotDone}, true
		}
		if batch && (lost || a.Desired == structs.DesiredEvict && a.ClientTerminal() && a.Lineage().Next.IsZero() && !r.older(a)) {
			if g.former == nil {
				g.former = make(map[int]*structs.Allocation)
			}
			g.former[a.NameIndex] = a
		}
		return slot{}, false

	case a.Client == structs.ClientComplete:
		if batch && (!r.older(a) || r.sameArray(a)) {
			return slot{a: a, kind: slotDone}, true
		}
		return slot{}, false // a service that ended is started again, under its name

	case a.Client == structs.ClientLost:
		if !a.Lineage().Next.IsZero() {
			return slot{}, false
		}
		return r.lost(g, a)

	case a.Client == structs.ClientFailed:
		return r.failed(g, a)

	case place == nodeLost:
		return r.lost(g, a)

	case place == nodeAway:
		return r.away(g, a)

	case a.Client == structs.ClientUnknown: // its node is back; the agent has not reported on the allocation yet
		return slot{a: a, kind: slotWaiting}, a.Lineage().Next.IsZero()

	case r.overtime(g, a):
		g.Stops = append(g.Stops, StopOf(a, descMaxRun))
		g.Counts.Stop++
		if batch {
			return slot{a: a, kind: slotDone}, true
		}
		return slot{}, false

	case a.Transition.Migrate:
		g.Counts.Migrate++
		n := r.view.Node(a.NodeID)
		// A drain with time left keeps the old allocation until there is a place for the new one.
		patient := !a.Transition.Leave && n.Drain != nil && n.Drain.Deadline >= 0 && (n.Drain.ForceAt == 0 || r.now < n.Drain.ForceAt)
		s, ok := replace(descMigrating, StopOf(a, ""), !patient)
		s.want.Avoid = []structs.NodeID{a.NodeID}
		s.want.MayWait = n.Ready() // its stop was requested: the new one may take over its place
		return s, ok

	case a.Transition.Reschedule || a.Transition.ForceReschedule:
		s, ok := replace(descRescheduled, StopOf(a, ""), true)
		r.track(&s.want, g.Tg, a, 0)
		g.Counts.Reschedule++
		return s, ok
	}
	return slot{a: a, kind: slotLive}, true
}

// lost marks an allocation as lost and replaces it.
func (r *reconciler) lost(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	st := lostOf(a)
	if a.ClientTerminal() {
		st.Client = "" // it is marked already
	}
	if r.older(a) && r.job.Type == structs.JobBatch && a.ClientTerminal() {
		return slot{}, false
	}
	forced := r.force || a.Transition.ForceReschedule
	if g.Tg.PreventLostResch && !forced {
		if !a.ClientTerminal() {
			g.Stops = append(g.Stops, st)
			g.Counts.Stop++
		}
		return slot{a: a, kind: slotDone}, true
	}
	if !r.older(a) && r.giveUp(a, structs.RequeueNodeLost) {
		if !a.ClientTerminal() {
			g.Stops = append(g.Stops, st)
			g.Counts.Stop++
		}
		return slot{a: a, kind: slotDone}, true
	}
	g.Counts.Place++
	return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, StopAnyway: true, Prefer: r.sticky(g.Tg, a)}}, true
}

// away handles an allocation whose node is disconnected.
func (r *reconciler) away(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	after := lostAfter(g.Tg)
	replace := g.Tg.Disconnect == nil || g.Tg.Disconnect.Replace == nil || *g.Tg.Disconnect.Replace
	if after <= 0 || a.Client == structs.ClientPending || replace && a.SilentUntil(r.view.Node(a.NodeID)) != 0 {
		return r.lost(g, a)
	}
	if a.Client == structs.ClientUnknown {
		if a.Lineage().DisconnectedAt != 0 && r.now >= a.Lineage().DisconnectedAt.Add(after) {
			if !a.Lineage().Next.IsZero() {
				g.Stops = append(g.Stops, lostOf(a))
				g.Counts.Stop++
				return slot{}, false
			}
			return r.lost(g, a)
		}
		if a.Lineage().DisconnectedAt != 0 && (a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval)) {
			// The evaluation was scheduled for lost_after from the decision; the time counts from when that was
			// committed.
			r.Later = append(r.Later, Later{At: a.Lineage().DisconnectedAt.Add(after), Trigger: structs.TriggerReconnect, Desc: "a disconnected allocation may be lost", Group: g.Name,
				Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
		}
		return slot{a: a, kind: slotWaiting}, a.Lineage().Next.IsZero()
	}
	g.Counts.Disconnect++
	mark := structs.PlanStop{ID: a.ID, Desc: descUnknown, Client: structs.ClientUnknown}
	r.Later = append(r.Later, Later{At: r.now.Add(after), Trigger: structs.TriggerReconnect, Desc: "a disconnected allocation may be lost", Group: g.Name, Stops: []structs.PlanStop{mark}})
	if !replace {
		return slot{a: a, kind: slotWaiting}, true
	}
	return slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a}}, true
}

// failed handles an allocation whose tasks failed: it is replaced now, later or never.
func (r *reconciler) failed(g *GroupPlan, a *structs.Allocation) (slot, bool) {
	if !a.Lineage().Next.IsZero() {
		return slot{}, false
	}
	st := StopOf(a, descRescheduled)
	now := func(delay time.Duration) (slot, bool) {
		s := slot{a: a, kind: slotReplace, want: Want{Index: a.NameIndex, Prev: a, Stop: &st, Prefer: r.sticky(g.Tg, a)}}
		r.track(&s.want, g.Tg, a, delay)
		g.Counts.Reschedule++
		return s, true
	}
	if r.older(a) && !r.sameArray(a) {
		if r.job.Type == structs.JobBatch {
			return slot{}, false // the new version starts without past attempts
		}
		return now(0) // the job was changed, which may have fixed the failure
	}
	if r.force || a.Transition.ForceReschedule {
		return now(0)
	}
	when, delay, may := NextReschedule(&g.Tg.Reschedule, a)
	if !may {
		return slot{a: a, kind: slotDone}, true
	}
	due := r.now
	if !a.Lineage().FollowupEval.IsZero() && r.answering(a.Lineage().FollowupEval) {
		due = due.Add(FollowupWindow)
	}
	if when <= due {
		return now(delay)
	}
	g.Counts.Delayed++
	if a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval) {
		r.Later = append(r.Later, Later{At: when, Trigger: structs.TriggerRetryFailed, Desc: "a failed allocation will be rescheduled", Group: g.Name,
			Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
	}
	return slot{a: a, kind: slotWaiting}, true
}

// dedupe leaves one slot per index: after a disconnection both the original and its replacement may run.
func (r *reconciler) dedupe(g *GroupPlan, slots []slot) []slot {
	var out []slot
	for i := 0; i < len(slots); {
		j := i + 1
		for j < len(slots) && slots[j].index() == slots[i].index() {
			j++
		}
		same := slots[i:j]
		keep := r.keep(g.Tg, g.Ask, same)
		for k := range same {
			s := &same[k]
			switch {
			case k == keep:
				out = append(out, *s)
			case s.kind == slotLive:
				g.Stops = append(g.Stops, StopOf(s.a, descDuplicate))
				g.Counts.Stop++
			case s.kind == slotReplace && s.want.Stop != nil:
				g.Stops = append(g.Stops, *s.want.Stop)
				g.Counts.Stop++
			}
		}
		if len(same) > 1 {
			g.Counts.Reconnect++
		}
		i = j
	}
	return out
}

// runs reports whether a slot's tasks run.
func runs(s *slot) bool { return s.kind == slotLive && s.a.Client == structs.ClientRunning }

// keep chooses which of several allocations of one name stays: one that is done, else one that runs, by the group's
// reconcile strategy, else the one that is closest to running.
func (r *reconciler) keep(tg *structs.Group, ask *match.Ask, same []slot) int {
	if len(same) == 1 {
		return 0
	}
	strategy := "best_score"
	if tg.Disconnect != nil && tg.Disconnect.Reconcile != "" {
		strategy = tg.Disconnect.Reconcile
	}
	rank := func(s *slot) int {
		switch {
		case s.kind == slotDone && s.a.Client == structs.ClientComplete:
			return 0
		case runs(s) && !r.older(s.a):
			return 1
		case s.kind == slotLive && !r.older(s.a):
			return 2
		case s.kind == slotLive:
			return 3
		case s.kind == slotWaiting:
			return 4
		case s.kind == slotReplace:
			return 5
		}
		return 6
	}
	best := 0
	for k := 1; k < len(same); k++ {
		a, b := &same[best], &same[k]
		if x, y := rank(a), rank(b); x != y {
			if y < x {
				best = k
			}
			continue
		}
		switch strategy {
		case "best_score": // of what placement counts, what their nodes are apart from the room that is left
			if x, y := r.view.Node(a.a.NodeID), r.view.Node(b.a.NodeID); x != nil && y != nil && runs(a) && runs(b) && ask.Liking(y) > ask.Liking(x) {
				best = k
			}
		case "keep_replacement":
			best = k // slots of an index are in the order they were made
		case "longest_running":
			if b.a.StartedAt != 0 && (a.a.StartedAt == 0 || b.a.StartedAt < a.a.StartedAt) {
				best = k
			}
		}
	}
	return best
}
