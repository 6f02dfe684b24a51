package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// earliest finds the first time at which everything that a decision misses could be placed, if everything held ends when
// it is expected to and nothing else is placed but what is promised. It is nil when no such time is known.
//
// Naive: try every end of a held allocation in turn. With 16,000 of them a promise would cost 16,000 searches of the
// cluster. More is free the later it is, but for promises, which end again; so a binary search over the ends finds a
// time that will do, the earliest unless promises leave a hole before it.
func (b *reservations) earliest(d *decision) (structs.LogTime, []placement) {
	if b.Rows == nil && !b.anyEnds() {
		return 0, nil // it will be as it is now
	}
	rows := b.rowsFor(d)
	// What is free alone tells a time before which it cannot be, and mostly that time will do.
	first, exact := b.earliestFree(d, rows)
	if first == model.Never {
		return 0, nil
	}
	if exact {
		if best := b.placeAt(d, rows, first); best != nil {
			return first, best
		}
	}
	times := b.timesOf(d, rows)
	lo, found := slices.BinarySearch(times, first)
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
func (b *reservations) timesOf(d *decision, rows []int) []structs.LogTime {
	now := d.in.Now
	times := []structs.LogTime{now}
	for _, row := range rows {
		if t := b.releaseTimes(row, b.W.Get(row).Hold); t != nil {
			for k := range t.Ends {
				times = append(times, t.Ends[k].At)
			}
		}
		for _, p := range b.ReservedOn(row) {
			if p.End > now {
				times = append(times, p.End)
			}
		}
	}
	slices.Sort(times)
	return slices.Compact(times)
}

// anyEnds reports whether anything held is known to end.
func (b *reservations) anyEnds() bool {
	if !b.patient && b.endless && b.endlessAt == b.W.Stamp {
		return false
	}
	for row := range b.W.View.Rows {
		for h := range b.W.Get(row).Hold.All() {
			if b.predictedEnd(row, &h.Work) > 0 {
				return true
			}
		}
	}
	if !b.patient {
		b.endless, b.endlessAt = true, b.W.Stamp
	}
	return false
}

// rowsFor lists the rows that may serve a group that the decision misses something of.
func (b *reservations) rowsFor(d *decision) []int {
	out := make([]int, 0, b.W.View.Rows)
	for ci, c := range b.W.View.Chunks {
		for i := range c.IDs {
			for _, g := range d.groups {
				if d.misses[g.Name] == 0 || g.search == nil {
					continue
				}
				v := g.search.ClassVerdict(&c.Classes[c.Class[i]])
				if row := b.W.View.Starts[ci] + i; !v.Outside && !v.Far && v.Refused == 0 && c.Ready[i] && (len(b.Windows) == 0 || b.ClosedTo(row, d.load.Job, model.Never) == "") {
					out = append(out, row)
					break
				}
			}
		}
	}
	return out
}

// decideAt takes the whole decision again on a picture of the future: with gangs, topology and all that goes with it.
func (b *reservations) decideAt(d *decision, w *search.Pass) []placement {
	later := env{in: d.in, w: w, noFit: &search.NoFit{}, reservations: &reservations{in: d.in, Reservations: search.Reservations{W: w, Now: b.in.Now}}}
	then := newDecision(later, d.load, d.policy, d.cursor)
	then.reconcile()
	then.place()
	then.closeSearches()
	if len(then.misses) > 0 || len(then.placed) == 0 {
		return nil
	}
	for i := range then.placed {
		pl := &then.placed[i]
		h := *pl.at.Held
		h.ID = model.ReservedID(d.load.Key.String()+"/"+pl.g.Name, i)
		pl.at.Held = &h
	}
	return then.placed
}

// placeAt tries to place everything that the decision misses as the cluster will be at a time. It is nil when that
// fails.
func (b *reservations) placeAt(d *decision, rows []int, at structs.LogTime) []placement {
	w := b.W.Future()
	w.Touched, w.States = w.Column(), w.Scratch.Pictures(len(rows))
	defer func() {
		w.Scratch.Keep(w.Touched)
		w.Scratch.KeepPictures(w.States)
		w.Unlock()
	}()
	for _, row := range rows {
		c, i := b.W.View.At(row)
		o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
		touched := b.W.Touched[row] != 0
		if touched {
			o = b.W.Get(row)
		}
		t := b.releaseTimes(row, o.Hold)
		over := t.Over(at)
		if !touched && over == 0 && len(b.ReservedOn(row)) == 0 {
			continue // it will be as the view says
		}
		w.Begin(row, b.picture(row, c, i, o, t, over, at))
	}
	if len(d.placed) == 0 {
		return b.decideAt(d, w)
	}
	var out []placement
	for _, g := range d.groups {
		n := d.misses[g.Name]
		if n == 0 {
			continue
		}
		if g.Tg == nil || g.Tg.Topology != nil {
			return nil // where the rest may go depends on where it is already: not foretold
		}
		if g.search == nil || g.Ask == nil {
			return nil
		}
		s := search.New(g.Ask, w, d.policy, 0)
		defer s.Done()
		for _, other := range d.groups {
			if other == g || g.Ask.CountsJob() {
				for _, a := range other.Staying {
					if row := w.View.Row(a.NodeID); row >= 0 {
						s.Count(row, other == g, 1)
					}
				}
			}
		}
		for i := range d.placed {
			if pl := &d.placed[i]; pl.g == g || g.Ask.CountsJob() {
				s.Count(pl.at.Row, pl.g == g, 1)
			}
		}
		if g.Ask.CountsJob() {
			for i := range out {
				s.Count(out[i].at.Row, false, 1)
			}
		}
		var pinned structs.NodeID
		if len(g.Wants) > 0 {
			pinned = g.Wants[0].Pinned
		}
		for i := range int(n) {
			if !pinned.IsZero() {
				return nil
			}
			sp, ok := s.Place(model.ReservedID(d.load.Key.String()+"/"+g.Name, i), nil, -1)
			if !ok {
				return nil
			}
			out = append(out, placement{g: g, at: sp})
		}
	}
	return out
}
