package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// placeMember finds a place for one want of a gang, and what has to stop for it.
func (d *decision) placeMember(g *groupWork, s *search.Search, w *reconcile.Want, id structs.AllocID) (search.Placement, []structs.PlanStop, bool) {
	if g.Restart && !w.Standby {
		if w.Over != nil {
			if sp, stops, ok := d.takeOver(g, s, w.Over, w, id, reconcile.DescGangRestart); ok {
				return sp, stops, true
			}
		}
		if sp, stops, ok := d.takeStandby(g, s, w, id); ok {
			return sp, stops, true
		}
	}
	if !w.Standby {
		sp, ok := d.find(s, w, id)
		if ok || g.Restart {
			return sp, nil, ok
		}
		return d.takeStandby(g, s, w, id) // a member that has to leave its node
	}
	x := *w // not on a node with a member: it would be lost with it
	x.Avoid = slices.Clone(w.Avoid)
	for _, a := range g.Staying {
		x.Avoid = append(x.Avoid, a.NodeID)
	}
	for _, pl := range d.placed {
		if pl.g == g {
			x.Avoid = append(x.Avoid, pl.At.Node.ID)
		}
	}
	sp, ok := d.find(s, &x, id)
	return sp, nil, ok
}

// takeStandby places a want where its gang has a standby.
func (d *decision) takeStandby(g *groupWork, s *search.Search, w *reconcile.Want, id structs.AllocID) (search.Placement, []structs.PlanStop, bool) {
	for _, a := range g.Standby {
		if d.used(a.ID) {
			continue
		}
		if sp, stops, ok := d.takeOver(g, s, a, w, id, reconcile.DescStandbyUsed); ok {
			return sp, stops, true
		}
	}
	return search.Placement{}, nil, false
}

// used reports whether a placement of the decision takes the place of an allocation.
func (d *decision) used(id structs.AllocID) bool {
	return slices.ContainsFunc(d.placed, func(pl placement) bool { return pl.At.Held.WaitsOn(id) })
}

// takeOver places a want where an allocation of its gang is or was.
func (d *decision) takeOver(g *groupWork, s *search.Search, a *structs.Allocation, w *reconcile.Want, id structs.AllocID, desc string) (search.Placement, []structs.PlanStop, bool) {
	row := d.w.View.Row(a.NodeID)
	if row < 0 {
		return search.Placement{}, nil, false
	}
	if !structs.Holds(a) {
		if !d.withinLimits(s, w) || !d.respectsSetAside(g.Tg) {
			return search.Placement{}, nil, false
		}
		sp, ok := s.PlaceOn(row, id, nil)
		return sp, nil, ok
	}
	if o := d.w.Get(row); o.Hold.Claimed(a.ID) || o.Hold.Waiting(a.ID) || d.overLimit(s, a) != nil {
		return search.Placement{}, nil, false
	}
	sp, ok := s.PlaceOn(row, id, []structs.AllocID{a.ID})
	return sp, []structs.PlanStop{reconcile.StopOf(a, desc)}, ok
}

// tryRestart restarts a gang where it was and where its standbys are. A required topology is still met there.
func (d *decision) tryRestart(g *groupWork, first int) bool {
	x := d.requires(g)
	if x == nil {
		return d.tryWithin(g, first, region{}, g.Wants)
	}
	l := x.tree.Levels[x.far]
	at := g.home(d.w, l)
	for _, a := range g.Standby {
		if row := d.w.View.Row(a.NodeID); at < 0 && row >= 0 {
			at = l.Place(row)
		}
	}
	return at >= 0 && d.tryWithin(g, first, x.inside(x.far, at), g.Wants)
}

// missingStandbys returns how many standbys a gang is short of, counting what the decision has placed.
func (d *decision) missingStandbys(g *groupWork) int {
	if len(g.RefillStandby) == 0 || g.Refused != nil || d.misses[g.Name] > 0 {
		return 0
	}
	n := g.Tg.Standbys()
	for _, a := range g.Standby {
		if !d.used(a.ID) {
			n--
		}
	}
	return n
}

// refillStandby looks for the missing standbys of a gang, one at a time.
func (d *decision) refillStandby(g *groupWork, near *memberSearch) {
	n := d.missingStandbys(g)
	for i := range n {
		w := &g.RefillStandby[i]
		sp, _, ok := near.place(w)
		if !ok {
			g.standbysMissing = int64(n - i)
			return
		}
		g.standbysPlaced++
		g.Counts.Place++
		pl := newPlacement(g, w, sp)
		pl.alone = true
		d.add(pl)
	}
}
