package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// applyPatience bounds an apply whose context has no deadline. After it the error is CodeUnknown.
const applyPatience = 30 * time.Second

// apply writes a command and waits for its result. If the state machine refuses the command, that is the error. It sets
// Time and Seed, and keeps By.
func (s *Server) apply(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, applyPatience)
		defer cancel()
	}
	if proposed, ok := ctx.Value(proposalsKey{}).(*atomic.Bool); ok {
		proposed.Store(true)
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

type proposalsKey struct{}

// noteProposals returns a context in which apply notes that it proposed a command.
func noteProposals(ctx context.Context) (context.Context, *atomic.Bool) {
	proposed := new(atomic.Bool)
	return context.WithValue(ctx, proposalsKey{}, proposed), proposed
}

// Published returns the newest state that this server has applied.
func (s *Server) Published() *replica.Published { return s.replica.Published() }
