package scheduler

import (
	"slices"
	"sort"

	"github.com/muster-sched/muster/structs"
)

// rowEnds is what is held on a row by when it ends. It serves the promises of one pass after another: each asks for the
// ends of the same holding.
//
// Naive: sort them and build the pictures of the future anew for each promise. On a cluster of one large node, where a
// thousand jobs hold at once, ten promises in every pass cost ten milliseconds of it.
type rowEnds struct {
	hold     *holding
	now      structs.LogTime
	times    []structs.LogTime // now and all ends that are foreseen, ascending, each once
	foreseen endings
	told     endings // the same where what was told to stop ends at once
}

// endings is the ends of what is held, in order, with what is used when the first of them are over.
type endings struct {
	at   []structs.LogTime
	used []structs.Vector // used[k]: what is held less the first k
}

func endingsOf(t *tail, used structs.Vector) endings {
	if t == nil {
		return endings{used: []structs.Vector{used}}
	}
	x := endings{at: make([]structs.LogTime, len(t.ends)), used: make([]structs.Vector, len(t.ends)+1)}
	x.used[0] = used
	for k := range t.ends {
		x.at[k] = t.ends[k].at
		used = used.Sub(t.ends[k].held.need)
		x.used[k+1] = used
	}
	return x
}

// after is what is used once everything that ends by a time is over.
func (x *endings) after(at structs.LogTime) structs.Vector {
	k, _ := slices.BinarySearch(x.at, at+1)
	return x.used[k]
}

// endsOn gives the ends on a row, or nil when what is held there cannot be added up.
func (b *books) endsOn(row int) *rowEnds {
	o := b.w.get(row)
	if o.hold != nil && o.hold.waits > 0 {
		return nil
	}
	now := b.in.Now
	if x := b.ends[row]; x != nil && x.hold == o.hold && x.now == now {
		return x
	}
	x := &rowEnds{hold: o.hold, now: now}
	t := b.w.v.memo.tail(row, o.hold, now)
	x.foreseen = endingsOf(t, o.used)
	x.told = x.foreseen
	if t != nil && t.told {
		x.told = endingsOf(newTail(o.hold, now, func(e *held) structs.LogTime { return e.work.ends(now) }), o.used)
	}
	x.times = append(append(make([]structs.LogTime, 0, len(x.foreseen.at)+1), now), x.foreseen.at...)
	x.times = slices.Compact(x.times)
	if b.ends == nil {
		b.ends = make(map[int]*rowEnds)
	}
	b.ends[row] = x
	return x
}

// amongPromises is earliest for one new allocation of mere amounts on a cluster of one node, beside promises of mere
// amounts: the same search, of which each try is two sums. ok is false when it does not apply; a promise by guessed ends
// is looked for the long way.
func (b *books) amongPromises(d *decision, g *groupWork) (at structs.LogTime, _ []placement, ok bool) {
	if b.patient || len(d.placed) > 0 || g.gang || g.tg.Topology != nil || d.load.Job.Array != nil || !plain(&g.wants[0]) {
		return 0, nil, false
	}
	ps := b.rows[0]
	if slices.ContainsFunc(ps, func(p *promised) bool { return p.held.rare != nil }) {
		return 0, nil, false
	}
	x := b.endsOn(0)
	if x == nil {
		return 0, nil, false
	}
	c, i := b.w.v.at(0)
	v := g.scan.verdict(0)
	if v.outside || v.far || v.refused > 0 || !c.ready[i] || b.closedTo(0, d.load, never) != "" {
		return 0, nil, true
	}
	now, need, total, mhz := b.in.Now, g.ask.need, &c.total[i], c.mhz[i]
	times := slices.Clone(x.times)
	for _, p := range ps {
		if k, found := slices.BinarySearch(times, p.end); !found && p.end > now {
			times = slices.Insert(times, k, p.end)
		}
	}
	fits := func(at structs.LogTime) bool {
		used := x.foreseen.after(at)
		for _, p := range ps {
			if p.end == 0 || p.end > at { // also those that begin later
				used = used.Add(p.held.need)
			}
		}
		return fitsAmounts(*total, used, used.Add(need), mhz).dim == structs.DimensionNone
	}
	place := func(at structs.LogTime) (structs.LogTime, []placement, bool) {
		h := &held{id: promiseID(d.load.Key.String()+"/"+g.name, 0), need: need, work: d.workOf(g.tg)}
		return at, []placement{{g: g, want: &g.wants[0], spot: spot{row: 0, node: c.nodes[i], held: h}}}, true
	}
	// A time before which it cannot be by what is held alone, and mostly that time will do: see earliest.
	k := sort.Search(len(x.told.used), func(k int) bool { return roomBy(total, &x.told.used[k], &need, mhz, 0, 0, 1) > 0 })
	soonest := now
	switch {
	case k == len(x.told.used):
		soonest = never
	case k > 0:
		soonest = max(x.told.at[k-1], now)
	}
	lo, _ := slices.BinarySearch(times, soonest)
	if lo == len(times) {
		return 0, nil, true
	}
	if fits(times[lo]) {
		return place(times[lo])
	}
	if lo++; lo == len(times) || !fits(times[len(times)-1]) {
		return 0, nil, true
	}
	hi := len(times) - 1
	for lo < hi {
		if mid := (lo + hi) / 2; fits(times[mid]) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return place(times[hi])
}
