package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// improve tries to make room for wants without a place: another placement of the same decision gives up its place and
// goes elsewhere (an ejection chain of length two). Only policies with Capabilities.Moves use it. It stops after that
// many moves; what is still missing then stays missing.
func (d *decision) improve() {
	moves := d.policy.Capabilities().Moves
	if moves == 0 || len(d.misses) == 0 {
		return
	}
	for _, g := range d.groups {
		if d.misses[g.Name] == 0 || !movable(g) {
			continue
		}
		for i := range g.Wants {
			w := &g.Wants[i]
			if slices.ContainsFunc(d.placed, func(pl placement) bool { return pl.want == w }) || !plain(w) {
				continue
			}
			for k := 0; k < len(d.placed) && moves > 0; k++ {
				moves--
				if d.eject(g, w, k) {
					if d.misses[g.Name]--; d.misses[g.Name] == 0 {
						delete(d.misses, g.Name)
					}
					break
				}
			}
		}
	}
}

// movable reports whether the places of a group depend only on amounts and feasibility.
func movable(g *groupWork) bool {
	return g.search != nil && !g.Gang && g.Ask != nil && len(g.Ask.Spreads) == 0 && len(g.Ask.Distinct) == 0 && !g.Ask.DistinctHostsGroup && !g.Ask.DistinctHostsJob
}

// plain reports whether a want is a new allocation that replaces nothing.
func plain(w *reconcile.Want) bool { return w.Pinned.IsZero() && w.Prev == nil && w.Stop == nil }

// eject gives the place of placement k to a want, if that placement finds another place.
func (d *decision) eject(g *groupWork, w *reconcile.Want, k int) bool {
	pl := &d.placed[k]
	if !movable(pl.g) || !plain(pl.want) || len(pl.Evict) > 0 {
		return false
	}
	mark, row, old := d.w.Mark(), pl.At.Row, pl.At.Held.ID
	id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index)
	d.w.Set(row, d.w.Get(row).Without(pl.At.Node, old))
	pl.g.search.Count(row, true, -1)
	got, ok := g.search.PlaceOn(row, id, nil)
	if ok {
		pl.g.search.PushRow(row)
		if to, found := pl.g.search.Place(old, nil, -1); found {
			g.search.PushRow(to.Row)
			pl.At = to
			d.placed = append(d.placed, newPlacement(g, w, got))
			return true
		}
		g.search.Count(row, true, -1)
	}
	d.w.Rollback(mark)
	pl.g.search.Count(row, true, 1)
	pl.g.search.PushRow(row)
	g.search.PushRow(row)
	return false
}
