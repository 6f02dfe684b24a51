package model

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// ReleaseTimes is what is held on a node by when it ends, and the pictures of the node as one after the other is over. Promises
// ask for it: each looks at every node, and between two of them few nodes change, so that it stays with the holding. The
// one of a node on which much is held is made from the last one of the node.
//
// Naive: collect and sort the ends of everything held for each promise, and build the picture of each node anew for each
// time that is tried. On 1,000 nodes with a backlog that was 85 % of a replay. The pictures of one holding are the same
// ones each time, too, so that what a policy found out about them (memo) serves again.
type ReleaseTimes struct {
	from    structs.LogTime // when it was made
	Until   structs.LogTime // to when it holds: the first end, for what outruns its prediction ends at its limit
	Ends    []release       // ascending
	Devices int64           // that are held and nobody shares
	Told    bool            // something was told to stop: its end says less than that
	left    []atomic.Pointer[Occupancy]
}

// release is when something held ends.
type release struct {
	At   structs.LogTime
	Held *Held
}

// Limits of release times: of what is held on a node, how much makes it worth its while to go on from the last ones, and how
// much of it may be new; and how many pictures are kept.
const (
	releasesShort   = 16 // ends up to so many are looked through in turn
	ReleasesLong    = 64
	releasesFresh   = 32
	releasePictures = 64
)

func compareEnds(a, b release) int {
	return cmp.Or(cmp.Compare(a.At, b.At), CompareID(a.Held.ID, b.Held.ID))
}

// NewReleaseTimes orders what is held by the ends that when gives; 0 is for never.
func NewReleaseTimes(hold *Holding, now structs.LogTime, when func(*Held) structs.LogTime) *ReleaseTimes {
	t := &ReleaseTimes{from: now, Ends: make([]release, 0, hold.Size())}
	for e := range hold.All() {
		t.Told = t.Told || e.Work.Ending
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

// onward is the release times of a node on which some of what was held is held no more, and something else is; nil when too much
// is. What was to end before now is asked for anew.
func (t *ReleaseTimes) onward(was, hold *Holding, now structs.LogTime, when func(*Held) structs.LogTime) *ReleaseTimes {
	if t.Told || now < t.from {
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
		next.Told = next.Told || e.Work.Ending
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
		if at := e.Work.Predicted(t.from); at >= now { // as the tail has it
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

// ReleaseTimes gives the release times of a row as predictions and limits have it.
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

// heldReleases is the last ones of a row, with the holding that it is of.
type heldReleases struct {
	hold  *Holding
	times *ReleaseTimes
}

// releaseRowsMax is of how many rows the last ones is kept.
const releaseRowsMax = 1 << 14

// Over is how many have ended by a time.
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

// After is the picture of a node when the first k of what is held are over.
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
