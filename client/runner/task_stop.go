package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// finish ends the task for good.
func (t *task) finish(ctx context.Context, events ...structs.TaskEvent) {
	t.change(ctx, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.Handle, rec.ResumeAt = agentstore.PhaseDead, nil, 0
		st.State = stateDead
		if st.FinishedAt == 0 {
			st.FinishedAt = now()
		}
	}, events...)
}

// watch waits for the end of a running task, or for a request to it: without a goroutine if the driver calls when the
// task ends, because a node may have a thousand tasks at rest. Otherwise it does so in a new goroutine. The one that started
// the task has a large stack by now, and a new one stays small.
func (t *task) watch(ctx context.Context, h driver.Task) {
	if e, ok := h.(driver.Ender); ok {
		t.mu.Lock()
		t.parked, t.cancel = true, t.unpark
		asked := t.want != nil
		t.mu.Unlock()
		e.OnEnd(t.unpark)
		if asked {
			t.unpark()
		}
		return
	}
	if !t.r.cfg.Agent.Go(func() { t.wait(ctx, h) }) {
		t.idle()
	}
}

// unpark gives a parked task a goroutine again. Calls for a task that is not parked do nothing.
func (t *task) unpark() {
	t.mu.Lock()
	was, h := t.parked, t.handle
	t.parked = false
	t.mu.Unlock()
	if was {
		ctx := t.r.context()
		t.r.cfg.Agent.Go(func() { t.wait(ctx, h) })
	}
}

// wait waits until the run ends or the task gets a request.
func (t *task) wait(ctx context.Context, h driver.Task) {
	if h, ok := h.(driver.Notifier); ok {
		h.SetNotify(func(message string) { t.note(ctx, event(EventDriver, message)) })
	}
	wctx, cancel := t.waiting(ctx, wishNone)
	res, err := h.Wait(wctx)
	cancel()
	t.woken(ctx, h, &res, err)
}

// woken acts on the end of a wait.
func (t *task) woken(ctx context.Context, h driver.Task, res *driver.ExitResult, err error) {
	switch {
	case ctx.Err() != nil:
		res = nil
	case err == nil:
	case t.wanted().kind != wishNone:
		res = t.stop(ctx, h)
	case errors.Is(err, driver.ErrLost):
		res = lostResult()
	default:
		t.r.log().Warn("waiting for a task failed", "task", t.name, "error", err)
		if sleep(ctx, waitAgain+rand.N(waitAgain)) {
			t.watch(ctx, h)
			return
		}
		res = nil
	}
	if res != nil {
		t.ended(ctx, h, res)
	}
	t.run(ctx)
}

// waitAgain is the shortest pause after a failed wait; the longest is twice that.
const waitAgain = time.Second

func lostResult() *driver.ExitResult {
	return &driver.ExitResult{ExitCode: -1, LostStatus: true, Err: "the node has lost the task", EndedAt: time.Now()}
}

// stop ends a run: shutdown delay, checkpoint, signal, kill timeout, kill.
func (t *task) stop(ctx context.Context, h driver.Task) *driver.ExitResult {
	w := t.wanted()
	t.thaw(ctx, h, thawToEnd)
	if w.event.Type != EventKilling { // otherwise the event is recorded below, with the kill timeout
		t.note(ctx, w.event)
	}
	spec := t.spec()
	if spec == nil {
		spec = &structs.Task{Name: t.name}
	}
	if w.kind == wishKill && spec.ShutdownDelay > 0 && !t.r.noShutdownDelay() {
		t.note(ctx, event(EventWaitingShut, fmt.Sprintf("Waiting for shutdown_delay of %s before killing the task.", spec.ShutdownDelay)))
		dctx, cancel := context.WithTimeout(ctx, spec.ShutdownDelay)
		res, err := h.Wait(dctx)
		cancel()
		if err == nil {
			return &res
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	if w.kind == wishKill && !t.r.lapsed() {
		if res := t.save(ctx, h, t.r.endCause()); res != nil {
			return res
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	timeout := spec.KillTimeout
	if timeout <= 0 {
		timeout = structs.KillTimeoutDefault
	}
	if most := t.r.cfg.Policy.MaxKillTimeout; most > 0 && timeout > most {
		timeout = most
	}
	t.note(ctx, killing(timeout, w.event))
	bo := backoff{min: 200 * time.Millisecond, max: 10 * time.Second}
	for {
		err := h.Stop(ctx, spec.KillSignal, timeout)
		if err == nil {
			var res driver.ExitResult
			if res, err = h.Wait(ctx); err == nil {
				return &res
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, driver.ErrLost) {
			return lostResult()
		}
		t.r.log().Error("killing a task failed; trying again", "task", t.name, "error", err)
		if !sleep(ctx, bo.next()) {
			return nil
		}
	}
}

// ended records the end of a run and its consequence in one write. Only then may the driver forget the run.
func (t *task) ended(ctx context.Context, h driver.Task, res *driver.ExitResult) {
	e := terminated(res)
	t.rest(ctx, res.Successful())
	for _, k := range taskHooks {
		if k.exited != nil {
			k.exited(t)
		}
	}
	w := t.wanted()
	if w.kind != wishKill && t.r.endedByLease(ctx) {
		w.kind = wishKill
	}
	switch w.kind {
	case wishKill:
		killed := event(EventKilled, "Task successfully killed")
		t.close(ctx, h, soon, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase = agentstore.PhaseDead
			st.State, st.FinishedAt = stateDead, e.Time
		}, e, killed)
	case wishRestart:
		t.fulfilled(w)
		t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, now()
			rec.Attempt++
			rec.Forced = true
			st.State, st.LastRestart = statePending, now()
			st.Restarts++
		}, e, restarting(0, "Restart requested"))
	case wishUnhealthy:
		t.fulfilled(w)
		t.conclude(ctx, h, false, false, e)
	default:
		if res.LostStatus && t.rebooted() {
			t.resume(ctx, h, e)
			return
		}
		t.conclude(ctx, h, res.Successful(), false, e)
	}
}

// close records the end of a run, then makes the driver forget it. The last run is forgotten only when the servers know
// how it ended (see Runner.Acked): if the agent's state is lost before, the driver still knows, and the task does not
// run again. For the same reason the end of the last run need not be on disk before the end of the allocation is.
func (t *task) close(ctx context.Context, h driver.Task, store durable, fn func(*agentstore.TaskRecord, *structs.TaskState), events ...structs.TaskEvent) {
	t.mu.Lock()
	t.handle = nil
	t.mu.Unlock()
	t.change(ctx, store, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Old, rec.Handle, rec.Frozen = rec.Handle, nil, 0
		fn(rec, st)
	}, events...)
	if h == nil || ctx.Err() != nil {
		return
	}
	if t.dead() {
		t.mu.Lock()
		t.last = h
		t.mu.Unlock()
		return
	}
	if err := h.Destroy(ctx); err != nil {
		t.r.log().Warn("cleaning up after a task failed; it is repeated at the next start of the agent", "task", t.name, "error", err)
		return
	}
	t.mu.Lock()
	t.rec.Old = nil
	t.mu.Unlock()
}

// destroyOld makes the driver forget a run whose end is recorded.
func (t *task) destroyOld(ctx context.Context) {
	t.mu.Lock()
	old, h := t.rec.Old, t.last
	t.rec.Old, t.last = nil, nil
	t.mu.Unlock()
	if old == nil {
		return
	}
	var err error
	if h == nil {
		spec := t.spec()
		if spec == nil || t.r.cfg.Host.Drivers[spec.Driver] == nil {
			return
		}
		h, err = t.r.cfg.Host.Drivers[spec.Driver].Recover(ctx, old)
	}
	if err == nil {
		err = h.Destroy(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		t.r.log().Warn("cleaning up after an earlier run failed", "task", t.name, "error", err)
	}
}
