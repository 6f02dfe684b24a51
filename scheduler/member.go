package scheduler

import (
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// memberSearch finds places for single members of a gang that runs or is placed already, as near to the others as possible:
// first in the places of the nearest level that have members, then in those of the next ones, then everywhere. A group that
// requires a place keeps to it.
type memberSearch struct {
	d       *decision
	g       *groupWork
	regions []region // that were not searched yet
	s       *search.Search
}

func (d *decision) newMemberSearch(g *groupWork) *memberSearch {
	m := &memberSearch{d: d, g: g, regions: []region{{}}}
	if x := d.requires(g); x != nil {
		m.regions[0] = x.inside(x.far, d.settled(g, x))
	} else if x := d.domainOf(g); x != nil {
		if near := d.around(g, x); len(near) > 0 && d.anyRoom(g) {
			m.regions = append(near, region{})
		}
	}
	m.next()
	return m
}

// around returns the regions around the members of a gang, from near to far, without those that are as large as the one
// before or are everything.
func (d *decision) around(g *groupWork, x *domain) (out []region) {
	rows := g.stays(d.w)
	for i := range d.placed {
		if d.placed[i].g == g {
			rows = append(rows, d.placed[i].At.Row)
		}
	}
	cells := x.tree.Levels[0]
	last := 0
	for level, l := range x.tree.Levels {
		has := make([]bool, len(l.Names))
		for _, row := range rows {
			if at := l.Place(row); at >= 0 {
				has[at] = true
			}
		}
		set, n := make([]bool, len(cells.Names)), 0
		for at := range set {
			if set[at] = has[x.tree.Above(0, int32(at), level)]; set[at] {
				n++
			}
		}
		if n > last && n < len(set) {
			out, last = append(out, x.within(set)), n
		}
	}
	return out
}

// anyRoom reports whether some node has room for one more member of a group.
func (d *decision) anyRoom(g *groupWork) bool {
	s := d.gangSearch(g, 0, region{})
	defer s.Done()
	return s.AnyRoom()
}

// next continues with the next region.
func (m *memberSearch) next() {
	m.done()
	d, g := m.d, m.g
	m.s = d.gangSearch(g, 0, m.regions[0])
	m.regions = m.regions[1:]
	for _, pl := range d.placed {
		if pl.g == g && !g.Ask.CountsJob() {
			m.s.Count(pl.At.Row, true, 1)
		}
	}
	g.search = m.s
}

// place finds a place for one want, and what has to stop for it.
func (m *memberSearch) place(w *reconcile.Want) (search.Placement, []structs.PlanStop, bool) {
	for {
		sp, stops, ok := m.d.placeMember(m.g, m.s, w, structs.DeriveAllocID(m.d.eval.ID, m.d.in.View.Index(), m.g.Name, w.Index))
		if ok || len(m.regions) == 0 || m.g.over != nil {
			return sp, stops, ok
		}
		m.next()
	}
}

// count adds the nodes that the search looked at to the steps of the decision.
func (m *memberSearch) count() {
	if m.s != nil {
		m.d.steps += int(m.s.Looked)
	}
}

// done ends the search.
func (m *memberSearch) done() {
	if m.s != nil {
		m.count()
		m.s.Done()
	}
}
