package contend

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// QuickReject refuses workloads that no node has room for, in some tens of nanoseconds each. On a full cluster
// thousands of jobs wait, and a pass that decided about each would cost milliseconds at every event. It only refuses a
// workload that was refused for want of room before, so that an end wakes it. The first workloads of a queue, which are due a
// reservation, are always decided. A property test compares passes with and without it.
type QuickReject struct {
	w            *search.Pass
	rules        *Rules
	reservations *Reservations
	pre          *Preemption
	stamp        int
	known        bool
	most         model.FreeBlock // the maximum over all nodes
	late         structs.Vector  // the same less all reservations, for work that runs beyond from
	from         structs.LogTime // when the last reservation begins; Never: there is none
	shrink       int8            // whether elastic work holds anything: 0 unknown, 1 no, 2 yes
}

// NewQuickReject returns a QuickReject for a pass and its reservations.
func NewQuickReject(e *Env, b *Reservations, p *Preemption) *QuickReject {
	return &QuickReject{w: e.W, rules: e.Rules, reservations: b, pre: p}
}

// Refuses reports whether a workload can be refused without a decision.
func (q *QuickReject) Refuses(load *Workload) bool {
	l := load.Least
	if l == nil || !l.plain || load.Blocked == nil || len(load.Evals) > 0 || len(load.Allocs) > 0 || load.Gate != nil || load.Job == nil || !waitsForRoom(load.Blocked) {
		return false
	}
	rule := q.rules.Of(load.QueueName())
	switch c := q.rules.Config; {
	case c.PreemptBatch || c.PreemptService || q.rules.Yields || q.mayShrink():
		return false // others may make room for it
	case rule.Preempt != structs.PreemptNone && rule.Preempt != structs.PreemptOrder: // by order: it competed and lost
		return false
	}
	if q.pre.MayClaim(load) {
		return false // those with a larger share may make room for it
	}
	if !q.known || q.stamp != q.w.Stamp {
		q.survey()
	}
	if !l.short(&q.most) && (q.from == model.Never || !l.exceeds(&q.late) || q.holdsUntil(load) <= q.from) {
		return false // some node may have room for it
	}
	if !q.reservations.Full(load) || q.reservations.old[load.Key] != nil {
		return false
	}
	if rule.Backfill == structs.BackfillNone {
		if _, passed := q.reservations.Passed(load); !passed {
			return false // it is the one that others must not pass
		}
	}
	return true
}

// waitsForRoom reports whether a blocked evaluation is woken when an allocation stops. One that waited for another job, its
// time or a limit is not: what it waits for now must be written down, or nothing would wake it.
func waitsForRoom(e *structs.Evaluation) bool {
	if len(e.FailedGroups) == 0 {
		return true
	}
	return slices.ContainsFunc(e.FailedGroups, func(g *structs.GroupReport) bool {
		return g.Placed < g.Wanted && (len(g.Refusals) == 0 || slices.ContainsFunc(g.Refusals, func(r structs.Refusal) bool {
			return r.CuredBy == structs.EventAllocStopped || r.CuredBy == structs.EventNone || r.Unit == structs.UnitDevices
		}))
	})
}

// holdsUntil returns when the first allocation of a workload ends, if all are placed now.
func (q *QuickReject) holdsUntil(load *Workload) structs.LogTime {
	until := model.Never
	for _, g := range load.Job.Groups {
		until = min(until, load.EndOf(g, q.reservations.Now))
	}
	return until
}

// mayShrink reports whether any allocation could shrink for others when the pass began.
func (q *QuickReject) mayShrink() bool {
	if q.shrink == 0 {
		q.shrink = 1
		if q.w.View.MayShrink() || slices.ContainsFunc(q.w.States, func(o model.Occupancy) bool { return o.Hold != nil && o.Hold.Yields > 0 }) {
			q.shrink = 2
		}
	}
	return q.shrink == 2
}

// survey summarizes the free capacity of the cluster. It looks at every changed node, which pays only because a
// decision does so too.
func (q *QuickReject) survey() {
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
	q.stamp = q.w.Stamp // computing the reservations may have advanced it
}
