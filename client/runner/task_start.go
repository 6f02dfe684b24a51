package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// startPatience limits how long a driver may take to start a task. After that the start is repeated with the same id.
const startPatience = 90 * time.Second

// startRepeats is how often a start with an unknown outcome is tried before it counts as failed.
const startRepeats = 3

// start gives the task a goroutine, unless it has one or has ended.
func (t *task) start(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active || t.rec.Phase == agentstore.PhaseDead {
		return
	}
	t.active = t.r.cfg.Agent.Go(func() {
		t.destroyOld(ctx) // of the previous run
		t.run(ctx)
	})
}

// run takes the task from the phase in its record until it runs or is dead. It also returns when ctx ends: then the
// agent is stopping, and the task continues without it.
func (t *task) run(ctx context.Context) {
	for ctx.Err() == nil {
		switch t.phase() {
		case agentstore.PhaseDead:
			t.idle()
			return
		case agentstore.PhaseBackoff:
			t.pause(ctx)
		case agentstore.PhaseNew:
			if w := t.wanted(); w.kind == wishKill {
				t.finish(ctx, w.event)
			} else if t.awaitResume(ctx) || t.wanted().kind == wishRestart {
				t.begin(ctx)
			}
		case agentstore.PhaseStarting:
			if h := t.attempt(ctx); h != nil {
				t.watch(ctx, h)
				t.r.driveHere(ctx)
				return
			}
		}
	}
	t.idle()
}

// begin records that the driver is about to be asked to start the task. The servers see no difference, and nothing becomes due
// by it, unless the allocation was suspended at this moment: it is not frozen then.
func (t *task) begin(ctx context.Context) {
	t.mu.Lock()
	t.rec.Phase, t.rec.Handle, t.rec.ResumeAt, t.rec.BootID, t.rec.Epoch = agentstore.PhaseStarting, nil, 0, t.r.cfg.Host.BootID, 0
	t.rec.Frozen = 0
	rec := t.rec
	t.mu.Unlock()
	t.r.persist(ctx, "task "+t.name, func() error { return t.r.cfg.Host.Store.PutTask(t.r.id, t.name, &rec) })
	if t.r.suspended() {
		t.r.changed()
	}
}

// pause waits out the delay before a restart.
func (t *task) pause(ctx context.Context) {
	t.mu.Lock()
	resume := t.rec.ResumeAt
	t.mu.Unlock()
	wctx, cancel := t.waiting(ctx, wishNone)
	timer := time.NewTimer(time.Until(resume.Time()))
	select {
	case <-wctx.Done():
	case <-timer.C:
	}
	timer.Stop()
	cancel()
	if ctx.Err() != nil {
		return
	}
	w := t.wanted()
	if w.kind == wishKill {
		t.finish(ctx, w.event)
		return
	}
	t.fulfilled(w)
	if t.awaitResume(ctx) {
		t.begin(ctx)
	} // otherwise run calls pause again
}

// attempt finds or starts a run of the task. It returns nil if the task does not run; the consequence is recorded by
// then.
func (t *task) attempt(ctx context.Context) driver.Task {
	handle, again, err := t.obtain(ctx)
	if handle != nil {
		t.adopt(ctx, handle, again)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		if t.discard(ctx) {
			t.startFailed(ctx, err)
		}
	case handle == nil: // lost while no agent ran
		t.ended(ctx, nil, &driver.ExitResult{ExitCode: -1, LostStatus: true, Err: "the task was gone when the agent came back", EndedAt: time.Now()})
	}
	return handle
}

// obtain finds the running task again, or starts it. It returns nil and no error if the task is lost. again is as in adopt.
func (t *task) obtain(ctx context.Context) (h driver.Task, again bool, err error) {
	t.mu.Lock()
	handle, number := t.rec.Handle, t.rec.Attempt
	again = t.rec.State.State == stateRunning // without a handle: a start with its id finds it
	t.mu.Unlock()
	spec := t.spec()
	if spec == nil {
		return nil, again, driver.Permanent(fmt.Errorf("the job has no task %q any more", t.name))
	}
	drv := t.r.cfg.Host.Drivers[spec.Driver]
	if drv == nil {
		return nil, again, driver.Permanent(fmt.Errorf("this node has no driver %q", spec.Driver))
	}
	if handle != nil {
		h, err = t.recover(ctx, drv, handle)
		return h, again, err
	}
	a := &attempt{task: t, spec: spec, driver: drv, note: func(e structs.TaskEvent) { t.note(ctx, e) }}
	a.joined = func(epoch uint64) {
		t.change(ctx, before, func(rec *agentstore.TaskRecord, _ *structs.TaskState) { rec.Epoch = epoch })
	}
	if a.quick() {
		if err := a.awaitSlot(ctx, t.r.cfg.Host.Starts); err != nil {
			return nil, again, err
		}
		defer t.r.cfg.Host.Starts.release()
	}
	t.r.touched.Store(true)
	if err := a.prepare(ctx); err != nil {
		return nil, again, err
	}
	a.config.TaskID = t.id(number)
	h, err = a.start(ctx)
	return h, again, err
}

// prepare runs the hooks before the start.
func (a *attempt) prepare(ctx context.Context) error {
	for i := range taskHooks {
		h := &taskHooks[i]
		if h.prestart == nil {
			continue
		}
		if err := h.prestart(ctx, a); err != nil {
			return &setupError{hook: h.name, err: err}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// start asks the driver to start the task.
func (a *attempt) start(ctx context.Context) (h driver.Task, err error) {
	for range startRepeats {
		sctx, cancel := context.WithTimeout(ctx, startPatience)
		h, err = a.driver.Start(sctx, &a.config)
		timedOut := sctx.Err() != nil
		cancel()
		a.task.mu.Lock()
		a.task.untold = err != nil && timedOut
		a.task.mu.Unlock()
		if err == nil {
			return h, nil
		}
		if !timedOut || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// awaitSlot waits for a slot to start the task.
func (a *attempt) awaitSlot(ctx context.Context, starts Starts) error {
	if a.task.wanted().kind == wishNone && starts.tryAcquire() {
		return nil
	}
	return a.interruptibly(ctx, starts.acquire)
}

// discard ends what a start with an unknown outcome may have left running, before the failure to repeat it is recorded. It tries until
// the driver has answered, and returns false if ctx ends first.
func (t *task) discard(ctx context.Context) bool {
	t.mu.Lock()
	untold, id := t.untold, t.id(t.rec.Attempt)
	t.mu.Unlock()
	spec := t.spec()
	if !untold || spec == nil {
		return true
	}
	drv, _ := t.r.cfg.Host.Drivers[spec.Driver].(driver.Discarder)
	if drv == nil {
		return true
	}
	bo := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	for {
		err := drv.Discard(ctx, id, spec.KillSignal, spec.KillTimeout)
		if err == nil {
			t.mu.Lock()
			t.untold = false
			t.mu.Unlock()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		t.r.log().Warn("cannot end a task that an earlier start may have left", "task", t.name, "error", err)
		if !sleep(ctx, bo.next()) {
			return false
		}
	}
}

// recover asks the driver for a task that was started earlier. It retries while the driver cannot answer: giving up
// could start the task twice.
func (t *task) recover(ctx context.Context, drv driver.Driver, handle []byte) (driver.Task, error) {
	bo := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	for warned := false; ; {
		h, err := drv.Recover(ctx, handle)
		if err == nil {
			return h, nil
		}
		if errors.Is(err, driver.ErrLost) {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t.r.log().Warn("cannot find out about a task that was running", "task", t.name, "error", err)
		if !warned {
			warned = true
			t.note(ctx, event(EventDriverFailure, "The driver does not know whether the task still runs: "+err.Error()))
		}
		if !sleep(ctx, bo.next()) {
			return nil, ctx.Err()
		}
	}
}

// adopt records that the task runs, and leaves it to the caller to wake the runner. again means that the task was found, not
// started.
func (t *task) adopt(ctx context.Context, h driver.Task, again bool) {
	st := h.Status()
	started := structs.LogTimeOf(st.StartedAt)
	if started == 0 {
		started = now()
	}
	var ev []structs.TaskEvent
	if !again {
		e := event(EventStarted, "Task started by client")
		e.Time = started
		ev = append(ev, e)
	}
	t.mu.Lock()
	t.handle, t.unsure = h, again
	t.mu.Unlock()
	// Until this is on disk, the record says that a start was requested. A repeated start with the same id finds the
	// task.
	t.alter(ctx, soon, func(rec *agentstore.TaskRecord, ts *structs.TaskState) {
		rec.Handle, rec.Old, rec.Forced = st.State, nil, false // the boot id remains that of the start
		ts.State = stateRunning
		if ts.StartedAt == 0 || !again {
			ts.StartedAt = started
		}
		ts.FinishedAt = 0
	}, ev...)
	t.serveAPI() // for a task that was found again
	t.watchTemplates(ctx, h)
	t.watchIdentities(ctx, h)
	t.follow(ctx, h)
}

// setupError is the failure of a hook before the driver was asked to start the task.
type setupError struct {
	hook string
	err  error
}

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

func (t *task) startFailed(ctx context.Context, err error) {
	t.r.log().Warn("task did not start", "task", t.name, "error", err)
	e := event(EventDriverFailure, err.Error(), "driver_error", err.Error())
	var se *setupError
	if errors.As(err, &se) {
		e = event(EventSetupFailure, fmt.Sprintf("%s: %v", se.hook, se.err), "setup_error", err.Error())
	}
	if errors.Is(err, driver.ErrLapsed) {
		t.r.Lapse()
		t.finish(ctx, e)
		return
	}
	if w := t.wanted(); w.kind == wishKill {
		t.finish(ctx, e, w.event)
		return
	}
	permanent := errors.Is(err, driver.ErrPermanent) || structs.CodeOf(err) == structs.CodeInvalid
	t.conclude(ctx, nil, false, permanent, e)
}
