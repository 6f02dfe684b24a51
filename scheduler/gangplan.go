package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// roster gives the roster of a group, or nil.
func (r *reconciler) roster(group string) *structs.Roster {
	for _, ro := range r.rosters {
		if ro.Group == group {
			return ro
		}
	}
	return nil
}

// gang reconciles a group whose allocations start together or not at all.
func (r *reconciler) gang(g *groupPlan, as []*structs.Allocation) {
	tg := g.tg
	m := gangState{r: r, g: g, batch: r.job.Type == structs.JobBatch, taken: map[int]bool{}, latest: map[int]*structs.Allocation{}, roster: r.roster(tg.Name)}
	g.gang, g.roster = true, m.roster
	defer func() { g.ending = m.ending }()
	for _, a := range as {
		if a.IsSpare() {
			m.lookSpare(a)
			continue
		}
		m.look(a)
	}
	if m.lost {
		return // Apply settles the gang when the loss is written, and asks for another decision
	}
	m.surplus()
	missing := max(0, tg.Least()-len(m.live)-m.done)
	if !m.mayStart(missing) {
		if missing > 0 {
			m.giveBack()
		}
		return
	}
	stale := m.stale()
	if m.moves || len(stale) > 0 {
		m.replaceAll(stale)
	} else {
		g.staying = append(g.staying, m.live...)
	}
	next := 0
	fill := func(to *[]want, n int) {
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
			g.counts.Place++
			next++
		}
	}
	fill(&g.wants, missing)
	if m.spent { // nobody joins it any more, and who is still there goes at the same time
		if g.standby = m.spares; len(m.live) == 0 {
			m.giveBack()
		}
		return
	}
	have := len(m.live) + m.done + missing
	fill(&g.expansion, max(0, tg.Most()-have-len(m.delayed)))
	if g.restart {
		m.keepPlaces(g.wants)
		m.keepPlaces(g.expansion)
	}
	m.wantSpares(missing)
}

// gangState is what a reconciliation finds out about one gang.
type gangState struct {
	r          *reconciler
	g          *groupPlan
	roster     *structs.Roster
	batch      bool
	taken      map[int]bool // name indexes that are filled
	latest     map[int]*structs.Allocation
	live       []*structs.Allocation // by name index
	done       int
	ending     int64
	failed     []*structs.Allocation
	delayed    []*structs.Allocation // of failed: replaced later, or never
	by         *structs.Allocation   // the failure that counts as the attempt of this start
	delay      time.Duration         // before by is replaced
	moves      bool
	lost       bool
	spent      bool                  // its time has run out for a member, and with it for all: nobody starts any more
	again      *restartOf            // what the next start goes on with; nil: there was none before
	spares     []*structs.Allocation // that it may count on
	spareIndex []int                 // name indexes of those that hold
	forgive    bool                  // failures are no attempts: the gang lost a node, or made room
}

// look sorts one allocation in.
func (m *gangState) look(a *structs.Allocation) {
	r, g := m.r, m.g
	place := r.where(a)
	member := m.roster == nil || m.roster.Rank(a.ID) >= 0
	switch {
	case a.ServerTerminal():
		switch {
		case a.ClientTerminal():
		case place == nodeLost:
			g.stops = append(g.stops, lostOf(a))
			if m.roster != nil && !member { // Apply says the same, in the entry of this decision
				m.roster = m.roster.Blame(a.NodeID)
				g.roster = m.roster
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
		if a.Next.IsZero() {
			m.latest[a.NameIndex] = a
		}
	case a.Client == structs.ClientComplete && m.batch:
		if member && !r.older(a) {
			m.done++
			m.taken[a.NameIndex] = true
			g.counts.Ignore++
		}
	case a.ClientTerminal():
		if !a.Next.IsZero() {
			return
		}
		m.latest[a.NameIndex] = a
		if a.Client != structs.ClientLost && !r.older(a) {
			m.failed = append(m.failed, a)
		}
	case place == nodeLost:
		g.stops = append(g.stops, lostOf(a))
		g.counts.Stop++
		m.lost = true
	case place == nodeAway:
		if s, _ := r.away(g, a); s.want.stop != nil {
			g.stops = append(g.stops, *s.want.stop)
			m.lost = true
			return
		}
		m.add(a)
	case m.batch && a.Transition.Requeue:
		g.stops = append(g.stops, stopOf(a, descRequeued))
		g.counts.Stop++
		m.lost = true // it starts again when all of it has ended
	case r.overtime(g, a):
		g.stops = append(g.stops, stopOf(a, descMaxRun))
		g.counts.Stop++
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

// Add takes an allocation as a live member; of two with one name the older one.
func (m *gangState) add(a *structs.Allocation) {
	if m.taken[a.NameIndex] {
		m.g.stops = append(m.g.stops, stopOf(a, descDuplicate))
		m.g.counts.Stop++
		return
	}
	m.taken[a.NameIndex] = true
	m.live = append(m.live, a)
}

// surplus stops the highest indexes beyond what the gang may have.
func (m *gangState) surplus() {
	for len(m.live) > 0 && len(m.live)+m.done > m.g.tg.Most() {
		a := m.live[len(m.live)-1]
		m.live = m.live[:len(m.live)-1]
		m.g.stops = append(m.g.stops, stopOf(a, descNotNeeded))
		m.g.counts.Stop++
	}
}

// mayStart reports whether missing members may be looked for now: those of the last start have ended, and the policy for
// failures allows another attempt. If it allows one later, an evaluation is asked for.
func (m *gangState) mayStart(missing int) bool {
	r, g := m.r, m.g
	if missing > 0 && m.spent {
		g.counts.Ignore++
		return false // Apply does not count who has run out of time, so that the others would never be a gang
	}
	g.restart = missing > 0 && m.restarts()
	if missing > 0 && m.ending > 0 && !g.restart {
		g.wants = make([]want, missing)
		g.refused = endingRefusal(m.ending)
		return false
	}
	if missing > 0 && !m.returns() {
		g.counts.Ignore++
		return false // it has returned as often as it may
	}
	for _, a := range m.failed {
		if m.forgive {
			break
		}
		if m.by == nil || len(a.Reschedules) > len(m.by.Reschedules) {
			m.by = a
		}
		if r.force || a.Transition.ForceReschedule {
			continue
		}
		when, delay, may := r.nextTry(g.tg, a, r.endOf(a, nodeFine))
		if m.by == a && !g.restart {
			m.delay = delay
		}
		due := r.now
		if !a.FollowupEval.IsZero() && r.answering(a.FollowupEval) {
			due = due.Add(followupWindow)
		}
		switch {
		case !may:
			m.delayed = append(m.delayed, a)
			m.taken[a.NameIndex] = true
			if missing > 0 {
				g.counts.Ignore++
				return false // it has failed for good
			}
		case when > due && !g.restart: // spares are there so that nobody waits
			m.delayed = append(m.delayed, a)
			m.taken[a.NameIndex] = true
			g.counts.Delayed++
			if a.FollowupEval.IsZero() || r.answering(a.FollowupEval) {
				r.Later = append(r.Later, later{at: when, trigger: structs.TriggerRetryFailed, desc: "a gang will be started again", group: g.name,
					stops: []structs.PlanStop{{ID: a.ID, Desc: a.DesiredDesc}}})
			}
		}
	}
	return missing == 0 || len(m.delayed) == 0
}

// endingRefusal tells that members of the last start have yet to end.
func endingRefusal(n int64) *structs.Refusal {
	return &structs.Refusal{Code: structs.ReasonGang, Obstacle: structs.Obstacle{Dimension: structs.DimensionEndingMembers}, Short: n, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
}

// returns finds out why a gang that has to start again ended, and reports whether it may return. The worst that happened
// to a member counts for all: a member that failed as its peers' node went was lost with it.
func (m *gangState) returns() bool {
	rank := func(reason string) int {
		switch reason {
		case "", restartStop:
			return 0
		case structs.RequeueNodeLost:
			return 4
		case structs.RequeuePreempt:
			return 3
		case restartByHand:
			return 2
		}
		return 1
	}
	var worst *structs.Allocation
	reason, next := "", restartOf{reason: restartStop}
	for _, i := range slices.Sorted(maps.Keys(m.latest)) {
		a := m.latest[i]
		if m.r.older(a) {
			continue
		}
		why := m.r.endOf(a, m.r.where(a))
		if worst == nil || rank(why) > rank(reason) {
			worst, reason = a, why
		}
		next.restarts, next.requeues = max(next.restarts, a.Restarts+1), max(next.requeues, a.Requeues)
	}
	if worst == nil {
		return true // the first start, or a new version of the job, which counts afresh
	}
	if reason != "" {
		next.reason = reason
	}
	m.forgive = rank(reason) >= 2
	if m.batch && listed(m.r.job.Requeue, worst, reason) {
		most := *worst
		most.Requeues = next.requeues
		if m.r.giveUp(&most, reason) {
			return false
		}
		next.requeues++
	} else if reason == restartByHand {
		next.requeues++
	}
	m.again = &next
	return true
}

// stale lists the live members of an older version that cannot take over the new one; the others are updated in place.
func (m *gangState) stale() (out []*structs.Allocation) {
	for _, a := range m.live {
		switch {
		case !m.r.older(a):
			m.g.counts.Ignore++
		case !m.g.tg.IsSpare(a.NameIndex) && m.r.inPlace(m.g, a): // its index would make it a spare
			m.g.updates = append(m.g.updates, structs.PlanUpdate{ID: a.ID})
			m.g.counts.InPlace++
		default:
			out = append(out, a)
		}
	}
	return out
}

// replaceAll replaces every live member in one part, each where it is if there is no better place: a gang has one
// version, and a member that moves takes the others along. Under GangContinue a move concerns only who moves.
func (m *gangState) replaceAll(stale []*structs.Allocation) {
	r, g := m.r, m.g
	cause := "" // of a drain: everybody's state is saved, not only that of those on the node
	if slices.ContainsFunc(m.live, func(a *structs.Allocation) bool { return a.Transition.Migrate }) {
		cause = structs.CauseDrain
	}
	for _, a := range m.live {
		t := a.Transition
		moves := t.Migrate || t.Reschedule || t.ForceReschedule
		if len(stale) == 0 && !moves && g.tg.Gang.OnFailure == structs.GangContinue {
			g.staying = append(g.staying, a)
			continue
		}
		st := stopOf(a, descGangReplace)
		st.Cause = cause
		index := a.NameIndex
		if g.tg.IsSpare(index) { // the gang is smaller than it was: under its old index it would be a spare
			for index = 0; m.taken[index]; index++ {
			}
			if m.taken[index] = true; g.tg.IsSpare(index) {
				st.Desc = descNotNeeded
				g.stops = append(g.stops, st)
				g.counts.Stop++
				continue
			}
		}
		w := want{index: index, prev: a, stop: &st, stays: true, mayWait: true, avoid: m.avoid()}
		if moves {
			n := r.view.Node(a.NodeID)
			st.Desc = descMigrating
			patient := t.Migrate && !t.Leave && n.Drain != nil && n.Drain.Deadline >= 0 && (n.Drain.ForceAt == 0 || r.now < n.Drain.ForceAt)
			w.stopAnyway, w.mayWait, w.avoid = !patient, n.Ready(), append(w.avoid, a.NodeID)
			g.counts.Migrate++
		} else {
			g.counts.Destructive++
		}
		g.staying = append(g.staying, a)
		g.wants = append(g.wants, w)
	}
}

// avoid lists the nodes where members failed.
func (m *gangState) avoid() []structs.NodeID {
	if m.roster == nil {
		return nil
	}
	return slices.Clone(m.roster.AvoidNodes)
}

// want asks for a member under a name index.
func (m *gangState) want(index int) want {
	w := want{index: index, avoid: m.avoid(), gang: m.again}
	if prev := m.latest[index]; prev != nil {
		w.prev, w.resched = prev, prev.Reschedules
		if !prev.ServerTerminal() {
			st := stopOf(prev, descRescheduled)
			w.stop = &st
		}
	}
	if m.by != nil {
		avoid := w.avoid
		m.r.track(&w, m.g.tg, m.by, m.delay)
		if m.roster != nil { // it knows which nodes are to blame; where tasks failed need not be one of them
			w.avoid = avoid
		}
		m.g.counts.Reschedule++
	}
	return w
}

const descGangReplace = "alloc is being updated with its gang"
