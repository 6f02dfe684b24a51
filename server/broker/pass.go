package broker

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Take returns the next pass that may run now. A pass of all domains comes first when a job that spans pools is ready;
// otherwise the domains take turns. ok is false when nothing may run; NextWake then says when that changes without an
// event.
func (b *Broker) Take(now structs.LogTime) (p Pass, ok bool) {
	b.expire(now)
	if b.spanReady() {
		return b.TakePass(DomainAll, now)
	}
	for i := range b.names {
		name := b.names[(b.next+i)%len(b.names)]
		if p, ok = b.TakePass(name, now); ok {
			b.next = (b.next + i + 1) % len(b.names)
			return p, true
		}
	}
	return Pass{}, false
}

func (b *Broker) spanReady() bool {
	all := b.domains[DomainAll]
	return all != nil && len(all.ready.jobs) > 0
}

// TakePass takes up to Limits.Items ready jobs of a domain, in order. ok is false when nothing is ready, the broker is
// paused, or a pass already holds the domain. A pass of DomainAll holds every domain and takes from all of them in one
// order. While one is due, no other domain gets a new pass, so that it is not starved.
func (b *Broker) TakePass(name structs.PoolName, now structs.LogTime) (Pass, bool) {
	b.expire(now)
	if b.paused {
		return Pass{}, false
	}
	var from []*domain
	if name == DomainAll {
		if !b.spanReady() || slices.ContainsFunc(b.names, func(n structs.PoolName) bool { return b.domains[n].busy }) || b.overtakes(name) {
			return Pass{}, false
		}
		b.wakeContenders(name, now)
		for _, n := range b.names {
			if d := b.domains[n]; len(d.ready.jobs) > 0 {
				from = append(from, d)
			}
		}
		b.Counters.WholePass++
	} else {
		d := b.domains[name]
		if d == nil || d.busy || len(d.ready.jobs) == 0 || b.spanReady() || b.overtakes(name) {
			return Pass{}, false
		}
		if all := b.domains[DomainAll]; all != nil && all.busy {
			return Pass{}, false
		}
		b.wakeContenders(name, now)
		from = append(from, d)
	}
	b.passSeq++
	p := Pass{ID: b.passSeq, Domain: name}
	b.takeChosen(&p, from, now)
	for len(p.Items) < b.limits.Items {
		best := -1
		for i, d := range from {
			if len(d.ready.jobs) > 0 && (best < 0 || d.ready.less(d.ready.jobs[0], from[best].ready.jobs[0])) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		p.Items = append(p.Items, b.take(from[best].ready.remove(0), now))
	}
	b.domainOf(name).busy = true
	b.passes[p.ID] = name
	b.Counters.Passes++
	b.Counters.Taken += int64(len(p.Items))
	return p, true
}

// takeChosen fills a pass by Env.Choose when more jobs are ready than the pass can take.
func (b *Broker) takeChosen(p *Pass, from []*domain, now structs.LogTime) {
	n := 0
	for _, d := range from {
		n += len(d.ready.jobs)
	}
	if b.env.Choose == nil || n <= b.limits.Items {
		return
	}
	jobs, ready := make([]*job, 0, n), make([]*structs.Workload, 0, n)
	for _, d := range from {
		jobs = append(jobs, d.ready.jobs...)
	}
	slices.SortFunc(jobs, func(x, y *job) int { return queue.Compare(x.workload, y.workload) })
	for _, j := range jobs {
		ready = append(ready, j.workload)
	}
	for _, i := range b.env.Choose(ready, b.limits.Items, now) {
		if j := jobs[i]; j.pos >= 0 {
			p.Items = append(p.Items, b.take(b.domainOf(j.domain).ready.remove(j.pos), now))
		}
	}
}

// take makes an item of a ready job and puts the job in flight.
func (b *Broker) take(j *job, now structs.LogTime) Item {
	if len(j.pending) > 0 {
		j.spec = nil // the registration has been committed meanwhile
	}
	it := Item{Key: j.key, Workload: j.workload, Blocked: j.blocked, Spec: j.spec}
	from := max(0, len(j.pending)-b.limits.Evals)
	it.Evals = slices.Clone(j.pending[from:])
	if n := len(it.Evals); n > 1 {
		b.Counters.Coalesced += int64(n - 1)
	}
	b.unwait(j)
	j.flight, j.answered, j.doneAt, j.looked = true, false, 0, now
	j.seen, j.without, j.took = b.index, b.dropped, it.last()
	j.unblocked = false // the pass does not see later events; they set it again
	return it
}

func (it *Item) last() *structs.Evaluation {
	if n := len(it.Evals); n > 0 {
		return it.Evals[n-1]
	}
	return nil
}

// Starved reports whether a job of a domain waits for capacity or a decision, outside the passes in progress. Jobs that
// wait only to grow do not count, nor do those that no free capacity helps: they may wait for a job that waits to grow. While a
// domain is starved, nothing in it may grow.
func (b *Broker) Starved(name structs.PoolName) bool {
	d := b.domains[name]
	if d == nil {
		return false
	}
	if len(d.ready.jobs) > 0 {
		return true
	}
	for i := range d.waiting {
		if d.waiting[i].events&room == 0 {
			continue
		}
		for _, j := range d.waiting[i].jobs {
			if j.blocked != nil && !queue.Growing(j.blocked.FailedGroups) {
				return true
			}
		}
	}
	return false
}

// EndPass lets the next pass of the domain begin. The jobs it took stay in flight until Done or Nack.
func (b *Broker) EndPass(id uint64) {
	if name, ok := b.passes[id]; ok {
		delete(b.passes, id)
		b.domainOf(name).busy = false
	}
}

// Returns records that a job in flight waits again once its decision is committed. If room becomes free before that, the next
// pass of its domain begins when it is back, so that the room does not go to jobs behind it.
func (b *Broker) Returns(key structs.JobKey) {
	j := b.flying(key)
	if j == nil || j.returns != nil {
		return
	}
	r := &returning{domain: j.domain, seen: stamp{j.seen, j.without}}
	if n := len(b.returning); n > 0 && b.returning[n-1].domain == r.domain && b.returning[n-1].seen == r.seen {
		r = b.returning[n-1]
	} else {
		b.returning = append(b.returning, r)
	}
	r.jobs++
	j.returns = r
}

// overtakes reports whether a pass of a domain would lack jobs that are about to return, for which room has become free
// since they were decided.
func (b *Broker) overtakes(name structs.PoolName) bool {
	return slices.ContainsFunc(b.returning, func(r *returning) bool {
		return (name == DomainAll || r.domain == DomainAll || r.domain == name) && b.domainOf(r.domain).last.since(room, r.seen)
	})
}

// Done records that a job's decision was committed at an index (0: nothing to commit). The job is released once the
// broker has been fed that index, so that an answered evaluation is not decided twice. If the decision did not answer
// its evaluation, the job is retried like a refused one.
func (b *Broker) Done(key structs.JobKey, at structs.Index, now structs.LogTime) {
	if j := b.flying(key); j != nil {
		j.answered, j.doneAt = true, at
		b.answered(j, now)
	}
}

// Defer returns a job that the pass did not decide. It is ready again, in its old place.
func (b *Broker) Defer(key structs.JobKey, now structs.LogTime) {
	if j := b.flying(key); j != nil {
		if j.blocked != nil {
			j.unblocked = true
		}
		j.took = nil
		b.land(j, now)
	}
}

// flying returns the entry of a job that is in flight and not answered, or nil.
func (b *Broker) flying(key structs.JobKey) *job {
	if j := b.jobs[key]; j != nil && j.flight && !j.answered {
		return j
	}
	return nil
}

// Nack records that a job's decision was refused, or that its outcome is unknown. The job is decided again on a state
// of at least the given index: at once for the first few tries, then after growing waits, without a limit on tries.
func (b *Broker) Nack(key structs.JobKey, at structs.Index, now structs.LogTime) {
	j := b.flying(key)
	if j == nil {
		return
	}
	j.answered, j.nacked, j.doneAt = true, true, at
	if j.blocked != nil {
		j.unblocked = true
	}
	b.refused(j, now)
	b.answered(j, now)
}

// refused counts a try, and delays the job after too many in a row.
func (b *Broker) refused(j *job, now structs.LogTime) {
	b.Counters.Refused++
	j.tries++
	n := j.tries - b.limits.FreeTries
	if n <= 0 {
		return
	}
	wait := b.limits.BackoffMin
	for i := 1; i < n && wait < b.limits.BackoffMax; i++ {
		wait *= 2
	}
	wait = min(wait, b.limits.BackoffMax)
	b.Counters.Backoffs++
	if j.wake != nil {
		b.timers.remove(j.wake)
	}
	j.notUntil = now.Add(wait)
	j.wake = b.timers.add(&timer{at: j.notUntil, job: j})
}

// answered releases a job if the broker has been fed its answer. Otherwise Feed releases it.
func (b *Broker) answered(j *job, now structs.LogTime) {
	if j.doneAt > b.index {
		b.late = append(b.late, j)
		return
	}
	b.land(j, now)
}

// land ends a job's flight. An evaluation that is still blocked waits again, unless an unblocking event happened
// meanwhile.
func (b *Broker) land(j *job, now structs.LogTime) {
	j.flight, j.answered, j.spec = false, false, nil
	if r := j.returns; r != nil {
		if j.returns, r.jobs = nil, r.jobs-1; r.jobs == 0 {
			b.returning = slices.DeleteFunc(b.returning, func(o *returning) bool { return o == r })
		}
	}
	switch {
	case j.nacked: // Nack has counted it
	case j.took != nil && slices.Contains(j.pending, j.took):
		b.refused(j, now)
	default:
		j.tries = 0
	}
	j.took, j.nacked = nil, false
	if j.blocked != nil && !j.unblocked && j.wpos < 0 {
		b.wait(j, j.seen)
	}
	b.settle(j, now)
	b.maybeDrop(j)
}

// release lands the jobs whose answers have now been fed.
func (b *Broker) release(now structs.LogTime) {
	kept := b.late[:0]
	for _, j := range b.late {
		if j.doneAt > b.index {
			kept = append(kept, j)
			continue
		}
		b.land(j, now)
	}
	clear(b.late[len(kept):])
	b.late = kept
}

// expire handles the timers that are due.
func (b *Broker) expire(now structs.LogTime) {
	for len(b.timers.heap) > 0 && b.timers.heap[0].at <= now {
		t := b.timers.heap[0]
		b.timers.remove(t)
		if t.woken != nil {
			b.woken(t.woken, now)
			continue
		}
		if t.job != nil {
			t.job.notUntil, t.job.wake = 0, nil
			b.settle(t.job, now)
			continue
		}
		r := b.evals[t.eval]
		r.timer = nil
		if r.job.blocked == r.eval {
			b.unwait(r.job)
			r.job.unblocked = true
		} else {
			r.job.addPending(r.eval)
		}
		b.settle(r.job, now)
	}
}

// NextWake returns when the next timer is due; ok is false when there is none.
func (b *Broker) NextWake() (at structs.LogTime, ok bool) {
	if len(b.timers.heap) == 0 {
		return 0, false
	}
	return b.timers.heap[0].at, true
}

// Speculate makes a job ready whose registration has been proposed but is not committed (D25). It returns false if the
// broker is paused or has an entry for the job, which is then decided after its commit.
func (b *Broker) Speculate(w *structs.Workload, s Speculation, now structs.LogTime) bool {
	key := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
	if b.paused || b.jobs[key] != nil {
		return false
	}
	j := &job{key: key, workload: w, domain: poolOf(w.Domain), spec: &s, pos: -1, wpos: -1}
	b.jobs[key] = j
	b.Counters.Speculated++
	b.settle(j, now)
	return true
}

// Len is the size of a broker.
type Len struct {
	Ready, Blocked, Delayed, Flight, Pending int
}

// Len counts ready and blocked jobs, timers, jobs in flight and due evaluations.
func (b *Broker) Len() Len {
	l := Len{Delayed: len(b.timers.heap)}
	for _, n := range b.names {
		d := b.domains[n]
		l.Ready += len(d.ready.jobs)
		for i := range d.waiting {
			l.Blocked += len(d.waiting[i].jobs)
		}
	}
	for _, j := range b.jobs { // sums only: map order does not matter
		l.Pending += len(j.pending)
		if j.flight {
			l.Flight++
		}
	}
	return l
}

// Queue returns the workloads of a domain that are ready, in flight or blocked, in order: the queue as users see it.
func (b *Broker) Queue(domain structs.PoolName) []*structs.Workload {
	var js []*job
	for _, j := range b.jobs { // sorted below
		if j.domain == domain && (j.pos >= 0 || j.blocked != nil || j.flight) {
			js = append(js, j)
		}
	}
	var h readyHeap
	slices.SortFunc(js, func(x, y *job) int {
		switch {
		case h.less(x, y):
			return -1
		case h.less(y, x):
			return 1
		}
		return 0
	})
	ws := make([]*structs.Workload, len(js))
	for i, j := range js {
		ws[i] = j.workload
	}
	return ws
}

// Domains returns the names of all domains, sorted.
func (b *Broker) Domains() []structs.PoolName { return slices.Clone(b.names) }
