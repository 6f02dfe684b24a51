// Package planner holds plans from their proposal until their commit is visible. It verifies them against the newest
// view and everything in flight, groups them into log entries, and reports the outcome of each. It is a plain structure
// without goroutines, clock or I/O.
//
//	Propose --verified--> queued --Next--> in the log --Landed--> landed --Advance--> gone
//	   \--nothing accepted--> refused        \--Lost--> unknown: it and all behind it are dropped
//
// A plan debits its nodes from Propose on, so that the next pass, which runs ahead of the commit, sees what it takes.
// The debit ends when the plan is refused or unknown, or when the published view includes it. A stop credits nothing
// before it is committed (D7).
//
// The naive planner takes one plan, waits for its commit, and takes the next: two jobs need two commits in a row. Here
// up to Limits.Depth log entries are in flight and each carries all waiting plans that fit, so a burst of small jobs
// shares entries. A fault in a plan refuses that plan's part and never affects its neighbours.
package planner

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// Limits bound what is in flight. A zero field takes the default.
type Limits struct {
	Depth      int // log entries in flight; default 8
	Queue      int // proposed plans not yet in the log, from which on Full returns true; default 4,096
	EntryBytes int // bytes of one log entry; default 1 MiB less room for its envelope
	EntryPlans int // plans of one log entry; default 512
}

func (l Limits) withDefaults() Limits {
	if l.Depth <= 0 {
		l.Depth = 8
	}
	if l.Queue <= 0 {
		l.Queue = 4096
	}
	if l.EntryBytes <= 0 {
		l.EntryBytes = 1<<20 - 4<<10
	}
	if l.EntryPlans <= 0 {
		l.EntryPlans = 512
	}
	return l
}

// Counters count since the planner was made.
type Counters struct {
	Proposed     int64 // plans proposed
	Plans        int64 // plans put into the log
	Entries      int64 // log entries sent
	PlansMax     int64 // most plans in one entry
	DepthMax     int64 // most entries in flight
	DepthSum     int64 // sum of entries in flight over all entries sent; divide by Entries for the mean
	Places       int64 // placements that Apply accepted
	PartsRefused int64 // parts refused here
	PartsStale   int64 // parts that Apply refused
	TooLarge     int64 // parts too large for a log entry
	Refreshes    int64 // plans with a refused part, whose jobs were decided again
	Unknown      int64 // plans whose outcome was lost
}

// Outcome is the result of a plan.
type Outcome uint8

// Accepted: all of the plan is committed. Refused: some part was refused, here or by Apply; the rest is committed.
// Unknown: leadership was lost while the plan was in flight.
const (
	Accepted Outcome = iota
	Refused
	Unknown
)

func (o Outcome) String() string { return [...]string{"accepted", "refused", "unknown"}[o] }

// Answer is the outcome of one plan.
type Answer struct {
	ID      uint64
	Job     structs.JobKey
	Outcome Outcome
	Index   structs.Index // log index; if nothing was committed, the index to decide again from
	Freed   bool          // the plan had debited nodes for placements that did not happen
	Why     string        // reason of the first refusal, for the log
}

// Batch is the plans of one log entry.
type Batch struct {
	Seq     uint64
	Entries []*structs.PlanEntry
}

// Planner is not safe for concurrent use.
type Planner struct {
	limits  Limits
	seq     uint64
	overlay model.Overlay
	queue   []*plan
	batches []*batch // in flight, oldest first
	landed  []*plan  // committed, possibly not in the view yet

	Returned func(structs.AllocID) bool // whether the node of an allocation is in touch, in the newest state; nil: not known
	Counters Counters
}

type plan struct {
	id      uint64
	job     structs.JobKey
	entry   *structs.PlanEntry
	size    int
	partial bool // a part was refused here
	refresh structs.Index
	why     string
	index   structs.Index // log index; set when committed
}

type batch struct {
	seq   uint64
	plans []*plan
}

// New returns an empty planner.
func New(limits Limits) *Planner { return &Planner{limits: limits.withDefaults()} }

// Overlay returns what plans in flight hold.
func (p *Planner) Overlay() model.Overlay { return p.overlay }

// Depth returns how many log entries are in flight, and how many plans are queued for one.
func (p *Planner) Depth() (entries, queued int) { return len(p.batches), len(p.queue) }

// Full reports whether passes must wait until plans leave the queue.
func (p *Planner) Full() bool { return len(p.queue) >= p.limits.Queue }

// Idle reports whether no plan is queued, in flight, or committed but not in the view yet.
func (p *Planner) Idle() bool { return len(p.queue)+len(p.batches)+len(p.landed) == 0 }

// Propose verifies a plan against the newest view, everything in flight, and the reservations that bind it now
// (verify.VerifyReserved), and queues the accepted parts. job is the newest committed version, or nil. speculative means
// that the plan follows an uncommitted job in the log (D25), which only Apply can check. If nothing of the plan remains,
// done is true and a is final. Otherwise Landed, Lost or Rejected answers under the ID.
func (p *Planner) Propose(v *model.View, job *structs.Job, e *structs.PlanEntry, speculative bool, reserved []*structs.Reservation,
	now structs.LogTime) (id uint64, a Answer, done bool) {
	p.Counters.Proposed++
	p.seq++
	pl := &plan{id: p.seq, job: structs.JobKey{Namespace: e.Namespace, ID: e.JobID}, entry: e}
	accepted := make([]bool, len(e.Parts))
	for i := range accepted {
		accepted[i] = true
	}
	var verdict verify.Verdict
	if len(e.Parts) > 0 {
		verdict = verify.VerifyReserved(v, p.overlay, e, reserved, now)
		copy(accepted, verdict.Accepted)
		if len(verdict.Refused) > 0 {
			pl.partial, pl.refresh, pl.why = true, verdict.Refresh, verdict.Refused[0].Why
			p.Counters.PartsRefused += int64(len(verdict.Refused))
		}
	}
	if !speculative {
		if why := verify.Job(job, e); why != "" {
			pl.partial, pl.refresh, pl.why = true, v.Index(), why
			for i := range e.Parts {
				if len(e.Parts[i].Places)+len(e.Parts[i].Updates) > 0 && accepted[i] {
					accepted[i] = false
					p.Counters.PartsRefused++
				}
			}
		}
	}
	p.dropReturned(pl, accepted, v.Index())
	pl.entry = trim(pl.entry, accepted, !pl.partial)
	if pl.size = Size(pl.entry); pl.size > p.limits.EntryBytes {
		p.shrink(pl, v.Index())
	}
	if pl.partial {
		p.Counters.Refreshes++
		if len(pl.entry.Parts) == 0 && len(pl.entry.Evals) == 0 {
			return pl.id, Answer{ID: pl.id, Job: pl.job, Outcome: Refused, Index: pl.refresh, Why: pl.why}, true
		}
	}
	switch {
	case places(pl.entry) == 0:
	case pl.partial:
		p.overlay = p.overlay.Add(pl.id, pl.entry, nil)
	default:
		p.overlay = p.overlay.AddVerified(pl.id, pl.entry, verdict.Sums)
	}
	p.queue = append(p.queue, pl)
	return pl.id, Answer{}, false
}

// dropReturned leaves out the stops that take work for lost or out of touch although its node has returned since the decision, and the
// parts that put other work in its place. Otherwise work would end that runs, and count as lost. Apply refuses them where a node
// returns later (feature.ReturnedNodes).
func (p *Planner) dropReturned(pl *plan, accepted []bool, at structs.Index) {
	if p.Returned == nil {
		return
	}
	returned := func(s structs.PlanStop) bool { return s.Client != "" && p.Returned(s.ID) }
	parts := pl.entry.Parts
	for i := range parts {
		if !accepted[i] || !slices.ContainsFunc(parts[i].Stops, returned) {
			continue
		}
		pl.partial, pl.refresh, pl.why = true, at, "a node that was lost has returned"
		p.Counters.PartsRefused++
		if len(parts[i].Places)+len(parts[i].Updates) > 0 {
			accepted[i] = false
			continue
		}
		rest := parts[i]
		rest.Stops = slices.DeleteFunc(slices.Clone(rest.Stops), returned)
		e := *pl.entry
		e.Parts = slices.Clone(e.Parts)
		e.Parts[i] = rest
		pl.entry, accepted[i] = &e, len(rest.Stops) > 0
	}
}

// Reservations returns the reservations made or dropped by plans that are not in the view yet: the newest of each job,
// in order of proposal. A reservation without a start is dropped.
func (p *Planner) Reservations() (out []*structs.Reservation) {
	add := func(pl *plan) {
		r := pl.entry.Reservation
		if r == nil {
			return
		}
		if at := slices.IndexFunc(out, func(o *structs.Reservation) bool { return o.ID == r.ID }); at >= 0 {
			out[at] = r
			return
		}
		out = append(out, r)
	}
	for _, pl := range p.landed {
		add(pl)
	}
	for _, b := range p.batches {
		for _, pl := range b.plans {
			add(pl)
		}
	}
	for _, pl := range p.queue {
		add(pl)
	}
	return out
}

// shrink refuses the last parts of an entry that is too large. Package scheduler already divides its decisions into
// entries that fit, so this is a second check.
func (p *Planner) shrink(pl *plan, at structs.Index) {
	keep := make([]bool, len(pl.entry.Parts))
	e := *pl.entry
	e.Parts, e.Evals = nil, nil
	size := Size(&e)
	for i := range pl.entry.Parts {
		n := partSize(&pl.entry.Parts[i])
		if keep[i] = size+n <= p.limits.EntryBytes; keep[i] {
			size += n
			continue
		}
		p.Counters.TooLarge++
	}
	pl.entry = trim(pl.entry, keep, false)
	if pl.size = Size(pl.entry); pl.size > p.limits.EntryBytes { // the evaluations alone are too large
		pl.entry = &structs.PlanEntry{Namespace: e.Namespace, JobID: e.JobID, EvalID: e.EvalID}
		pl.size = Size(pl.entry)
	}
	pl.partial, pl.refresh = true, at
	pl.why = "the plan is larger than a log entry may be"
}

// trim returns the entry with only the accepted parts. Unless whole, it leaves out the deciding evaluation and what was
// computed about the rest, because the job is decided again. It keeps evaluations that an accepted stop refers to.
func trim(e *structs.PlanEntry, accepted []bool, whole bool) *structs.PlanEntry {
	if whole {
		return e
	}
	out := *e
	out.Parts, out.Evals, out.Workload = nil, nil, nil
	used := make([]int, len(e.Nodes)) // new position of each node, counted from 1
	var nodes []structs.PlanNode
	for i := range e.Parts {
		if !accepted[i] {
			continue
		}
		part := e.Parts[i]
		part.Places = slices.Clone(part.Places)
		for k := range part.Places {
			n := &part.Places[k].Node
			if used[*n] == 0 {
				nodes = append(nodes, e.Nodes[*n])
				used[*n] = len(nodes)
			}
			*n = used[*n] - 1
		}
		for k := range part.Stops {
			id := part.Stops[k].Followup
			if id.IsZero() {
				continue
			}
			at := slices.IndexFunc(e.Evals, func(ev *structs.Evaluation) bool { return ev.ID == id })
			if at >= 0 && !slices.Contains(out.Evals, e.Evals[at]) {
				out.Evals = append(out.Evals, e.Evals[at])
			}
		}
		out.Parts = append(out.Parts, part)
	}
	out.Nodes = nodes
	return &out
}

// Next takes queued plans for one log entry. ok is false when none are queued or Limits.Depth entries are in flight.
func (p *Planner) Next() (b Batch, ok bool) {
	if len(p.queue) == 0 || len(p.batches) >= p.limits.Depth {
		return Batch{}, false
	}
	n, size := 0, 0
	for n < len(p.queue) && n < p.limits.EntryPlans && (n == 0 || size+p.queue[n].size <= p.limits.EntryBytes) {
		size += p.queue[n].size
		n++
	}
	p.seq++
	in := &batch{seq: p.seq, plans: slices.Clone(p.queue[:n])}
	clear(p.queue[:n])
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	p.batches = append(p.batches, in)
	c := &p.Counters
	c.Entries++
	c.Plans += int64(n)
	c.PlansMax = max(c.PlansMax, int64(n))
	c.DepthMax = max(c.DepthMax, int64(len(p.batches)))
	c.DepthSum += int64(len(p.batches))
	b = Batch{Seq: in.seq, Entries: make([]*structs.PlanEntry, n)}
	for i, pl := range in.plans {
		b.Entries[i] = pl.entry
	}
	return b, true
}

// Landed records that a batch was committed, with Apply's results, one for each entry. seen is the index of the newest
// published view.
func (p *Planner) Landed(seq uint64, index structs.Index, results []*structs.PlanResult, seen structs.Index) []Answer {
	at := slices.IndexFunc(p.batches, func(b *batch) bool { return b.seq == seq })
	if at < 0 {
		return nil // Lost has dropped it
	}
	b := p.batches[at]
	p.batches = slices.Delete(p.batches, at, at+1)
	answers := make([]Answer, 0, len(b.plans))
	for i, pl := range b.plans {
		a := Answer{ID: pl.id, Job: pl.job, Index: index, Why: pl.why}
		if pl.partial {
			a.Outcome = Refused
		}
		var res *structs.PlanResult
		if i < len(results) {
			res = results[i]
		}
		placed := 0
		for k := range pl.entry.Parts {
			n := len(pl.entry.Parts[k].Places)
			if res != nil && k < len(res.Accepted) && res.Accepted[k] {
				placed += n
				continue
			}
			p.Counters.PartsStale++
			a.Outcome, a.Freed = Refused, a.Freed || n > 0
			if res != nil && a.Why == "" {
				a.Why = res.Refused
			}
		}
		if res == nil || len(pl.entry.Parts) == 0 && res.Refused != "" {
			a.Outcome = Refused
			if res != nil {
				a.Why = res.Refused
			}
		}
		if a.Outcome == Refused && !pl.partial {
			p.Counters.Refreshes++
		}
		p.Counters.Places += int64(placed)
		pl.index = index
		switch {
		case placed == 0:
			p.overlay = p.overlay.Remove(pl.id)
			if pl.entry.Reservation != nil { // see Reservations
				p.landed = append(p.landed, pl)
			}
		default:
			p.landed = append(p.landed, pl)
		}
		answers = append(answers, a)
	}
	p.Advance(seen)
	return answers
}

// Advance drops the committed plans that a published view at index seen includes.
func (p *Planner) Advance(seen structs.Index) {
	kept := p.landed[:0]
	for _, pl := range p.landed {
		if pl.index > seen {
			kept = append(kept, pl)
			continue
		}
		p.overlay = p.overlay.Remove(pl.id)
	}
	clear(p.landed[len(kept):])
	p.landed = kept
}

// Lost records that the outcome of a batch is unknown. The batch and every plan proposed after it are dropped, because
// those were decided on top of it; their jobs are decided again from the state. Earlier batches are not affected.
func (p *Planner) Lost(seq uint64) []Answer {
	at := slices.IndexFunc(p.batches, func(b *batch) bool { return b.seq == seq })
	if at < 0 {
		return nil
	}
	var answers []Answer
	drop := func(pl *plan) {
		p.Counters.Unknown++
		held := places(pl.entry) > 0
		if held {
			p.overlay = p.overlay.Remove(pl.id)
		}
		answers = append(answers, Answer{ID: pl.id, Job: pl.job, Outcome: Unknown, Freed: held,
			Why: "leadership was lost while the plan was in flight"})
	}
	for _, b := range p.batches[at:] {
		for _, pl := range b.plans {
			drop(pl)
		}
	}
	for _, pl := range p.queue {
		drop(pl)
	}
	clear(p.batches[at:])
	p.batches, p.queue = p.batches[:at], nil
	return answers
}

// Rejected records that a batch was certainly not written and never will be. Later plans stay: they were verified with
// the batch's placements debited, and without those they fit all the more.
func (p *Planner) Rejected(seq uint64, why string) []Answer {
	at := slices.IndexFunc(p.batches, func(b *batch) bool { return b.seq == seq })
	if at < 0 {
		return nil
	}
	b := p.batches[at]
	p.batches = slices.Delete(p.batches, at, at+1)
	answers := make([]Answer, 0, len(b.plans))
	for _, pl := range b.plans {
		p.Counters.Refreshes++
		held := places(pl.entry) > 0
		if held {
			p.overlay = p.overlay.Remove(pl.id)
		}
		answers = append(answers, Answer{ID: pl.id, Job: pl.job, Outcome: Refused, Freed: held, Why: why})
	}
	return answers
}

func places(e *structs.PlanEntry) (n int) {
	for i := range e.Parts {
		n += len(e.Parts[i].Places)
	}
	return n
}
