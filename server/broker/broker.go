// Package broker queues the jobs that wait for a decision. It is a plain structure driven by an explicit now, without
// goroutines, clock or I/O. The same feed gives the same passes in the server, in the simulator and in a test.
//
// A job has at most one entry, however many evaluations it has:
//
//	          feed: evaluation pending and due
//	idle ------------------------------------> ready --TakePass--> in flight --Done/Nack--> idle | ready
//	  \                                          ^                     |
//	   \--- feed: evaluation blocked --> blocked-/ unblocked           \-- events meanwhile are remembered
//
// The naive queue drops an event that arrives while the job is being decided. The pass has not seen the new capacity,
// and the blocked evaluation is written after the event, so nothing wakes the job. Here every unblocking event is
// stamped with its log index, or counted if it is a plan that was dropped, which has none. An evaluation that blocks on a
// state older than the newest such event goes straight back to ready. Until then no pass of its domain begins (Returns): it
// would give the room that became free to jobs that come later in the order.
//
// Limits: a pass takes at most Limits.Items jobs and Limits.Evals evaluations of each; the rest waits for the next
// pass. There is at most one entry for each job with an open evaluation.
package broker

import (
	"time"

	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// DomainAll is the name of the pass that holds every domain, for jobs that span pools.
const DomainAll = structs.NodePoolAll

// Limits bound a pass and the retries of a job. A zero field takes the default.
type Limits struct {
	Items      int           // jobs in one pass; default 10,000
	Evals      int           // evaluations of one job in one pass; default 64
	FreeTries  int           // refusals in a row that are retried at once; default 3
	BackoffMin time.Duration // wait after the first refusal beyond those, doubling; default 50 ms
	BackoffMax time.Duration // longest wait
}

func (l Limits) withDefaults() Limits {
	if l.Items <= 0 {
		l.Items = 10_000
	}
	if l.Evals <= 0 {
		l.Evals = 64
	}
	if l.FreeTries <= 0 {
		l.FreeTries = 3
	}
	if l.BackoffMin <= 0 {
		l.BackoffMin = 50 * time.Millisecond
	}
	if l.BackoffMax <= 0 {
		l.BackoffMax = 5 * time.Second
	}
	return l
}

// Counters count since the broker was made.
type Counters struct {
	Passes     int64 // passes taken
	Taken      int64 // jobs taken, over all passes
	Coalesced  int64 // evaluations answered by another evaluation of the same pass
	Skipped    int64 // events that unblocked none of a domain's blocked jobs
	Unblocked  int64 // blocked jobs made ready by an event
	Raced      int64 // evaluations that blocked on a state older than an unblocking event, and were made ready at once
	Delayed    int64 // evaluations with a time to wait for
	Refused    int64 // Nack calls
	Backoffs   int64 // Nack calls after which the job had to wait
	Speculated int64 // jobs decided before their registration was committed
	WholePass  int64 // passes that held every domain
	Roused     int64 // blocked jobs made ready because of competition, a reservation, or WakeAt
}

// Broker is the queue. It is not safe for concurrent use.
type Broker struct {
	limits Limits
	env    Env
	after  map[structs.JobKey][]*job
	purged structs.Index // newest purge of a job
	index  structs.Index // of the newest delta

	jobs       map[structs.JobKey]*job
	evals      map[structs.EvalID]*evalRef
	domains    map[structs.PoolName]*domain
	everywhere lastEvents         // those that affected all domains; a domain that is made later starts with them
	dropped    uint64             // calls of Freed
	names      []structs.PoolName // of domains, sorted
	next       int                // position in names where the next Take begins
	pools      map[structs.NodeID]structs.PoolName
	timers     timers
	passes     map[uint64]structs.PoolName // domain of each pass that has not ended
	late       []*job                      // answered at an index that has not been fed yet
	returning  []*returning                // of jobs in flight that will wait again, in the order of the calls of Returns
	passSeq    uint64
	paused     bool

	Counters Counters
}

// job is one entry.
type job struct {
	key       structs.JobKey
	domain    structs.PoolName
	workload  *structs.Workload // replicated, or built from the first evaluation
	replica   bool              // workload is the replicated one, not made up
	open      int               // open evaluations
	pending   []*structs.Evaluation
	blocked   *structs.Evaluation
	events    unblock.EventSet // events that may change the decision of blocked
	unblocked bool             // such an event has happened since blocked was decided
	wpos      int              // position in the domain's group of waiting jobs; -1 outside
	waitsFor  []structs.JobKey // while waiting: jobs that have this one in Broker.after
	spec      *Speculation

	flight   bool
	seen     structs.Index       // index of the state that the last pass saw
	without  uint64              // Broker.dropped at that time: the pass did not see the plans that were dropped before
	took     *structs.Evaluation // newest evaluation that the last pass took
	returns  *returning          // in flight, and will wait again when its answer is fed; else nil
	doneAt   structs.Index       // if answered: the job is released once the broker has been fed this index
	nacked   bool
	answered bool            // Done or Nack was called while in flight
	tries    int             // refusals in a row
	looked   structs.LogTime // when a pass last took it
	notUntil structs.LogTime // end of the back-off after refusals
	wake     *timer          // for notUntil
	pos      int             // in the domain's ready heap; -1 outside
}

// evalRef locates an open evaluation.
type evalRef struct {
	eval  *structs.Evaluation
	job   *job
	timer *timer // waiting for its time; nil when due or blocked
}

// domain is one node pool, or DomainAll.
type domain struct {
	name    structs.PoolName
	ready   readyHeap
	busy    bool
	waiting []group // blocked jobs, grouped by the events that unblock them; sorted by events
	last    lastEvents
	wake    *timer // for WakeAt, or nil
}

// returning is the jobs of a domain in flight that will wait again and whose pass saw the same state.
type returning struct {
	domain structs.PoolName
	seen   stamp
	jobs   int
}

// lastEvents is the newest event of each kind: in the log, by index, and of plans that were dropped, by Broker.dropped. A
// dropped plan has no index: stamped with the next one, it would stay newer than every decision until something else is
// logged, and a job that is decided again without a change would be decided for ever.
type lastEvents struct {
	logged  [unblock.Kinds]structs.Index
	dropped [unblock.Kinds]uint64
}

// note records that events of some kinds happened.
func (l *lastEvents) note(what unblock.EventSet, at stamp) {
	for k := range l.logged {
		if what&(1<<k) != 0 {
			l.logged[k] = max(l.logged[k], at.index)
			l.dropped[k] = max(l.dropped[k], at.dropped)
		}
	}
}

// since reports whether an event of some kinds is newer than what a pass has seen.
func (l *lastEvents) since(what unblock.EventSet, seen stamp) bool {
	for k := range l.logged {
		if what&(1<<k) != 0 && (l.logged[k] > seen.index || l.dropped[k] > seen.dropped) {
			return true
		}
	}
	return false
}

// stamp is when an event happened, or what a pass has seen. One field is zero for an event.
type stamp struct {
	index   structs.Index
	dropped uint64
}

// logged is the stamp of an event in the log.
func logged(at structs.Index) stamp { return stamp{index: at} }

// group is the blocked jobs of a domain that wait for the same kinds of events, in no particular order.
type group struct {
	events unblock.EventSet
	jobs   []*job
}

// Speculation is a job whose registration has been proposed but is not committed (D25).
type Speculation struct {
	Job  *structs.Job        // with the version it will get
	Eval *structs.Evaluation // with the ID it will get
}

// Item is one job of a pass.
type Item struct {
	Key      structs.JobKey
	Workload *structs.Workload     // never nil; immutable
	Evals    []*structs.Evaluation // due, oldest first; empty when only an event woke the job
	Blocked  *structs.Evaluation   // nil if the job is not blocked
	Spec     *Speculation          // nil for a committed job
}

// Deciding returns the evaluation that the decision answers: the newest one, or the blocked one.
func (it *Item) Deciding() *structs.Evaluation {
	if it.Spec != nil {
		return it.Spec.Eval
	}
	if n := len(it.Evals); n > 0 {
		return it.Evals[n-1]
	}
	return it.Blocked
}

// Choice picks the workloads that a pass takes when it cannot take all that are ready. It returns at most n positions
// in ready, most urgent first.
type Choice func(ready []*structs.Workload, n int, now structs.LogTime) []int

// Env is what a broker needs from its owner. Its functions read a state no older than the newest delta fed.
type Env struct {
	// Lookup returns the replicated queue entry of a job, or nil. If Lookup is nil, no entry is known.
	Lookup func(structs.JobKey) *structs.Workload
	// Links finds jobs that wait for other jobs. nil: no job depends on another.
	Links Links
	// Choose picks the jobs of a pass when more than Limits.Items are ready. It does not decide the order in which the
	// pass looks at them. nil: by priority and submission.
	Choose Choice
	// Competition reports whether running work of a domain competes with waiting jobs. A pass of such a domain also
	// takes every job that waits for capacity, because the choice needs all contenders. nil: no domain has competition.
	Competition func(domain structs.PoolName) bool
	// Reserved lists the jobs of a domain that hold a reservation. They join every pass, at most once in reservedEvery,
	// because what others get decides whether a reservation can be kept or moved forward. nil: none.
	Reserved func(domain structs.PoolName) []structs.JobKey
}

// Pass is a set of jobs to decide, in order, on the nodes of one domain or of all.
type Pass struct {
	ID     uint64
	Domain structs.PoolName // a pool, or DomainAll
	Items  []Item
}

// New returns an empty broker. Load fills it from a state.
func New(limits Limits, env Env) *Broker {
	return &Broker{
		limits:  limits.withDefaults(),
		env:     env,
		jobs:    map[structs.JobKey]*job{},
		evals:   map[structs.EvalID]*evalRef{},
		domains: map[structs.PoolName]*domain{},
		pools:   map[structs.NodeID]structs.PoolName{},
		passes:  map[uint64]structs.PoolName{},
		after:   map[structs.JobKey][]*job{},
	}
}

// Index returns the index of the newest delta seen.
func (b *Broker) Index() structs.Index { return b.index }

// SetPaused pauses or resumes the broker. A paused broker gives no passes but still records events.
func (b *Broker) SetPaused(on bool) { b.paused = on }

// Paused reports whether the broker is paused.
func (b *Broker) Paused() bool { return b.paused }
