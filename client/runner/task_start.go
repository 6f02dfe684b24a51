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
				return
			}
		}
	}
	t.idle()
}

// begin records that the driver is about to be asked to start the task.
func (t *task) begin(ctx context.Context) {
	t.change(ctx, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.Handle, rec.ResumeAt, rec.BootID, rec.Epoch = agentstore.PhaseStarting, nil, 0, t.r.cfg.Host.BootID, 0
		rec.Frozen = 0
	})
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
	handle, err := t.obtain(ctx)
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

// obtain finds the running task again, or starts it. It returns nil and no error if the task is lost.
func (t *task) obtain(ctx context.Context) (driver.Task, error) {
	t.mu.Lock()
	rec := t.rec
	t.mu.Unlock()
	spec := t.spec()
	if spec == nil {
		return nil, driver.Permanent(fmt.Errorf("the job has no task %q any more", t.name))
	}
	drv := t.r.cfg.Host.Drivers[spec.Driver]
	if drv == nil {
		return nil, driver.Permanent(fmt.Errorf("this node has no driver %q", spec.Driver))
	}
	if rec.Handle != nil {
		h, err := t.recover(ctx, drv, rec.Handle)
		if err != nil || h == nil {
			return nil, err
		}
		t.adopt(ctx, h, rec.State.State == stateRunning)
		return h, nil
	}
	a := &attempt{task: t, spec: spec, driver: drv, note: func(e structs.TaskEvent) { t.note(ctx, e) }}
	a.joined = func(epoch uint64) {
		t.change(ctx, before, func(rec *agentstore.TaskRecord, _ *structs.TaskState) { rec.Epoch = epoch })
	}
	if a.quick() {
		var release func()
		if err := a.interruptibly(ctx, func(ctx context.Context) (err error) {
			release, err = t.r.cfg.Host.Starts.acquire(ctx)
			return err
		}); err != nil {
			return nil, err
		}
		defer release()
	}
	t.r.touched.Store(true)
	for _, h := range taskHooks {
		if h.prestart == nil {
			continue
		}
		if err := h.prestart(ctx, a); err != nil {
			return nil, &setupError{hook: h.name, err: err}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	a.config.TaskID = t.id(rec.Attempt)
	var err error
	for range startRepeats {
		sctx, cancel := context.WithTimeout(ctx, startPatience)
		var h driver.Task
		h, err = drv.Start(sctx, &a.config)
		timedOut := sctx.Err() != nil
		cancel()
		t.mu.Lock()
		t.untold = err != nil && timedOut
		t.mu.Unlock()
		if err == nil {
			t.adopt(ctx, h, rec.State.State == stateRunning) // running: found again without its handle
			return h, nil
		}
		if !timedOut || ctx.Err() != nil {
			break
		}
	}
	return nil, err
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

// adopt records that the task runs. again means that it was found, not started.
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
	t.change(ctx, soon, func(rec *agentstore.TaskRecord, ts *structs.TaskState) {
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
