package scheduler

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// A group that requires one place of a topology level keeps to it with all its allocations, gang or not. A group that
// is not a gang is placed one allocation at a time: where the first of them runs, the others have to go, and they wait
// for room there.

// domain is where a group should be: a tree of levels, and the farthest level at which one place is enough.
type domain struct {
	tree     *model.Tree
	far      int  // index of that level; its number of levels: everywhere
	required bool // nowhere else
}

// domainOf returns where a group should be; nil for anywhere. A gang that names no level prefers the nearest level
// of the cluster that has room; other groups keep together only where they require it.
func (d *decision) domainOf(g *groupWork) *domain {
	across, required := "", false
	if t := g.Tg.Topology; t != nil {
		across, required = t.Across, t.Across != "" && t.Mode == structs.TopologyRequired
	}
	if across == structs.TopologyAny || !g.Gang && !required {
		return nil
	}
	tree := d.w.Tree(d.in.Config.TopologyLevels, across)
	if tree == nil {
		return nil
	}
	if required {
		return &domain{tree, tree.Find(across), true}
	}
	return &domain{tree, len(tree.Levels), false}
}

// requires returns the domain of a group that must not leave it; nil for others.
func (d *decision) requires(g *groupWork) *domain {
	if x := d.domainOf(g); x != nil && x.required {
		return x
	}
	return nil
}

// within limits a search to places of the tree's nearest level; nil: everywhere.
func (x *domain) within(set []bool) region {
	if set == nil {
		return region{}
	}
	return region{x.tree.Levels[0], set}
}

// inside limits a search to a place of a level.
func (x *domain) inside(level int, at int32) region {
	return x.within(search.Inside(x.tree, level, at))
}

// region limits a search to places of a level; without a level to nothing.
type region struct {
	level *model.Level
	set   []bool // by place
}

// settled returns the place where a group that requires one is: its allocations that stay, then those that the decision has
// placed; -1 if it is nowhere.
func (d *decision) settled(g *groupWork, x *domain) int32 {
	l := x.tree.Levels[x.far]
	if at := g.home(d.w, l); at >= 0 {
		return at
	}
	for i := range d.placed {
		if d.placed[i].g == g {
			return l.Place(d.placed[i].At.Row)
		}
	}
	return -1
}

// placeTogether places what it can of a group that is not a gang in one place of a level: where the group is, else in
// the smallest place that has room for all, else where there is most room.
func (d *decision) placeTogether(g *groupWork, first int, x *domain) {
	l := x.tree.Levels[x.far]
	at := g.home(d.w, l)
	for i := range g.Wants { // all are replaced: the new ones can take the places of the old ones
		if w := &g.Wants[i]; at < 0 && w.Prev != nil && structs.Holds(w.Prev) {
			if row := d.w.View.Row(w.Prev.NodeID); row >= 0 {
				at = l.Place(row)
			}
		}
	}
	if at < 0 {
		rs := d.rooms(g, first, x)
		if d.tryTree(g, first, x, rs, nil) {
			return
		}
		at = d.roomiest(g, first, x, rs)
	}
	if at >= 0 {
		d.placeWants(g, d.gangSearch(g, first, x.inside(x.far, at)))
	} else {
		d.missAll(g)
	}
	if d.misses[g.Name] > 0 && g.over == nil {
		d.explainTogether(g, first, l, at)
	}
}

// rooms counts for how many allocations of a group each place has room.
func (d *decision) rooms(g *groupWork, first int, x *domain) *search.Places {
	probe := d.gangSearch(g, first, region{})
	defer probe.Done()
	_ = d.overLimitAll(probe, g.Wants) // if a limit is in the way, placing says so
	d.steps += d.w.View.Rows
	return search.NewPlaces(x.tree, probe.Rooms(x.tree.Levels[0]))
}

// roomiest returns the place with the most room of those where the first of a group's wants fits; -1 for none.
func (d *decision) roomiest(g *groupWork, first int, x *domain, rs *search.Places) int32 {
	for _, at := range rs.Roomiest(x.far) {
		mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
		if d.tryWithin(g, first, x.inside(x.far, at), g.Wants[:1]) {
			d.w.Rollback(mark)
			d.placed, d.cursor = d.placed[:placed], cursor
			return at
		}
	}
	return -1
}

// explainTogether makes the report of a group of which some allocations found no place: what the nodes lack, and that
// those elsewhere do not count.
func (d *decision) explainTogether(g *groupWork, first int, l *model.Level, at int32) {
	found := int64(len(g.Wants)) - d.misses[g.Name]
	mark, placed, cursor, over := d.w.Mark(), len(d.placed), d.cursor, g.over
	d.tryWithin(g, first, region{}, g.Wants[found:])
	d.w.Rollback(mark)
	d.placed, d.cursor, g.over = d.placed[:placed], cursor, over
	g.search.Found, g.search.Short = found, g.Tg.Topology.Across
	if at >= 0 {
		g.search.ShortAt = l.Names[at]
	}
}
