// Package decide decides where work runs. Service.Run is the leader's scheduling service: it feeds applied batches to
// the broker, runs passes of package scheduler on the published state, and writes their plans. The other methods of
// Service answer questions about decisions at any time: what a job would get (DryRun), which job is next (Line), when
// and how a waiting job may start (StartEstimates, Advise). It knows no API calls; package server connects it to them.
package decide

import (
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

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

// advisingsMax bounds the concurrent searches for advice. Beyond it, answers come without advice.
const advisingsMax = 2

// dryRunsMax bounds the concurrent dry runs; others wait.
const dryRunsMax = 2

// Limits of the decision path.
const (
	subscriptionMax = 1024                   // applied batches that may wait for the owner; beyond it the owner reloads from the state
	passSteps       = 8_000_000              // nodes that one pass may look at; the next pass decides the rest
	passPlaces      = 10_000                 // placements after which a pass decides no further job; see DESIGN.md
	lostPause       = 100 * time.Millisecond // wait after plans were lost: mostly the term ends meanwhile, otherwise decisions start over in it
	countEvery      = time.Second            // for Metrics.Holding, which counts all entries of the broker
)
