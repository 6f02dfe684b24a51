package contend

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Preemption by order: contenders that should hold places (Chooser) and found none free take the places of contenders
// that should not. No work is stopped unless its room is needed.
//
// Naive: remove all and place all again, in order. Then a job moves, and pays for a restart, each time something ends.
// Instead work that runs and should run stays where it is. Newcomers get what is free, then the places of those that
// lose theirs. Only if that room is in pieces too small for wide work, narrower work moves: it is placed again in the
// next pass. Wide work never moves for narrow work, so this comes to an end.
//
// A pass on the outcome of a pass stops nothing: which contenders should hold places depends on which do only where
// those that do have a stronger claim, because they keep their places anyway or would lose work.

const (
	moveTriesMax = 64 // nodes cleared for one workload before it has to wait
)

// MustTake reports whether work that needs so many units has to take them from others, because fewer are about to
// become free.
func (r *Contest) MustTake(need int64) bool { return need > 0 && need > r.coming }

// TakeOver finds places for a contestant that needs so many units, at the cost of those that should not hold theirs. If
// it does, the what-if and the places that Again returned are the outcome, with the stops of those that go; evicted
// counts them by group. Else the what-if is unchanged.
func (cs *Contests) TakeOver(r *Contest, c Contestant, need int64) (evicted map[*structs.Group]int64, ok bool) {
	t := &takeover{cs: cs, r: r, c: c, w: cs.env.W, need: need, evicted: map[*structs.Group]int64{}}
	if t.try(t.losers(), nil) {
		return t.evicted, true
	}
	// The room is in pieces: clear the nodes with the least narrower work, one after the other.
	var cleared []int
	for _, row := range t.movable() {
		cleared = append(cleared, row)
		if len(cleared) > moveTriesMax {
			break
		}
		if t.try(t.losers(), cleared) {
			r.moved = true
			return t.evicted, true
		}
	}
	r.missed = true
	return nil, false
}

// takeover is the search of one workload for places that others give up.
type takeover struct {
	cs      *Contests
	r       *Contest
	c       Contestant
	w       *search.Pass
	need    int64
	lost    int64 // GPU seconds that the victims of the last try lose
	gain    int64
	evicted map[*structs.Group]int64
}

// contenderAlloc is one allocation that may lose its place.
type contenderAlloc struct {
	run   *contenderRun
	alloc *structs.Allocation
}

// losers returns the allocations of those that run and should not, by row.
func (t *takeover) losers() map[int][]contenderAlloc {
	out := map[int][]contenderAlloc{}
	for _, run := range t.r.runs {
		if run == nil || run.chosen && !run.gone || !t.mayStop(run) {
			continue
		}
		for _, a := range run.allocs {
			row := t.w.View.Row(a.NodeID)
			if row >= 0 && (run.gone || !t.cs.pre.taken[a.ID]) && !t.w.Get(row).Hold.Claimed(a.ID) {
				out[row] = append(out[row], contenderAlloc{run, a})
			}
		}
	}
	return out
}

// movable lists the rows from which narrower work can be moved, those with the least of it first.
func (t *takeover) movable() []int {
	type entry struct {
		row   int
		units int64
	}
	sum := map[int]int64{}
	for _, run := range t.r.runs {
		if !t.moves(run) {
			continue
		}
		for _, a := range run.allocs {
			if row := t.w.View.Row(a.NodeID); row >= 0 {
				sum[row] += t.r.of(structs.AmountOf(a))
			}
		}
	}
	var list []entry
	for row, units := range sum {
		list = append(list, entry{row, units})
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Or(cmp.Compare(a.units, b.units), cmp.Compare(a.row, b.row)) })
	out := make([]int, len(list))
	for i, e := range list {
		out[i] = e.row
	}
	return out
}

// moves reports whether a chosen contender may be moved: it is narrower, and is placed again in the next pass.
func (t *takeover) moves(run *contenderRun) bool {
	return run != nil && run.chosen && !run.gone && run.units < t.need && t.mayStop(run)
}

// mayStop reports whether running work may be stopped for this workload.
func (t *takeover) mayStop(run *contenderRun) bool { return t.r.mayStop(t.c.Workload(), t.need, run) }

// try decides without the given allocations and without the narrower work on the rows to clear. If everything finds a
// place then, it settles which work has to go. Else it leaves everything unchanged.
func (t *takeover) try(empty map[int][]contenderAlloc, clear []int) bool {
	for _, run := range t.r.runs {
		if len(clear) == 0 || !t.moves(run) {
			continue
		}
		for _, a := range run.allocs {
			row := t.w.View.Row(a.NodeID)
			if slices.Contains(clear, row) && !t.cs.pre.taken[a.ID] && !t.w.Get(row).Hold.Claimed(a.ID) {
				empty[row] = append(empty[row], contenderAlloc{run, a})
			}
		}
	}
	if len(empty) == 0 {
		return false
	}
	rows := make([]int, 0, len(empty))
	for row := range empty {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	before := make(map[int]model.Occupancy, len(rows))
	for _, row := range rows {
		c, i := t.w.View.At(row)
		o := t.w.Get(row)
		before[row] = o
		for _, s := range empty[row] {
			o = o.Without(c.Nodes[i], s.alloc.ID)
		}
		t.w.Set(row, o)
	}
	if places := t.c.Again(); places != nil {
		victims, ok := t.settle(places, rows, before, empty)
		if ok && t.allowed(places, victims) {
			t.stop(places, victims)
			return true
		}
	}
	t.w.Rollback(0)
	return false
}

// settle puts back the work that need not go, row by row, and makes the placements wait for the rest. It returns what
// each placement waits for, by its position in places.
func (t *takeover) settle(places []*Place, rows []int, before map[int]model.Occupancy, empty map[int][]contenderAlloc) (map[int][]contenderAlloc, bool) {
	victims := map[int][]contenderAlloc{}
	for _, row := range rows {
		var here []int
		for k := range places {
			if places[k].At.Row == row {
				here = append(here, k)
			}
		}
		if len(here) == 0 {
			t.w.Set(row, before[row])
			continue
		}
		c, i := t.w.View.At(row)
		node, total, mhz := c.Nodes[i], c.Total[i], c.MHz[i]
		// Work that would move has a better claim to stay than work that loses its places. Among the latter, wide work
		// stays first, because its room is more than is needed.
		losing := slices.Clone(empty[row])
		slices.SortStableFunc(losing, func(a, b contenderAlloc) int {
			return cmp.Or(cmpBool(b.run.chosen, a.run.chosen), cmpBool(a.run.gone, b.run.gone), cmp.Compare(b.run.units, a.run.units))
		})
		o := t.w.Get(row)
		var must []contenderAlloc
		for _, s := range losing {
			if next, why := model.Fits(node, total, mhz, o, model.HeldOf(s.alloc)); why.Dim == structs.DimensionNone {
				o = next
				continue
			}
			must = append(must, s)
		}
		// Now in the order in which the plan is applied: all victims still hold their places, and the placements wait.
		o = before[row]
		for _, k := range here {
			h := *places[k].At.Held
			rare := model.HeldRare{}
			if h.Rare != nil {
				rare = *h.Rare
			}
			h.Rare = &rare
			done := false
			for {
				next, why := model.Fits(node, total, mhz, o, &h)
				if why.Dim == structs.DimensionNone {
					o, done = next, true
					break
				}
				if len(must) == 0 {
					break
				}
				rare.Waits = append(slices.Clip(rare.Waits), must[0].alloc.ID)
				victims[k] = append(victims[k], must[0])
				must = must[1:]
			}
			if !done {
				return nil, false
			}
			if len(rare.Waits) == 0 && places[k].At.Held.Rare == nil {
				h.Rare = nil
			}
			places[k].At.Held = &h
		}
		t.w.Set(row, o)
	}
	return victims, true
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// allowed reports whether the victims lose less than is gained, whether the queue's rate allows the evictions, and
// whether its limits and those of the namespace are kept: a placement is charged with what it holds beyond those that it
// waits for (Charge).
func (t *takeover) allowed(places []*Place, victims map[int][]contenderAlloc) bool {
	var jobs []*contenderRun
	diff := math.MaxInt
	t.lost = 0
	for k := range places {
		for _, s := range victims[k] {
			if s.run.gone {
				continue
			}
			first := !slices.Contains(jobs, s.run)
			if s.run.inParts() {
				t.lost += t.cs.pre.lost(model.HeldOf(s.alloc))
			} else if first {
				t.lost += s.run.lost
			}
			if first {
				jobs = append(jobs, s.run)
				diff = min(diff, t.c.Workload().Priority()-s.run.load.Priority())
			}
		}
	}
	if len(jobs) > 0 {
		if t.gain = t.r.gain(t.c.Workload(), t.need, diff); t.gain <= t.lost {
			return false
		}
	}
	if t.r.Queue.PreemptRate > 0 && int64(len(jobs)) > t.r.left {
		return false
	}
	limits, aside, load := t.cs.limits, t.cs.setAside, t.c.Workload()
	if limits == nil && aside == nil {
		return true
	}
	adds, models := map[structs.UseRow]structs.Amount{}, map[structs.UseRow][]structs.ModelAmount{}
	for k := range places {
		a := load.AllocOf(places[k].At.Held)
		for _, r := range structs.UseRows(a) {
			get := func(id structs.AllocID) *structs.Allocation {
				for _, s := range victims[k] {
					if s.alloc.ID == id {
						return s.alloc
					}
				}
				return load.Alloc(id)
			}
			adds[r] = adds[r].Add(structs.Charge(a, r, get, nil))
			if limits.ByModel() {
				models[r] = structs.AddModels(models[r], structs.ChargeModels(a, r, get), 1)
			}
		}
	}
	if aside != nil {
		now := t.cs.env.Now
		for k := range places {
			if work := load.WorkOf(places[k].Group, now); aside.Refuses(load, work.Latest(now), adds[structs.UseRow{Path: structs.QueueRoot}]) != nil {
				return false
			}
		}
	}
	for _, r := range structs.UseRowsOf(load.Key.Namespace, load.Job.QueueName(), load.User()) {
		if limits != nil && (limits.Over(r, structs.Amount{}, adds[r]) != nil || limits.OverModels(r, nil, models[r]) != nil) {
			return false
		}
	}
	return true
}

// stop adds the stops of the victims to the placements that wait for them. A job that cannot run in part stops as a
// whole, with the first placement that takes one of its places; of others only what is needed stops.
func (t *takeover) stop(places []*Place, victims map[int][]contenderAlloc) {
	why := fmt.Sprintf("preempted by job %s, which goes before it in queue %s: %d GPU seconds are lost, worth less than the %d gained",
		t.c.Workload().Key.ID, t.r.Queue.Path, t.lost, t.gain)
	var jobs []*contenderRun
	for k, pl := range places {
		for _, s := range victims[k] {
			stops := s.run.allocs
			if s.run.gone || s.run.inParts() {
				stops = []*structs.Allocation{s.alloc}
			}
			for _, a := range stops {
				if !slices.ContainsFunc(pl.Evict, func(x structs.PlanStop) bool { return x.ID == a.ID }) {
					pl.Evict = append(pl.Evict, structs.PlanStop{ID: a.ID, Desc: why, Desired: structs.DesiredEvict, Preempt: pl.At.Held.ID})
				}
			}
			if s.run.gone {
				continue
			}
			if !slices.Contains(jobs, s.run) {
				jobs = append(jobs, s.run)
				t.r.left--
			}
			for _, a := range stops {
				h := model.HeldOf(a)
				t.cs.pre.taken[a.ID] = true
				t.cs.pre.loses(h, 1)
				s.run.lost -= t.cs.pre.lost(h)
			}
			t.evicted[pl.Group] += int64(len(stops))
			if !s.run.inParts() {
				s.run.gone = true
				t.r.coming += s.run.units
				continue
			}
			units := t.r.Units(structs.AmountOf(s.alloc))
			s.run.units, t.r.coming = s.run.units-units, t.r.coming+units
			s.run.allocs = slices.DeleteFunc(slices.Clone(s.run.allocs), func(a *structs.Allocation) bool { return a.ID == s.alloc.ID })
			s.run.holds = slices.DeleteFunc(s.run.holds, func(h heldUnits) bool { return h.id == s.alloc.ID })
		}
		if len(victims[k]) > 0 {
			t.r.coming -= t.r.Units(pl.At.Held.Amount())
		}
	}
}

// inParts reports whether each allocation of the job runs by itself, so that the others continue without it.
func (run *contenderRun) inParts() bool {
	j := run.load.Job
	return !j.AllAtOnce && !slices.ContainsFunc(run.allocs, func(a *structs.Allocation) bool {
		g := j.Group(a.Group)
		return g == nil || g.Gang != nil || g.Elastic != nil
	})
}
