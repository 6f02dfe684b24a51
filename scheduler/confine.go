package scheduler

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// A group that requires one place of a topology level keeps to it with all its allocations, gang or not. A group that
// is not a gang is placed one allocation at a time: where the first of them runs, the others have to go, and they wait
// for room there.

// requires returns the level of which all allocations of a group must share one place; nil for none.
func (d *decision) requires(g *groupWork) *model.Level {
	if t := g.Tg.Topology; t != nil && t.Across != "" && t.Mode == structs.TopologyRequired {
		return d.w.Level(t.Across)
	}
	return nil
}

// settled returns the place of a level where a group is: its allocations that stay, then those that the decision has
// placed; -1 if it is nowhere.
func (d *decision) settled(g *groupWork, l *model.Level) int32 {
	if at := g.home(d.w, l); at >= 0 {
		return at
	}
	for i := range d.placed {
		if d.placed[i].g == g {
			return l.Of[d.placed[i].At.Row]
		}
	}
	return -1
}

// placeTogether places what it can of a group that is not a gang in one place of a level: where the group is, else in
// the smallest place that has room for all, else where there is most room.
func (d *decision) placeTogether(g *groupWork, first int, l *model.Level) {
	at := g.home(d.w, l)
	for i := range g.Wants { // all are replaced: the new ones can take the places of the old ones
		if w := &g.Wants[i]; at < 0 && w.Prev != nil && structs.Holds(w.Prev) {
			if row := d.w.View.Row(w.Prev.NodeID); row >= 0 {
				at = l.Of[row]
			}
		}
	}
	if at < 0 {
		probe := d.gangSearch(g, first, nil, nil)
		_ = d.overLimit(probe, nil) // if a limit is in the way, placing says so
		rs := probe.Rooms(l, int64(len(g.Wants)))
		probe.Done()
		d.steps += d.w.View.Rows
		for _, set := range search.Within(rs, int64(len(g.Wants)), true) {
			if d.tryWithin(g, first, l, set, g.Wants) {
				return
			}
		}
		at = d.roomiest(g, first, l, rs)
	}
	if at >= 0 {
		d.placeWants(g, d.gangSearch(g, first, l, []int32{at}))
	} else {
		d.missAll(g)
	}
	if d.misses[g.Name] > 0 && g.over == nil {
		d.explainTogether(g, first, l, at)
	}
}

// roomiest returns the place with the most room of those where the first of a group's wants fits; -1 for none.
func (d *decision) roomiest(g *groupWork, first int, l *model.Level, rs []search.Room) int32 {
	slices.SortStableFunc(rs, func(a, b search.Room) int { return cmp.Or(cmp.Compare(b.Room, a.Room), cmp.Compare(a.At, b.At)) })
	for _, r := range rs {
		mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
		if d.tryWithin(g, first, l, []int32{r.At}, g.Wants[:1]) {
			d.w.Rollback(mark)
			d.placed, d.cursor = d.placed[:placed], cursor
			return r.At
		}
	}
	return -1
}

// explainTogether makes the report of a group of which some allocations found no place: what the nodes lack, and that
// those elsewhere do not count.
func (d *decision) explainTogether(g *groupWork, first int, l *model.Level, at int32) {
	found := int64(len(g.Wants)) - d.misses[g.Name]
	mark, placed, cursor, over := d.w.Mark(), len(d.placed), d.cursor, g.over
	d.tryWithin(g, first, nil, nil, g.Wants[found:])
	d.w.Rollback(mark)
	d.placed, d.cursor, g.over = d.placed[:placed], cursor, over
	g.search.Found, g.search.Short = found, g.Tg.Topology.Across
	if at >= 0 {
		g.search.ShortAt = l.Names[at]
	}
}
