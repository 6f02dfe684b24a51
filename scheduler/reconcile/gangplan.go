package reconcile

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// roster returns the roster of a group, or nil.
func (r *reconciler) roster(group structs.GroupName) *structs.Roster {
	for _, ro := range r.rosters {
		if ro.Group == group {
			return ro
		}
	}
	return nil
}

// gang reconciles a group whose allocations start together or not at all. Joint groups (structs.Job.Join) are looked at
// first, because what happens to one of them depends on the others: see joint.
func (r *reconciler) gang(g *GroupPlan, as []*structs.Allocation) {
	m := r.lookGang(g, as)
	if g.Tg.Joint {
		r.joint = append(r.joint, m)
		return
	}
	m.judge()
	m.plan()
}

// lookGang finds out which members a gang has.
func (r *reconciler) lookGang(g *GroupPlan, as []*structs.Allocation) *gangState {
	tg := g.Tg
	m := &gangState{r: r, g: g, batch: r.job.Type == structs.JobBatch, taken: map[int]bool{}, latest: map[int]*structs.Allocation{}, roster: r.roster(tg.Name)}
	g.Gang, g.Roster = true, m.roster
	for _, a := range as {
		if a.IsStandby() {
			m.lookStandby(a)
			continue
		}
		m.look(a)
	}
	g.Ending = m.ending
	if !m.lost { // otherwise Apply settles the gang when the loss is written, and triggers another decision
		m.surplus()
		m.missing = max(0, tg.Least()-len(m.live)-m.done)
	}
	return m
}

// judge finds out whether the gang may start, and which members have changed.
func (m *gangState) judge() {
	if m.starts = !m.lost && m.mayStart(m.missing); m.starts {
		m.stale = m.changed()
	}
}

// plan decides what should change about a gang.
func (m *gangState) plan() {
	g, tg, missing := m.g, m.g.Tg, m.missing
	switch {
	case m.lost:
		return
	case !m.starts:
		switch {
		case m.silent, m.held:
			g.Standby = m.standbys // it starts again in their places once the silent member, or another joint group, has ended
		case missing > 0:
			m.giveBack()
		}
		return
	}
	if m.moves || len(m.stale) > 0 {
		m.replaceAll(m.stale)
	} else {
		g.Staying = append(g.Staying, m.live...)
	}
	next := 0
	fill := func(to *[]Want, n int) {
		if n <= 0 {
			return
		}
		if cap(*to) == 0 {
			*to = takeWants(n)
		}
		*to = slices.Grow(*to, n)
		for ; n > 0; n-- {
			for m.taken[next] {
				next++
			}
			*to = append(*to, m.want(next))
			g.Counts.Place++
			next++
		}
	}
	fill(&g.Wants, missing)
	if m.spent { // no member may join any more, and those that still run stop at the same time
		if g.Standby = m.standbys; len(m.live) == 0 {
			m.giveBack()
		}
		return
	}
	if m.done == 0 { // no member can join one that has ended well
		fill(&g.Expansion, max(0, tg.Most()-len(m.live)-missing-len(m.delayed)))
	}
	if g.Restart {
		m.keepPlaces(g.Wants)
		m.keepPlaces(g.Expansion)
	}
	m.wantStandbys(missing)
}

// look classifies one allocation.
func (m *gangState) look(a *structs.Allocation) {
	r, g := m.r, m.g
	place := r.where(a)
	member := m.roster == nil || m.roster.Rank(a.ID) >= 0
	switch {
	case a.ServerTerminal():
		switch {
		case a.ClientTerminal():
		case place == nodeSilent:
			r.hold(g, a)
			m.ending++
			m.silent = true
		case place == nodeLost:
			g.Stops = append(g.Stops, lostOf(a))
			if m.roster != nil && !member { // Apply does the same, in the entry of this decision
				m.roster = m.roster.Blame(a.NodeID)
				g.Roster = m.roster
			}
		default:
			m.ending++
		}
		if m.batch && a.DesiredDesc == descMaxRun && !r.older(a) && !listed(r.job.Requeue, a, structs.RequeueLimit) {
			m.done++
			m.spent = true
			m.taken[a.NameIndex] = true
			return
		}
		if a.Lineage().Next.IsZero() {
			m.latest[a.NameIndex] = a
		}
	case a.Client == structs.ClientComplete && m.batch:
		if member && !r.older(a) {
			m.done++
			m.taken[a.NameIndex] = true
			g.Counts.Ignore++
		}
	case a.ClientTerminal():
		if !a.Lineage().Next.IsZero() {
			return
		}
		m.latest[a.NameIndex] = a
		if a.Client != structs.ClientLost && !r.older(a) {
			m.failed = append(m.failed, a)
		}
	case place == nodeLost:
		g.Stops = append(g.Stops, lostOf(a))
		g.Counts.Stop++
		m.lost = true
	case place == nodeSilent:
		r.hold(g, a)
		m.add(a)
	case place == nodeAway:
		if s, _ := r.away(g, a); s.want.Stop != nil {
			g.Stops = append(g.Stops, *s.want.Stop)
			m.lost = true
			return
		}
		m.add(a)
	case m.batch && a.Transition.Requeue:
		g.Stops = append(g.Stops, StopOf(a, descRequeued))
		g.Counts.Stop++
		m.lost = true // it starts again when all of it has ended
	case r.overtime(g, a):
		g.Stops = append(g.Stops, StopOf(a, descMaxRun))
		g.Counts.Stop++
		if m.batch {
			m.done++
			m.spent = true
			m.taken[a.NameIndex] = true
		}
	default:
		m.moves = m.moves || a.Transition.Migrate || a.Transition.Reschedule || a.Transition.ForceReschedule
		m.add(a)
	}
}

// add adds an allocation to the live members; of two with the same name it keeps the older one.
func (m *gangState) add(a *structs.Allocation) {
	if m.taken[a.NameIndex] {
		m.g.Stops = append(m.g.Stops, StopOf(a, descDuplicate))
		m.g.Counts.Stop++
		return
	}
	m.taken[a.NameIndex] = true
	m.live = append(m.live, a)
}

// surplus stops the highest indices beyond the maximum of the gang.
func (m *gangState) surplus() {
	for len(m.live) > 0 && len(m.live)+m.done > m.g.Tg.Most() {
		a := m.live[len(m.live)-1]
		m.live = m.live[:len(m.live)-1]
		m.g.Stops = append(m.g.Stops, StopOf(a, descNotNeeded))
		m.g.Counts.Stop++
	}
}

// mayStart reports whether the decision may look for missing members now: those of the last start have ended, and the
// policy for failures allows another attempt. If the policy allows one later, mayStart schedules an evaluation.
func (m *gangState) mayStart(missing int) bool {
	r, g := m.r, m.g
	if missing > 0 && m.spent {
		g.Counts.Ignore++
		return false // Apply does not count members whose time is over, so the others would never be a gang
	}
	g.Restart = missing > 0 && !m.silent && m.restarts()
	if missing > 0 && m.ending > 0 && !g.Restart {
		g.Wants = make([]Want, missing)
		g.Refused = EndingRefusal(m.ending)
		return false
	}
	if missing > 0 && !m.returns() {
		g.Counts.Ignore++
		return false // it has returned as often as it may
	}
	for _, a := range m.failed {
		if m.forgive {
			break
		}
		if m.by == nil || len(a.Lineage().Reschedules) > len(m.by.Lineage().Reschedules) {
			m.by = a
		}
		if r.force || a.Transition.ForceReschedule {
			continue
		}
		when, delay, may := r.nextTry(g.Tg, a, r.endOf(a, nodeFine))
		if m.by == a && !g.Restart {
			m.delay = delay
		}
		due := r.now
		if !a.Lineage().FollowupEval.IsZero() && r.answering(a.Lineage().FollowupEval) {
			due = due.Add(FollowupWindow)
		}
		switch {
		case !may:
			m.delayed = append(m.delayed, a)
			m.taken[a.NameIndex] = true
			if missing > 0 {
				g.Counts.Ignore++
				return false // it has failed for good
			}
		case when > due && !g.Restart: // with standbys there is no wait
			m.delayed = append(m.delayed, a)
			m.taken[a.NameIndex] = true
			g.Counts.Delayed++
			if a.Lineage().FollowupEval.IsZero() || r.answering(a.Lineage().FollowupEval) {
				r.Later = append(r.Later, Later{At: when, Trigger: structs.TriggerRetryFailed, Desc: "a gang will be started again", Group: g.Name,
					Stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
			}
		}
	}
	return missing == 0 || len(m.delayed) == 0
}

// EndingRefusal is the refusal of a gang while members of its last start are still ending.
func EndingRefusal(n int64) *structs.Refusal {
	return &structs.Refusal{Code: structs.ReasonGang, Obstacle: structs.Obstacle{Dimension: structs.DimensionEndingMembers}, Short: n, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
}

// changed lists the live members of an older version that cannot adopt the new one; the others are updated in place.
func (m *gangState) changed() (out []*structs.Allocation) {
	for _, a := range m.live {
		switch {
		case !m.r.older(a):
			m.g.Counts.Ignore++
		case !m.g.Tg.IsStandby(a.NameIndex) && m.r.inPlace(m.g, a): // its index would make it a standby
			m.g.Updates = append(m.g.Updates, structs.PlanUpdate{ID: a.ID})
			m.g.Counts.InPlace++
		default:
			out = append(out, a)
		}
	}
	return out
}

// replaceAll replaces every live member in one part, each on its node if there is no better place: a gang has one
// version, and a member that moves takes the others along. Under GangContinue only members that have to move do.
func (m *gangState) replaceAll(stale []*structs.Allocation) {
	r, g := m.r, m.g
	cause := "" // drain: the state of all members is saved, not only of those on the node
	if m.drains() || m.along && slices.ContainsFunc(r.joint, (*gangState).drains) {
		cause = structs.CauseDrain
	}
	for _, a := range m.live {
		t := a.Transition
		moves := t.Migrate || t.Reschedule || t.ForceReschedule
		if len(stale) == 0 && !m.along && !moves && g.Tg.Continues() {
			g.Staying = append(g.Staying, a)
			continue
		}
		st := StopOf(a, descGangReplace)
		st.Cause = cause
		index := a.NameIndex
		if g.Tg.IsStandby(index) { // the gang has become smaller: under its old index it would be a standby
			for index = 0; m.taken[index]; index++ {
			}
			if m.taken[index] = true; g.Tg.IsStandby(index) {
				st.Desc = descNotNeeded
				g.Stops = append(g.Stops, st)
				g.Counts.Stop++
				continue
			}
		}
		w := Want{Index: index, Prev: a, Stop: &st, Stays: true, MayWait: true, Avoid: m.avoid()}
		if moves {
			n := r.view.Node(a.NodeID)
			st.Desc = descMigrating
			patient := t.Migrate && !t.Leave && n.Drain != nil && n.Drain.Deadline >= 0 && (n.Drain.ForceAt == 0 || r.now < n.Drain.ForceAt)
			w.StopAnyway, w.MayWait, w.Avoid = !patient, n.Ready(), append(w.Avoid, a.NodeID)
			g.Counts.Migrate++
		} else {
			g.Counts.Destructive++
		}
		g.Staying = append(g.Staying, a)
		g.Wants = append(g.Wants, w)
	}
}

// drains reports whether a member has to leave its node.
func (m *gangState) drains() bool {
	return slices.ContainsFunc(m.live, func(a *structs.Allocation) bool { return a.Transition.Migrate })
}

// want returns the want of a member under a name index.
func (m *gangState) want(index int) Want {
	w := Want{Index: index, Avoid: m.avoid(), gang: m.again}
	if prev := m.latest[index]; prev != nil {
		w.Prev, w.Resched = prev, prev.Lineage().Reschedules
		if !prev.ServerTerminal() {
			st := StopOf(prev, descRescheduled)
			w.Stop = &st
		}
	}
	if m.by != nil {
		avoid := w.Avoid
		m.r.track(&w, m.g.Tg, m.by, m.delay)
		if m.roster != nil { // the roster knows which nodes are to blame; tasks may also have failed on others
			w.Avoid = avoid
		}
		m.g.Counts.Reschedule++
	}
	return w
}

const descGangReplace = "alloc is being updated with its gang"
