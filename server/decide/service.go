// Package decide decides where work runs. Service.Run is the leader's scheduling service: it feeds applied batches to
// the broker, runs passes of package scheduler on the published state, and writes their plans. The other methods of
// Service answer questions about decisions at any time: what a job would get (DryRun), which job is next (Line), when
// and how a waiting job may start (StartEstimates, Advise). It knows no API calls; package server connects it to them.
package decide

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/predict"
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
	decider   atomic.Pointer[decider] // nil while this server does not decide
	metrics   atomic.Pointer[Metrics]
	lastTerm  atomic.Uint64 // newest term in which Run was called
	dryRuns   turnstile
	advisings turnstile
}

// New returns a service that has learned nothing.
func New(env Environment) *Service {
	return &Service{env: env, log: env.Logger, dryRuns: make(turnstile, dryRunsMax), advisings: make(turnstile, advisingsMax)}
}

// Run decides until ctx ends. It returns an error if the outcome of a plan is unknown, and must then be called again:
// it starts over from the state, after a barrier, so that the state includes everything in the log.
func (s *Service) Run(ctx context.Context, term uint64) error {
	if s.lastTerm.Swap(term) == term {
		if err := s.env.Replica.Barrier(); err != nil {
			return fmt.Errorf("barrier before deciding: %w", err)
		}
	}
	sub := s.env.Replica.Subscribe("passes", subscriptionMax)
	defer s.env.Replica.Unsubscribe(sub)
	d := newDecider(s, term)
	s.decider.Store(d)
	defer close(d.inbox.closed)
	defer s.decider.CompareAndSwap(d, nil)
	return d.run(ctx, sub)
}

// Metrics returns the current counts.
func (s *Service) Metrics() Metrics {
	if m := s.metrics.Load(); m != nil {
		return *m
	}
	return Metrics{}
}

// Learn replaces what was learned about run times and nodes with what a state teaches, as a new leader does.
func (s *Service) Learn(snap *state.Snapshot) {
	s.predictor.load(snap)
	s.history.load()
}

// PredictionErrors returns the errors of predicted run times for work that ended in the predictor's window.
func (s *Service) PredictionErrors() predict.Errors { return s.predictor.right() }

// Reports returns the newest reports of a waiting job's groups; nil on servers that do not decide.
func (s *Service) Reports(k structs.JobKey) []*structs.GroupReport { return s.reports.of(k) }

// Input returns the input of the newest pass of a node pool on this server, or nil.
func (s *Service) Input(pool structs.PoolName) *scheduler.Input { return s.inputs.of(pool) }
