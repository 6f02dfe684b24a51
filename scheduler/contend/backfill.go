package contend

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// OverBoundRetry is how soon a workload that was not tried (Reservations.OverBound) is decided again if nothing
// happens.
const OverBoundRetry = 30 * time.Second

// depth returns how many blocked workloads of a queue get a reservation; w is the next one.
func (b *Reservations) depth(w *Workload) int64 {
	q := b.rules.Of(w.QueueName())
	switch q.Backfill {
	case structs.BackfillEASY, structs.BackfillSJF:
		return 1
	case structs.BackfillConservative:
		return q.ReserveDepth
	}
	return 0
}

// Late reports whether a workload has waited beyond the bound of its queue.
func (b *Reservations) Late(w *Workload) bool {
	return w.late(b.Now, b.rules.Of(w.QueueName()).MaxWait)
}

// Full reports whether a blocked workload gets no reservation, because enough others of its queue have one. Work that has
// waited too long gets one under any rule, so that it cannot starve.
func (b *Reservations) Full(w *Workload) bool {
	n := b.reserved[w.QueueName()]
	return n >= b.depth(w) && (n >= b.rules.Of(w.QueueName()).ReserveDepth || !b.Late(w))
}

// Passed returns the job that the workload must not pass: one ahead of it in its queue that found no place.
func (b *Reservations) Passed(w *Workload) (structs.JobKey, bool) {
	k, ok := b.shut[w.QueueName()]
	return k, ok
}

// OverBound refuses a workload when its queue has already tried as many workloads behind a blocked one as it allows.
// The workload then waits for the next pass. One that is not refused counts as tried.
func (b *Reservations) OverBound(w *Workload) *structs.Refusal {
	path := w.QueueName()
	p := b.passBound[path]
	if p == nil || p.last == w.Key {
		return nil
	}
	if most := b.rules.Of(path).BackfillMaxJobs; p.tried >= most {
		return &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionBackfillMax, Count: most, Subject: p.head.ID, Holder: QueueHolder(path)}}
	}
	p.last = w.Key
	p.tried++
	return nil
}

// noteHead records a workload that found no place, if its queue limits how many are tried behind it.
func (b *Reservations) noteHead(w *Workload) {
	path := w.QueueName()
	if b.rules.Of(path).BackfillMaxJobs == 0 || b.passBound[path] != nil {
		return
	}
	if b.passBound == nil {
		b.passBound = map[structs.QueuePath]*passing{}
	}
	b.passBound[path] = &passing{head: w.Key}
}

// Grant reserves capacity for a workload that found no place, if the backfill rule of its queue says so. start is when
// the workload is expected to start; 0: unknown.
func (b *Reservations) Grant(u Unplaced) (r *structs.Reservation, start structs.LogTime) {
	load := u.Workload()
	path := load.QueueName()
	b.noteHead(load)
	if b.rules.Of(path).Backfill == structs.BackfillNone {
		if b.shut == nil {
			b.shut = make(map[structs.QueuePath]structs.JobKey)
		}
		if _, ok := b.shut[path]; !ok {
			b.shut[path] = load.Key
		}
		if !b.Late(load) {
			return nil, b.estimate(u)
		}
	}
	if b.Full(load) {
		return nil, b.estimate(u)
	}
	if (len(b.barren) > 0 && b.barren[u.Key()] || len(b.far) > 0 && b.far[farKey(u)]) && !b.Late(load) {
		return nil, 0
	}
	b.setPatient(load)
	r, start = b.grantEarliest(u)
	if r != nil {
		b.countReserved(path)
		return r, start
	}
	// No end of running work makes enough room, so the next workload of the queue can have the reservation.
	if key := u.Key(); key != "" && !b.patient && !b.far[farKey(u)] {
		if b.barren == nil {
			b.barren = make(map[string]bool)
		}
		b.barren[key] = true // for the whole pass: its placements and reservations only reduce the free capacity
	}
	return nil, start
}

// farKey identifies, within its queue, what a decision could not place.
func farKey(u Unplaced) string { return string(u.Workload().QueueName()) + " " + u.Key() }

// setPatient records whether the workload has waited beyond the bound of its queue, and on which rows it had a
// reservation before.
func (b *Reservations) setPatient(load *Workload) {
	b.patient, b.before = b.Late(load), nil
	old := b.old[load.Key]
	if !b.patient || old == nil {
		return
	}
	b.before = make(map[int]bool)
	for i := range old.Places {
		if row := b.W.View.Row(old.Places[i].Node); row >= 0 {
			b.before[row] = true
		}
	}
}

// estimate returns when a workload without a reservation could start, if it is the one of a dry run; else 0.
func (b *Reservations) estimate(u Unplaced) structs.LogTime {
	if b.estimateFor == u.Workload().Key {
		if start, places := b.Earliest(u); places != nil {
			return start
		}
	}
	return 0
}

// grantEarliest reserves the places of the earliest time at which everything that is missing could be placed. The
// reservation is nil when no such time is known, or when it is beyond the backfill window of the queue.
func (b *Reservations) grantEarliest(u Unplaced) (*structs.Reservation, structs.LogTime) {
	start, places := b.Earliest(u)
	if places == nil {
		return nil, 0
	}
	load := u.Workload()
	if ahead := b.rules.Of(load.QueueName()).BackfillWindow; ahead > 0 && start.Sub(b.Now) > ahead && !b.patient {
		if b.far == nil {
			b.far = make(map[string]bool)
		}
		b.far[farKey(u)] = true
		return nil, start
	}
	r := &structs.Reservation{ID: structs.ReservationID(load.Key), Domain: load.Job.NodePool, Namespace: load.Key.Namespace, JobID: load.Key.ID,
		Start: start, Basis: structs.ReserveLimit, Queues: []structs.QueuePath{load.QueueName()}}
	if r.Domain == "" {
		r.Domain = structs.NodePoolDefault
	}
	var longest time.Duration
	for i := range places {
		p := &places[i]
		lasts := time.Duration(0)
		if at := load.EndOf(p.Group, b.Now); at != model.Never {
			lasts = at.Sub(b.Now)
			longest = max(longest, lasts)
		} else {
			longest = -1
		}
		x := &model.ReservedPlace{Job: load.Key, Start: start, Held: p.At.Held}
		if lasts > 0 {
			x.End = start.Add(lasts)
		}
		out := structs.ReservationPlace{Node: p.At.Node.ID, Group: p.Group.Name, Need: p.At.Held.Need}
		if p.At.Held.Rare != nil {
			out.Grants = p.At.Held.Rare.Grants
		}
		r.Places = append(r.Places, out)
		for e := range b.W.Get(p.At.Row).Hold.All() {
			switch {
			case b.patient && e.Work.Predicted(b.Now) == 0:
				r.Basis = structs.ReserveGuessed
			case e.Work.Expect > 0 && r.Basis == structs.ReserveLimit:
				r.Basis = structs.ReservePredicted
			}
		}
		b.Reserve(p.At.Row, x)
	}
	if longest > 0 {
		r.End = start.Add(longest)
	}
	return r, start
}

// Change returns what a plan has to write about the reservation of a workload: the new one, or one without places,
// which ends the old one. nil: nothing changes.
func (b *Reservations) Change(key structs.JobKey, next *structs.Reservation) *structs.Reservation {
	old := b.old[key]
	switch {
	case next == nil && old == nil:
		return nil
	case next == nil:
		return &structs.Reservation{ID: old.ID, Domain: old.Domain, Namespace: old.Namespace, JobID: old.JobID}
	case old != nil && max(old.Start, b.Now) == next.Start && old.Basis == next.Basis && slices.EqualFunc(old.Places, next.Places, func(a, b structs.ReservationPlace) bool {
		return a.Node == b.Node && a.Group == b.Group && a.Need == b.Need && slices.Equal(a.Grants, b.Grants)
	}):
		return nil
	}
	return next
}
