package decide

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Environment is what a Service needs from its server.
type Environment struct {
	Region  string // its limits of quotas apply
	Replica Replica
	Logger  hclog.Logger
	Observe Observers
	Testing TestingKnobs
}

// Observers take measurements of passes and plans. Run needs all of them.
type Observers struct {
	Pass, Commit         func(seconds float64) // of computing a pass; from sending a log entry of plans to its answer
	PlanDepth, PlanPlans func(n float64)       // for a log entry that is sent: entries in flight, including it; plans in it
}

// Replica is the state to decide on and the log to write to. *replica.Replica implements it.
type Replica interface {
	Published() *replica.Published
	Subscribe(name string, limit int) *replica.Subscription
	Unsubscribe(*replica.Subscription)
	// Now returns the current log time.
	Now() structs.LogTime
	Propose(replica.Lane, structs.Command) *replica.Proposal
	// Barrier waits until everything in the log at the time of the call has been applied.
	Barrier() error
}

// TestingKnobs let tests interfere. The zero value is for production.
type TestingKnobs struct {
	BeforeSchedule func(in scheduler.Input) // called in each pass before it decides, or nil; may panic
}

// Service is the deciding part of one server. It outlives terms: each call of Run has its own decider. All methods
// except Run may be called at any time by any goroutine.
type Service struct {
	env Environment
	log hclog.Logger

	// Follows from the log; the decider keeps it up to date.
	predictor predictor
	history   nodeHistory
	reports   reportStore
	inputs    inputStore

	totals    totals
	ended     endedSums
	forecasts forecasts
	decider   atomic.Pointer[decider] // nil while this server does not decide
	metrics   atomic.Pointer[Metrics]
	lastTerm  atomic.Uint64 // newest term in which Run was called
	dryRuns   turnstile
	advisings turnstile
	computing sync.WaitGroup // passes; those of a term that is over may still compute
}

// turnstile bounds the number of concurrent holders by its capacity.
type turnstile chan struct{}

func (t turnstile) enter(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return structs.Errorf(structs.CodeBusy, "too many dry runs at a time: %v", ctx.Err())
	}
}

func (t turnstile) tryEnter() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turnstile) leave() { <-t }

// decider is the scheduling service of one term. Its owner, the goroutine of run, uses broker and planner and never
// blocks except for its next message. Each pass runs in its own goroutine, and each command in flight has one that
// waits for its outcome.
//
//	applied batches --> owner --Take--> pass goroutine --decided--> owner --Propose, Next--> raft --outcome--> owner
//
// The owner keeps the published state up to which the broker has been fed, and a pass decides on exactly that state. A
// pass on a newer one could block a job on capacity that appeared before the broker saw the event.
//
// Only the owner uses the fields, except the channels of inbox.
type decider struct {
	s       *Service
	term    uint64
	broker  *broker.Broker
	planner *planner.Planner
	pub     *replica.Published // state up to which the broker has been fed

	contenders *contenders
	cursors    map[structs.PoolName]structs.NodeID // by node pool: node at which its last pass stopped looking
	strict     bool                                // some queue lets no job pass a blocked one, so passes must include the waiting jobs
	passes     uint64                              // begun; part of the seed of each pass
	freed      []model.Freed                       // room that became free in this term, oldest first
	losses     endedSums                           // of the state in pub, where some node was lost; separate from Service.ended, which is asked about older states, too

	flight inFlight
	inbox  inbox
	lost   bool // leadership is lost: start nothing new

	metrics Metrics
	stale   bool      // metrics.Holding must be updated
	counted time.Time // when metrics.Holding was last filled in
}

func newDecider(s *Service, term uint64) *decider {
	d := &decider{
		s: s, term: term, planner: planner.New(planner.Limits{}),
		cursors: map[structs.PoolName]structs.NodeID{},
		flight: inFlight{decided: make(chan decided), outcomes: make(chan outcome),
			jobs: map[uint64]*answering{}, failing: map[structs.JobKey]bool{}, prepare: preparing{done: make(chan prepared)}},
		inbox:   inbox{speculations: make(chan speculation, 256), questions: make(chan question, 64), closed: make(chan struct{})},
		metrics: s.Metrics(),
	}
	d.metrics.Term, d.planner.Counters = term, d.metrics.Planner
	d.planner.Returned = d.returned
	return d
}

// returned reports whether the node of an allocation that holds something is in touch.
func (d *decider) returned(id structs.AllocID) bool {
	snap := d.s.env.Replica.Published().Snapshot
	a := snap.AllocByID(id)
	if a == nil || !structs.Holds(a) {
		return false
	}
	return snap.NodeByID(a.NodeID).InTouch()
}

// now returns the current log time.
func (d *decider) now() structs.LogTime { return d.s.env.Replica.Now() }

// inFlight tracks what a decider has started and not finished.
type inFlight struct {
	passes   int // pass goroutines
	writes   int // goroutines that wait for the outcome of a command
	decided  chan decided
	outcomes chan outcome
	jobs     map[uint64]*answering   // by plan ID
	failing  map[structs.JobKey]bool // jobs being stopped because they can never start
	prepare  preparing
}

// inbox receives messages from other goroutines.
type inbox struct {
	speculations chan speculation
	questions    chan question
	closed       chan struct{} // no more questions will be answered
}

// question asks the owner what a pass of a domain would see.
type question struct {
	domain structs.PoolName
	reply  chan<- reply // buffered: 1
}

// reply answers a question.
type reply struct {
	known   passContext
	waiting []*structs.Workload // ready, in flight or blocked, in queue order
}

// speculation is a proposed registration.
type speculation struct {
	job  *structs.Job
	eval *structs.Evaluation
}

// passContext is what decisions about a node pool depend on, apart from the pending work.
type passContext struct {
	pub          *replica.Published
	flight       model.Overlay
	cursor       structs.NodeID
	reservations []*structs.Reservation
	starved      bool            // a job waits for capacity in the pool
	freed        []model.Freed   // see decider.freed
	losses       *endedSums      // for scheduler.Input.Typical; nil: Service.ended
	contenders   scheduler.Input // only Running and Chooser are set
}

// decided is the result of a pass.
type decided struct {
	pass   broker.Pass
	input  *scheduler.Input
	plan   scheduler.Plan
	report scheduler.Report
	failed map[structs.JobKey]string // reasons for jobs whose decision panicked
	took   time.Duration
}

// answering collects the outcomes of one job's plans.
type answering struct {
	key     structs.JobKey
	waits   int // plans without an answer
	refused bool
	at      structs.Index
}

// purpose is the reason for a command in flight. One field is set.
type purpose struct {
	batch uint64          // sequence number of the planner's batch
	fail  *structs.JobKey // end the evaluations of a job whose decision panicked
	never *structs.JobKey // stop a job that can never start
}

// outcome is the result of a command.
type outcome struct {
	purpose
	began time.Time
	res   structs.Result
	err   error // the command was not written, or its outcome is unknown
}
