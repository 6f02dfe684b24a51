package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// preempt looks for places that others give up for what the decision could not place. Elastic work shrinks for any job
// before any work is preempted.
func (d *decision) preempt() {
	if d.load.Job == nil || len(d.misses) == 0 || d.pre == nil {
		return
	}
	retry, scanned := structs.LogTime(0), d.pre.Scanned
	for _, p := range d.pre.For(d.load) {
		d.note(p.TooEarly())
		if p.Rule.Name != "" || d.w.View.MayShrink() {
			d.preemptBy(p)
			d.note(p.TooRecent())
			d.note(p.TooSlow())
		}
		d.steps += p.Looked
		if at := p.RetryAt; at > d.in.Now && (retry == 0 || at < retry) {
			retry = at
		}
	}
	d.steps += d.pre.Scanned - scanned
	if retry != 0 && len(d.load.Evals) > 0 && len(d.misses) > 0 {
		d.work.Later = append(d.work.Later, reconcile.Later{At: retry, Trigger: structs.TriggerPreemption, Desc: "more work may be preempted then"})
	}
}

// preemptBy is preempt by one rule.
func (d *decision) preemptBy(p *contend.Preemptor) {
	if d.load.Job.AllAtOnce {
		d.preemptAll(p)
		return
	}
	for _, g := range d.groups {
		if d.misses[g.Name] == 0 || g.Refused != nil || g.over != nil || g.Nowhere || g.Ask == nil || len(g.Wants) == 0 {
			continue
		}
		ws := d.unplaced(g)
		if slices.ContainsFunc(ws, func(w *reconcile.Want) bool { return w.MayWait }) {
			continue // it waits for the allocation that it replaces
		}
		one := 1
		if g.Gang {
			one = len(ws)
		}
		p.Asks = d.asks(g, one)
		p.SetClaim(g.Tg, one, d.placedAmount())
		key := d.noFitKey(g)
		if key != "" {
			key = fmt.Sprint(p.Rule.Name, p.Rule.Queue, p.Asks, p.Claimant(), d.load.Job.Priority, d.load.Job.Deadline, d.load.Job.Runtime, d.load.Expect, key)
			if d.pre.NoFit.Find(d.w, key) != nil {
				d.note(d.pre.WhyNone(key))
				continue
			}
		}
		if p.Rule.Name == structs.PreemptDeadline && !p.Urgent() {
			p.Rule.Name = ""
		}
		if g.Gang {
			d.preemptFor(g, ws, p)
		} else {
			for i := range ws {
				p.Asks = d.asks(g, 1)
				p.SetClaim(g.Tg, 1, d.placedAmount())
				if !d.preemptFor(g, ws[i:i+1], p) {
					break
				}
			}
		}
		if key != "" && d.misses[g.Name] == int64(len(g.Wants)) {
			d.pre.NoFit.Note(d.w, key, g.search)
			d.pre.NoVictims(key, g.note)
		}
	}
}

// preemptAll is preemptBy for an all_at_once job: all of its groups find places, or no work makes room for any of them.
func (d *decision) preemptAll(p *contend.Preemptor) {
	var all []*groupWork
	p.Asks = structs.Amount{}
	for _, g := range d.groups {
		switch {
		case d.misses[g.Name] == 0:
			continue
		case g.Refused != nil || g.over != nil || g.Nowhere || g.Ask == nil || len(g.Wants) == 0:
			return
		case slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return w.MayWait }):
			return // it waits for the allocation that it replaces
		}
		all = append(all, g)
		p.Asks = p.Asks.Add(d.asks(g, len(g.Wants)))
		if len(all) == 1 {
			p.SetClaim(g.Tg, len(g.Wants), d.placedAmount())
		} else {
			p.AddClaim(g.Tg, len(g.Wants))
		}
	}
	key := d.jointKey(p, all)
	if key != "" && d.pre.NoFit.Find(d.w, key) != nil {
		d.note(d.pre.WhyNone(key))
		return
	}
	if p.Rule.Name == structs.PreemptDeadline && !p.Urgent() {
		p.Rule.Name = ""
	}
	if !d.evictForAll(all, p) && key != "" {
		d.pre.NoFit.Note(d.w, key, all[0].search)
		d.pre.NoVictims(key, all[0].note)
	}
}

// jointKey returns the key of groups in the cache of preemptions that found no victims, or "".
func (d *decision) jointKey(p *contend.Preemptor, all []*groupWork) string {
	key := fmt.Sprint("all ", p.Rule.Name, p.Rule.Queue, p.Asks, p.Claimant(), d.load.Job.Priority, d.load.Job.Deadline, d.load.Job.Runtime, d.load.Expect)
	for _, g := range all {
		part := d.noFitKey(g)
		if part == "" {
			return ""
		}
		key += fmt.Sprint(" ", len(g.Wants), " ", part)
	}
	return key
}

// evictForAll places all wants of groups, or none.
func (d *decision) evictForAll(all []*groupWork, p *contend.Preemptor) bool {
	t := d.newTrial(p)
	milli, before := int64(0), 0
	stopped := make([]int64, len(all)) // for each group
	whole := int64(0)                  // what all of them gain together, against which each place is weighed
	for _, g := range all {
		whole += contend.MilliOf(g.Tg, members(d.unplaced(g)))
	}
	for i, g := range all {
		ws := d.unplaced(g)
		var in region
		if x := d.requires(g); x != nil {
			at := d.cheapestPlace(g, ws, p, x, whole)
			p.Resume(t.e)
			if at < 0 {
				t.undo()
				return false
			}
			in = x.inside(x.far, at)
		} else if x := d.domainOf(g); x != nil && len(ws) > 1 {
			in = d.cheapestRegion(g, ws, p, x, whole)
			p.Resume(t.e)
		}
		if !d.evictFor(t, g, ws, p, d.evictSearch(g, in)) {
			t.undo()
			return false
		}
		milli += contend.MilliOf(g.Tg, members(ws))
		_, n := t.e.Loss()
		stopped[i], before = int64(n-before), n
	}
	if why := t.e.Weigh(milli); why != nil {
		for _, g := range all {
			g.note = why
		}
		t.undo()
		return false
	}
	d.keep(t)
	for i, g := range all {
		g.Counts.Preemptions += stopped[i]
		d.servedBy(g, d.misses[g.Name])
	}
	return true
}

// note says for the groups without a place why no work was preempted for them, unless that is known.
func (d *decision) note(why *structs.Refusal) {
	if why == nil {
		return
	}
	for _, g := range d.groups {
		if d.misses[g.Name] > 0 && g.note == nil && g.shortOfRoom() {
			g.note = why
		}
	}
}

// shortOfRoom reports whether some node lacks only what running work holds and preemption is about: GPUs where the group
// asks for them, else anything. Memory that no node has is not what running work is in the way of.
func (g *groupWork) shortOfRoom() bool {
	if g.search == nil || g.Ask == nil {
		return false
	}
	return slices.ContainsFunc(g.search.Report(1, 0).Refusals, func(r structs.Refusal) bool {
		switch r.Dimension {
		case structs.DimensionDevices, structs.DimensionGPU, structs.DimensionGPUMemory, structs.DimensionGPUCompute, structs.DimensionEmptyGPUMemory, structs.DimensionMembersGPU:
			return r.CuredBy == structs.EventAllocStopped
		}
		return r.CuredBy == structs.EventAllocStopped && len(g.Ask.Devices) == 0
	})
}

// asks returns the most that the decision can be charged with n more places of a group; zero if there are no limits or
// guarantees.
func (d *decision) asks(g *groupWork, n int) (sum structs.Amount) {
	if d.limits == nil {
		return sum
	}
	for i := range d.placed {
		sum = sum.Add(d.limits.Sizes.Estimate(d.placed[i].g.Tg))
	}
	return sum.Add(d.limits.Sizes.Estimate(g.Tg).Times(int64(n)))
}

// unplaced lists the wants of a group that found no place.
func (d *decision) unplaced(g *groupWork) (out []*reconcile.Want) {
	placed := make(map[*reconcile.Want]bool, len(d.placed))
	for i := range d.placed {
		placed[d.placed[i].want] = true
	}
	for i := range g.Wants {
		if w := &g.Wants[i]; !placed[w] {
			out = append(out, w)
		}
	}
	return out
}

// preemptFor places wants of a group, all or none. Others make room where there is none.
func (d *decision) preemptFor(g *groupWork, ws []*reconcile.Want, p *contend.Preemptor) bool {
	x := d.domainOf(g)
	switch {
	case x == nil || !x.required && len(ws) < 2:
		return d.preemptIn(g, ws, p, d.evictSearch(g, region{}))
	case x.required:
		at := d.cheapestPlace(g, ws, p, x, contend.MilliOf(g.Tg, members(ws)))
		return at >= 0 && d.preemptIn(g, ws, p, d.evictSearch(g, x.inside(x.far, at)))
	}
	return d.preemptIn(g, ws, p, d.evictSearch(g, d.cheapestRegion(g, ws, p, x, contend.MilliOf(g.Tg, members(ws)))))
}

// cheapestPlace finds the place of a level where the least is lost if others make room for wants of a group; -1 if they
// find room in none. Of equal losses, the place where fewer allocations stop is taken. milli is what the loss is weighed against
// (contend.MilliOf).
func (d *decision) cheapestPlace(g *groupWork, ws []*reconcile.Want, p *contend.Preemptor, x *domain, milli int64) int32 {
	if at := d.settled(g, x); at >= 0 {
		return at
	}
	best, least, fewest := int32(-1), int64(0), 0
	l := x.tree.Levels[x.far]
	for at := range int32(len(l.Names)) {
		if l.Stopgap[at] {
			continue
		}
		t := d.tryEvict(g, ws, p, d.evictSearch(g, x.inside(x.far, at)), milli)
		if t == nil {
			continue
		}
		if lost, stopped := t.e.Loss(); best < 0 || lost < least || lost == least && stopped < fewest {
			best, least, fewest = at, lost, stopped
		}
		t.undo()
	}
	return best
}

// nearerLoss is how much more may be lost for places that are nearer to each other, in percent of the least loss.
const nearerLoss = 25

// evictTries limits how many places of a level are tried.
const evictTries = 4

// cheapestRegion finds where others make room for the members of a gang that prefers the nearest level: the place where the
// least is lost, at the nearest level where that is at most nearerLoss more than the least loss anywhere. Trying a place
// costs a search for each member, so only those of a level are tried that seem the cheapest by what single members
// cost on each node.
func (d *decision) cheapestRegion(g *groupWork, ws []*reconcile.Want, p *contend.Preemptor, x *domain, milli int64) region {
	t := d.tryEvict(g, ws, p, d.evictSearch(g, region{}), milli)
	if t == nil {
		return region{} // it says why
	}
	most, _ := t.e.Loss()
	t.undo()
	most += most * nearerLoss / 100
	s := d.evictSearch(g, region{})
	losses := p.Losses(s, structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, ws[0].Index))
	s.Done()
	for level, l := range x.tree.Levels {
		places := withSome(l, cheapestFirst(l, losses, len(ws)), g.stays(d.w))
		best, least, fewest := int32(-1), int64(0), 0
		for _, at := range places[:min(len(places), evictTries)] {
			t := d.tryEvict(g, ws, p, d.evictSearch(g, x.inside(level, at)), milli)
			if t == nil {
				continue
			}
			if lost, stopped := t.e.Loss(); best < 0 || lost < least || lost == least && stopped < fewest {
				best, least, fewest = at, lost, stopped
			}
			t.undo()
		}
		if best >= 0 && least <= most {
			return x.inside(level, best)
		}
	}
	return region{}
}

// cheapestFirst orders the places of a level by the estimated loss for so many members; those with too few nodes for them
// come last.
func cheapestFirst(l *model.Level, losses [][]int64, members int) []int32 {
	by := make([][]int64, len(l.Names))
	for row, list := range losses {
		if at := l.Place(row); at >= 0 {
			by[at] = append(by[at], list...)
		}
	}
	type place struct {
		at          int32
		short, loss int64
	}
	var ps []place
	for at, list := range by {
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		x := place{at: int32(at), short: int64(max(0, members-len(list)))}
		for _, loss := range list[:min(len(list), members)] {
			x.loss += loss
		}
		ps = append(ps, x)
	}
	slices.SortFunc(ps, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.short, b.short), cmp.Compare(a.loss, b.loss), cmp.Compare(a.at, b.at))
	})
	out := make([]int32, len(ps))
	for i := range ps {
		out[i] = ps[i].at
	}
	return out
}

// evictSearch starts the search for a preemption within a region.
func (d *decision) evictSearch(g *groupWork, in region) *search.Search {
	s := d.gangSearch(g, 0, in)
	if !g.Gang {
		for _, pl := range d.placed {
			if pl.g == g {
				s.Count(pl.At.Row, true, 1)
			}
		}
	}
	return s
}

// evictTrial is a preemption on the what-if, until it is kept or undone.
type evictTrial struct {
	e      *contend.Eviction
	placed int // placements of the decision before it
	undo   func()
}

// newTrial begins a preemption on the what-if.
func (d *decision) newTrial(p *contend.Preemptor) *evictTrial {
	mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
	e := p.Evict()
	return &evictTrial{e: e, placed: placed, undo: func() {
		d.w.Rollback(mark)
		d.placed, d.cursor = d.placed[:placed], cursor
		e.Undo()
	}}
}

// members counts wants, without standbys.
func members(ws []*reconcile.Want) (n int64) {
	for _, w := range ws {
		if !w.Standby {
			n++
		}
	}
	return n
}

// tryEvict places wants of a group within the places of a search, on the what-if. It returns nil, with everything rolled
// back, when a want finds no place or the loss is larger than the gain for milli (contend.MilliOf).
func (d *decision) tryEvict(g *groupWork, ws []*reconcile.Want, p *contend.Preemptor, s *search.Search, milli int64) *evictTrial {
	t := d.newTrial(p)
	if !d.evictFor(t, g, ws, p, s) {
		t.undo()
		return nil
	}
	if why := t.e.Weigh(milli); why != nil {
		g.note = why
		t.undo()
		return nil
	}
	return t
}

// evictFor adds places for wants of a group to a trial. It reports whether all found one.
func (d *decision) evictFor(t *evictTrial, g *groupWork, ws []*reconcile.Want, p *contend.Preemptor, s *search.Search) bool {
	for _, w := range ws {
		id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index)
		if sp, ok := d.find(s, w, id); ok {
			d.add(newPlacement(g, w, sp))
			continue
		}
		if g.over != nil { // what others give up does not raise a limit
			return false
		}
		row, vs := p.Cheapest(s, id)
		if row < 0 {
			return false
		}
		waits, stops := t.e.Add(vs, id)
		sp, ok := s.PlaceOn(row, id, waits)
		if !ok {
			return false
		}
		pl := newPlacement(g, w, sp)
		pl.Evict = stops
		d.add(pl)
	}
	return true
}

// preemptIn is preemptFor within the places of a search.
func (d *decision) preemptIn(g *groupWork, ws []*reconcile.Want, p *contend.Preemptor, s *search.Search) bool {
	t := d.tryEvict(g, ws, p, s, contend.MilliOf(g.Tg, members(ws)))
	if t == nil {
		return false
	}
	g.Counts.Preemptions += d.keep(t)
	d.servedBy(g, int64(len(ws)))
	return true
}

// keep makes a preemption final. It returns how many allocations stop.
func (d *decision) keep(t *evictTrial) int64 {
	stopped, why := t.e.Keep()
	for i := t.placed; i < len(d.placed); i++ {
		for k := range d.placed[i].Evict {
			if s := &d.placed[i].Evict[k]; s.Desired == structs.DesiredEvict && !s.Preempt.IsZero() {
				s.Desc += why
			}
		}
	}
	return stopped
}

// servedBy counts wants of a group that a preemption has placed.
func (d *decision) servedBy(g *groupWork, n int64) {
	if d.misses[g.Name] -= n; d.misses[g.Name] == 0 {
		delete(d.misses, g.Name)
	}
	if g.Gang && g.search != nil {
		g.search.Found = int64(len(g.Wants))
	}
}

// takeover finds places for what the decision could not place, at the cost of those that should not hold theirs.
func (d *decision) takeover(r *contend.Contest) {
	if r == nil || len(d.misses) == 0 {
		return
	}
	need := int64(0)
	for _, g := range d.groups {
		if g.Ask != nil {
			need += int64(len(g.Wants)) * r.Units(structs.GroupAmount(g.Tg))
		}
	}
	if !r.MustTake(need) {
		return
	}
	if !d.load.Job.AllAtOnce && len(d.placed) > 0 {
		d.w.Rollback(0) // what it got is only a part of what it asked for
	}
	limits, aside, closed := d.limits, d.setAside, d.closedModels()
	for _, without := range [...]map[structs.GroupName][]match.Closed{nil, closed} {
		t := &contestant{d: d, closed: without}
		if evicted, ok := d.contests.TakeOver(r, t, need); ok {
			for _, g := range t.last.groups {
				g.Counts.Preemptions += evicted[g.Tg]
			}
			*d = *t.last
			d.limits, d.setAside, d.closed = limits, aside, nil
			return
		}
		if closed == nil {
			break
		}
	}
	*d = *d.again(nil) // restore the decision without a takeover
	d.limits, d.setAside = limits, aside
	d.place()
}

// contestant is a decision that is repeated while others give up their places.
type contestant struct {
	d, last *decision
	closed  map[structs.GroupName][]match.Closed // see decision.closedModels
}

func (c *contestant) Workload() *contend.Workload { return c.d.load }

func (c *contestant) Again() []*contend.Place {
	c.last = c.d.again(c.closed)
	c.last.place()
	if len(c.last.misses) > 0 {
		return nil
	}
	places := make([]*contend.Place, len(c.last.placed))
	for i := range c.last.placed {
		places[i] = &c.last.placed[i].Place
	}
	return places
}

// again returns a new decision about the same workload. It has no limits: they may only be met because others of the
// queue give up their places, which is checked when those are known.
func (d *decision) again(closed map[structs.GroupName][]match.Closed) *decision {
	e := d.env
	e.limits, e.setAside, e.closed = nil, nil, closed
	n := newDecision(e, d.load, d.policy, d.start)
	n.reconcile()
	n.gated()
	return n
}
