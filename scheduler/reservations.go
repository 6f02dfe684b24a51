package scheduler

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// reservations are the capacity in time that a pass keeps for workloads (D20): what was reserved before for those that are
// not decided in this pass, what operators reserved, and what the pass itself reserves for those that it finds no place
// for. A reservation binds whoever comes later in the line: an allocation that is expected to end before it begins passes,
// any other one must leave the reserved room free when it begins.
//
// Naive: keep the whole profile of the future, and give every workload the first hole in it. That is conservative
// backfilling; it holds short work back behind promises that predictions break anyway. Here only as many blocked
// workloads as the queue's rule says get a promise.
type reservations struct {
	in *Input
	search.Reservations
	old       map[structs.JobKey]*structs.Reservation // of workloads of this pass, until their turn
	reserved  map[structs.QueuePath]int64             // per queue: workloads with a promise of this pass
	shut      map[structs.QueuePath]structs.JobKey    // queues in which nobody may pass, and whom
	passBound map[structs.QueuePath]*passing          // queues in which only some may (Queue.BackfillMaxJobs)
	rules     map[structs.QueuePath]*structs.Queue
	path      structs.QueuePath // of the rule asked for last
	last      *structs.Queue
	barren    map[string]bool // asks for which no start is known
	far       map[string]bool // asks, by queue, that could start only beyond its window (Queue.BackfillWindow)
	patient   bool            // a promise is looked for to what waits beyond the bound: see guess
	before    map[int]bool    // rows where that was promised room before

	endless   bool // nothing held was known to end, when the picture had this stamp
	endlessAt int
}

func newReservations(in *Input, w *search.Pass) *reservations {
	b := &reservations{in: in, Reservations: search.Reservations{W: w, Now: in.Now}}
	if len(in.Reserved) == 0 {
		return b
	}
	b.old = make(map[structs.JobKey]*structs.Reservation)
	b.Windows = make(map[int][]*structs.Reservation)
	for _, r := range in.Reserved {
		if r.JobID != "" {
			b.old[structs.JobKey{Namespace: r.Namespace, ID: r.JobID}] = r
			continue
		}
		if r.End != 0 && r.End <= in.Now {
			continue
		}
		for _, n := range r.Nodes {
			if row := w.View.Row(n); row >= 0 {
				b.Windows[row] = append(b.Windows[row], r)
			}
		}
	}
	// What belongs to workloads of this pass is promised anew when their turn comes; the rest stands.
	mine := make(map[structs.JobKey]bool, len(b.old))
	for i := range in.Pending {
		if k := in.Pending[i].Key; b.old[k] != nil && !in.Flight.HasJob(k) {
			mine[k] = true
		}
	}
	for _, r := range in.Reserved {
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
			if row := w.View.Row(p.Node); row >= 0 {
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

// Foreseen is the end of what is held on a row as the promise that is being looked for may count on it.
func (b *reservations) predictedEnd(row int, h *model.HeldWork) structs.LogTime {
	at := h.Predicted(b.in.Now)
	if at == 0 && b.patient {
		if at = h.Guess(b.in.Now); at > 0 && b.before[row] {
			at = b.in.Now.Add(time.Minute)
		}
	}
	return at
}

// wait makes ready for a promise to a workload that has waited beyond the bound. Where it was promised room before, what
// is held is taken to end first: a promise that follows the guesses from node to node would never come true.
func (b *reservations) wait(load *Workload) {
	b.patient, b.before = b.late(load), nil
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

// Until is when an allocation of a group that is placed now is expected to hold no more.
func (d *decision) until(tg *structs.Group) structs.LogTime {
	if w := d.workOf(tg); w.Job != nil {
		if at := w.Ends(d.in.Now); at > 0 {
			return at
		}
	}
	return model.Never
}

func (d *decision) workOf(tg *structs.Group) model.HeldWork {
	return model.HeldWork{Job: d.load.Job, Group: tg.Name, Began: d.in.Now, Expect: d.load.Expect, Yields: tg.Elastic != nil,
		Shy: model.KeepsAway(d.load.Job, tg.Name)}
}

// rule is the settings of a workload's queue.
func (b *reservations) rule(path structs.QueuePath) *structs.Queue {
	if b.last != nil && b.path == path {
		return b.last
	}
	q := b.rules[path]
	if q == nil {
		set := b.in.Queues.Settings(path, &b.in.Config)
		q = &set
		if b.rules == nil {
			b.rules = make(map[structs.QueuePath]*structs.Queue)
		}
		b.rules[path] = q
	}
	b.path, b.last = path, q
	return q
}

// depth is how many blocked workloads of a queue get a promise, the workload being the next one.
func (b *reservations) depth(w *Workload) int64 {
	q := b.rule(w.QueueName())
	switch q.Backfill {
	case structs.BackfillEASY, structs.BackfillSJF:
		return 1
	case structs.BackfillConservative:
		return q.ReserveDepth
	}
	if b.late(w) {
		return 1 // greedy, but nobody may starve
	}
	return 0
}

// late reports whether a workload has waited beyond the bound of its queue.
func (b *reservations) late(w *Workload) bool {
	since := w.WaitingSince()
	return since > 0 && b.in.Now.Sub(since) > b.rule(w.QueueName()).MaxWait
}

// Full reports whether no further blocked workload of a queue gets a promise.
func (b *reservations) full(w *Workload) bool {
	return b.reserved[w.QueueName()] >= b.depth(w)
}

// passed reports whether the workload may not be placed because one before it in its queue could not be.
func (b *reservations) passed(w *Workload) (structs.JobKey, bool) {
	k, ok := b.shut[w.QueueName()]
	return k, ok
}

// overBoundRetry is when what was not tried (reservations.overBound) is looked at again on a cluster where nothing happens.
const overBoundRetry = 30 * time.Second

// passing is how many jobs of a queue were tried behind the first that found no room.
type passing struct {
	head  structs.JobKey
	last  structs.JobKey // that was tried: it may be decided about more than once (decision.again)
	tried int64
}

// overBound reports whether so many of the workload's queue have been tried behind a blocked one that it waits for the next
// pass, and why. One that is not counts as tried.
func (b *reservations) overBound(w *Workload) *structs.Refusal {
	path := w.QueueName()
	p := b.passBound[path]
	if p == nil || p.last == w.Key {
		return nil
	}
	if most := b.rule(path).BackfillMaxJobs; p.tried >= most {
		return &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionBackfillMax, Count: most, Subject: p.head.ID, Holder: queueHolder(path)}}
	}
	p.last = w.Key
	p.tried++
	return nil
}

// heads notes a workload that found no room, if only some of its queue may be tried behind it.
func (b *reservations) heads(w *Workload) {
	path := w.QueueName()
	if b.rule(path).BackfillMaxJobs == 0 || b.passBound[path] != nil {
		return
	}
	if b.passBound == nil {
		b.passBound = map[structs.QueuePath]*passing{}
	}
	b.passBound[path] = &passing{head: w.Key}
}

// reserve promises capacity to what the decision could not place, by the queue's rule of backfilling.
func (d *decision) reserve() {
	b := d.reservations
	if len(d.misses) == 0 || d.load.Job == nil || d.report.Refused != "" || d.heldBack() {
		return
	}
	switch d.load.Job.Type {
	case structs.JobSystem, structs.JobSysBatch:
		return
	}
	path := d.load.QueueName()
	b.heads(d.load)
	if b.rule(path).Backfill == structs.BackfillNone {
		if b.shut == nil {
			b.shut = make(map[structs.QueuePath]structs.JobKey)
		}
		if _, ok := b.shut[path]; !ok {
			b.shut[path] = d.load.Key
		}
		d.estimate()
		return
	}
	if b.full(d.load) {
		d.estimate()
		return
	}
	if (len(b.barren) > 0 && b.barren[d.missKey()] || len(b.far) > 0 && b.far[d.farKey()]) && !b.late(d.load) {
		return
	}
	b.wait(d.load)
	if b.grant(d) {
		b.countReserved(path)
		return
	}
	// No end of running work makes room, so the next workload of the queue may have the promise.
	if key := d.missKey(); key != "" && !b.patient && !b.far[d.farKey()] {
		if b.barren == nil {
			b.barren = make(map[string]bool)
		}
		b.barren[key] = true // for the whole pass: its placements and promises only take room away
	}
}

// estimate tells when a workload that is promised nothing could start, if it is the one that a dry run is about.
func (d *decision) estimate() {
	if d.in.Tell != d.load.Key {
		return
	}
	if start, places := d.reservations.earliest(d); places != nil {
		d.report.Start = start
	}
}

// missKey is equal for decisions that miss the same, as far as a start for it is concerned; "" for one like no other.
func (d *decision) missKey() string {
	key := ""
	for _, g := range d.groups {
		if n := d.misses[g.Name]; n > 0 {
			if key != "" || n != int64(len(g.Wants)) || g.Ask == nil {
				return ""
			}
			key = d.noFitKey(g)
		}
	}
	return key
}

// farKey is missKey within the decision's queue.
func (d *decision) farKey() string { return string(d.load.QueueName()) + " " + d.missKey() }

// countReserved counts a promise to a workload of a queue.
func (b *reservations) countReserved(path structs.QueuePath) {
	if b.reserved == nil {
		b.reserved = make(map[structs.QueuePath]int64)
	}
	b.reserved[path]++
}

// grant finds the earliest time at which everything the decision misses could be placed, and promises it.
func (b *reservations) grant(d *decision) bool {
	start, places := b.earliest(d)
	if places == nil {
		return false
	}
	if ahead := b.rule(d.load.QueueName()).BackfillWindow; ahead > 0 && start.Sub(d.in.Now) > ahead && !b.patient {
		if b.far == nil {
			b.far = make(map[string]bool)
		}
		b.far[d.farKey()] = true
		d.report.Start = start
		return false
	}
	r := &structs.Reservation{ID: structs.ReservationID(d.load.Key), Domain: d.load.Job.NodePool, Namespace: d.load.Key.Namespace, JobID: d.load.Key.ID,
		Start: start, Basis: structs.ReserveLimit, Queues: []structs.QueuePath{d.load.QueueName()}}
	if r.Domain == "" {
		r.Domain = structs.NodePoolDefault
	}
	var longest time.Duration
	for i := range places {
		p := &places[i]
		lasts := time.Duration(0)
		if at := d.until(p.g.Tg); at != model.Never {
			lasts = at.Sub(d.in.Now)
			longest = max(longest, lasts)
		} else {
			longest = -1
		}
		x := &model.ReservedPlace{Job: d.load.Key, Start: start, Held: p.at.Held}
		if lasts > 0 {
			x.End = start.Add(lasts)
		}
		out := structs.ReservationPlace{Node: p.at.Node.ID, Group: p.g.Name, Need: p.at.Held.Need}
		if p.at.Held.Rare != nil {
			out.Grants = p.at.Held.Rare.Grants
		}
		r.Places = append(r.Places, out)
		for e := range b.W.Get(p.at.Row).Hold.All() {
			switch {
			case b.patient && e.Work.Predicted(d.in.Now) == 0:
				r.Basis = structs.ReserveGuessed
			case e.Work.Expect > 0 && r.Basis == structs.ReserveLimit:
				r.Basis = structs.ReservePredicted
			}
		}
		b.Reserve(p.at.Row, x)
	}
	if longest > 0 {
		r.End = start.Add(longest)
	}
	d.promise, d.report.Start = r, start
	return true
}

// reservation is what the plan changes about the workload's reservation, or nil.
func (d *decision) reservation() *structs.Reservation {
	old := d.reservations.old[d.load.Key]
	switch {
	case d.promise == nil && old == nil:
		return nil
	case d.promise == nil:
		return &structs.Reservation{ID: old.ID, Domain: old.Domain, Namespace: old.Namespace, JobID: old.JobID}
	case old != nil && max(old.Start, d.in.Now) == d.promise.Start && old.Basis == d.promise.Basis && slices.EqualFunc(old.Places, d.promise.Places, func(a, b structs.ReservationPlace) bool {
		return a.Node == b.Node && a.Group == b.Group && a.Need == b.Need && slices.Equal(a.Grants, b.Grants)
	}):
		return nil
	}
	return d.promise
}

// bind makes a search keep the promises of the pass.
func (d *decision) bind(s *search.Search) {
	s.Reserved, s.Until, s.Work = &d.reservations.Reservations, d.until(s.Ask.Tg), d.workOf(s.Ask.Tg)
}

// promising reports whether anything is promised to workloads decided before, or not in the pass.
func (b *reservations) promising() bool { return len(b.Rows) > 0 }

// ReleaseTimes gives the tail of a row as the promise that is being looked for may count on it; nil for one on which nothing is held.
func (b *reservations) releaseTimes(row int, hold *model.Holding) *model.ReleaseTimes {
	if b.patient && hold != nil {
		if t := b.W.View.ReleaseTimes(row, hold, b.in.Now); t != nil && len(t.Ends) == hold.Size() {
			return t // nothing needs to be guessed
		}
		return model.NewReleaseTimes(hold, b.in.Now, func(e *model.Held) structs.LogTime { return b.predictedEnd(row, &e.Work) })
	}
	return b.W.View.ReleaseTimes(row, hold, b.in.Now)
}

// picture is a row as it will be at a time, when so much of its tail is over, if everything held ends when it is expected to and nothing else is placed but
// what is promised: also what is promised from later on, for a promise made now shall not delay it.
func (b *reservations) picture(row int, c *model.Chunk, i int, o model.Occupancy, t *model.ReleaseTimes, over int, at structs.LogTime) model.Occupancy {
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
