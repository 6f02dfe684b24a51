// Package broker holds what waits to be decided. It is a plain structure driven by an explicit now: no goroutine, no
// clock, no I/O, so the same feed gives the same passes in the server, in the simulator and in a test.
//
// A job has at most one entry here, however many evaluations ask about it. An entry is
//
//	          feed: evaluation pending and due
//	idle ------------------------------------> ready --TakePass--> in flight --Done/Nack--> idle | ready
//	  \                                          ^                     |
//	   \--- feed: evaluation blocked --> blocked-/ unblocked           \-- events meanwhile are remembered
//
// The naive queue drops an event that arrives while the job is being decided: the pass has not seen the capacity, and
// the blocked evaluation is written after it appeared. Here every unblocking event is stamped with its log index, and an evaluation
// that blocks on an older state than the newest such event goes straight back to ready.
//
// Limits: a pass takes at most Limits.Items jobs and Limits.Evals evaluations of each; the rest stays for the next one.
// The number of entries is bounded by the jobs of the state that have an open evaluation.
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
	BackoffMax time.Duration // the longest wait; default 5 s
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

// Counters say what happened since the broker was made.
type Counters struct {
	Passes     int64 // passes taken
	Taken      int64 // jobs taken, over all passes
	Coalesced  int64 // evaluations answered by another evaluation of the same pass
	Skipped    int64 // events that woke none of the blocked jobs of their domain
	Unblocked  int64 // blocked jobs made ready by an event
	Raced      int64 // evaluations that blocked on a state older than an unblocking event, and went straight back
	Delayed    int64 // evaluations that had to wait for a time
	Refused    int64 // Nack calls
	Backoffs   int64 // of them, those that had to wait
	Speculated int64 // jobs decided before their registration was committed
	WholePass  int64 // passes that held every domain
	Roused     int64 // blocked jobs made ready because others compete, or because the time had come to look again
}

// Broker is the queue. It is not safe for concurrent use: its owner guards it.
type Broker struct {
	limits Limits
	env    Env
	after  map[structs.JobKey][]*job
	purged structs.Index // newest purge of a job
	index  structs.Index // of the newest delta

	jobs    map[structs.JobKey]*job
	evals   map[structs.EvalID]*evalRef
	domains map[structs.PoolName]*domain
	// everywhere is the newest event of each kind that was for all domains: one that comes to be later has had it, too.
	everywhere [unblock.Kinds]structs.Index
	names      []structs.PoolName // of domains, sorted; where Take looks for work
	next       int                // position in names where the next Take begins
	pools      map[structs.NodeID]structs.PoolName
	timers     timers
	passes     map[uint64]structs.PoolName // domain of each pass that has not ended
	late       []*job                      // answered at an index that is still to be fed
	passSeq    uint64
	paused     bool

	Counters Counters
}

// job is one entry.
type job struct {
	key       structs.JobKey
	domain    structs.PoolName
	workload  *structs.Workload // replicated, or made up from the first evaluation
	replica   bool              // workload is the replicated one, not made up
	open      int               // evaluations of the job in Broker.evals
	pending   []*structs.Evaluation
	blocked   *structs.Evaluation
	events    unblock.EventSet // that may change the decision of blocked
	unblocked bool             // blocked, and one of them happened since it was decided
	wpos      int              // in the domain's group of waiting jobs; -1 outside
	waitsFor  []structs.JobKey // jobs in whose list (Broker.after) it is, while it is among the waiting
	spec      *Speculation

	flight   bool
	seen     structs.Index       // index of the state that the last pass saw
	took     *structs.Evaluation // newest evaluation that the last pass took
	doneAt   structs.Index       // with answered: released once the broker has seen this index
	nacked   bool
	answered bool            // Done or Nack was called while in flight
	tries    int             // refusals in a row
	looked   structs.LogTime // when a pass took it last
	notUntil structs.LogTime // back-off after refusals
	wake     *timer          // for notUntil
	pos      int             // in the domain's ready heap; -1 outside
}

// evalRef says where an open evaluation is.
type evalRef struct {
	eval  *structs.Evaluation
	job   *job
	timer *timer // waiting for its time; nil when due or blocked
}

// domain is one node pool, or DomainAll.
type domain struct {
	name          structs.PoolName
	ready         readyHeap
	busy          bool
	waiting       []group // blocked, by the events that unblock them; sorted by events
	lastUnblocked [unblock.Kinds]structs.Index
	wake          *timer // when its work is to be looked at again (WakeAt), or nil
}

// group is the blocked jobs of a domain that wait for the same kinds of event, in no particular order.
type group struct {
	events unblock.EventSet
	jobs   []*job
}

// Speculation is a job whose registration has been proposed but is not committed (D25).
type Speculation struct {
	Job  *structs.Job        // with the version that it will have
	Eval *structs.Evaluation // with the id that it will have
}

// Item is one job of a pass.
type Item struct {
	Key      structs.JobKey
	Workload *structs.Workload     // never nil; immutable
	Evals    []*structs.Evaluation // due evaluations, oldest first; empty when only an event woke the job
	Blocked  *structs.Evaluation   // nil when nothing was blocked
	Spec     *Speculation          // nil for a committed job
}

// Deciding is the evaluation that answers for the item: its newest, or the blocked one.
func (it *Item) Deciding() *structs.Evaluation {
	if it.Spec != nil {
		return it.Spec.Eval
	}
	if n := len(it.Evals); n > 0 {
		return it.Evals[n-1]
	}
	return it.Blocked
}

// Choice says which of the ready workloads a pass takes when it cannot take all: places in ready, most urgent first, at
// most n.
type Choice func(ready []*structs.Workload, n int, now structs.LogTime) []int

// Env is what a broker asks of its owner. Its functions read a state no older than the newest delta fed.
type Env struct {
	// Lookup returns the replicated queue entry of a job, or nil. A nil function knows no entry.
	Lookup func(structs.JobKey) *structs.Workload
	// Links wake jobs that wait for others. nil: no job depends on another.
	Links Links
	// Choose picks the jobs of a pass when more than Limits.Items are ready. nil: by priority and submission. The pass
	// itself decides in what order it looks at them.
	Choose Choice
	// Competition reports whether running work of a domain competes with waiting jobs. A pass of such a domain takes every
	// job that waits for room, because the choice between them needs all of them. nil: nowhere.
	Competition func(domain structs.PoolName) bool
	// Reserved lists the jobs of a domain that hold a reservation. They join every pass, but at most once in
	// reservedEvery: whether a reservation can be kept, or moved forward, depends on what others get. nil: none.
	Reserved func(domain structs.PoolName) []structs.JobKey
}

// Pass is a set of jobs to decide in order, over the nodes of one domain, or of all.
type Pass struct {
	ID     uint64
	Domain structs.PoolName // a pool, or DomainAll
	Items  []Item
}

// New makes an empty broker. Load fills it from a state.
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

// Index is the index of the newest delta seen.
func (b *Broker) Index() structs.Index { return b.index }

// SetPaused stops TakePass from giving work, or lets it again. Events are still remembered.
func (b *Broker) SetPaused(on bool) { b.paused = on }

// Paused reports whether TakePass gives no work.
func (b *Broker) Paused() bool { return b.paused }
