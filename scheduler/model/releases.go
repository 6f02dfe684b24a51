package model

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// ReleaseTimes lists what is held on a node by when it ends, with the node's occupancy after each end. Reservations use
// it: each looks at every node, and few nodes change between two of them, so it is kept with the holding. On a node
// that holds many allocations it is derived from the node's last one.
//
// Naive: for each reservation, collect and sort the ends of everything held, and compute the occupancy of each node for
// each time that is tried. On 1,000 nodes with a backlog that was 85 % of a replay. The occupancies of one holding are
// also the same pointers each time, so that what a policy cached about them can be used again.
type ReleaseTimes struct {
	from     structs.LogTime // when it was made
	Until    structs.LogTime // until when it is valid: the first end, because work that outruns its prediction is expected to end at its limit
	Ends     []release       // ascending
	Devices  int64           // held whole
	Stopping bool            // some allocation was asked to stop: its end is then uncertain
	left     []atomic.Pointer[Occupancy]
}

// release is when an allocation ends.
type release struct {
	At   structs.LogTime
	Held *Held
}

// Limits of release times. ReleasesLong is how many allocations a node must hold for its release times to be derived
// from the last ones, and releasesFresh how many of them may be new or gone.
const (
	releasesShort   = 16 // up to so many ends are searched linearly
	ReleasesLong    = 64
	releasesFresh   = 32
	releasePictures = 64
)

func compareEnds(a, b release) int {
	return cmp.Or(cmp.Compare(a.At, b.At), CompareID(a.Held.ID, b.Held.ID))
}

// NewReleaseTimes orders what is held by the end that when returns; 0 is never.
func NewReleaseTimes(hold *Holding, now structs.LogTime, when func(*Held) structs.LogTime) *ReleaseTimes {
	t := &ReleaseTimes{from: now, Ends: make([]release, 0, hold.Size())}
	for e := range hold.All() {
		t.Stopping = t.Stopping || e.Work.Ending
		t.Devices += WholeDevices(e)
		if at := when(e); at > 0 {
			t.Ends = append(t.Ends, release{at, e})
		}
	}
	slices.SortFunc(t.Ends, compareEnds)
	t.done()
	return t
}

func (t *ReleaseTimes) done() {
	t.Until = Never
	if len(t.Ends) > 0 {
		t.Until = t.Ends[0].At
	}
	if len(t.Ends) <= releasePictures {
		t.left = make([]atomic.Pointer[Occupancy], len(t.Ends))
	}
}

// onward derives the release times of a node from t, which are those of the holding was. It returns nil if too much has
// changed. Ends before now are computed again.
func (t *ReleaseTimes) onward(was, hold *Holding, now structs.LogTime, when func(*Held) structs.LogTime) *ReleaseTimes {
	if t.Stopping || now < t.from {
		return nil
	}
	gone, fresh, ok := DifferRolls(&was.held, &hold.held, releasesFresh)
	if !ok {
		return nil
	}
	next := &ReleaseTimes{from: now, Devices: t.Devices, Ends: make([]release, 0, len(t.Ends)+len(fresh))}
	var more []release
	add := func(e *Held) {
		if at := when(e); at > 0 {
			more = append(more, release{at, e})
		}
	}
	for _, e := range fresh {
		next.Stopping = next.Stopping || e.Work.Ending
		next.Devices += WholeDevices(e)
		add(e)
	}
	for _, e := range gone {
		next.Devices -= WholeDevices(e)
	}
	rest := t.Ends
	for len(rest) > 0 && rest[0].At < now {
		if !slices.Contains(gone, rest[0].Held) {
			add(rest[0].Held)
		}
		rest = rest[1:]
	}
	slices.SortFunc(more, compareEnds)
	var out []int // places in rest of what is gone
	for _, e := range gone {
		if at := e.Work.Predicted(t.from); at >= now { // its place in t.Ends
			k, found := slices.BinarySearchFunc(rest, release{at, e}, compareEnds)
			if !found {
				return nil
			}
			out = append(out, k)
		}
	}
	slices.Sort(out)
	from := 0
	copyTo := func(to int) {
		for len(out) > 0 && out[0] < to {
			next.Ends = append(next.Ends, rest[from:out[0]]...)
			from, out = out[0]+1, out[1:]
		}
		next.Ends = append(next.Ends, rest[from:to]...)
		from = to
	}
	for _, e := range more {
		k, _ := slices.BinarySearchFunc(rest, e, compareEnds)
		copyTo(max(k, from))
		next.Ends = append(next.Ends, e)
	}
	copyTo(len(rest))
	next.done()
	return next
}

// ReleaseTimes returns the release times of a row, by predictions and limits.
func (v *View) ReleaseTimes(row int, hold *Holding, now structs.LogTime) *ReleaseTimes {
	m := v.memo
	if hold.Size() == 0 {
		return nil
	}
	if t := hold.releases.Load(); t != nil && t.from <= now && now <= t.Until {
		return t
	}
	when := func(e *Held) structs.LogTime { return e.Work.Predicted(now) }
	var t *ReleaseTimes
	if hold.Size() < ReleasesLong {
		t = NewReleaseTimes(hold, now, when)
	} else {
		m.mu.Lock()
		last := m.releases[row]
		m.mu.Unlock()
		if last.times != nil {
			t = last.times.onward(last.hold, hold, now, when)
		}
		if t == nil {
			t = NewReleaseTimes(hold, now, when)
		}
		m.mu.Lock()
		if m.releases == nil || len(m.releases) > releaseRowsMax {
			m.releases = make(map[int]heldReleases)
		}
		m.releases[row] = heldReleases{hold, t}
		m.mu.Unlock()
	}
	hold.releases.Store(t)
	return t
}

// heldReleases is the last release times of a row, with their holding.
type heldReleases struct {
	hold  *Holding
	times *ReleaseTimes
}

// releaseRowsMax is for how many rows the last release times are kept.
const releaseRowsMax = 1 << 14

// Over returns how many allocations have ended by a time.
func (t *ReleaseTimes) Over(at structs.LogTime) int {
	if t == nil || len(t.Ends) == 0 || t.Ends[0].At > at {
		return 0
	}
	if len(t.Ends) <= releasesShort {
		k := 1
		for k < len(t.Ends) && t.Ends[k].At <= at {
			k++
		}
		return k
	}
	k, _ := slices.BinarySearchFunc(t.Ends, at+1, func(e release, at structs.LogTime) int { return cmp.Compare(e.At, at) })
	return k
}

// After returns the occupancy of a node after the first k ends.
func (t *ReleaseTimes) After(n *structs.Node, o Occupancy, k int) Occupancy {
	if k == 0 {
		return o
	}
	if t.left != nil {
		if x := t.left[k-1].Load(); x != nil {
			return *x
		}
	}
	gone := make([]*Held, 0, k)
	for i := range t.Ends[:k] {
		gone = append(gone, t.Ends[i].Held)
	}
	slices.SortFunc(gone, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
	keep := make([]*Held, 0, o.Hold.Size()-k)
	for e := range o.Hold.All() {
		if len(gone) > 0 && gone[0] == e {
			gone = gone[1:]
			continue
		}
		keep = append(keep, e)
	}
	x := Occupied(n, keep)
	if t.left != nil {
		t.left[k-1].Store(&x)
	}
	return x
}
