package scheduler

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// Preemption by order: those who should hold places (Chooser) and found none free take the places of those who should
// not. Nobody is stopped whose room nobody takes.
//
// Naive: take everybody out and place all anew, in order. Then a job moves, and pays for a restart, each time something
// ends. Instead who runs and should run stays where he is, and newcomers get what is free, then the places of those who
// lose theirs. Only where that leaves room in pieces too small for a wide one do narrower ones move, to be placed again in
// the next pass; wide ones never move for narrow ones, so that this comes to an end.
//
// A pass on the outcome of a pass stops nobody: who should hold places does not depend on who does, but for those that
// are left alone.

const moveTriesMax = 64 // nodes cleared for one workload before it has to wait

// front is the race in which a workload is among those who should hold places, or nil.
func (rs *races) front(i int) *competition {
	if rs == nil || !slices.Contains(rs.first, i) {
		return nil
	}
	return rs.by[i]
}

// Of is the race that a pending workload takes part in, or nil.
func (rs *races) of(i int) *competition {
	if rs == nil {
		return nil
	}
	return rs.by[i]
}

// bars reports whether the workload has to wait for the next pass because somebody moves who goes before it.
func (rs *races) bars(i int) bool {
	r := rs.of(i)
	return r != nil && r.moved && !slices.Contains(rs.first, i)
}

// takeover finds places for what the decision found none for, at the cost of those who should not hold theirs.
func (d *decision) takeover(r *competition) {
	if r == nil || len(d.misses) == 0 {
		return
	}
	need := int64(0)
	for _, g := range d.groups {
		if g.Ask != nil {
			need += int64(len(g.Wants)) * ((r.of(structs.GroupAmount(g.Tg)) + r.unit - 1) / r.unit)
		}
	}
	if need == 0 || need <= r.coming {
		return // what it needs is on its way
	}
	if !d.load.Job.AllAtOnce && len(d.placed) > 0 {
		d.w.Rollback(0) // what it got of what it asked for
	}
	t := &taking{r: r, d: d}
	if t.try(t.losers(), nil) {
		return
	}
	// The room is in pieces: the nodes with the least of narrower work are cleared, one after the other.
	var cleared []int
	for _, row := range t.movable(need) {
		cleared = append(cleared, row)
		if len(cleared) > moveTriesMax {
			break
		}
		if t.try(t.losers(), cleared) {
			r.moved = true
			return
		}
	}
	r.missed = true
	limits, aside := d.limits, d.setAside
	*d = *d.again() // as it was
	d.limits, d.setAside = limits, aside
	d.place()
}

// again is a decision about the same workload from the start. It knows no limits: places that others of the queue give up
// may be what keeps within them, which is looked at when it is known whose they are.
func (d *decision) again() *decision {
	e := d.env
	e.limits, e.setAside = nil, nil
	n := newDecision(e, d.load, d.policy, d.start)
	n.reconcile()
	n.gated()
	return n
}

// taking is one workload's search for places that others give up.
type taking struct {
	r    *competition
	d    *decision
	need int64
}

// placeMember is one allocation that may lose its place.
type contenderAlloc struct {
	run   *contenderRun
	alloc *structs.Allocation
}

// losers are the allocations of those who run and should not, by row.
func (t *taking) losers() map[int][]contenderAlloc {
	out := map[int][]contenderAlloc{}
	for _, run := range t.r.runs {
		if run == nil || run.fixed || run.chosen && !run.gone {
			continue
		}
		for _, a := range run.allocs {
			row := t.d.w.View.Row(a.NodeID)
			if row >= 0 && (run.gone || !t.d.pre.taken[a.ID]) && !t.d.w.Get(row).Hold.Claimed(a.ID) {
				out[row] = append(out[row], contenderAlloc{run, a})
			}
		}
	}
	return out
}

// movable lists the rows from which work narrower than need can be moved, those with the least of it first.
func (t *taking) movable(need int64) []int {
	t.need = need
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
			if row := t.d.w.View.Row(a.NodeID); row >= 0 {
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

func (t *taking) moves(run *contenderRun) bool {
	return run != nil && run.chosen && !run.fixed && !run.gone && run.units < t.need
}

// try decides with the seats empty, and the narrower work on the rows to clear gone too. If everything is placed then,
// it settles who has to go; else it leaves everything as it was.
func (t *taking) try(empty map[int][]contenderAlloc, clear []int) bool {
	for _, run := range t.r.runs {
		if len(clear) == 0 || !t.moves(run) {
			continue
		}
		for _, a := range run.allocs {
			row := t.d.w.View.Row(a.NodeID)
			if slices.Contains(clear, row) && !t.d.pre.taken[a.ID] && !t.d.w.Get(row).Hold.Claimed(a.ID) {
				empty[row] = append(empty[row], contenderAlloc{run, a})
			}
		}
	}
	if len(empty) == 0 {
		return false
	}
	w := t.d.w
	rows := make([]int, 0, len(empty))
	for row := range empty {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	before := make(map[int]model.Occupancy, len(rows))
	for _, row := range rows {
		c, i := w.View.At(row)
		o := w.Get(row)
		before[row] = o
		for _, s := range empty[row] {
			o = o.Without(c.Nodes[i], s.alloc.ID)
		}
		w.Set(row, o)
	}
	n := t.d.again()
	n.place()
	if len(n.misses) == 0 {
		victims, ok := t.settle(n, rows, before, empty)
		if ok && t.allowed(n, victims) {
			t.stop(n, victims)
			n.limits, n.setAside = t.d.limits, t.d.setAside
			*t.d = *n
			return true
		}
	}
	w.Rollback(0)
	return false
}

// settle puts back whoever need not go, row by row, and lets the placements wait for the others. It gives whom each
// placement waits for.
func (t *taking) settle(n *decision, rows []int, before map[int]model.Occupancy, empty map[int][]contenderAlloc) (map[int][]contenderAlloc, bool) {
	w := t.d.w
	victims := map[int][]contenderAlloc{} // by place in n.placed
	for _, row := range rows {
		var here []int
		for k := range n.placed {
			if n.placed[k].at.Row == row {
				here = append(here, k)
			}
		}
		if len(here) == 0 {
			w.Set(row, before[row])
			continue
		}
		c, i := w.View.At(row)
		node, total, mhz := c.Nodes[i], c.Total[i], c.MHz[i]
		// Who moves would rather stay than who loses his places; of those, the wide ones, whose room is more than is needed.
		seats := slices.Clone(empty[row])
		slices.SortStableFunc(seats, func(a, b contenderAlloc) int {
			return cmp.Or(cmpBool(b.run.chosen, a.run.chosen), cmpBool(a.run.gone, b.run.gone), cmp.Compare(b.run.units, a.run.units))
		})
		o := w.Get(row)
		var must []contenderAlloc
		for _, s := range seats {
			if next, why := model.Fits(node, total, mhz, o, model.HeldOf(s.alloc)); why.Dim == structs.DimensionNone {
				o = next
				continue
			}
			must = append(must, s)
		}
		// Now in the order in which it will be written: everybody is there still, and the placements wait.
		o = before[row]
		for _, k := range here {
			h := *n.placed[k].at.Held
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
			if len(rare.Waits) == 0 && n.placed[k].at.Held.Rare == nil {
				h.Rare = nil
			}
			n.placed[k].at.Held = &h
		}
		w.Set(row, o)
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

// allowed reports whether the queue may have so many evicted, and whether its limits, and those of the namespace, are
// kept: a placement is charged with what it holds beyond those that it waits for (structs.Charge).
func (t *taking) allowed(n *decision, victims map[int][]contenderAlloc) bool {
	if t.r.Queue.PreemptRate > 0 {
		var jobs []*contenderRun
		for k := range n.placed {
			for _, s := range victims[k] {
				if !s.run.gone && !slices.Contains(jobs, s.run) {
					jobs = append(jobs, s.run)
				}
			}
		}
		if int64(len(jobs)) > t.r.left {
			return false
		}
	}
	l := t.d.limits
	if l == nil && t.d.setAside == nil {
		return true
	}
	adds := map[structs.UseRow]structs.Amount{}
	for k := range n.placed {
		a := n.allocOf(n.placed[k].at.Held)
		for _, r := range structs.UseRows(a) {
			adds[r] = adds[r].Add(structs.Charge(a, r, func(id structs.AllocID) *structs.Allocation {
				for _, s := range victims[k] {
					if s.alloc.ID == id {
						return s.alloc
					}
				}
				return n.waitedOn(id)
			}, nil))
		}
	}
	if t.d.setAside != nil {
		for k := range n.placed {
			if work := n.workOf(n.placed[k].g.Tg); t.d.setAside.refuses(n, work.Latest(n.in.Now), adds[structs.UseRow{Path: structs.QueueRoot}]) != nil {
				return false
			}
		}
	}
	for _, r := range structs.UseRowsOf(t.d.load.Key.Namespace, t.d.load.Job.QueueName(), "") {
		if l != nil && l.over(r, structs.Amount{}, adds[r]) != nil {
			return false
		}
	}
	return true
}

// Stop writes the stops of the victims into the parts of the placements that wait for them: the whole of each victim
// (who cannot run in part), with the first that takes a place of his.
func (t *taking) stop(n *decision, victims map[int][]contenderAlloc) {
	for k := range n.placed {
		pl := &n.placed[k]
		for _, s := range victims[k] {
			by := pl.at.Held.ID
			for _, a := range s.run.allocs {
				if (a.ID == s.alloc.ID || !s.run.gone) && !slices.ContainsFunc(pl.evict, func(x structs.PlanStop) bool { return x.ID == a.ID }) {
					pl.evict = append(pl.evict, structs.PlanStop{ID: a.ID, Desc: reconcile.DescOutranked, Desired: structs.DesiredEvict, Preempt: by})
				}
			}
			if !s.run.gone {
				s.run.gone = true
				t.r.left--
				for _, a := range s.run.allocs {
					t.d.pre.taken[a.ID] = true
				}
				t.r.coming += s.run.units
				for _, g := range n.groups {
					if g == pl.g {
						g.Counts.Preemptions += int64(len(s.run.allocs))
					}
				}
			}
		}
		if len(victims[k]) > 0 {
			t.r.coming -= (t.r.of(pl.at.Held.Amount()) + t.r.unit - 1) / t.r.unit
		}
	}
}
