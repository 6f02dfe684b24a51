package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Bounds of waiting for a turn to save state.
const (
	turnSilence = time.Minute // without an answer for this long, the task is notified anyway
	turnAgain   = 2 * time.Second
)

// awaitTurn waits until the servers let the allocation save its state: they limit how many save at a time. The task
// keeps running meanwhile. awaitTurn returns the result of the task if it ended, else nil.
func (t *task) awaitTurn(ctx context.Context, h driver.Task) *driver.ExitResult {
	if ask := t.r.cfg.Servers.SaveTurn; ask == nil || t.r.Alloc().EndCause() == "" {
		return nil
	}
	told, heard := false, time.Now()
	for ctx.Err() == nil {
		turn, err := t.askTurn(ctx, false)
		switch code := structs.CodeOf(err); {
		case err == nil && turn.Now:
			return nil
		case err == nil:
			heard = time.Now()
			if !told && turn.Where != "" {
				told = true
				t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Waits for its turn to save its state: %s lets %d do so at a time, %d are before it", turn.Where, turn.Limit, turn.Before),
					"waits", turn.Where))
			}
		case code != structs.CodeUnavailable && code != structs.CodeBusy && code != structs.CodeTimeout && ctx.Err() == nil, time.Since(heard) >= turnSilence:
			t.r.log().Warn("no turn to save state from the servers; going ahead", "task", t.name, "error", err)
			return nil
		default:
			turn = &methods.SaveTurn{Again: turnAgain}
		}
		wctx, cancel := context.WithTimeout(ctx, max(turn.Again, 100*time.Millisecond))
		res, err := h.Wait(wctx)
		cancel()
		if err == nil {
			return &res
		}
	}
	return nil
}

func (t *task) askTurn(ctx context.Context, periodic bool) (*methods.SaveTurn, error) {
	actx, cancel := context.WithTimeout(ctx, turnSilence/4)
	defer cancel()
	return t.r.cfg.Servers.SaveTurn(actx, t.r.id, periodic)
}

// periodicTurn waits for a turn of a task to save its state at an interval.
type periodicTurn struct {
	stop context.CancelFunc
	due  chan time.Time // 1 deep: the turn has come; when the save was due
}

// hasTurn reports whether a task whose interval has passed may save its state now, and when that was due. If it may not
// yet, the servers are asked until it may; the caller is woken then. It waits no longer than another interval.
func (p *progress) hasTurn(ctx context.Context, c *structs.Checkpoint) (due time.Time, now bool) {
	if p.t.r.cfg.Servers.SaveTurn == nil {
		return time.Now(), true
	}
	if p.turn == nil {
		wctx, stop := context.WithTimeout(ctx, min(c.Interval, structs.CheckpointWaitMax))
		turn := &periodicTurn{stop, make(chan time.Time, 1)}
		p.turn = turn
		go func() {
			defer stop()
			due := p.periodicDue(wctx)
			if ctx.Err() == nil {
				turn.due <- due
				p.hurry(0)
			}
		}()
	}
	select {
	case due = <-p.turn.due:
		p.turn = nil
		return due, true
	case <-p.ended:
	default:
	}
	return due, false
}

// noTurn ends the wait for a turn: the task has saved its state meanwhile, or it is about to end.
func (p *progress) noTurn() {
	if p.turn != nil {
		p.turn.stop()
		p.turn = nil
	}
}

// periodicDue asks the servers until the task may save its state, or ctx ends, and returns when its turn began.
func (p *progress) periodicDue(ctx context.Context) time.Time {
	for heard := time.Now(); ; {
		turn, err := p.t.askTurn(ctx, true)
		switch {
		case err == nil && turn.Now && turn.Due > 0:
			return turn.Due.Time()
		case err == nil && turn.Now, err != nil && time.Since(heard) >= turnSilence:
			return time.Now()
		case err == nil:
			heard = time.Now()
		default:
			turn = &methods.SaveTurn{Again: turnAgain}
		}
		select {
		case <-time.After(max(turn.Again, 100*time.Millisecond)):
		case <-ctx.Done():
			return time.Now()
		case <-p.ended:
			return time.Now()
		}
	}
}
