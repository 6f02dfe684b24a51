package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// A suspended allocation is frozen: its tasks keep their processes and their resources, and get no processor time. The
// request is part of the allocation, which is stored before it is obeyed. What was done is in each task's record, so
// that a restarted agent neither forgets a frozen task nor thaws one. A task that must end is thawed first, so that it
// receives its signal. Starts wait until the allocation is resumed.

// suspendLook is the interval at which a suspended allocation is checked: its processes may have been thawed or killed
// from outside.
const suspendLook = 5 * time.Second

// thawToEnd is the reason in the event when a task that must end is thawed.
const thawToEnd = "so that it can end"

// suspended reports whether the allocation must be frozen. One that must end is not: its tasks could not end.
func (r *Runner) suspended() bool {
	if r.stopReason() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alloc.Suspended()
}

// errSuspended refuses a request to the processes of a suspended allocation; nil if it is not suspended.
func (r *Runner) errSuspended(what string) error {
	if !r.suspended() {
		return nil
	}
	s := r.Alloc().Suspension
	return structs.Errorf(structs.CodeConflict, "allocation %s is suspended (by %s); resume it or its job first: %s", r.id.Short(), s.By, what)
}

// settleSuspension freezes or thaws the tasks as the servers ask, and reports when all are frozen.
func (r *Runner) settleSuspension(ctx context.Context) {
	on := r.suspended()
	if !on && !r.anyFrozen() {
		return
	}
	frozen, why := on, ""
	if r.stopReason() != nil {
		why = thawToEnd
	}
	for _, t := range r.tasks {
		h, err := t.running()
		switch {
		case err != nil:
			frozen = frozen && !t.beingStarted()
		case on:
			frozen = t.freeze(ctx, h) && frozen
		default:
			frozen = false
			t.thaw(ctx, h, why)
		}
	}
	left := !on && slices.ContainsFunc(r.tasks, func(t *task) bool { // frozen by an earlier agent, not found again yet
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.rec.Frozen != 0
	})
	r.mu.Lock()
	was := r.suspension.since
	switch {
	case left:
	case !frozen:
		r.suspension.since = 0
	case was == 0:
		r.suspension.since = now()
	}
	same := (was == 0) == (r.suspension.since == 0)
	arm := on && r.suspension.look == nil
	if arm {
		r.suspension.look = time.AfterFunc(suspendLook, func() {
			r.mu.Lock()
			r.suspension.look = nil
			r.mu.Unlock()
			r.wake()
		})
	}
	r.mu.Unlock()
	if !same {
		r.changed()
	}
}

// beingStarted reports whether a task is being started. A frozen task that is being found again remains frozen.
func (t *task) beingStarted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Phase == agentstore.PhaseStarting && t.rec.Frozen == 0
}

// anyFrozen reports whether a task of the allocation is frozen, or could be.
func (r *Runner) anyFrozen() bool {
	r.mu.Lock()
	frozen := r.suspension.since != 0
	r.mu.Unlock()
	return frozen || slices.ContainsFunc(r.tasks, func(t *task) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.handle != nil && (t.unsure || t.rec.Frozen != 0)
	})
}

// freeze freezes a running task and reports whether it is frozen. It skips a task that must end.
func (t *task) freeze(ctx context.Context, h driver.Task) bool {
	t.freezing.Lock()
	defer t.freezing.Unlock()
	if t.wanted().kind != wishNone {
		return false
	}
	t.mu.Lock()
	first := t.rec.Frozen == 0
	t.mu.Unlock()
	if first { // on disk first: if the agent dies now, the next one knows that it may have to thaw
		t.change(ctx, before, func(rec *agentstore.TaskRecord, _ *structs.TaskState) { rec.Frozen = now() })
	}
	s, can := h.(driver.Suspender)
	err := errors.New("its driver cannot do that")
	if can {
		err = s.Suspend(ctx)
	}
	t.mu.Lock()
	other := err != nil && t.trouble != err.Error() || err == nil && t.trouble != ""
	if t.trouble = ""; err != nil {
		t.trouble = err.Error()
	}
	t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, driver.ErrNotRunning):
		return false // wait reports the end of the task
	case err != nil:
		if other {
			t.note(ctx, event(EventSuspended, "Could not be suspended: "+err.Error(), "error", err.Error()))
		}
		return false
	}
	if sus := t.r.Alloc().Suspension; sus != nil && (first || other) {
		t.change(ctx, soon, nil, suspendedBy(sus))
	}
	return true
}

func suspendedBy(s *structs.Suspension) structs.TaskEvent {
	text := "Suspended by " + s.By
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return event(EventSuspended, text, "by", s.By, "reason", s.Reason)
}

// thaw thaws a task that is, or could be, frozen. why is the reason; "" if the servers resumed it.
func (t *task) thaw(ctx context.Context, h driver.Task, why string) {
	t.freezing.Lock()
	defer t.freezing.Unlock()
	t.mu.Lock()
	since, unsure := t.rec.Frozen, t.unsure
	t.mu.Unlock()
	s, can := h.(driver.Suspender)
	if !can || since == 0 && !unsure {
		return
	}
	bo := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	for {
		err := s.Resume(ctx)
		if err == nil || errors.Is(err, driver.ErrNotRunning) {
			break
		}
		if ctx.Err() != nil {
			return
		}
		t.r.log().Error("could not thaw a suspended task; trying again", "task", t.name, "error", err)
		if why != "" || t.r.stopReason() != nil {
			return // a task that cannot be thawed is killed
		}
		if !sleep(ctx, bo.next()) {
			return
		}
	}
	t.mu.Lock()
	t.unsure, t.trouble = false, ""
	t.mu.Unlock()
	if since == 0 {
		return
	}
	stood := max(0, now().Sub(since))
	e := event(EventResumed, fmt.Sprintf("Resumed after %s", stood.Round(time.Millisecond)), "suspended", stood.String())
	switch sus := t.r.Alloc().Suspension; {
	case why != "":
		e.Message += " " + why
	case sus != nil && sus.By != "":
		e.Message = fmt.Sprintf("Resumed by %s after %s", sus.By, stood.Round(time.Millisecond))
		e.Details["by"] = sus.By
	}
	t.change(ctx, before, func(rec *agentstore.TaskRecord, _ *structs.TaskState) {
		rec.Frozen = 0
		rec.Recent = slices.Clone(rec.Recent) // frozen time does not count in the restart policy
		for i := range rec.Recent {
			rec.Recent[i] = rec.Recent[i].Add(stood)
		}
	}, e)
}

// awaitResume waits before the start of a task while the allocation is suspended. It returns false if the task gets
// another request or ctx has ended.
func (t *task) awaitResume(ctx context.Context) bool {
	for t.r.suspended() {
		t.r.mu.Lock()
		changed := t.r.suspension.changed.next()
		t.r.mu.Unlock()
		if !t.r.suspended() {
			break
		}
		wctx, cancel := t.waiting(ctx, wishNone)
		select {
		case <-wctx.Done():
		case <-changed:
		}
		asked := wctx.Err() != nil
		cancel()
		if asked {
			return false
		}
	}
	return ctx.Err() == nil
}
