package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Least is the least that any placement of a job needs, and what all of it asks for: a memo, for those who ask for it
// again and again. Immutable.
type Least struct {
	asks    structs.Amount
	need    structs.Vector
	devices int64
	members int64 // that find places together or not at all
	plain   bool  // a service or batch job whose workload has nothing but wants
}

// LeastOf computes the memo of a job.
func LeastOf(j *structs.Job) *Least {
	l := &Least{asks: asksOf(j), plain: j != nil && j.Placeable() && (j.Type == structs.JobBatch || j.Type == structs.JobService)}
	if !l.plain {
		return l
	}
	l.members = 1
	if len(j.Groups) == 1 && j.Groups[0].Gang != nil {
		l.members = int64(max(1, j.Groups[0].Least()))
	}
	for n, g := range j.Groups {
		v := structs.GroupVector(g)
		var devices int64
		for _, t := range g.Tasks {
			for i := range t.Resources.Devices {
				devices += max(t.Resources.Devices[i].Count, 1)
			}
			least := int64(0)
			for i := range t.Resources.GPU {
				r := &t.Resources.GPU[i]
				ask := max(r.Count, 1)
				if r.Shared() {
					ask = 0
				}
				if i == 0 || ask < least {
					least = ask
				}
			}
			devices += least
		}
		if g.Count == 0 { // nothing of it is wanted
			l.plain = false
		}
		if n == 0 {
			l.need, l.devices = v, devices
			continue
		}
		l.need = structs.Vector{CPU: min(l.need.CPU, v.CPU), Cores: min(l.need.Cores, v.Cores), MemoryMiB: min(l.need.MemoryMiB, v.MemoryMiB), DiskMiB: min(l.need.DiskMiB, v.DiskMiB)}
		l.devices = min(l.devices, devices)
	}
	return l
}

// exceeds reports whether the least is more than there is of something.
func (l *Least) exceeds(free *structs.Vector) bool {
	n := &l.need
	return n.CPU > free.CPU && n.CPU > 0 || n.MemoryMiB > free.MemoryMiB && n.MemoryMiB > 0 ||
		n.DiskMiB > free.DiskMiB && n.DiskMiB > 0 || n.Cores > free.Cores && n.Cores > 0
}

// quickReject refuses, in some tens of nanoseconds, workloads that no node has room for. On a full cluster thousands
// wait, and a pass that decided about each would cost milliseconds at every event. Only a workload that was answered
// before and would be answered alike is refused so; the first ones of a queue, to which a promise is due, never are. A
// property compares passes with and without.
type quickReject struct {
	w       *pass
	books   *books
	stamp   int
	known   bool
	most    spare           // of each dimension the most that is free on a node
	blocks  []*spares       // what is free, by blocks of rows; promises taken off
	strange []strangeBlock  // of those that are not as the view says
	late    structs.Vector  // the most that is free for what holds beyond from
	from    structs.LogTime // when the last promise begins; never: there is none
	unseen  []Unseen
	refused int
	shrink  int8 // whether elastic work holds anything: 0 not known, 1 no, 2 yes
}

// refuses reports whether the workload need not be looked at.
func (q *quickReject) refuses(load *Workload) bool {
	l := load.Least
	if l == nil || !l.plain || load.Blocked == nil || len(load.Evals) > 0 || len(load.Allocs) > 0 || load.Gate != nil || load.Job == nil {
		return false
	}
	rule := q.books.rule(load.QueueName())
	switch c := &q.books.in.Config; {
	case c.PreemptBatch || c.PreemptService || q.mayShrink():
		return false // others may make room for it
	case rule.Preempt != structs.PreemptNone && rule.Preempt != structs.PreemptOrder: // of those who compete by order, it lost
		return false
	}
	if !q.known || q.stamp != q.w.stamp {
		q.survey()
	}
	short := l.short(&q.most) || q.from != never && l.exceeds(&q.late) && q.holdsUntil(load) > q.from
	reserved := false
	if !short {
		if !q.books.in.Brief || !forRoom(load) {
			return false
		}
		var room bool
		if room, reserved = q.room(load); room {
			return false
		}
	}
	if !q.books.full(load) || q.books.old[load.Key] != nil {
		return false
	}
	if rule.Backfill == structs.BackfillNone {
		if _, passed := q.books.passed(load); !passed {
			return false // it is the one whom nobody passes
		}
	}
	q.refused++
	if !short {
		q.unseen = append(q.unseen, Unseen{load.Key, reserved})
	}
	return true
}

// holdsUntil is when the first allocation of a workload holds no more, if all are placed now.
func (q *quickReject) holdsUntil(load *Workload) structs.LogTime {
	until := never
	for _, g := range load.Job.Groups {
		work := heldWork{job: load.Job, group: g.Name, began: q.books.in.Now, expect: load.Expect}
		if at := work.ends(q.books.in.Now); at > 0 {
			until = min(until, at)
		}
	}
	return until
}

// forRoom reports whether room is what a workload waited for when it was answered last.
func forRoom(load *Workload) bool {
	if load.Queue == nil {
		return false
	}
	switch load.Queue.Reason {
	case structs.ReasonResources, structs.ReasonFragmentation, structs.ReasonGang, structs.ReasonReservation:
		return true
	}
	return false
}

// mayShrink reports whether anything held could shrink for others, as the pass began.
func (q *quickReject) mayShrink() bool {
	if q.shrink == 0 {
		q.shrink = 1
		if q.w.v.mayShrink() || slices.ContainsFunc(q.w.states, func(o occupancy) bool { return o.hold != nil && o.hold.yields > 0 }) {
			q.shrink = 2
		}
	}
	return q.shrink == 2
}

// noteBlocked tells a line that wants to know that something of a workload found no place.
func noteBlocked(l Line, i int) {
	if b, ok := l.(interface{ Blocked(i int) }); ok {
		b.Blocked(i)
	}
}

// strangeBlock is rows of which some are not as the view says, or are promised.
type strangeBlock struct {
	spares
	c     *chunk
	first int
	late  [spareRows]*rowBooks // what promises leave; nil where there are none
}

// survey finds out what is free. It looks at all nodes that changed, so it is worth it only because a decision does too.
func (q *quickReject) survey() {
	q.known, q.most, q.late, q.from = true, spare{}, structs.Vector{}, never
	q.blocks, q.strange = q.blocks[:0], q.strange[:0]
	if q.books.rows != nil {
		q.books.settle()
		q.from = 0
	}
	var late spare
	v := q.w.v
	for ci, c := range v.chunks {
		for first := 0; first < len(c.ids); first += spareRows {
			n := min(spareRows, len(c.ids)-first)
			row := v.starts[ci] + first
			if !q.w.touches(row, n) && !q.books.promisedAny(row, n) {
				x := c.spares(first)
				q.blocks = append(q.blocks, x)
				q.most.raise(&x.most)
				late.raise(&x.most)
				continue
			}
			q.strange = append(q.strange, strangeBlock{c: c, first: first})
			x := &q.strange[len(q.strange)-1]
			for i := range n {
				o := q.w.get(row + i)
				x.rows[i] = spareOf(c, first+i, &o)
				x.most.raise(&x.rows[i])
				left := x.rows[i]
				if b := q.books.at(row+i, c, first+i, &o); b != nil {
					x.late[i] = b
					if n := len(b.points); n > 0 {
						q.from = max(q.from, b.points[n-1].at)
					}
					b.take(&left, c, first+i, never)
				}
				late.raise(&left)
			}
			q.most.raise(&x.most)
		}
	}
	q.late = late.free
	q.stamp = q.w.stamp // the books may have counted it on
}

// room reports whether there may be room for a workload: for as many members as it cannot do without, by amounts and
// devices, beside what is promised; and if not, whether something is free that is promised to others.
func (q *quickReject) room(load *Workload) (room, reserved bool) {
	l := load.Least
	missing := l.members
	for _, x := range q.blocks {
		if l.short(&x.most) {
			continue
		}
		for i := range x.rows {
			if missing -= l.fit(&x.rows[i]); missing <= 0 {
				return true, false
			}
		}
	}
	if len(q.strange) == 0 {
		return false, false
	}
	until := q.holdsUntil(load)
	for k := range q.strange {
		x := &q.strange[k]
		if l.exceeds(&x.most.free) {
			continue
		}
		for i := range x.rows {
			now := &x.rows[i]
			left := *now
			if b := x.late[i]; b != nil && !l.exceeds(&now.free) {
				b.take(&left, x.c, x.first+i, until)
				reserved = reserved || l.exceeds(&left.free) || l.short(&left) && !l.short(now)
			}
			if missing -= l.fit(&left); missing <= 0 {
				return true, false
			}
		}
	}
	return false, reserved && l.members == 1
}

// fit is for how many of the least there is room.
func (l *Least) fit(s *spare) int64 {
	if l.short(s) {
		return 0
	}
	return roomBy(&s.free, &structs.Vector{}, &l.need, 0, s.devices, l.devices, l.members)
}

// short reports whether the least is more than there is of something.
func (l *Least) short(s *spare) bool { return l.devices > s.devices || l.exceeds(&s.free) }
