package server

import (
	"context"

	"github.com/muster-sched/muster/structs"
)

// collector forces runs of the collection duty.
type collector struct {
	force chan chan error // taken by the duty's runner
}

func newCollector() collector { return collector{force: make(chan chan error)} }

// collectNow runs a collection that ignores ages, and waits for it.
func (s *Server) collectNow(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.collect.force <- answer:
	case <-ctx.Done():
		return structs.Errorf(structs.CodeBusy, "a collection is in progress; retry in a few seconds")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return structs.Errorf(structs.CodeTimeout, "the collection is still in progress")
	}
}
