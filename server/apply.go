package server

import (
	"context"
	"github.com/muster-sched/muster/server/decide"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// applyPatience bounds an Apply whose context has no deadline; beyond it the outcome is CodeUnknown.
const applyPatience = 30 * time.Second

// Apply writes a command and waits for its result. A command that the state machine refuses is returned as an error.
// Time and Seed are minted here; By is kept.
func (s *Server) Apply(ctx context.Context, cmd structs.Command) (structs.Result, error) {
	return s.ApplyLane(ctx, replica.LaneUser, cmd)
}

// ApplyLane is Apply in a lane.
func (s *Server) ApplyLane(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, applyPatience)
		defer cancel()
	}
	res, err := s.decide.ProposeJob(lane, cmd).Wait(ctx)
	if err != nil {
		return res, err
	}
	if res.Err != nil {
		return res, res.Err
	}
	return res, nil
}

// Propose starts a command without waiting. See replica.Replica.Propose.
func (s *Server) Propose(lane replica.Lane, cmd structs.Command) *replica.Proposal {
	return s.replica.Propose(lane, cmd)
}

// Published is the newest state that this server has applied.
func (s *Server) Published() *replica.Published { return s.replica.Published() }

// Subscribe follows the applied batches from now on. limit is how many may wait; name is for the log.
func (s *Server) Subscribe(name string, limit int) *replica.Subscription {
	return s.replica.Subscribe(name, limit)
}

// Unsubscribe ends a subscription.
func (s *Server) Unsubscribe(sub *replica.Subscription) { s.replica.Unsubscribe(sub) }

// PassMetrics returns those of the current term, or of the last one, in which this server led.
func (s *Server) PassMetrics() decide.Metrics { return s.decide.Metrics() }
