package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// A gang (D21) is decided in two steps. The members that it cannot do without are looked for together, in one part with
// the roster: all or none. What it may grow to beyond them is looked for when the pass has seen everybody, and only if
// nobody's minimum waits. What happens to a gang that loses a member is Apply's business (structs.Roster.Settle): it
// stops what is left in the same entry, so that a decision finds either the minimum or nothing.

const descGangReplace = "alloc is being updated with its gang"

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
func (r *reconciler) gang(g *groupWork, as []*structs.Allocation) {
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
		if g.spares = m.spares; len(m.live) == 0 {
			m.giveBack()
		}
		return
	}
	have := len(m.live) + m.done + missing
	fill(&g.grow, max(0, tg.Most()-have-len(m.delayed)))
	if g.restart {
		m.keepPlaces(g.wants)
		m.keepPlaces(g.grow)
	}
	m.wantSpares(missing)
}

// gangState is what a reconciliation finds out about one gang.
type gangState struct {
	r          *reconciler
	g          *groupWork
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
				r.later = append(r.later, later{at: when, trigger: structs.TriggerRetryFailed, desc: "a gang will be started again", group: g.name,
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
		w := want{index: index, prev: a, stop: &st, stays: true, yields: true, avoid: m.avoid()}
		if moves {
			n := r.view.Node(a.NodeID)
			st.Desc = descMigrating
			patient := t.Migrate && !t.Leave && n.Drain != nil && n.Drain.Deadline >= 0 && (n.Drain.ForceAt == 0 || r.now < n.Drain.ForceAt)
			w.must, w.yields, w.avoid = !patient, n.Ready(), append(w.avoid, a.NodeID)
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

// placeGang looks for places of a gang's minimum, all or none, in the narrowest part of the topology that has them.
func (d *decision) placeGang(g *groupWork, first int) {
	if g.refused != nil {
		d.missAll(g)
		return
	}
	if len(g.wants) == 0 {
		return
	}
	if g.restart {
		if d.tryRestart(g, first) {
			return
		}
		if g.ending > 0 {
			g.refused = endingRefusal(g.ending)
			d.missAll(g)
			return
		}
		g.giveBack() // it starts elsewhere, or waits
	}
	key := d.noFitKey(g)
	if key != "" {
		if s := d.noFit.FindGang(d.w, key); s != nil {
			g.scan = s
			d.missAll(g)
			return
		}
	}
	if d.tryGang(g, first) {
		return
	}
	d.missAll(g)
	if key != "" && g.over == nil { // a limit says nothing about the nodes, and so nothing about others who ask alike
		d.noFit.NoteGang(d.w, key, g.scan)
	}
}

// missAll counts every want of a group as missed, and keeps the stops that must happen anyway.
func (d *decision) missAll(g *groupWork) {
	if len(g.wants) > 0 {
		d.misses[g.name] += int64(len(g.wants))
	}
	for i := range g.wants {
		d.keepStop(g, &g.wants[i])
	}
}

// tryGang places all of a gang's wants or none.
func (d *decision) tryGang(g *groupWork, first int) bool {
	t := g.tg.Topology
	if t == nil || t.Across == "" {
		return d.tryWithin(g, first, nil, nil, g.wants)
	}
	l := d.w.Level(t.Across)
	required := t.Mode == structs.TopologyRequired
	probe := search.New(g.ask, d.w, d.policy, first)
	probe.Ban = g.ban(d.load.Job)
	d.bind(probe)
	rs := probe.Rooms(l, int64(len(g.wants)))
	d.steps += d.w.View.Rows
	if home := g.home(d.w, l); home >= 0 { // the rest is there already
		rs = slices.DeleteFunc(rs, func(r search.Room) bool { return required && r.At != home })
	}
	for _, set := range search.Within(rs, int64(len(g.wants)), required) {
		if d.tryWithin(g, first, l, set, g.wants) {
			return true
		}
	}
	// Anywhere: with a preferred topology to be placed, with a required one only to tell why not.
	mark, cursor := d.w.Mark(), d.cursor
	placed := len(d.placed)
	ok := d.tryWithin(g, first, nil, nil, g.wants)
	if !ok || !required {
		return ok
	}
	d.w.Rollback(mark)
	d.placed, d.cursor = d.placed[:placed], cursor
	best := search.Room{At: -1}
	for _, r := range rs {
		if r.Room > best.Room {
			best = r
		}
	}
	s := g.scan
	s.Found, s.Lacks = best.Room, t.Across
	if best.At >= 0 {
		s.LacksAt = l.Names[best.At]
	}
	return false
}

// home is the place of a level where members of the group are that stay, or -1.
func (g *groupWork) home(w *search.Pass, l *model.Level) int32 {
	for _, a := range g.staying {
		if row := w.View.Row(a.NodeID); row >= 0 && !slices.ContainsFunc(g.wants, func(x want) bool { return x.prev == a }) {
			return l.Of[row]
		}
	}
	return -1
}

// Ban lists nodes that the group may not have at all.
func (g *groupWork) ban(job *structs.Job) []structs.NodeID {
	if g.roster == nil || job.Requeue == nil || !job.Requeue.AvoidFailedNodes {
		return nil
	}
	return g.roster.AvoidNodes
}

// gangScan makes the search of a gang over some places of a level (nil: everywhere).
func (d *decision) gangScan(g *groupWork, first int, l *model.Level, set []int32) *search.Search {
	s := search.New(g.ask, d.w, d.policy, first)
	s.Ban = g.ban(d.load.Job)
	d.bind(s)
	if l != nil {
		s.Places, s.Within = l, set
	}
	d.countStaying(g, s)
	return s
}

// countStaying tells a search of what stays of the job on its nodes, and of what was placed before: it counts for
// spread, load and distinctness.
func (d *decision) countStaying(g *groupWork, s *search.Search) {
	for _, other := range d.rec.groups {
		if other != g && !g.ask.CountsJob() {
			continue
		}
		for _, a := range other.staying {
			if row := d.w.View.Row(a.NodeID); row >= 0 {
				s.Count(row, other == g, 1)
			}
		}
	}
	if g.ask.CountsJob() {
		for _, pl := range d.placed {
			s.Count(pl.spot.Row, false, 1)
		}
	}
}

// tryWithin places all wants within some places of the topology, or none. The search stays with the group for its
// report.
func (d *decision) tryWithin(g *groupWork, first int, l *model.Level, set []int32, wants []want) bool {
	mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
	if g.scan != nil && !g.scan.Vain {
		g.scan.Done() // it found no place for them
	}
	s := d.gangScan(g, first, l, set)
	g.scan = s
	for i := range wants {
		w := &wants[i]
		id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.name, w.index)
		sp, stops, ok := d.seat(g, s, w, id)
		if !ok {
			s.Found = max(s.Found, int64(i))
			d.steps += int(s.Looked)
			d.w.Rollback(mark)
			d.placed, d.cursor = d.placed[:placed], cursor
			return false
		}
		d.placed = append(d.placed, placement{g: g, want: w, spot: sp, evict: stops})
		d.cursor = sp.Node.ID
	}
	s.Found = int64(len(wants))
	d.steps += int(s.Looked)
	return true
}

// growing reports whether the decision has groups that may grow.
func (d *decision) growing() bool {
	return len(d.misses) == 0 && slices.ContainsFunc(d.rec.groups, func(g *groupWork) bool {
		return g.refused == nil && (len(g.grow) > 0 || d.lacksSpares(g) > 0)
	})
}

// comesLater notes that what the decision has placed so far comes into the plan after what others place, or (false) that its
// turn has come: who has to be near it could not be verified before.
func (d *decision) comesLater(on bool) {
	if d.w.Later == nil {
		d.w.Later = map[structs.AllocID]bool{}
	}
	for i := range d.placed {
		if id := d.placed[i].spot.Held.ID; on {
			d.w.Later[id] = true
		} else {
			delete(d.w.Later, id)
		}
	}
}

// starves reports whether a minimum of the decision waits for capacity.
func (d *decision) starves() bool {
	for _, g := range d.rec.groups {
		if d.misses[g.name] == 0 || g.refused != nil || g.over != nil || g.scan == nil {
			continue
		}
		switch g.scan.Report(1, 0).Code {
		case structs.ReasonConstraint, structs.ReasonDriver:
		default:
			return true
		}
	}
	return false
}

// grow places what groups may grow to beyond their minimum, member by member; starved: somebody's minimum waits, and
// nothing grows.
func (d *decision) grow(starved bool) {
	for _, g := range d.rec.groups {
		if len(g.grow) == 0 && d.lacksSpares(g) == 0 || g.refused != nil {
			continue
		}
		if d.misses[g.name] > 0 { // its own minimum waits
			continue
		}
		if starved && !g.restart && len(g.refill) == 0 {
			g.withheld = int64(len(g.grow))
			continue
		}
		var l *model.Level
		var set []int32
		if t := g.tg.Topology; t != nil && t.Across != "" && t.Mode == structs.TopologyRequired {
			l = d.w.Level(t.Across)
			at := g.home(d.w, l)
			for _, pl := range d.placed {
				if pl.g == g {
					at = l.Of[pl.spot.Row]
				}
			}
			set = []int32{at}
		}
		old := g.scan
		s := d.gangScan(g, 0, l, set)
		for _, pl := range d.placed {
			if pl.g == g && !g.ask.CountsJob() {
				s.Count(pl.spot.Row, true, 1)
			}
		}
		g.scan = s
		for i := range g.grow {
			w := &g.grow[i]
			if starved && w.over == nil {
				g.withheld++
				continue
			}
			sp, stops, ok := d.seat(g, s, w, structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.name, w.index))
			if !ok {
				g.ungrown = int64(len(g.grow)-i) - g.withheld
				break
			}
			d.placed = append(d.placed, placement{g: g, want: w, spot: sp, alone: true, evict: stops})
			d.cursor = sp.Node.ID
		}
		d.refillSpares(g, s)
		d.steps += int(s.Looked)
		if g.ungrown+g.unspared == 0 && old != nil {
			g.scan = old
		}
	}
}

// gangReport adds to a report what a gang lacks.
func (g *groupWork) gangReport(r *structs.GroupReport) {
	if g.withheld+g.ungrown > 0 && r.Placed+g.withheld+g.ungrown+g.unspared >= r.Wanted {
		x := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionGrowth}, Short: g.withheld + g.ungrown, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
		if g.withheld > 0 {
			x.Code, x.CuredBy = structs.ReasonPriority, structs.EventNone // others come first; any event may end their waiting
			r.Refusals = nil
		}
		r.Code, r.Refusals = x.Code, append([]structs.Refusal{x}, r.Refusals...)
		return
	}
	if g.unspared > 0 && r.Placed+g.unspared >= r.Wanted {
		x := structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionSpares}, Short: g.unspared, Unit: structs.UnitSpares, CuredBy: structs.EventAllocStopped}
		r.Code, r.Refusals = x.Code, append([]structs.Refusal{x}, r.Refusals...)
		return
	}
	need := int64(len(g.wants))
	if !g.gang || r.Placed >= r.Wanted || need == 0 || g.scan == nil {
		return
	}
	s, what := g.scan, structs.DimensionMembers
	if slices.ContainsFunc(g.wants, func(w want) bool { return w.spare }) {
		what = structs.DimensionMembersSpares
	}
	x := structs.Refusal{Code: structs.ReasonGang, Obstacle: structs.Obstacle{Dimension: what, Count: min(s.Found, need), Of: need}, Short: need - s.Found, Unit: structs.UnitMembers, CuredBy: structs.EventAllocStopped}
	if s.Lacks != "" {
		x.Code = structs.ReasonTopology
		x.Detail = s.Lacks
		if s.Lacks != model.LevelNode {
			x.Subject = s.LacksAt
		}
	}
	switch r.Code {
	case structs.ReasonConstraint, structs.ReasonDriver, structs.ReasonDeviceUnhealthy, structs.ReasonNodeIneligible, structs.ReasonTopology:
		if s.Found == 0 && s.Lacks == "" {
			return // no member finds a place, and not for lack of company
		}
	}
	r.Code = x.Code
	r.Refusals = append([]structs.Refusal{x}, r.Refusals...)
}

// GangMembersMax is how many members of a group one log entry can place together (D9).
func GangMembersMax(tg *structs.Group) int {
	grants := int64(0)
	ports := 0
	for _, t := range tg.Tasks {
		if t == nil {
			continue // refused elsewhere, by name
		}
		for i := range t.Resources.Devices {
			grants += max(1, t.Resources.Devices[i].Count)
		}
		if len(t.Resources.GPU) > 0 {
			grants += max(1, t.Resources.GPU[0].Count)
		}
	}
	for i := range tg.Networks {
		ports += len(tg.Networks[i].StaticPorts) + len(tg.Networks[i].DynamicPorts)
	}
	return int(entryBytesMax / (placeBytes + rosterBytes + grants*grantBytes + int64(ports)*portBytes))
}
