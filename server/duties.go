package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

const (
	dutyBacklog = 1024        // applied batches that may wait for a duty; beyond it the duty loads the newest state
	dutyRetry   = time.Second // pause before a duty whose command could not be written loads the state again
	dutyIdle    = time.Hour   // longest wait without a due time
)

// duties counts the commands of all duties of the leader, over all terms, and passes on requests to collect now.
type duties struct {
	written atomic.Int64
	refused atomic.Int64 // by Apply, because the state had changed
	retried atomic.Int64 // times a command could not be written

	collect chan chan error // taken by the runner of the collection duty
}

// collectNow runs a collection that ignores ages, and waits for it.
func (s *Server) collectNow(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.duties.collect <- answer:
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

// dutyService makes a leader service of a duty. force requests runs of a duty.Forced and receives their results; it is
// nil for other duties.
func (s *Server) dutyService(name string, d duty.Duty, force <-chan chan error) Service {
	return Service{name, func(ctx context.Context, _ uint64) error { return s.runDuty(ctx, name, d, force) }}
}

// runDuty runs one duty: it feeds applied batches, waits for the next due time and writes the commands.
func (s *Server) runDuty(ctx context.Context, name string, d duty.Duty, force <-chan chan error) error {
	forced, _ := d.(duty.Forced)
	sub := s.replica.Subscribe(name, dutyBacklog)
	defer s.replica.Unsubscribe(sub)
	d.Load(s.Published().Snapshot, s.replica.Now())
	timer := time.NewTimer(dutyIdle)
	defer timer.Stop()
	var kept []duty.Command
	var asked chan error // receives the result of the forced run in progress
	defer func() {
		if asked != nil {
			asked <- structs.ErrNoLeader
		}
	}()
	for {
		cmds, next := d.Due(s.Published().Snapshot, s.replica.Now())
		var err error
		if kept, err = s.writeDue(ctx, name, append(kept, cmds...)); asked != nil && (err != nil || forced.Idle()) {
			asked <- err
			asked = nil
		}
		if err != nil {
			if !pause(ctx, dutyRetry) {
				return nil
			}
			d.Load(s.Published().Snapshot, s.replica.Now())
			continue
		}
		wait := dutyIdle
		if next != 0 {
			wait = min(wait, max(next.Sub(s.replica.Now()), time.Millisecond))
		}
		timer.Reset(wait)
		others := force
		if asked != nil {
			others = nil // one at a time
		}
		select {
		case <-ctx.Done():
			return nil
		case asked = <-others:
			forced.Force()
		case <-timer.C:
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					d.Load(a.Snapshot, s.replica.Now())
				} else {
					d.Feed(a.Snapshot, &a.Delta, s.replica.Now())
				}
			}
		}
	}
}

// writeDue writes commands one after the other and waits for each, so that the duty sees their effects in the next
// state. A command that Apply refuses is done, because the state has changed. If a command cannot be written, writeDue
// stops and returns the remaining commands that have Keep set.
func (s *Server) writeDue(ctx context.Context, name string, cmds []duty.Command) (kept []duty.Command, err error) {
	for i, c := range cmds {
		res, err := s.apply(ctx, replica.LanePriority, c.Command)
		switch {
		case err == nil:
			s.duties.written.Add(1)
			if c.Done != "" {
				s.log.Info(c.Done, "about", c.Subject)
			}
		case res.Err != nil:
			s.duties.refused.Add(1)
			s.log.Info("a command of a leader duty was refused; the state has moved on", "duty", name, "about", c.Subject, "why", err)
		default:
			for _, rest := range cmds[i:] {
				if rest.Keep {
					kept = append(kept, rest)
				}
			}
			if ctx.Err() == nil {
				s.duties.retried.Add(1)
				s.log.Warn("a leader duty could not be carried out; trying again", "duty", name, "about", c.Subject, "error", err)
			}
			return kept, err
		}
	}
	return nil, nil
}
