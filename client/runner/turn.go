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
		turn, err := t.askTurn(ctx)
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

func (t *task) askTurn(ctx context.Context) (*methods.SaveTurn, error) {
	actx, cancel := context.WithTimeout(ctx, turnSilence/4)
	defer cancel()
	return t.r.cfg.Servers.SaveTurn(actx, t.r.id)
}
