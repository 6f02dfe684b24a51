package decide

import (
	"context"
	"fmt"
)

// New returns a service that has learned nothing.
func New(env Environment) *Service {
	return &Service{env: env, log: env.Logger, dryRuns: make(turnstile, dryRunsMax), advisings: make(turnstile, advisingsMax)}
}

// Wait waits for passes that still compute after Run has returned. Their results are dropped.
func (s *Service) Wait() { s.computing.Wait() }

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
