package scheduler

import "github.com/muster-sched/muster/structs"

// spare is what is free on a node, or of each dimension the most on any of several.
type spare struct {
	free    structs.Vector
	devices int64
}

// spareRows is of how many rows together it is known what is free.
const spareRows = 16

// spares is what is free on some rows that follow each other. Immutable.
type spares struct {
	most spare
	rows [spareRows]spare
}

// strangeBlock is rows of which some are not as the view says, or are promised.
type strangeBlock struct {
	spares
	c     *chunk
	first int
	late  [spareRows]*rowBooks // what promises leave; nil where there are none
}

// spareOf is what is free on a node.
func spareOf(c *chunk, i int, o *occupancy) (x spare) {
	x.free = c.total[i].Sub(o.used)
	x.free.CPU -= o.used.Cores * c.mhz[i]
	if n := countDevices(c.nodes[i]); n > 0 {
		x.devices = n - o.hold.devicesInUse()
	}
	return x
}

// spares is what is free on the rows of a chunk from one on. It is found out once, as chunks are immutable once published.
func (c *chunk) spares(from int) *spares {
	p := &c.spare[from/spareRows]
	x := p.Load()
	if x == nil {
		x = &spares{}
		for i := from; i < min(from+spareRows, len(c.ids)); i++ {
			x.rows[i-from] = spareOf(c, i, &occupancy{c.used[i], c.hold[i]})
			x.most.raise(&x.rows[i-from])
		}
		p.Store(x)
	}
	return x
}

func (x *spare) raise(o *spare) {
	a, b := &x.free, &o.free
	a.CPU, a.Cores = max(a.CPU, b.CPU), max(a.Cores, b.Cores)
	a.MemoryMiB, a.DiskMiB = max(a.MemoryMiB, b.MemoryMiB), max(a.DiskMiB, b.DiskMiB)
	x.devices = max(x.devices, o.devices)
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

// take takes off what is free on a row what promises need of it before some time.
func (x *rowBooks) take(s *spare, c *chunk, i int, until structs.LogTime) {
	for k := range x.points {
		p := &x.points[k]
		if p.at >= until {
			break
		}
		left := c.total[i].Sub(p.used)
		left.CPU -= p.used.Cores * c.mhz[i]
		f := &s.free
		f.CPU, f.Cores, f.MemoryMiB, f.DiskMiB = min(f.CPU, left.CPU), min(f.Cores, left.Cores), min(f.MemoryMiB, left.MemoryMiB), min(f.DiskMiB, left.DiskMiB)
		if k == 0 && x.merged != nil {
			s.devices = min(s.devices, countDevices(c.nodes[i])-x.merged.devicesInUse())
		}
	}
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
