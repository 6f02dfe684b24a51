package scheduler

import (
	"encoding/binary"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// earliest is a time before which what a decision misses cannot be placed, whatever ends: by amounts and by whole devices
// alone, beside what is promised. It is now when nothing is known, and never when not even empty nodes have enough. exact
// says that something ends just then, or that it is now.
func (b *reservations) earliestFree(d *decision, rows []int) (_ structs.LogTime, exact bool) {
	now := d.in.Now
	var g *groupWork
	for _, x := range d.groups {
		if d.misses[x.Name] == 0 {
			continue
		}
		if g != nil || x.Ask == nil {
			return now, true
		}
		g = x
	}
	if g == nil {
		return now, true
	}
	q := earliestFree{b: b, ask: g.Ask, missing: d.misses[g.Name], when: make([]structs.LogTime, 0, 8)}
	if g.Ask.PlainDevices {
		q.devices = g.Ask.Devices[0].Alts[0].Count
	}
	known := q.memo(d)
	ci, v := 0, b.W.View
	for _, row := range rows {
		for row >= v.Starts[ci]+len(v.Chunks[ci].IDs) {
			ci++
		}
		c, i := v.Chunks[ci], row-v.Starts[ci]
		o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
		if t := b.W.Touched[row]; t != 0 {
			o = b.W.States[t-1]
		}
		if o.Hold != nil && o.Hold.Waits > 0 {
			return now, true
		}
		plain := known != nil && (b.Rows == nil || !b.ReservedAny(row, 1))
		if plain && q.recall(known, row, o.Hold) {
			continue
		}
		t := b.releaseTimes(row, o.Hold)
		if t != nil && t.Told {
			t = model.NewReleaseTimes(o.Hold, now, func(e *model.Held) structs.LogTime {
				if at := e.Work.Ends(now); at != 0 {
					return at
				}
				return b.predictedEnd(row, &e.Work)
			})
			q.told = true
		}
		switch ps := b.ReservedOn(row); {
		case len(ps) > 0:
			q.amongReserved(row, c, i, o, t, ps)
		case plain && (t == nil || !t.Told):
			alone := q
			alone.when = alone.room[:0]
			alone.byEnds(c, i, o, t)
			keepSoon(known, &alone, row, o.Hold, t)
			for _, at := range alone.when {
				q.add(at)
			}
		default:
			q.byEnds(c, i, o, t)
		}
	}
	if int64(len(q.when)) < q.missing {
		return model.Never, true
	}
	return q.when[q.missing-1], !q.told
}

// earliestFree gathers when places for an ask come to be.
type earliestFree struct {
	b       *reservations
	ask     *match.Ask
	missing int64
	devices int64             // whole ones of an allocation; 0: none, or they are not just counted
	when    []structs.LogTime // the earliest missing ones, ascending
	told    bool              // something was told to stop, and is taken to end now
	room    [soonMost]structs.LogTime
}

// soonMost is for up to how many allocations it is remembered when there are places for them on a node.
const soonMost = 8

// memo is what is remembered of what the search is about, or nil.
func (q *earliestFree) memo(d *decision) *search.Shortfalls {
	if q.missing > soonMost || q.b.in.Now <= 0 {
		return nil
	}
	key := make([]byte, 1, 64)
	key[0] = 2 // as no other key begins
	for _, n := range [...]int64{q.ask.Need.CPU, q.ask.Need.Cores, q.ask.Need.MemoryMiB, q.ask.Need.DiskMiB, q.devices, q.missing} {
		key = binary.AppendVarint(key, n)
	}
	m := q.b.W.ShortfallsOf(key, d.load.Job.NodePool)
	if m != nil && m.Soon == nil {
		m.Soon, m.When = make([]search.EarliestFree, q.b.W.View.Rows), make([]structs.LogTime, int64(q.b.W.View.Rows)*q.missing)
	}
	return m
}

// recall adds what is remembered of a row, and reports whether something is.
func (q *earliestFree) recall(m *search.Shortfalls, row int, hold *model.Holding) bool {
	x, now := &m.Soon[row], q.b.in.Now
	if x.Until == 0 || x.Hold != hold || now < x.From || now > x.Until || q.b.patient && !x.Whole {
		return false
	}
	first := int64(row) * q.missing
	for _, at := range m.When[first : first+int64(x.N)] {
		if at = max(at, now); q.late(at) {
			break
		}
		q.add(at)
	}
	return true
}

// Keep remembers what a search found on a row alone.
func keepSoon(m *search.Shortfalls, q *earliestFree, row int, hold *model.Holding, t *model.ReleaseTimes) {
	x := &m.Soon[row]
	*x = search.EarliestFree{Hold: hold, From: q.b.in.Now, Until: model.Never, Whole: true, N: int8(len(q.when))}
	if t != nil {
		x.Until, x.Whole = t.Until, len(t.Ends) == hold.Size()
	}
	if q.b.patient && !x.Whole {
		x.Until = 0 // it is from guesses
	}
	first := int64(row) * q.missing
	for i, at := range q.when {
		if at == q.b.in.Now {
			at = 0
		}
		m.When[first+int64(i)] = at
	}
}

// Add notes a place that comes to be at a time.
func (q *earliestFree) add(at structs.LogTime) {
	if q.late(at) {
		return
	}
	k := len(q.when)
	if int64(k) < q.missing {
		q.when = append(q.when, at)
	} else {
		k--
	}
	for ; k > 0 && q.when[k-1] > at; k-- {
		q.when[k] = q.when[k-1]
	}
	q.when[k] = at
}

// More notes places that come to be at a time.
func (q *earliestFree) more(have, now int64, at structs.LogTime) int64 {
	for ; have < now && !q.late(at); have++ {
		q.add(at)
	}
	return now
}

// late reports whether places that come to be at a time are of no use, as there are enough before.
func (q *earliestFree) late(at structs.LogTime) bool {
	return int64(len(q.when)) >= q.missing && q.when[q.missing-1] <= at
}

// byEnds looks at a row on which nothing is promised.
func (q *earliestFree) byEnds(c *model.Chunk, i int, o model.Occupancy, t *model.ReleaseTimes) {
	total, need, mhz := &c.Total[i], &q.ask.Need, c.MHz[i]
	used, free := o.Used, int64(0)
	if q.devices > 0 {
		free = deviceCount(c.Nodes[i])
		if t != nil {
			free -= t.Devices
		}
	}
	have := int64(0)
	if free >= q.devices {
		have = q.more(0, roomBy(total, &used, need, mhz, free, q.devices, q.missing), q.b.in.Now)
	}
	if t == nil {
		return
	}
	for k := range t.Ends {
		e := &t.Ends[k]
		if have >= q.missing || q.late(max(e.At, q.b.in.Now)) {
			return
		}
		used, free = used.Sub(e.Held.Need), free+model.WholeDevices(e.Held)
		if free < q.devices || k+1 < len(t.Ends) && t.Ends[k+1].At == e.At {
			continue
		}
		have = q.more(have, roomBy(total, &used, need, mhz, free, q.devices, q.missing), max(e.At, q.b.in.Now))
	}
}

// amongReserved looks at a row on which something is promised: at its pictures, for a device may be held now and promised
// for later.
func (q *earliestFree) amongReserved(row int, c *model.Chunk, i int, o model.Occupancy, t *model.ReleaseTimes, ps []*model.ReservedPlace) {
	now := q.b.in.Now
	times := []structs.LogTime{now}
	if t != nil {
		for k := range t.Ends {
			times = append(times, max(now, t.Ends[k].At))
		}
	}
	for _, p := range ps {
		if p.End > now {
			times = append(times, p.End)
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	have := int64(0)
	for _, at := range times {
		if have >= q.missing || q.late(at) {
			return
		}
		x := q.b.picture(row, c, i, o, t, t.Over(at), at)
		free := int64(0)
		if q.devices > 0 {
			free = deviceCount(c.Nodes[i]) - x.Hold.DevicesInUse()
		}
		have = q.more(have, roomBy(&c.Total[i], &x.Used, &q.ask.Need, c.MHz[i], free, q.devices, q.missing), at)
	}
}

// roomBy is how many allocations fit by amounts and whole devices, at most a number of them.
func roomBy(total, used, need *structs.Vector, mhz, free, devices, most int64) int64 {
	room := most
	for _, x := range [...][2]int64{{total.CPU - used.CPU - used.Cores*mhz, need.CPU + need.Cores*mhz}, {total.MemoryMiB - used.MemoryMiB, need.MemoryMiB},
		{total.DiskMiB - used.DiskMiB, need.DiskMiB}, {total.Cores - used.Cores, need.Cores}, {free, devices}} {
		if x[1] > 0 {
			room = min(room, max(x[0], 0)/x[1])
		}
	}
	return room
}

func deviceCount(n *structs.Node) (all int64) {
	for i := range n.Resources.Devices {
		all += int64(len(n.Resources.Devices[i].Instances))
	}
	return all
}
