package contend

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Reservations are the capacity in time that a pass keeps free for workloads (D20): reservations of workloads that are
// not decided in this pass, those of operators, and those that the pass makes for workloads that find no place. A
// reservation binds all workloads later in the line: an allocation that is expected to end before it begins may pass,
// any other must leave the reserved capacity free when it begins.
//
// Naive: keep the whole profile of the future, and give every workload the first gap in it. That is conservative
// backfilling. It delays short work for the sake of start times that wrong predictions change anyway. Here only as many
// blocked workloads get a reservation as the rule of the queue allows (backfill.go).
type Reservations struct {
	search.Reservations
	rules       *Rules
	estimateFor structs.JobKey
	old         map[structs.JobKey]*structs.Reservation // of workloads of this pass, until their turn
	reserved    map[structs.QueuePath]int64             // per queue: workloads that got a reservation in this pass
	shut        map[structs.QueuePath]structs.JobKey    // queues in which no workload may pass, and the job that must not be passed
	passBound   map[structs.QueuePath]*passing          // queues in which only some may pass (Queue.BackfillMaxJobs)
	barren      map[string]bool                         // asks without a known start
	far         map[string]bool                         // asks, by queue, that could only start beyond its window (Queue.BackfillWindow)
	patient     bool                                    // the reservation is for a workload that has waited too long: see predictedEnd
	before      map[int]bool                            // rows on which that workload had a reservation before

	endless   bool // no end of held work was known at the stamp endlessAt
	endlessAt int
}

// passing counts the jobs of a queue that were tried behind the first one that found no place.
type passing struct {
	head  structs.JobKey
	last  structs.JobKey // the last one tried: it may be decided more than once
	tried int64
}

// NewReservations begins with what is reserved in the state. Workloads that the pass decides get new reservations.
func NewReservations(e *Env) *Reservations {
	b := &Reservations{Reservations: search.Reservations{W: e.W, Now: e.Now}, rules: e.Rules, estimateFor: e.EstimateFor}
	if len(e.Reserved) == 0 {
		return b
	}
	b.old = make(map[structs.JobKey]*structs.Reservation)
	b.Windows = make(map[int][]*structs.Reservation)
	for _, r := range e.Reserved {
		if r.JobID != "" {
			b.old[structs.JobKey{Namespace: r.Namespace, ID: r.JobID}] = r
			continue
		}
		if r.End != 0 && r.End <= e.Now {
			continue
		}
		for _, n := range r.Nodes {
			if row := e.W.View.Row(n); row >= 0 {
				b.Windows[row] = append(b.Windows[row], r)
			}
		}
	}
	mine := make(map[structs.JobKey]bool, len(b.old))
	for i := range e.Pending {
		if k := e.Pending[i].Key; b.old[k] != nil && !e.Flight.HasJob(k) {
			mine[k] = true
		}
	}
	for _, r := range e.Reserved {
		k := structs.JobKey{Namespace: r.Namespace, ID: r.JobID}
		if r.JobID == "" || mine[k] {
			continue
		}
		delete(b.old, k)
		for _, path := range r.Queues {
			b.countReserved(path)
		}
		for i := range r.Places {
			p := &r.Places[i]
			if row := e.W.View.Row(p.Node); row >= 0 {
				h := &model.Held{ID: model.ReservedID(r.ID, i), Need: p.Need}
				if len(p.Grants) > 0 {
					h.Rare = &model.HeldRare{Grants: p.Grants}
				}
				b.Reserve(row, &model.ReservedPlace{Job: k, Start: r.Start, End: r.End, Held: h})
			}
		}
	}
	return b
}

// Future returns empty reservations for a what-if about the future, in which what is reserved counts as held.
func (b *Reservations) Future(w *search.Pass) *Reservations {
	return &Reservations{Reservations: search.Reservations{W: w, Now: b.Now}, rules: b.rules}
}

// Any reports whether anything is reserved for workloads decided before, or not in this pass.
func (b *Reservations) Any() bool { return len(b.Rows) > 0 }

// countReserved counts a reservation for a workload of a queue.
func (b *Reservations) countReserved(path structs.QueuePath) {
	if b.reserved == nil {
		b.reserved = make(map[structs.QueuePath]int64)
	}
	b.reserved[path]++
}

// predictedEnd returns the end of what is held on a row, as far as the reservation that is being made may count on it.
// For a workload that has waited too long it may also be a guess. Rows where it had a reservation before are assumed to
// become free first: a reservation that follows the guesses from node to node would never come true.
func (b *Reservations) predictedEnd(row int, h *model.HeldWork) structs.LogTime {
	at := h.Predicted(b.Now)
	if at == 0 && b.patient {
		if at = h.Guess(b.Now); at > 0 && b.before[row] {
			at = b.Now.Add(time.Minute)
		}
	}
	return at
}

// releaseTimes returns the ends of what is held on a row by predictedEnd. nil: nothing is held.
func (b *Reservations) releaseTimes(row int, hold *model.Holding) *model.ReleaseTimes {
	if b.patient && hold != nil {
		if t := b.W.View.ReleaseTimes(row, hold, b.Now); t != nil && len(t.Ends) == hold.Size() {
			return t // nothing needs to be guessed
		}
		return model.NewReleaseTimes(hold, b.Now, func(e *model.Held) structs.LogTime { return b.predictedEnd(row, &e.Work) })
	}
	return b.W.View.ReleaseTimes(row, hold, b.Now)
}

// futureRow returns a row as it will be at a time, when the first `over` of its ends have passed. Everything held ends
// when it is expected to, and nothing is placed but what is reserved. Later reservations of the row count as well,
// because a reservation made now must not delay them.
func (b *Reservations) futureRow(row int, c *model.Chunk, i int, o model.Occupancy, t *model.ReleaseTimes, over int, at structs.LogTime) model.Occupancy {
	x := t.After(c.Nodes[i], o, over)
	var keep []*model.Held
	for _, p := range b.ReservedOn(row) {
		if p.End == 0 || p.End > at {
			if keep == nil {
				keep = slices.Clone(x.Hold.List())
			}
			keep = append(keep, p.Held)
		}
	}
	if keep == nil {
		return x
	}
	slices.SortFunc(keep, func(x, y *model.Held) int { return model.CompareID(x.ID, y.ID) })
	return model.Occupied(c.Nodes[i], keep)
}
