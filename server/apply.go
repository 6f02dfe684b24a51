package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// applyPatience bounds an Apply whose context has no deadline. After it the error is CodeUnknown.
const applyPatience = 30 * time.Second

// Apply writes a command and waits for its result. If the state machine refuses the command, that is the error. Apply
// sets Time and Seed, and keeps By.
func (s *Server) Apply(ctx context.Context, cmd structs.Command) (structs.Result, error) {
	return s.ApplyLane(ctx, replica.LaneUser, cmd)
}

// ApplyLane is Apply in a given lane.
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

// Propose starts a command without waiting for its outcome. See replica.Replica.Propose.
func (s *Server) Propose(lane replica.Lane, cmd structs.Command) *replica.Proposal {
	return s.replica.Propose(lane, cmd)
}

// Published returns the newest state that this server has applied.
func (s *Server) Published() *replica.Published { return s.replica.Published() }

// Subscribe returns a subscription to the batches applied from now on. limit bounds the waiting batches; name is for
// the log.
func (s *Server) Subscribe(name string, limit int) *replica.Subscription {
	return s.replica.Subscribe(name, limit)
}

// Unsubscribe ends a subscription.
func (s *Server) Unsubscribe(sub *replica.Subscription) { s.replica.Unsubscribe(sub) }

// PassMetrics returns the metrics of deciding, over all terms in which this server led.
func (s *Server) PassMetrics() decide.Metrics { return s.decide.Metrics() }
