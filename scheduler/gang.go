package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// A gang (D21) is decided in two steps. First its minimum is placed, in one part with the roster: all or none. It grows
// beyond that when the pass has decided all workloads, and only if no workload waits for its minimum. When a gang loses
// a member, Apply (Roster.Settle) stops the rest in the same entry, so that a decision finds either the minimum or
// nothing.

// placeGang looks for places of a gang's minimum, all or none, in the narrowest part of the topology that has them.
func (d *decision) placeGang(g *groupWork, first int) {
	if g.Refused != nil {
		d.missAll(g)
		return
	}
	if len(g.Wants) == 0 {
		return
	}
	if g.Restart {
		if d.tryRestart(g, first) {
			return
		}
		if g.Ending > 0 {
			g.Refused = reconcile.EndingRefusal(g.Ending)
			d.missAll(g)
			return
		}
		g.GiveBack() // the gang starts elsewhere, or waits
	}
	key := d.noFitKey(g)
	if key != "" {
		if s := d.noFit.FindGang(d.w, key); s != nil {
			g.search = s
			d.missAll(g)
			return
		}
	}
	if d.tryGang(g, first) {
		return
	}
	d.missAll(g)
	if key != "" && g.over == nil { // a limit does not depend on the nodes, so other gangs with the same key may fit
		d.noFit.NoteGang(d.w, key, g.search)
	}
}

// missAll counts every want of a group as missed, and keeps the stops that must happen anyway.
func (d *decision) missAll(g *groupWork) {
	if len(g.Wants) > 0 {
		d.misses[g.Name] += int64(len(g.Wants))
	}
	for i := range g.Wants {
		d.keepStop(g, &g.Wants[i])
	}
}

// tryGang places all of a gang's wants or none.
func (d *decision) tryGang(g *groupWork, first int) bool {
	x := d.domainOf(g)
	if x == nil {
		return d.tryWithin(g, first, region{}, g.Wants)
	}
	if !x.required {
		// A gang that finds no room anywhere does not lack room in one place, and most gangs that wait are such.
		mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
		if ok := d.tryWithin(g, first, region{}, g.Wants); !ok || len(g.Wants)+len(g.Staying) < 2 {
			return ok
		}
		d.w.Rollback(mark)
		d.placed, d.cursor = d.placed[:placed], cursor
	}
	probe := search.New(g.Ask, d.w, d.policy, first)
	probe.Ban = g.ban(d.load.Job)
	d.bind(probe)
	if d.overLimitAll(probe, g.Wants) != nil {
		return d.tryWithin(g, first, region{}, g.Wants) // it says which limit it is
	}
	rs := search.NewPlaces(x.tree, probe.Rooms(x.tree.Levels[0]))
	probe.Done()
	d.steps += d.w.View.Rows
	if d.tryTree(g, first, x, rs, g.stays(d.w)) {
		return true
	}
	// Anywhere: with a preferred topology to place the gang, with a required one only to report why it was not placed.
	mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
	ok := d.tryWithin(g, first, region{}, g.Wants)
	if !ok || !x.required {
		return ok
	}
	d.w.Rollback(mark)
	d.placed, d.cursor = d.placed[:placed], cursor
	s, l := g.search, x.tree.Levels[x.far]
	s.Found, s.Short = 0, g.Tg.Topology.Across
	at := g.home(d.w, l)
	if best := rs.Roomiest(x.far); at < 0 && len(best) > 0 {
		at = best[0]
	}
	if at >= 0 {
		s.ShortAt, s.Found = l.Names[at], min(rs.Room(x.far, at), int64(len(g.Wants)))
	}
	return false
}

// tryTree places all wants of a group in the smallest part of its domain that has room for them: in one place of the nearest
// level, else of the next one, and so on; of equal levels in the place with the least room. stay is the rows of what
// stays of the group: then it is a place that has some of them, most if possible.
//
// The order is that of Slurm's topology/tree plugin (the lowest switch that can hold the job, best fit, then the fewest leaf switches)
// and of Kueue's topology-aware scheduling (the lowest domain that holds the pod set, best fit down the tree).
func (d *decision) tryTree(g *groupWork, first int, x *domain, rs *search.Places, stay []int) bool {
	want := int64(len(g.Wants))
	for level := range x.tree.Levels[:min(x.far+1, len(x.tree.Levels))] {
		places := withSome(x.tree.Levels[level], rs.Fitting(level, want), stay)
		if x.required { // a nearer place is enough, if it is known to be in one of the level
			places = slices.DeleteFunc(places, func(at int32) bool { return x.tree.Levels[x.far].Stopgap[x.tree.Above(level, at, x.far)] })
		}
		for _, at := range places[:min(len(places), domainTries)] {
			set := rs.Fewest(level, at, want)
			if d.tryWithin(g, first, x.within(set), g.Wants) {
				return true
			}
			if all := search.Inside(x.tree, level, at); level > 0 && !slices.Equal(set, all) && d.tryWithin(g, first, x.within(all), g.Wants) {
				return true // the room was an upper bound
			}
		}
	}
	if x.required {
		return false
	}
	top := len(x.tree.Levels)
	return len(stay) == 0 && rs.Room(top, 0) >= want && d.tryWithin(g, first, x.within(rs.Fewest(top, 0, want)), g.Wants)
}

// domainTries limits how many places of a level are tried for one gang.
const domainTries = 64

// withSome selects the places that have some of the rows, those with most first; all if there are no rows.
func withSome(l *model.Level, places []int32, rows []int) []int32 {
	if len(rows) == 0 {
		return places
	}
	n := make(map[int32]int)
	for _, row := range rows {
		n[l.Of[row]]++
	}
	out := slices.DeleteFunc(places, func(at int32) bool { return n[at] == 0 })
	slices.SortStableFunc(out, func(a, b int32) int { return cmp.Compare(n[b], n[a]) })
	return out
}

// stays lists the rows of the members that stay.
func (g *groupWork) stays(w *search.Pass) (rows []int) {
	for _, a := range g.Staying {
		if row := w.View.Row(a.NodeID); row >= 0 && !slices.ContainsFunc(g.Wants, func(x reconcile.Want) bool { return x.Prev == a }) {
			rows = append(rows, row)
		}
	}
	return rows
}

// gangSearch starts the search of a gang within a region.
func (d *decision) gangSearch(g *groupWork, first int, in region) *search.Search {
	s := search.New(g.Ask, d.w, d.policy, first)
	s.Ban = g.ban(d.load.Job)
	d.bind(s)
	if in.level != nil {
		s.Places, s.Within = in.level, in.set
	}
	d.countStaying(g, s)
	return s
}

// countStaying adds the job's allocations that stay, and those placed before, to a search: they count for spread, load
// and distinctness.
func (d *decision) countStaying(g *groupWork, s *search.Search) {
	for _, other := range d.groups {
		if other != g && !g.Ask.CountsJob() {
			continue
		}
		for _, a := range other.Staying {
			if row := d.w.View.Row(a.NodeID); row >= 0 {
				s.Count(row, other == g, 1)
			}
		}
	}
	if g.Ask.CountsJob() {
		for _, pl := range d.placed {
			s.Count(pl.At.Row, false, 1)
		}
	}
}

// tryWithin places all wants within a region, or none. The group keeps the search for its report.
func (d *decision) tryWithin(g *groupWork, first int, in region, wants []reconcile.Want) bool {
	mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
	if g.search != nil && !g.search.GaveUp {
		g.search.Done() // it found no place for them
	}
	s := d.gangSearch(g, first, in)
	g.search = s
	for i := range wants {
		w := &wants[i]
		id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index)
		sp, stops, ok := d.placeMember(g, s, w, id)
		if !ok {
			s.Found = max(s.Found, int64(i))
			d.steps += int(s.Looked)
			d.w.Rollback(mark)
			d.placed, d.cursor = d.placed[:placed], cursor
			return false
		}
		pl := newPlacement(g, w, sp)
		pl.Evict = stops
		d.add(pl)
	}
	s.Found = int64(len(wants))
	d.steps += int(s.Looked)
	return true
}

// growing reports whether the decision has groups that may grow.
func (d *decision) growing() bool {
	return len(d.misses) == 0 && slices.ContainsFunc(d.groups, func(g *groupWork) bool {
		return g.Refused == nil && (len(g.Expansion) > 0 || d.missingStandbys(g) > 0)
	})
}

// evicts reports whether what the decision has placed takes places of other work. That then waits, so nothing grows.
func (d *decision) evicts() bool {
	return slices.ContainsFunc(d.placed, func(pl placement) bool {
		return slices.ContainsFunc(pl.Evict, func(s structs.PlanStop) bool { return !s.Preempt.IsZero() })
	})
}

// comesLater marks what the decision has placed so far as coming into the plan after the placements of others: work
// that must be near it could not be verified before. false removes the mark.
func (d *decision) comesLater(on bool) {
	if d.w.Later == nil {
		d.w.Later = map[structs.AllocID]bool{}
	}
	for i := range d.placed {
		if id := d.placed[i].At.Held.ID; on {
			d.w.Later[id] = true
		} else {
			delete(d.w.Later, id)
		}
	}
}

// starves reports whether a minimum of the decision waits for capacity.
func (d *decision) starves() bool {
	for _, g := range d.groups {
		if d.misses[g.Name] == 0 || g.Refused != nil || g.over != nil || g.search == nil {
			continue
		}
		switch g.search.Report(1, 0).Code {
		case structs.ReasonConstraint, structs.ReasonDriver, structs.ReasonQuota:
		default:
			return true
		}
	}
	return false
}

// grow places what groups may grow to beyond their minimum, member by member. starved: some workload waits for its
// minimum, so nothing grows.
func (d *decision) grow(starved bool) {
	for _, g := range d.groups {
		if len(g.Expansion) == 0 && d.missingStandbys(g) == 0 || g.Refused != nil {
			continue
		}
		if d.misses[g.Name] > 0 { // its own minimum waits
			continue
		}
		if starved && !g.Restart && len(g.RefillStandby) == 0 {
			g.deferredExpansion = int64(len(g.Expansion))
			continue
		}
		wants := g.Expansion
		last, at := d.resized(g)
		if at > d.in.Now && len(wants) > 0 {
			g.growsAt, g.deferredExpansion, wants = at, int64(len(wants)), nil
			d.looksAgain(at)
		}
		old := g.search
		mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
		fresh := false
		if last > 0 && len(wants) > 0 {
			looked := 0
			fresh, looked = d.w.TakeFresh(d.in.Freed, d.in.Now.Add(-d.minRuntime()))
			d.steps += looked
		}
		near := d.newMemberSearch(g)
		var unplaced []reconcile.Want
		for i := range wants {
			w := &wants[i]
			if starved && w.Over == nil {
				g.deferredExpansion++
				continue
			}
			sp, stops, ok := near.place(w)
			if !ok {
				unplaced = wants[i:]
				g.unplacedExpansion = int64(len(wants)-i) - g.deferredExpansion
				break
			}
			pl := newPlacement(g, w, sp)
			pl.alone, pl.Evict = true, stops
			d.add(pl)
		}
		if fresh {
			near = d.keepSettled(g, near, mark, placed, cursor, unplaced, last)
		}
		if last > 0 && d.resizeCosts(g, d.placed[placed:], last) {
			d.w.Rollback(mark)
			d.placed, d.cursor = d.placed[:placed], cursor
			near.done()
			near = d.newMemberSearch(g)
		}
		d.refillStandby(g, near)
		near.count()
		if g.unplacedExpansion+g.standbysMissing == 0 && old != nil {
			g.search = old
		}
	}
}

// keepSettled gives back the room that model.WhatIf.TakeFresh has taken, and keeps the places that were found without it. If
// there is a place in that room for a member without one, it says when that has been free for long enough; and when that is
// soon, all places are given up until then, so that the gang restarts once. It returns a new search for members.
func (d *decision) keepSettled(g *groupWork, near *memberSearch, mark, placed int, cursor structs.NodeID, unplaced []reconcile.Want, last structs.LogTime) *memberSearch {
	back := func() {
		d.w.Rollback(mark)
		d.placed, d.cursor = d.placed[:placed], cursor
		near.done()
	}
	kept := slices.Clone(d.placed[placed:])
	back()
	ready := last.Add(d.minRuntime()) // from when on the gang could have grown into what is kept
	for i := range kept {
		pl := &kept[i]
		c, at := d.w.View.At(pl.At.Row)
		after, _ := model.Fits(pl.At.Node, c.Total[at], c.MHz[at], d.w.Get(pl.At.Row), pl.At.Held) // it fitted with less room
		d.w.Set(pl.At.Row, after)
		d.add(*pl)
		ready = max(ready, model.FreedAt(d.in.Freed, pl.At.Node.ID, pl.At.Held).Add(d.minRuntime()))
	}
	near = d.newMemberSearch(g)
	if len(unplaced) == 0 || g.over != nil {
		return near
	}
	before := d.w.Mark()
	sp, _, ok := near.place(&unplaced[0])
	d.w.Rollback(before)
	near.done()
	near = d.newMemberSearch(g)
	if !ok {
		return near
	}
	at := model.FreedAt(d.in.Freed, sp.Node.ID, sp.Held).Add(d.minRuntime())
	if at <= d.in.Now { // its devices have been free for long enough; CPU or memory of the node has not
		at = model.FreedAt(d.in.Freed, sp.Node.ID, nil).Add(d.minRuntime())
	}
	if at <= d.in.Now {
		return near
	}
	g.growsAt, g.deferredExpansion, g.unplacedExpansion = at, g.deferredExpansion+g.unplacedExpansion, 0
	d.looksAgain(at)
	if len(kept) > 0 && at <= ready.Add(d.minRuntime()) {
		g.deferredExpansion += int64(len(kept))
		back()
		near = d.newMemberSearch(g)
	}
	return near
}

// minRuntime is for how long running work of the job is left alone, and room must have been free before its gangs grow into
// it: work that arrives gets it first.
func (d *decision) minRuntime() time.Duration {
	return d.in.Queues.Settings(d.load.QueueName(), &d.in.Config).PreemptMinRuntime
}

// resized returns when a gang that runs was last resized or started, and from when on it may grow. Each resize restarts
// all members, so the last one counts: a member began, or stopped for others. The time between is that for which the gang
// does not shrink (Queue.PreemptMinRuntime). It returns 0 where nothing more restarts: the gang starts, or it restarts
// anyway.
func (d *decision) resized(g *groupWork) (last, again structs.LogTime) {
	if g.Tg.Gang == nil || g.Restart || len(g.Wants) > 0 || len(g.Staying) == 0 {
		return 0, 0
	}
	known := g.Roster != nil && g.Roster.Resizes.At > 0
	if known {
		last = g.Roster.Resizes.At // also of members that have been collected
	}
	for _, a := range d.load.Allocs {
		switch {
		case a.Group != g.Name || g.Tg.IsStandby(a.NameIndex):
		case d.pre.Takes(a.ID): // this pass shrinks it
			last = d.in.Now
		case a.ServerTerminal():
			if !known { // a member may take long to end; its roster says when it was asked to
				last = max(last, cmp.Or(a.FinishedAt, a.ModifyTime))
			}
		case !a.ClientTerminal():
			last = max(last, a.WorksSince())
		}
	}
	return last, last.Add(d.minRuntime())
}

// resizeCosts reports whether a gang that runs would lose no less by growing than it gains, and if so, notes why it does
// not grow.
func (d *decision) resizeCosts(g *groupWork, added placements, last structs.LogTime) bool {
	if len(added) == 0 {
		return false
	}
	var running, more []*model.Held
	for _, a := range g.Staying {
		if !g.Tg.IsStandby(a.NameIndex) {
			running = append(running, model.HeldOf(a))
		}
	}
	for i := range added {
		more = append(more, added[i].At.Held)
	}
	r := d.pre.NewResize(d.load, running, more, last)
	if r == nil || r.Pays() {
		return false
	}
	g.resize, g.deferredExpansion = r, g.deferredExpansion+int64(len(added))
	d.looksAgain(r.Again(d.in.Now))
	return true
}

// looksAgain has the growth of a group decided again at a time, the first of those of all groups.
func (d *decision) looksAgain(at structs.LogTime) {
	if d.growsAt == 0 || at < d.growsAt {
		d.growsAt = at
	}
}

// GangMembersMax returns how many members of a group one log entry can place together (D9).
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
