package contend

import (
	"cmp"
	"fmt"
	"iter"
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

// contenderAlloc is one allocation that may lose its place, with what stops then: of work that runs in parts it alone.
type contenderAlloc struct {
	run   *contenderRun
	alloc *structs.Allocation
	nth   int // place of the run in Contest.runs
	units int64
	lost  int64
}

// losers returns the allocations of those that run and should not, by row.
func (t *takeover) losers() map[int][]contenderAlloc {
	out := map[int][]contenderAlloc{}
	for i, run := range t.r.runs {
		if run == nil || run.chosen && !run.gone {
			continue
		}
		for row, s := range t.stoppable(i) {
			out[row] = append(out[row], s)
		}
	}
	return out
}

// stoppable lists the allocations of a run that may be stopped for the workload, with the rows that they are on.
func (t *takeover) stoppable(i int) iter.Seq2[int, contenderAlloc] {
	return func(yield func(int, contenderAlloc) bool) {
		run := t.r.runs[i]
		limit := t.r.lossLimit(t.c.Workload(), t.need, run)
		for k, a := range run.allocs {
			s := contenderAlloc{run, a, i, run.units, run.lostWith(run.losses[k])}
			if s.lost >= limit {
				continue
			}
			if run.parts {
				s.units = t.r.Units(structs.AmountOf(a))
			}
			row := t.w.View.Row(a.NodeID)
			if row >= 0 && (run.gone || !t.cs.pre.taken[a.ID]) && !t.w.Get(row).Hold.Claimed(a.ID) && !yield(row, s) {
				return
			}
		}
	}
}

// movable lists the rows from which narrower work can be moved, those with the least of it first.
func (t *takeover) movable() []int {
	type entry struct {
		row   int
		units int64
	}
	sum := map[int]int64{}
	for i, run := range t.r.runs {
		if !t.moves(run) {
			continue
		}
		for row, s := range t.stoppable(i) {
			sum[row] += t.r.of(structs.AmountOf(s.alloc))
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
	return run != nil && run.chosen && !run.gone && run.units < t.need
}

// try decides without the given allocations and without the narrower work on the rows to clear. If everything finds a
// place then, it settles which work has to go. Else it leaves everything unchanged.
func (t *takeover) try(empty map[int][]contenderAlloc, clear []int) bool {
	for i, run := range t.r.runs {
		if len(clear) == 0 || !t.moves(run) {
			continue
		}
		for row, s := range t.stoppable(i) {
			if slices.Contains(clear, row) {
				empty[row] = append(empty[row], s)
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
		// stays first, because its room is more than is needed, and of the parts of a job those that lose most.
		losing := slices.Clone(empty[row])
		slices.SortStableFunc(losing, func(a, b contenderAlloc) int {
			return cmp.Or(cmpBool(b.run.chosen, a.run.chosen), cmpBool(a.run.gone, b.run.gone), cmp.Compare(b.units, a.units),
				cmp.Compare(a.nth, b.nth), cmp.Compare(b.lost, a.lost))
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
			if s.run.parts || first {
				t.lost += s.lost
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
			if s.run.gone || s.run.parts {
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
				t.cs.pre.taken[a.ID] = true
				t.cs.pre.loses(model.HeldOf(a), 1)
			}
			t.evicted[pl.Group] += int64(len(stops))
			t.r.coming += s.units
			if s.run.parts {
				s.run.units, s.run.lost = s.run.units-s.units, s.run.lost-s.lost
			} else {
				s.run.gone = true
			}
		}
		if len(victims[k]) > 0 {
			t.r.coming -= t.r.Units(pl.At.Held.Amount())
		}
	}
	for _, run := range jobs {
		if run.parts {
			run.leave(t.cs.pre.taken)
		}
	}
}

// leave removes the parts that are taken.
func (run *contenderRun) leave(taken map[structs.AllocID]bool) {
	var allocs []*structs.Allocation
	var losses []int64
	for k, a := range run.allocs {
		if !taken[a.ID] {
			allocs, losses = append(allocs, a), append(losses, run.losses[k])
		}
	}
	run.allocs, run.losses = allocs, losses
	run.holds = slices.DeleteFunc(run.holds, func(h heldUnits) bool { return taken[h.id] })
}

// inParts reports whether each of a job's allocations runs by itself, so that the others continue without it.
func inParts(j *structs.Job, allocs []*structs.Allocation) bool {
	return !j.AllAtOnce && !slices.ContainsFunc(allocs, func(a *structs.Allocation) bool {
		g := j.Group(a.Group)
		return g == nil || g.Gang != nil || g.Elastic != nil
	})
}
