package scheduler

import (
	"math/bits"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Least is the least that any placement of a job needs, and what all of it asks for: a memo, for those who ask for it
// again and again. Immutable.
type Least struct {
	asks    structs.Amount
	need    structs.Vector
	devices int64
	plain   bool // a service or batch job whose workload has nothing but wants
}

// LeastOf computes the memo of a job.
func LeastOf(j *structs.Job) *Least {
	l := &Least{asks: asksOf(j), plain: j != nil && j.Placeable() && (j.Type == structs.JobBatch || j.Type == structs.JobService)}
	if !l.plain {
		return l
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
	w       *whatIf
	books   *books
	stamp   int
	known   bool
	free    structs.Vector // of each dimension the most that is free on a node
	devices int64
	late    structs.Vector  // the same, for what ends after lateFrom
	from    structs.LogTime // when the last promise begins; never: there is none
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
	short := l.exceeds(&q.free) || l.devices > q.devices
	if !short {
		if q.from == never || !l.exceeds(&q.late) {
			return false
		}
		for _, g := range load.Job.Groups {
			work := heldWork{job: load.Job, group: g.Name, began: q.books.in.Now, expect: load.Expect}
			if at := work.ends(q.books.in.Now); at > 0 && at <= q.from {
				return false
			}
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
	return true
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

// survey computes the most that is free. It looks at every node, so it is worth it only because a decision does too.
func (q *quickReject) survey() {
	q.stamp, q.known, q.from = q.w.stamp, true, never
	q.free, q.late, q.devices = structs.Vector{}, structs.Vector{}, 0
	v := q.w.v
	booked := q.books.rows != nil
	if booked {
		q.from = 0
	}
	for ci, c := range v.chunks {
		for i := range c.ids {
			row := v.starts[ci] + i
			o := occupancy{c.used[i], c.hold[i]}
			if t := q.w.touched[row]; t != 0 {
				o = q.w.states[t-1]
			}
			free := c.total[i].Sub(o.used)
			free.CPU -= o.used.Cores * c.mhz[i]
			raise(&q.free, &free)
			if n := countDevices(c.nodes[i]); n > 0 {
				q.devices = max(q.devices, n-o.hold.devicesInUse())
			}
			if !booked {
				continue
			}
			if x := q.books.at(row, c, i, &o); x != nil {
				for k := range x.points {
					p := &x.points[k]
					q.from = max(q.from, p.at)
					left := c.total[i].Sub(p.used)
					left.CPU -= p.used.Cores * c.mhz[i]
					free = structs.Vector{CPU: min(free.CPU, left.CPU), Cores: min(free.Cores, left.Cores), MemoryMiB: min(free.MemoryMiB, left.MemoryMiB), DiskMiB: min(free.DiskMiB, left.DiskMiB)}
				}
			}
			raise(&q.late, &free)
		}
	}
	q.stamp = q.w.stamp // the books may have counted it on
}

func raise(a, b *structs.Vector) {
	a.CPU, a.Cores = max(a.CPU, b.CPU), max(a.Cores, b.Cores)
	a.MemoryMiB, a.DiskMiB = max(a.MemoryMiB, b.MemoryMiB), max(a.DiskMiB, b.DiskMiB)
}

func countDevices(n *structs.Node) int64 {
	total := 0
	for i := range n.Resources.Devices {
		total += len(n.Resources.Devices[i].Instances)
	}
	return int64(total)
}

// devicesInUse counts the devices that are given whole or shared.
func (h *holding) devicesInUse() int64 {
	if h == nil {
		return 0
	}
	n := 0
	for _, w := range h.devs {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// noteBlocked tells a line that wants to know that something of a workload found no place.
func noteBlocked(l Line, i int) {
	if b, ok := l.(interface{ Blocked(i int) }); ok {
		b.Blocked(i)
	}
}
