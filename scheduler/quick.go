package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
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

// quickReject refuses workloads that no node has room for in some tens of nanoseconds. On a full cluster thousands of
// jobs wait, and a pass that decided about each would cost milliseconds at every event. It refuses only a workload that
// was answered before and would get the same answer. The first workloads of a queue, which are due a reservation, are
// always decided. A property compares passes with and without it.
type quickReject struct {
	w            *search.Pass
	reservations *reservations
	stamp        int
	known        bool
	most         model.FreeBlock // the maximum over all nodes
	late         structs.Vector  // the same beside all reservations, for work that runs beyond from
	from         structs.LogTime // when the last reservation begins; never: there is none
	shrink       int8            // whether elastic work holds anything: 0 not known, 1 no, 2 yes
}

// Refuses reports whether a workload can be refused without a decision.
func (q *quickReject) refuses(load *Workload) bool {
	l := load.Least
	if l == nil || !l.plain || load.Blocked == nil || len(load.Evals) > 0 || len(load.Allocs) > 0 || load.Gate != nil || load.Job == nil {
		return false
	}
	rule := q.reservations.rule(load.QueueName())
	switch c := &q.reservations.in.Config; {
	case c.PreemptBatch || c.PreemptService || q.mayShrink():
		return false // others may make room for it
	case rule.Preempt != structs.PreemptNone && rule.Preempt != structs.PreemptOrder: // of those who compete by order, it lost
		return false
	}
	if !q.known || q.stamp != q.w.Stamp {
		q.survey()
	}
	if !l.short(&q.most) && (q.from == model.Never || !l.exceeds(&q.late) || q.holdsUntil(load) <= q.from) {
		return false // some node may have room for it
	}
	if !q.reservations.full(load) || q.reservations.old[load.Key] != nil {
		return false
	}
	if rule.Backfill == structs.BackfillNone {
		if _, passed := q.reservations.passed(load); !passed {
			return false // it is the one that nobody may pass
		}
	}
	return true
}

// holdsUntil is when the first allocation of a workload holds no more, if all are placed now.
func (q *quickReject) holdsUntil(load *Workload) structs.LogTime {
	until := model.Never
	for _, g := range load.Job.Groups {
		work := model.HeldWork{Job: load.Job, Group: g.Name, Began: q.reservations.in.Now, Expect: load.Expect}
		if at := work.Ends(q.reservations.in.Now); at > 0 {
			until = min(until, at)
		}
	}
	return until
}

// MayShrink reports whether anything held could shrink for others, as the pass began.
func (q *quickReject) mayShrink() bool {
	if q.shrink == 0 {
		q.shrink = 1
		if q.w.View.MayShrink() || slices.ContainsFunc(q.w.States, func(o model.Occupancy) bool { return o.Hold != nil && o.Hold.Yields > 0 }) {
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

// Survey summarizes the free capacity of the cluster. It looks at every node that changed, so it pays only because a
// decision does so, too.
func (q *quickReject) survey() {
	q.known, q.most, q.late, q.from = true, model.FreeBlock{}, structs.Vector{}, model.Never
	if q.reservations.Rows != nil {
		q.from = 0
	}
	var late model.FreeBlock
	v := q.w.View
	for ci, c := range v.Chunks {
		for first := 0; first < len(c.IDs); first += model.BlockRows {
			n := min(model.BlockRows, len(c.IDs)-first)
			row := v.Starts[ci] + first
			if !q.w.Touches(row, n) && !q.reservations.ReservedAny(row, n) {
				x := c.FreeBlockAt(first)
				q.most.Raise(*x)
				late.Raise(*x)
				continue
			}
			for i := range n {
				o := q.w.Get(row + i)
				left := model.FreeOn(c, first+i, &o)
				q.most.Raise(left)
				if b := q.reservations.At(row+i, c, first+i, &o); b != nil {
					if n := len(b.Points); n > 0 {
						q.from = max(q.from, b.Points[n-1].At)
					}
					b.Subtract(&left.Free, c.Total[first+i], c.MHz[first+i])
				}
				late.Raise(left)
			}
		}
	}
	q.late = late.Free
	q.stamp = q.w.Stamp // the reservations may have counted it on
}

// Short reports whether the least is more than there is of something.
func (l *Least) short(s *model.FreeBlock) bool { return l.devices > s.Devices || l.exceeds(&s.Free) }
