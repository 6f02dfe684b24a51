package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// lookSpare sorts an allocation in that is a spare.
func (m *gangState) lookSpare(a *structs.Allocation) {
	r, g := m.r, m.g
	t := a.Transition
	stop := func(st structs.PlanStop) {
		g.stops = append(g.stops, st)
		g.counts.Stop++
	}
	if a.ClientTerminal() {
		return
	}
	m.spareIndex = append(m.spareIndex, a.NameIndex)
	switch place := r.where(a); {
	case place == nodeLost:
		stop(lostOf(a))
	case a.ServerTerminal():
	case place == nodeAway, t != structs.Transition{}:
		stop(stopOf(a, descSpareGone))
	case !g.tg.IsSpare(a.NameIndex), len(m.spares) >= g.tg.Gang.Spares:
		stop(stopOf(a, descNotNeeded))
	case !r.older(a):
		m.spares = append(m.spares, a)
	case r.inPlace(g, a):
		g.updates = append(g.updates, structs.PlanUpdate{ID: a.ID})
		g.counts.InPlace++
		m.spares = append(m.spares, a)
	default:
		stop(stopOf(a, descNotNeeded))
	}
}

// giveBack stops the spares of a gang that does not run and is not about to.
func (m *gangState) giveBack() {
	m.g.standby = m.spares
	m.g.giveBack()
	m.spares = nil
}

func (g *groupPlan) giveBack() {
	for _, a := range g.standby {
		g.stops = append(g.stops, stopOf(a, descSpareBack))
		g.counts.Stop++
	}
	g.standby, g.refillStandby, g.restart = nil, nil, false
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
	return len(m.spares) > 0 && m.returns() && m.fails()
}

// wantSpares says which spares the gang is short of: with its minimum when it starts afresh, else behind everybody.
func (m *gangState) wantSpares(missing int) {
	g := m.g
	if g.tg.Gang.Spares <= 0 {
		return
	}
	if len(m.live) == 0 && missing == 0 {
		m.giveBack() // all of it has ended
		return
	}
	if missing > 0 && !g.restart {
		m.giveBack()
	}
	g.standby = m.spares
	var list []want
	for at := g.tg.Most(); len(list) < g.tg.Gang.Spares; at++ {
		if !slices.Contains(m.spareIndex, at) {
			list = append(list, want{index: at, avoid: m.avoid(), spare: true})
		}
	}
	if missing > 0 && !g.restart && !m.fails() {
		g.wants = append(g.wants, list...)
		g.counts.Place += int64(len(list))
		return
	}
	g.refillStandby = list
}

// keepPlaces lets members of a gang that is started again have the places that they had.
func (m *gangState) keepPlaces(ws []want) {
	for i := range ws {
		w := &ws[i]
		if prev := m.latest[w.index]; prev != nil && m.r.where(prev) == nodeFine && !slices.Contains(w.avoid, prev.NodeID) {
			w.over = prev
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
	descSpareBack   = "the spare is given back: its gang does not run"
	descSpareUsed   = "the spare's place is taken by a member of its gang"
	descSpareGone   = "the spare's node does not serve any more"
	descGangRestart = "the gang is started again"
)
