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

// An allocation that the servers have suspended stands still in its place: its tasks keep their processes and all that they
// were granted, and get no processor time. What is wanted is in the allocation, which is stored before it is obeyed; what was
// done is in each task's record, so that an agent that was started anew neither forgets one that stands still nor lets one
// go on. Whoever ends a task lets it go on first, so that it can hear of it. Starts wait until the allocation goes on.

// suspendLook is how often a suspended allocation is looked at: somebody may have let its processes go on, or ended them.
const suspendLook = 5 * time.Second

// thawToEnd is for what a task goes on that is asked to end.
const thawToEnd = "so that it can end"

// suspended reports whether the allocation is to stand still. One that is to end is not: it has to be able to.
func (r *Runner) suspended() bool {
	if r.stopReason() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alloc.Suspended()
}

// errSuspended answers whoever wants something of the processes of a suspended allocation; nil when it is not.
func (r *Runner) errSuspended(what string) error {
	if !r.suspended() {
		return nil
	}
	s := r.Alloc().Suspension
	return structs.Errorf(structs.CodeConflict, "allocation %s is suspended (by %s); resume it or its job first: %s", r.id.Short(), s.By, what)
}

// settleSuspension makes the tasks stand still, or go on, as the servers want, and tells them when that is done.
func (r *Runner) settleSuspension(ctx context.Context) {
	on := r.suspended()
	if !on && !r.stands() {
		return
	}
	still, why := on, ""
	if r.stopReason() != nil {
		why = thawToEnd
	}
	for _, t := range r.tasks {
		h, err := t.running()
		switch {
		case err != nil:
			still = still && !t.comesUp()
		case on:
			still = t.freeze(ctx, h) && still
		default:
			still = false
			t.thaw(ctx, h, why)
		}
	}
	left := !on && slices.ContainsFunc(r.tasks, func(t *task) bool { // of a former life of the agent, not found again yet
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.rec.Frozen != 0
	})
	r.mu.Lock()
	was := r.frozen
	switch {
	case left:
	case !still:
		r.frozen = 0
	case was == 0:
		r.frozen = now()
	}
	told := (was == 0) == (r.frozen == 0)
	arm := on && r.looking == nil
	if arm {
		r.looking = time.AfterFunc(suspendLook, func() {
			r.mu.Lock()
			r.looking = nil
			r.mu.Unlock()
			r.wake()
		})
	}
	r.mu.Unlock()
	if !told {
		r.changed()
	}
}

// comesUp reports whether a task is being started. One that is being found again and stood still does so all the while.
func (t *task) comesUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Phase == agentstore.PhaseStarting && t.rec.Frozen == 0
}

// stands reports whether anything of the allocation stands still, or may.
func (r *Runner) stands() bool {
	r.mu.Lock()
	frozen := r.frozen != 0
	r.mu.Unlock()
	return frozen || slices.ContainsFunc(r.tasks, func(t *task) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.handle != nil && (t.unsure || t.rec.Frozen != 0)
	})
}

// freeze makes a running task stand still and reports whether it does. One that is asked to end is left alone.
func (t *task) freeze(ctx context.Context, h driver.Task) bool {
	t.still.Lock()
	defer t.still.Unlock()
	if t.wanted().kind != wishNone {
		return false
	}
	t.mu.Lock()
	first := t.rec.Frozen == 0
	t.mu.Unlock()
	if first { // on disk first: should the agent end now, the next one knows what it may have to undo
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
		return false // its end is told by whoever waits for it
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

// thaw lets a task go on that stands still, or that may. why says for what, "" because the servers resumed it.
func (t *task) thaw(ctx context.Context, h driver.Task, why string) {
	t.still.Lock()
	defer t.still.Unlock()
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
		t.r.log.Error("a suspended task does not go on; trying again", "task", t.name, "error", err)
		if why != "" || t.r.stopReason() != nil {
			return // whoever ends it kills what does not go on
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
	e := event(EventResumed, fmt.Sprintf("Goes on after %s", stood.Round(time.Millisecond)), "suspended", stood.String())
	switch sus := t.r.Alloc().Suspension; {
	case why != "":
		e.Message += " " + why
	case sus != nil && sus.By != "":
		e.Message = fmt.Sprintf("Resumed by %s after %s", sus.By, stood.Round(time.Millisecond))
		e.Details["by"] = sus.By
	}
	t.change(ctx, before, func(rec *agentstore.TaskRecord, _ *structs.TaskState) {
		rec.Frozen = 0
		rec.Recent = slices.Clone(rec.Recent) // time that it stood still is none of its restart policy's
		for i := range rec.Recent {
			rec.Recent[i] = rec.Recent[i].Add(stood)
		}
	}, e)
}

// awaitGoing waits while the allocation is suspended, before a task starts. It reports false when something is asked of the
// task, or ctx has ended.
func (t *task) awaitGoing(ctx context.Context) bool {
	for t.r.suspended() {
		t.r.mu.Lock()
		moved := t.r.moved
		t.r.mu.Unlock()
		if !t.r.suspended() {
			break
		}
		wctx, cancel := t.waiting(ctx, wishNone)
		select {
		case <-wctx.Done():
		case <-moved:
		}
		asked := wctx.Err() != nil
		cancel()
		if asked {
			return false
		}
	}
	return ctx.Err() == nil
}
