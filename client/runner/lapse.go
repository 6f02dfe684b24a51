package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/structs"
)

// An allocation whose group has stop_on_client_after lapses when the servers have been out of reach for that long. Its
// tasks end at once and in no order, no poststop task runs, and it never starts again: the servers may have replaced it
// by then. The node's supervisor makes sure of it without the agent (package supervisor); the runner follows.

// errNoContact means that a start was abandoned because the task must end.
var errNoContact = errors.New("stopped while it waited for contact with the servers")

// StopOnClient returns for how long the allocation may run without contact to the servers; ok is false without a limit.
func (r *Runner) StopOnClient() (limit time.Duration, ok bool) {
	g := r.group()
	if g == nil || r.Final() != nil {
		return 0, false
	}
	return g.StopOnClient()
}

// Lapse ends the allocation because the servers were out of reach for too long. The servers count it as lost.
func (r *Runner) Lapse() {
	limit, ok := r.StopOnClient()
	if !ok {
		return
	}
	desc := fmt.Sprintf("the servers were out of reach for longer than stop_on_client_after of %s", limit)
	r.stop(&stopReason{event: event(EventKilling, desc), desc: desc, force: true, lapsed: true})
}

// lapsed reports whether the allocation has lapsed.
func (r *Runner) lapsed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopping != nil && r.stopping.lapsed
}

// endedByLease reports whether a task ended because its allocation lapsed, which the agent may not know yet.
func (r *Runner) endedByLease(ctx context.Context) bool {
	if _, ok := r.StopOnClient(); !ok || r.cfg.Agent.Lapsed == nil || !r.cfg.Agent.Lapsed(ctx, r.id) {
		return false
	}
	r.Lapse()
	return true
}

// endStops ends the poststop tasks of a lapsed allocation, and returns true when they have ended.
func (r *Runner) endStops(ctx context.Context, ms []member) bool {
	done := true
	for _, m := range ms {
		switch {
		case m.role != roleStop || m.task.dead():
		case !m.begun():
			m.finish(ctx)
		default:
			done = false
			m.ask(ctx, wish{wishKill, r.stopReason().event})
		}
	}
	return done
}

// awaitContact delays the start of a task that must not run without contact, until there is contact.
func awaitContact(ctx context.Context, a *attempt) error {
	limit, ok := a.task.r.StopOnClient()
	if !ok {
		return nil
	}
	a.config.StopOnClientAfter = limit
	if most := a.task.r.cfg.Policy.MaxKillTimeout; most > 0 {
		a.config.KillTimeout = min(max(a.config.KillTimeout, 0), most)
	}
	if a.config.KillTimeout == 0 {
		a.config.KillTimeout = structs.KillTimeoutDefault
	}
	if a.task.r.cfg.Agent.Contact == nil {
		return nil
	}
	wctx, cancel := a.task.waiting(ctx, wishNone)
	defer cancel()
	if err := a.task.r.cfg.Agent.Contact(wctx, limit); err != nil {
		if ctx.Err() == nil && wctx.Err() != nil {
			return errNoContact
		}
		return err
	}
	return nil
}
