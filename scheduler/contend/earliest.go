package contend

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Earliest finds the first time at which everything that a decision could not place would fit, if everything held ends
// when it is expected to and nothing else is placed but what is reserved. The places are nil when no such time is
// known.
//
// Naive: try every end of a held allocation in turn. With 16,000 of them a reservation would cost 16,000 searches of
// the cluster. Capacity only grows with time, except for reservations, which begin and end. So a binary search over the
// ends finds a time that fits. It is the earliest unless reservations leave a gap before it.
func (b *Reservations) Earliest(u Unplaced) (structs.LogTime, []Place) {
	if b.Rows == nil && !b.anyEnds() {
		return 0, nil // nothing will change by itself
	}
	missing := u.Missing()
	rows := b.rowsFor(u.Workload().Job, missing)
	// Free capacity alone gives a lower bound, and in most cases everything fits at that time.
	first, exact := b.earliestFree(u.Workload().Job, missing, rows)
	if first == model.Never {
		return 0, nil
	}
	if exact {
		if best := b.placeAt(u, rows, first); best != nil {
			return first, best
		}
	}
	times := b.timesOf(rows)
	lo, found := slices.BinarySearch(times, first)
	if !exact || !found {
		if lo == len(times) {
			return 0, nil
		}
		if best := b.placeAt(u, rows, times[lo]); best != nil {
			return times[lo], best
		}
	}
	if lo++; lo == len(times) {
		return 0, nil
	}
	best := b.placeAt(u, rows, times[len(times)-1])
	if best == nil {
		return 0, nil
	}
	hi := len(times) - 1 // everything fits at times[hi]
	for lo < hi {
		mid := (lo + hi) / 2
		if got := b.placeAt(u, rows, times[mid]); got != nil {
			best, hi = got, mid
		} else {
			lo = mid + 1
		}
	}
	return times[hi], best
}

// timesOf lists now and the times at which more may become free on some rows.
func (b *Reservations) timesOf(rows []int) []structs.LogTime {
	now := b.Now
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

// anyEnds reports whether any end of held work is known.
func (b *Reservations) anyEnds() bool {
	if !b.patient && b.endless && b.endlessAt == b.W.Stamp {
		return false
	}
	for ci, c := range b.W.View.Chunks {
		first := b.W.View.Starts[ci]
		if !b.patient && !c.MayEnd() && !b.W.Touches(first, len(c.IDs)) {
			continue
		}
		for row := first; row < first+len(c.IDs); row++ {
			for h := range b.W.Get(row).Hold.All() {
				if b.predictedEnd(row, &h.Work) > 0 {
					return true
				}
			}
		}
	}
	if !b.patient {
		b.endless, b.endlessAt = true, b.W.Stamp
	}
	return false
}

// rowsFor lists the rows that can serve a group of which something is missing.
func (b *Reservations) rowsFor(job *structs.Job, missing []Missing) []int {
	out := make([]int, 0, b.W.View.Rows)
	for ci, c := range b.W.View.Chunks {
		for i := range c.IDs {
			for k := range missing {
				if missing[k].Search == nil {
					continue
				}
				v := missing[k].Search.ClassVerdict(&c.Classes[c.Class[i]])
				if row := b.W.View.Starts[ci] + i; !v.Outside && !v.Far && v.Refused == 0 && c.Ready[i] && (len(b.Windows) == 0 || b.ClosedTo(row, job, model.Never) == "") {
					out = append(out, row)
					break
				}
			}
		}
	}
	return out
}

// placeAt tries to place everything that is missing in the cluster as it will be at a time. It returns nil if that
// fails.
func (b *Reservations) placeAt(u Unplaced, rows []int, at structs.LogTime) []Place {
	w := b.W.Future()
	w.Touched, w.States = w.Column(), w.Scratch.FutureRows(len(rows))
	defer func() {
		w.Scratch.Keep(w.Touched)
		w.Scratch.KeepFutureRows(w.States)
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
			continue // it will be as in the view
		}
		w.Begin(row, b.futureRow(row, c, i, o, t, over, at))
	}
	return u.PlaceOn(w)
}
