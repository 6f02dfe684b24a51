package runner

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// find returns the named task; name may be "" if there is only one.
func (r *Runner) find(name string) (*task, error) {
	if name == "" && len(r.tasks) == 1 {
		return r.tasks[0], nil
	}
	for _, t := range r.tasks {
		if t.name == name {
			return t, nil
		}
	}
	if name == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "allocation %s has %d tasks; name one of %v", r.id.Short(), len(r.tasks), r.TaskNames())
	}
	return nil, structs.Errorf(structs.CodeNotFound, "allocation %s has no task %q; its tasks are %v", r.id.Short(), name, r.TaskNames())
}

// TaskNames lists the tasks in the order of the job.
func (r *Runner) TaskNames() []string {
	out := make([]string, len(r.tasks))
	for i, t := range r.tasks {
		out[i] = t.name
	}
	return out
}

// Running returns the running tasks by name.
func (r *Runner) Running() map[string]driver.Task {
	out := map[string]driver.Task{}
	for _, t := range r.tasks {
		if h, err := t.running(); err == nil {
			out[t.name] = h
		}
	}
	return out
}

// Restart kills one task, or all running ones (name ""), and starts them again. With all it does so for every task of
// the allocation, including those that have ended.
func (r *Runner) Restart(ctx context.Context, name string, all bool) error {
	if r.Final() != nil || r.stopReason() != nil {
		return structs.Errorf(structs.CodeInvalid, "Task not running: allocation %s has ended or is ending", r.id.Short())
	}
	if err := r.errSuspended("its tasks would not start again before it is resumed"); err != nil {
		return err
	}
	e := event(EventRestartSignal, "User requested running tasks to restart", detailRestartReason, "User requested running tasks to restart")
	if all {
		e = event(EventRestartSignal, "User requested all tasks to restart", detailRestartReason, "User requested all tasks to restart")
		r.mu.Lock()
		if r.again == nil {
			r.again = &e
		}
		r.mu.Unlock()
		r.changed()
		return nil
	}
	if name != "" {
		t, err := r.find(name)
		if err != nil {
			return err
		}
		if _, err := t.running(); err != nil {
			return err
		}
		t.ask(ctx, wish{wishRestart, event(EventRestartSignal, "User requested task to restart", detailRestartReason, "User requested task to restart")})
		return nil
	}
	n := 0
	for _, t := range r.tasks {
		if _, err := t.running(); err == nil {
			n++
			t.ask(ctx, wish{wishRestart, e})
		}
	}
	if n == 0 {
		return structs.Errorf(structs.CodeInvalid, "Task not running: no task of allocation %s runs", r.id.Short())
	}
	return nil
}

// Signal sends a signal to one task, or to all running ones (name "").
func (r *Runner) Signal(ctx context.Context, name, sig string) error {
	if _, err := driver.ParseSignal(sig); err != nil {
		return structs.Errorf(structs.CodeInvalid, "%v", err)
	}
	if err := r.errSuspended("a signal would not arrive before it is resumed"); err != nil {
		return err
	}
	tasks := r.tasks
	if name != "" {
		t, err := r.find(name)
		if err != nil {
			return err
		}
		tasks = []*task{t}
	}
	n := 0
	var errs []error
	for _, t := range tasks {
		h, err := t.running()
		if err != nil {
			if name != "" {
				return err
			}
			continue
		}
		n++
		t.note(ctx, event(EventSignaling, "Task being sent signal "+sig, "signal", sig))
		if err := h.Signal(ctx, sig); err != nil {
			errs = append(errs, structs.Errorf(structs.CodeInvalid, "signal %s to task %q: %v", sig, t.name, err))
		}
	}
	if n == 0 {
		return structs.Errorf(structs.CodeInvalid, "Task not running: no task of allocation %s runs", r.id.Short())
	}
	return errors.Join(errs...)
}

// Exec runs a command inside a running task.
func (r *Runner) Exec(ctx context.Context, name string, req driver.ExecRequest) (int, error) {
	t, err := r.find(name)
	if err != nil {
		return 0, err
	}
	h, err := t.running()
	if err != nil {
		return 0, err
	}
	if err := r.errSuspended("a command inside it would be frozen, too"); err != nil {
		return 0, err
	}
	return h.Exec(ctx, req)
}

// resumed reports whether an earlier agent handed any task to its driver.
func (r *Runner) resumed() bool {
	for _, m := range r.members() {
		if m.begun() {
			return true
		}
	}
	return false
}

// TaskDone returns a channel that is closed once the task has ended for good and its log is complete.
func (r *Runner) TaskDone(name string) (<-chan struct{}, error) {
	t, err := r.find(name)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = make(chan struct{})
		if t.rec.Phase == agentstore.PhaseDead {
			close(t.over)
		}
	}
	return t.over, nil
}

// TaskBegan reports whether a task has ever run here.
func (r *Runner) TaskBegan(name string) bool {
	t, err := r.find(name)
	return err == nil && t.state().StartedAt != 0
}

// Found rebuilds the lost record of an allocation from the ids of the tasks that run on this node and from what the
// servers know. Running tasks are found again instead of started twice, and ended ones do not run again. It returns nil
// if there is nothing to remember.
func Found(a *structs.Allocation, running []string) *agentstore.AllocRecord {
	g := a.Job.Group(a.Group)
	if g == nil {
		return nil
	}
	rec := &agentstore.AllocRecord{Alloc: a, Tasks: map[string]*agentstore.TaskRecord{}}
	for _, spec := range g.Tasks {
		prefix := taskPrefix(a.ID, spec.Name)
		for _, id := range running {
			rest, ok := strings.CutPrefix(id, prefix)
			n, err := strconv.ParseInt(rest, 10, 64)
			if !ok || err != nil || n < 0 {
				continue
			}
			if old := rec.Tasks[spec.Name]; old == nil || old.Attempt < n {
				rec.Tasks[spec.Name] = &agentstore.TaskRecord{Attempt: n, Phase: agentstore.PhaseStarting, State: a.TaskStates.Get(spec.Name)}
			}
		}
		if st := a.TaskStates.Get(spec.Name); st != nil && st.State == stateDead && rec.Tasks[spec.Name] == nil {
			rec.Tasks[spec.Name] = &agentstore.TaskRecord{Phase: agentstore.PhaseDead, State: st}
		}
	}
	if len(rec.Tasks) == 0 {
		return nil
	}
	return rec
}
