package contend

import (
	"encoding/binary"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// earliestFree returns a lower bound for the time at which what is missing can be placed. It counts only amounts and
// whole devices, and leaves free what is reserved. It returns now when nothing is known, and Never when not even empty
// nodes have enough. exact: something ends just then, or the time is now.
func (b *Reservations) earliestFree(job *structs.Job, missing []Missing, rows []int) (_ structs.LogTime, exact bool) {
	if len(missing) != 1 || missing[0].Ask == nil {
		return b.Now, true
	}
	q := earliestFree{b: b, ask: missing[0].Ask, missing: missing[0].Count, when: make([]structs.LogTime, 0, 8)}
	if q.ask.PlainDevices {
		q.devices = q.ask.Devices[0].Alts[0].Count
	}
	known := q.memo(job)
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
			return b.Now, true
		}
		plain := known != nil && (b.Rows == nil || !b.ReservedAny(row, 1))
		if plain && q.recall(known, row, o.Hold) {
			continue
		}
		t := b.releaseTimes(row, o.Hold)
		if t != nil && t.Stopping {
			t = model.NewReleaseTimes(o.Hold, b.Now, func(e *model.Held) structs.LogTime {
				if at := e.Work.Ends(b.Now); at != 0 {
					return at
				}
				return b.predictedEnd(row, &e.Work)
			})
			q.stopping = true
		}
		switch ps := b.ReservedOn(row); {
		case len(ps) > 0:
			q.amongReserved(row, c, i, o, t, ps)
		case plain && (t == nil || !t.Stopping):
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
	return q.when[q.missing-1], !q.stopping
}

// earliestFree collects when places for an ask become free.
type earliestFree struct {
	b        *Reservations
	ask      *match.Ask
	missing  int64
	devices  int64             // whole devices per allocation; 0: none, or their number is not all that matters
	when     []structs.LogTime // the earliest places, ascending, at most as many as are missing
	stopping bool              // some work was asked to stop, and is assumed to end now
	room     [soonMost]structs.LogTime
}

// soonMost is the largest number of allocations for which the times of a node are cached.
const soonMost = 8

// memo returns the cache for equal asks, or nil.
func (q *earliestFree) memo(job *structs.Job) *search.Shortfalls {
	if q.missing > soonMost || q.b.Now <= 0 {
		return nil
	}
	key := make([]byte, 1, 64)
	key[0] = 2 // no other key begins with 2
	for _, n := range [...]int64{q.ask.Need.CPU, q.ask.Need.Cores, q.ask.Need.MemoryMiB, q.ask.Need.DiskMiB, q.devices, q.missing} {
		key = binary.AppendVarint(key, n)
	}
	m := q.b.W.ShortfallsOf(key, job.NodePool)
	if m != nil && m.Soon == nil {
		m.Soon, m.When = make([]search.EarliestFree, q.b.W.View.Rows), make([]structs.LogTime, int64(q.b.W.View.Rows)*q.missing)
	}
	return m
}

// recall adds the cached times of a row. It reports whether there are any.
func (q *earliestFree) recall(m *search.Shortfalls, row int, hold *model.Holding) bool {
	x, now := &m.Soon[row], q.b.Now
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

// keepSoon caches what was found on one row.
func keepSoon(m *search.Shortfalls, q *earliestFree, row int, hold *model.Holding, t *model.ReleaseTimes) {
	x := &m.Soon[row]
	*x = search.EarliestFree{Hold: hold, From: q.b.Now, Until: model.Never, Whole: true, N: int8(len(q.when))}
	if t != nil {
		x.Until, x.Whole = t.Until, len(t.Ends) == hold.Size()
	}
	if q.b.patient && !x.Whole {
		x.Until = 0 // it includes guessed ends
	}
	first := int64(row) * q.missing
	for i, at := range q.when {
		if at == q.b.Now {
			at = 0
		}
		m.When[first+int64(i)] = at
	}
}

// add records a place that becomes free at a time.
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

// more records that the number of places grows from have to now at a time.
func (q *earliestFree) more(have, now int64, at structs.LogTime) int64 {
	for ; have < now && !q.late(at); have++ {
		q.add(at)
	}
	return now
}

// late reports whether enough places become free before a time.
func (q *earliestFree) late(at structs.LogTime) bool {
	return int64(len(q.when)) >= q.missing && q.when[q.missing-1] <= at
}

// byEnds looks at a row on which nothing is reserved.
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
		have = q.more(0, roomBy(total, &used, need, mhz, free, q.devices, q.missing), q.b.Now)
	}
	if t == nil {
		return
	}
	for k := range t.Ends {
		e := &t.Ends[k]
		if have >= q.missing || q.late(max(e.At, q.b.Now)) {
			return
		}
		used, free = used.Sub(e.Held.Need), free+model.WholeDevices(e.Held)
		if free < q.devices || k+1 < len(t.Ends) && t.Ends[k+1].At == e.At {
			continue
		}
		have = q.more(have, roomBy(total, &used, need, mhz, free, q.devices, q.missing), max(e.At, q.b.Now))
	}
}

// amongReserved looks at a row with reservations. It checks the row as it will be at each time, because a device may be
// held now and reserved for later.
func (q *earliestFree) amongReserved(row int, c *model.Chunk, i int, o model.Occupancy, t *model.ReleaseTimes, ps []*model.ReservedPlace) {
	now := q.b.Now
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
		x := q.b.futureRow(row, c, i, o, t, t.Over(at), at)
		free := int64(0)
		if q.devices > 0 {
			free = deviceCount(c.Nodes[i]) - x.Hold.DevicesInUse()
		}
		have = q.more(have, roomBy(&c.Total[i], &x.Used, &q.ask.Need, c.MHz[i], free, q.devices, q.missing), at)
	}
}

// roomBy returns how many allocations fit by amounts and whole devices, at most `most`.
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
