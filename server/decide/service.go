// Package decide decides where work runs. Service.Run is the leader's scheduling service: it feeds what was applied to the
// broker, runs passes of package scheduler on the published state, and writes their plans. The rest of Service answers
// questions about decisions at any time: what a job would get (DryRun), who is next (Line), when and how a waiting job may
// start (StartEstimates, Advise). It knows neither calls nor users; package server binds it to them.
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

// Environment is everything that a Service works with.
type Environment struct {
	Region  string // whose limits of quotas apply
	Replica Replica
	Logger  hclog.Logger
	Observe Observers
	Testing TestingKnobs
}

// Observers take measurements of passes and plans. Run needs all of them.
type Observers struct {
	Pass, Commit         func(seconds float64) // of computing a pass, and from sending a log entry of plans to its answer
	PlanDepth, PlanPlans func(n float64)       // of a log entry that is sent: entries in flight, itself included, and plans in it
}

// Replica is the state that decisions are made on, and the log that they are written to. replica.Replica is one.
type Replica interface {
	Published() *replica.Published
	Subscribe(name string, limit int) *replica.Subscription
	Unsubscribe(*replica.Subscription)
	// Now is the log time of this moment.
	Now() structs.LogTime
	Propose(replica.Lane, structs.Command) *replica.Proposal
	// Barrier waits until everything that is in the log now has been applied.
	Barrier() error
}

// TestingKnobs are the places where tests interfere. The zero value is production's.
type TestingKnobs struct {
	BeforeSchedule func(in scheduler.Input) // called in each pass before it decides, or nil; may panic
}

// Service is the deciding part of one server. It outlives terms: each term in which Run is called has its own
// decider. All methods but Run may be called at any time by any goroutine.
type Service struct {
	env Environment
	log hclog.Logger

	// What follows from the log. The decider keeps it up to date.
	predictor predictor
	history   nodeHistory
	reports   reportStore
	inputs    inputStore

	totals    totals
	decider   atomic.Pointer[decider] // of the term in which this server decides, or nil
	metrics   atomic.Pointer[Metrics]
	lastTerm  atomic.Uint64 // the newest term in which Run was called
	dryRuns   turnstile
	advisings turnstile
}

// New returns a service that has learned nothing yet.
func New(env Environment) *Service {
	return &Service{env: env, log: env.Logger, dryRuns: make(turnstile, dryRunsMax), advisings: make(turnstile, advisingsMax)}
}

// Run decides until ctx ends. It returns an error when the outcome of a plan became unknown. It must then be called
// again: it starts over from the state, after a barrier, so that what was in the log is in the state, too.
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

// Metrics are the counts of this moment.
func (s *Service) Metrics() Metrics {
	if m := s.metrics.Load(); m != nil {
		return *m
	}
	return Metrics{}
}

// Learn replaces what was learned of run times and nodes by what a state teaches, as a new leader does.
func (s *Service) Learn(snap *state.Snapshot) {
	s.predictor.load(snap)
	s.history.load()
}

// PredictionErrors say how right predicted run times were, over what ended in the window that is learned from.
func (s *Service) PredictionErrors() predict.Errors { return s.predictor.right() }

// Reports are the newest reports of the groups of a waiting job; nil on servers that do not decide.
func (s *Service) Reports(k structs.JobKey) []*structs.GroupReport { return s.reports.of(k) }

// Input is the input of the newest pass of a node pool on this server, or nil.
func (s *Service) Input(pool structs.PoolName) *scheduler.Input { return s.inputs.of(pool) }
