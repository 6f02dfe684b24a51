package reconcile

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// lookStandby classifies an allocation that is a standby.
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
	case !g.Tg.IsStandby(a.NameIndex), len(m.standbys) >= g.Tg.Standbys():
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

// giveBack stops the standbys of a gang that neither runs nor is about to.
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

// fails reports whether a failure of a member or its node ended the gang: that is what standbys are for.
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

// restarts reports whether the missing members restart in the places that they had and in those of standbys.
func (m *gangState) restarts() bool {
	return len(m.standbys) > 0 && m.returns() && m.fails()
}

// wantStandbys adds wants for the missing standbys: with the gang's minimum when it starts, at the end of a pass
// otherwise.
func (m *gangState) wantStandbys(missing int) {
	g := m.g
	if g.Tg.Standbys() <= 0 {
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
	for at := g.Tg.Most(); len(list) < g.Tg.Standbys(); at++ {
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

// keepPlaces gives members of a gang that starts again the places that they had.
func (m *gangState) keepPlaces(ws []Want) {
	for i := range ws {
		w := &ws[i]
		if prev := m.latest[w.Index]; prev != nil && m.r.where(prev) == nodeFine && !slices.Contains(w.Avoid, prev.NodeID) {
			w.Over = prev
		}
	}
}

// A standby of a gang (Gang.Standby, ADR 0010) is an allocation of its group that holds what a member holds and starts
// nothing: it is on no roster, so its agent prepares everything but the tasks. Standbys are placed in one part with the
// minimum, all or none. When a member is lost, the next decision restarts the gang in one part, without a wait: each
// member in the place that it had, as soon as the work ending there has ended, and the members whose place is gone in
// the places of standbys. Without standbys the members would queue for places again once the last of them has ended.
//
//	gang starts          members and standbys in one part, all or none
//	member lost          Apply stops the others (Roster.Settle); members take their own places and those of standbys
//	standby lost, used   it is replaced at the end of a pass, from free capacity: it never delays the gang
//	gang waits, ends     its standbys are given back at once
const (
	descStandbyBack = "the standby is given back: its gang does not run"
	DescStandbyUsed = "the standby's place is taken by a member of its gang"
	descStandbyGone = "the standby's node no longer takes work"
	DescGangRestart = "the gang is started again"
)
