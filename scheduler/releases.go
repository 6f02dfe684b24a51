package scheduler

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// releaseTimes is what is held on a node by when it ends, and the pictures of the node as one after the other is over. Promises
// ask for it: each looks at every node, and between two of them few nodes change, so that it stays with the holding. The
// one of a node on which much is held is made from the last one of the node.
//
// Naive: collect and sort the ends of everything held for each promise, and build the picture of each node anew for each
// time that is tried. On 1,000 nodes with a backlog that was 85 % of a replay. The pictures of one holding are the same
// ones each time, too, so that what a policy found out about them (memo) serves again.
type releaseTimes struct {
	from    structs.LogTime // when it was made
	until   structs.LogTime // to when it holds: the first end, for what outruns its prediction ends at its limit
	ends    []release       // ascending
	devices int64           // that are held and nobody shares
	told    bool            // something was told to stop: its end says less than that
	left    []atomic.Pointer[occupancy]
}

// release is when something held ends.
type release struct {
	at   structs.LogTime
	held *held
}

// Limits of a tail: of what is held on a node, how much makes it worth its while to go on from the last tail, and how
// much of it may be new; and how many pictures are kept.
const (
	releasesShort   = 16 // ends up to so many are looked through in turn
	releasesLong    = 64
	releasesFresh   = 32
	releasePictures = 64
)

func compareEnds(a, b release) int {
	return cmp.Or(cmp.Compare(a.at, b.at), CompareID(a.held.ID, b.held.ID))
}

// newReleaseTimes orders what is held by the ends that when gives; 0 is for never.
func newReleaseTimes(hold *holding, now structs.LogTime, when func(*held) structs.LogTime) *releaseTimes {
	t := &releaseTimes{from: now, ends: make([]release, 0, hold.size())}
	for e := range hold.all() {
		t.told = t.told || e.work.ending
		t.devices += wholeDevices(e)
		if at := when(e); at > 0 {
			t.ends = append(t.ends, release{at, e})
		}
	}
	slices.SortFunc(t.ends, compareEnds)
	t.done()
	return t
}

func (t *releaseTimes) done() {
	t.until = never
	if len(t.ends) > 0 {
		t.until = t.ends[0].at
	}
	if len(t.ends) <= releasePictures {
		t.left = make([]atomic.Pointer[occupancy], len(t.ends))
	}
}

// onward is the tail of a node on which some of what was held is held no more, and something else is; nil when too much
// is. What was to end before now is asked for anew.
func (t *releaseTimes) onward(was, hold *holding, now structs.LogTime, when func(*held) structs.LogTime) *releaseTimes {
	if t.told || now < t.from {
		return nil
	}
	gone, fresh, ok := DifferRolls(&was.held, &hold.held, releasesFresh)
	if !ok {
		return nil
	}
	next := &releaseTimes{from: now, devices: t.devices, ends: make([]release, 0, len(t.ends)+len(fresh))}
	var more []release
	add := func(e *held) {
		if at := when(e); at > 0 {
			more = append(more, release{at, e})
		}
	}
	for _, e := range fresh {
		next.told = next.told || e.work.ending
		next.devices += wholeDevices(e)
		add(e)
	}
	for _, e := range gone {
		next.devices -= wholeDevices(e)
	}
	rest := t.ends
	for len(rest) > 0 && rest[0].at < now {
		if !slices.Contains(gone, rest[0].held) {
			add(rest[0].held)
		}
		rest = rest[1:]
	}
	slices.SortFunc(more, compareEnds)
	var out []int // places in rest of what is gone
	for _, e := range gone {
		if at := e.work.foreseen(t.from); at >= now { // as the tail has it
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
			next.ends = append(next.ends, rest[from:out[0]]...)
			from, out = out[0]+1, out[1:]
		}
		next.ends = append(next.ends, rest[from:to]...)
		from = to
	}
	for _, e := range more {
		k, _ := slices.BinarySearchFunc(rest, e, compareEnds)
		copyTo(max(k, from))
		next.ends = append(next.ends, e)
	}
	copyTo(len(rest))
	next.done()
	return next
}

// releaseTimes gives the tail of a row as predictions and limits have it.
func (v *View) releaseTimes(row int, hold *holding, now structs.LogTime) *releaseTimes {
	m := v.memo
	if hold.size() == 0 {
		return nil
	}
	if t := hold.releases.Load(); t != nil && t.from <= now && now <= t.until {
		return t
	}
	when := func(e *held) structs.LogTime { return e.work.foreseen(now) }
	var t *releaseTimes
	if hold.size() < releasesLong {
		t = newReleaseTimes(hold, now, when)
	} else {
		m.mu.Lock()
		last := m.releases[row]
		m.mu.Unlock()
		if last.times != nil {
			t = last.times.onward(last.hold, hold, now, when)
		}
		if t == nil {
			t = newReleaseTimes(hold, now, when)
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

// heldReleases is the last tail of a row, with the holding that it is of.
type heldReleases struct {
	hold  *holding
	times *releaseTimes
}

// releaseRowsMax is of how many rows the last tail is kept.
const releaseRowsMax = 1 << 14

// over is how many have ended by a time.
func (t *releaseTimes) over(at structs.LogTime) int {
	if t == nil || len(t.ends) == 0 || t.ends[0].at > at {
		return 0
	}
	if len(t.ends) <= releasesShort {
		k := 1
		for k < len(t.ends) && t.ends[k].at <= at {
			k++
		}
		return k
	}
	k, _ := slices.BinarySearchFunc(t.ends, at+1, func(e release, at structs.LogTime) int { return cmp.Compare(e.at, at) })
	return k
}

// after is the picture of a node when the first k of what is held are over.
func (t *releaseTimes) after(n *structs.Node, o occupancy, k int) occupancy {
	if k == 0 {
		return o
	}
	if t.left != nil {
		if x := t.left[k-1].Load(); x != nil {
			return *x
		}
	}
	gone := make([]*held, 0, k)
	for i := range t.ends[:k] {
		gone = append(gone, t.ends[i].held)
	}
	slices.SortFunc(gone, func(a, b *held) int { return CompareID(a.ID, b.ID) })
	keep := make([]*held, 0, o.hold.size()-k)
	for e := range o.hold.all() {
		if len(gone) > 0 && gone[0] == e {
			gone = gone[1:]
			continue
		}
		keep = append(keep, e)
	}
	x := occupied(n, keep)
	if t.left != nil {
		t.left[k-1].Store(&x)
	}
	return x
}
