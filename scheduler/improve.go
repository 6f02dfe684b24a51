package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// pairsMax is the highest number of placements of a decision of which pairs are tried.
const pairsMax = 64

// improve tries to make room for wants without a place: a placement of another group of the same decision gives up its
// place and goes elsewhere (an ejection chain of length two), or two on one node do. Only policies with
// Capabilities.Moves use it. It stops after that many moves; what is still missing then stays missing.
func (d *decision) improve() {
	moves := d.policy.Capabilities().Moves
	if moves == 0 || d.limits.ByModel() || len(d.misses) == 0 || len(d.groups) < 2 || len(d.placed) == 0 {
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
			if moves <= 0 {
				return
			}
			if d.ejectAny(g, w, &moves) {
				if d.misses[g.Name]--; d.misses[g.Name] == 0 {
					delete(d.misses, g.Name)
				}
			}
		}
	}
}

// ejectAny gives a want the place of one placement of another group, or of two on one node.
func (d *decision) ejectAny(g *groupWork, w *reconcile.Want, moves *int) bool {
	may := func(k int) bool {
		pl := &d.placed[k]
		return pl.g != g && movable(pl.g) && plain(pl.want) && len(pl.Evict) == 0 // where an equal one could go, the want could go itself
	}
	try := func(ks ...int) bool {
		*moves -= len(ks)
		return *moves >= 0 && d.eject(g, w, ks)
	}
	n := len(d.placed)
	for k := range n {
		if may(k) && try(k) {
			return true
		}
	}
	if n > pairsMax {
		return false
	}
	for k := range n {
		for l := k + 1; l < n && *moves > 0; l++ {
			if d.placed[k].At.Row == d.placed[l].At.Row && may(k) && may(l) && try(k, l) {
				return true
			}
		}
	}
	return false
}

// movable reports whether the places of a group depend only on amounts and feasibility.
func movable(g *groupWork) bool {
	return g.search != nil && !g.Gang && g.Ask != nil && len(g.Ask.Spreads) == 0 && len(g.Ask.Distinct) == 0 && !g.Ask.DistinctHostsGroup && !g.Ask.DistinctHostsJob
}

// plain reports whether a want is a new allocation that replaces nothing.
func plain(w *reconcile.Want) bool { return w.Pinned.IsZero() && w.Prev == nil && w.Stop == nil }

// eject gives the place of placements on one node to a want, if these find other places.
func (d *decision) eject(g *groupWork, w *reconcile.Want, ks []int) bool {
	mark, row, node := d.w.Mark(), d.placed[ks[0]].At.Row, d.placed[ks[0]].At.Node
	for _, k := range ks {
		d.w.Set(row, d.w.Get(row).Without(node, d.placed[k].At.Held.ID))
		d.placed[k].g.search.Count(row, true, -1)
	}
	var moved []search.Placement
	got, ok := g.search.PlaceOn(row, structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index), nil)
	if ok {
		for _, k := range ks {
			d.placed[k].g.search.PushRow(row)
			to, found := d.placed[k].g.search.Place(d.placed[k].At.Held.ID, nil, -1)
			if !found {
				break
			}
			moved = append(moved, to)
		}
		if len(moved) == len(ks) {
			for i, k := range ks {
				g.search.PushRow(moved[i].Row)
				d.placed[k].At = moved[i]
			}
			d.placed = append(d.placed, newPlacement(g, w, got))
			return true
		}
		g.search.Count(row, true, -1)
	}
	d.w.Rollback(mark)
	for i, k := range ks {
		x := d.placed[k].g.search
		if i < len(moved) {
			x.Count(moved[i].Row, true, -1)
			x.PushRow(moved[i].Row)
		}
		x.Count(row, true, 1)
		x.PushRow(row)
	}
	g.search.PushRow(row)
	return false
}
