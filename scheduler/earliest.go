package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// earliest finds the first time at which everything that a decision misses could be placed, if everything held ends when
// it is expected to and nothing else is placed but what is promised. It is nil when no such time is known.
//
// Naive: try every end of a held allocation in turn. With 16,000 of them a promise would cost 16,000 searches of the
// cluster. More is free the later it is, but for promises, which end again; so a binary search over the ends finds a
// time that will do, the earliest unless promises leave a hole before it.
func (b *books) earliest(d *decision) (structs.LogTime, []placement) {
	if b.rows == nil && !b.anyEnds() {
		return 0, nil // it will be as it is now
	}
	rows := b.rowsFor(d)
	// What is free alone tells a time before which it cannot be, and mostly that time will do.
	soonest, exact := b.soonest(d, rows)
	if soonest == never {
		return 0, nil
	}
	if exact {
		if best := b.placeAt(d, rows, soonest); best != nil {
			return soonest, best
		}
	}
	times := b.timesOf(d, rows)
	lo, found := slices.BinarySearch(times, soonest)
	if !exact || !found {
		if lo == len(times) {
			return 0, nil
		}
		if best := b.placeAt(d, rows, times[lo]); best != nil {
			return times[lo], best
		}
	}
	if lo++; lo == len(times) {
		return 0, nil
	}
	best := b.placeAt(d, rows, times[len(times)-1])
	if best == nil {
		return 0, nil
	}
	hi := len(times) - 1 // times[hi] will do
	for lo < hi {
		mid := (lo + hi) / 2
		if got := b.placeAt(d, rows, times[mid]); got != nil {
			best, hi = got, mid
		} else {
			lo = mid + 1
		}
	}
	return times[hi], best
}

// timesOf lists the times at which more may be free on some rows, now among them.
func (b *books) timesOf(d *decision, rows []int) []structs.LogTime {
	now := d.in.Now
	times := []structs.LogTime{now}
	for _, row := range rows {
		if t := b.releaseTimes(row, b.w.get(row).hold); t != nil {
			for k := range t.ends {
				times = append(times, t.ends[k].at)
			}
		}
		for _, p := range b.promisedOn(row) {
			if p.end > now {
				times = append(times, p.end)
			}
		}
	}
	slices.Sort(times)
	return slices.Compact(times)
}

// anyEnds reports whether anything held is known to end.
func (b *books) anyEnds() bool {
	if !b.patient && b.endless && b.endlessAt == b.w.stamp {
		return false
	}
	for row := range b.w.View.rows {
		for h := range b.w.get(row).hold.all() {
			if b.foreseen(row, &h.work) > 0 {
				return true
			}
		}
	}
	if !b.patient {
		b.endless, b.endlessAt = true, b.w.stamp
	}
	return false
}

// rowsFor lists the rows that may serve a group that the decision misses something of.
func (b *books) rowsFor(d *decision) []int {
	out := make([]int, 0, b.w.View.rows)
	for ci, c := range b.w.View.chunks {
		for i := range c.IDs {
			for _, g := range d.rec.groups {
				if d.misses[g.name] == 0 || g.scan == nil {
					continue
				}
				v := g.scan.classVerdict(&c.classes[c.class[i]])
				if row := b.w.View.starts[ci] + i; !v.outside && !v.far && v.refused == 0 && c.ready[i] && (len(b.windows) == 0 || b.closedTo(row, d.load, never) == "") {
					out = append(out, row)
					break
				}
			}
		}
	}
	return out
}

// decideAt takes the whole decision again on a picture of the future: with gangs, topology and all that goes with it.
func (b *books) decideAt(d *decision, w *pass) []placement {
	then := newDecision(d.in, d.load, d.policy, w, &hopeless{}, d.cursor)
	then.books = &books{in: d.in, w: w}
	then.rec.run(d.load.Allocs)
	then.place()
	then.rec.done()
	if len(then.misses) > 0 || len(then.placed) == 0 {
		return nil
	}
	for i := range then.placed {
		pl := &then.placed[i]
		h := *pl.spot.held
		h.ID = ReservedID(d.load.Key.String()+"/"+pl.g.name, i)
		pl.spot.held = &h
	}
	return then.placed
}

// placeAt tries to place everything that the decision misses as the cluster will be at a time. It is nil when that
// fails.
func (b *books) placeAt(d *decision, rows []int, at structs.LogTime) []placement {
	w := b.w.future()
	w.touched, w.states = w.column(), w.scratch.pictures(len(rows))
	defer func() {
		w.scratch.keep(w.touched)
		w.scratch.keepPictures(w.states)
		w.unlock()
	}()
	for _, row := range rows {
		c, i := b.w.View.at(row)
		o := occupancy{c.used[i], c.hold[i]}
		touched := b.w.touched[row] != 0
		if touched {
			o = b.w.get(row)
		}
		t := b.releaseTimes(row, o.hold)
		over := t.over(at)
		if !touched && over == 0 && len(b.promisedOn(row)) == 0 {
			continue // it will be as the view says
		}
		w.begin(row, b.picture(row, c, i, o, t, over, at))
	}
	if len(d.placed) == 0 {
		return b.decideAt(d, w)
	}
	var out []placement
	for _, g := range d.rec.groups {
		n := d.misses[g.name]
		if n == 0 {
			continue
		}
		if g.tg == nil || g.tg.Topology != nil {
			return nil // where the rest may go depends on where it is already: not foretold
		}
		if g.scan == nil || g.ask == nil {
			return nil
		}
		s := newScan(g.ask, w, d.policy, 0)
		defer s.done()
		for _, other := range d.rec.groups {
			if other == g || g.ask.countsJob() {
				for _, a := range other.staying {
					if row := w.View.row(a.NodeID); row >= 0 {
						s.count(row, other == g, 1)
					}
				}
			}
		}
		for i := range d.placed {
			if pl := &d.placed[i]; pl.g == g || g.ask.countsJob() {
				s.count(pl.spot.row, pl.g == g, 1)
			}
		}
		if g.ask.countsJob() {
			for i := range out {
				s.count(out[i].spot.row, false, 1)
			}
		}
		var pinned structs.NodeID
		if len(g.wants) > 0 {
			pinned = g.wants[0].pinned
		}
		for i := range int(n) {
			if !pinned.IsZero() {
				return nil
			}
			sp, ok := s.place(ReservedID(d.load.Key.String()+"/"+g.name, i), nil, -1)
			if !ok {
				return nil
			}
			out = append(out, placement{g: g, spot: sp})
		}
	}
	return out
}
