package reconcile

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// lookStandby sorts an allocation in that is a spare.
func (m *gangState) lookStandby(a *structs.Allocation) {
	r, g := m.r, m.g
	t := a.Transition
	stop := func(st structs.PlanStop) {
		g.Stops = append(g.Stops, st)
		g.Counts.Stop++
	}
	if a.ClientTerminal() {
		return
	}
	m.standbyIndex = append(m.standbyIndex, a.NameIndex)
	switch place := r.where(a); {
	case place == nodeLost:
		stop(lostOf(a))
	case a.ServerTerminal():
	case place == nodeAway, t != structs.Transition{}:
		stop(StopOf(a, descStandbyGone))
	case !g.Tg.IsSpare(a.NameIndex), len(m.standbys) >= g.Tg.Gang.Standby:
		stop(StopOf(a, descNotNeeded))
	case !r.older(a):
		m.standbys = append(m.standbys, a)
	case r.inPlace(g, a):
		g.Updates = append(g.Updates, structs.PlanUpdate{ID: a.ID})
		g.Counts.InPlace++
		m.standbys = append(m.standbys, a)
	default:
		stop(StopOf(a, descNotNeeded))
	}
}

// GiveBack stops the spares of a gang that does not run and is not about to.
func (m *gangState) giveBack() {
	m.g.Standby = m.standbys
	m.g.GiveBack()
	m.standbys = nil
}

// GiveBack stops the standby members of a group that does not run.
func (g *GroupPlan) GiveBack() {
	for _, a := range g.Standby {
		g.Stops = append(g.Stops, StopOf(a, descStandbyBack))
		g.Counts.Stop++
	}
	g.Standby, g.RefillStandby, g.Restart = nil, nil, false
}

// fails reports whether what ended a gang is what spares are for: a member or its node failed.
func (m *gangState) fails() bool {
	if m.again == nil {
		return false
	}
	switch m.again.reason {
	case structs.RequeuePreempt, restartByHand, restartStop, restartUpdate, structs.RequeueLimit:
		return false
	}
	return true
}

// restarts reports whether missing members are to be started again in the places that they had and in those of spares.
func (m *gangState) restarts() bool {
	return len(m.standbys) > 0 && m.returns() && m.fails()
}

// wantStandbys says which spares the gang is short of: with its minimum when it starts afresh, else behind everybody.
func (m *gangState) wantStandbys(missing int) {
	g := m.g
	if g.Tg.Gang.Standby <= 0 {
		return
	}
	if len(m.live) == 0 && missing == 0 {
		m.giveBack() // all of it has ended
		return
	}
	if missing > 0 && !g.Restart {
		m.giveBack()
	}
	g.Standby = m.standbys
	var list []Want
	for at := g.Tg.Most(); len(list) < g.Tg.Gang.Standby; at++ {
		if !slices.Contains(m.standbyIndex, at) {
			list = append(list, Want{Index: at, Avoid: m.avoid(), Standby: true})
		}
	}
	if missing > 0 && !g.Restart && !m.fails() {
		g.Wants = append(g.Wants, list...)
		g.Counts.Place += int64(len(list))
		return
	}
	g.RefillStandby = list
}

// keepPlaces lets members of a gang that is started again have the places that they had.
func (m *gangState) keepPlaces(ws []Want) {
	for i := range ws {
		w := &ws[i]
		if prev := m.latest[w.Index]; prev != nil && m.r.where(prev) == nodeFine && !slices.Contains(w.Avoid, prev.NodeID) {
			w.Over = prev
		}
	}
}

// Spares of a gang (structs.Gang.Spares, ADR 0010) are allocations of its group that hold what a member holds and start
// nothing: they are on no roster, so that their agents wait with everything but the tasks. They come with the minimum, in
// its part, and go with it. When a member is lost, the next decision starts the gang again in one part, without a wait for
// anybody: each member in the place that it had, told to begin when what is ending there has ended, and those whose place
// is gone in the places of spares. Without spares the members would ask for room behind everybody who goes before them in
// the queue, once the last of them has ended.
//
//	gang starts      members and spares in one part, all or none
//	member lost      Apply stops the others (structs.Roster.Settle); members take over their own places and those of spares
//	spare lost/used  another is looked for when the pass has seen everybody: it never delays the gang
//	gang waits, ends its spares are given back at once
const (
	descStandbyBack = "the spare is given back: its gang does not run"
	DescStandbyUsed = "the spare's place is taken by a member of its gang"
	descStandbyGone = "the spare's node does not serve any more"
	DescGangRestart = "the gang is started again"
)
