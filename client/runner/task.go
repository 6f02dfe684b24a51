package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// States of a task, as reported to the servers.
const (
	statePending = "pending"
	stateRunning = "running"
	stateDead    = "dead"
)

// task is one task of an allocation. Its record has its phase:
//
//	New --begin--> Starting --attempt--> Starting, with a handle: it runs
//	                  ^                     | its run ended, or could not be started
//	                  |                     v
//	                  `--pause-- Backoff <--+--> Dead
//
// One goroutine takes a task along these arrows (active). It is in task_start.go until the task runs, in task_stop.go
// from there to the end of the run, and in restart.go where the restart policy decides.
type task struct {
	r    *Runner
	name string

	freezing sync.Mutex // held while the task is frozen or thawed; locked before mu

	mu sync.Mutex // guards the fields below
	// rec is the stored record. rec.State is replaced, never changed, so that reports may share it.
	rec      agentstore.TaskRecord
	api      io.Closer          // the task's socket to the agent's API; nil unless it is open
	handle   driver.Task        // nil unless the task runs
	last     driver.Task        // of the last run, which has ended, until the driver has forgotten it; nil after an agent restart
	want     *wish              // the latest request to the task, or nil
	cancel   context.CancelFunc // wakes it for a request, or nil
	active   bool               // its goroutine runs, or starts when the run ends
	parked   bool               // it runs without a goroutine
	unsure   bool               // it was found again after an agent restart, and may be frozen
	untold   bool               // a start was asked of the driver and its outcome is unknown: the task may run
	looks    *lookups           // of its templates, or nil
	progress *progress          // follows the checkpoints of the run, or nil
	recorded broadcast          // a checkpoint was recorded
	noticed  structs.LogTime    // when the task was last notified to save its state, in this run; 0: never
	over     chan struct{}      // closed when the task is dead; nil until asked for
	trouble  string             // why it could not be suspended, as last recorded
}

// wish is a request to a running or waiting task.
type wish struct {
	kind  wishKind
	event structs.TaskEvent // why
}

type wishKind uint8

const (
	wishNone wishKind = iota
	wishRestart
	wishUnhealthy // restart, if the restart policy allows it
	wishKill
)

func newTask(r *Runner, name string, rec *agentstore.TaskRecord) *task {
	t := &task{r: r, name: name}
	if rec != nil {
		t.rec = *rec
		t.untold = rec.Phase == agentstore.PhaseStarting && rec.Handle == nil
	}
	if t.rec.State == nil {
		t.rec.State = &structs.TaskState{State: statePending, Events: []structs.TaskEvent{event(EventReceived, "Task received by client")}}
	}
	return t
}

// spec returns the task in the allocation's current job version, or nil if the group no longer has it.
func (t *task) spec() *structs.Task {
	if g := t.r.group(); g != nil {
		return g.Task(t.name)
	}
	return nil
}

// state returns the task's current state. It must not be changed.
func (t *task) state() *structs.TaskState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.State
}

func (t *task) phase() agentstore.Phase {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Phase
}

func (t *task) dead() bool { return t.phase() == agentstore.PhaseDead }

func (t *task) isActive() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active
}

// durable says when a change of a task is on disk.
type durable uint8

const (
	never  durable = iota // reported, not stored
	soon                  // no later than the next stored change
	before                // before the call returns
)

// change replaces the record, stores it, reports it and wakes the runner.
func (t *task) change(ctx context.Context, store durable, fn func(rec *agentstore.TaskRecord, st *structs.TaskState), events ...structs.TaskEvent) {
	t.alter(ctx, store, fn, events...)
	t.r.wake()
}

// alter is change without waking the runner, for a caller that does so later.
func (t *task) alter(ctx context.Context, store durable, fn func(rec *agentstore.TaskRecord, st *structs.TaskState), events ...structs.TaskEvent) {
	t.mu.Lock()
	st := *t.rec.State
	if fn != nil {
		fn(&t.rec, &st)
	}
	if len(events) > 0 {
		st.Events = append(slices.Clip(st.Events), events...)
		if n := len(st.Events) - structs.TaskEventsKept; n > 0 {
			st.Events = slices.Clone(st.Events[n:])
		}
		for _, e := range events {
			st.Failed = st.Failed || e.Fails
		}
	}
	t.rec.State = &st
	rec := t.rec
	if rec.Phase == agentstore.PhaseDead && t.looks != nil {
		t.looks.stop()
	}
	if rec.Phase == agentstore.PhaseDead && t.over != nil {
		select {
		case <-t.over:
		default:
			close(t.over)
		}
	}
	t.mu.Unlock()
	switch store {
	case soon:
		t.r.cfg.Host.Store.PutTaskSoon(t.r.id, t.name, &rec, func(err error) {
			if !errors.Is(err, agentstore.ErrClosed) {
				t.r.log().Error("agent state not written; after a restart it is found out again", "what", "task "+t.name, "error", err)
			}
		})
	case before:
		t.r.persist(ctx, "task "+t.name, func() error { return t.r.cfg.Host.Store.PutTask(t.r.id, t.name, &rec) })
	}
	t.r.reportNow()
}

// note adds an event.
func (t *task) note(ctx context.Context, e structs.TaskEvent) { t.change(ctx, never, nil, e) }

// id returns the driver's id for one run of the task.
func (t *task) id(attempt int64) string {
	return taskPrefix(t.r.id, t.name) + strconv.FormatInt(attempt, 10)
}

// taskPrefix returns the common prefix of the ids of a task's runs. Names that a driver might not accept are hashed.
func taskPrefix(id structs.AllocID, name string) string {
	plain := len(name) <= 64
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
	}
	if !plain {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:12])
	}
	return id.String() + "." + name + "."
}

// idle marks the task's goroutine as ended.
func (t *task) idle() {
	t.mu.Lock()
	t.active = false
	t.mu.Unlock()
	t.r.changed()
}

// ask passes a request to the task's goroutine. A kill is never taken back. A task without a goroutine has not started
// or has ended; a kill ends it here.
func (t *task) ask(ctx context.Context, w wish) {
	t.mu.Lock()
	if t.rec.Phase == agentstore.PhaseDead || t.asked() >= w.kind {
		t.mu.Unlock()
		return
	}
	t.want = &w
	active, cancel := t.active, t.cancel
	t.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if !active && w.kind == wishKill {
		t.finish(ctx, w.event)
	}
}

// fulfilled forgets a wish, unless another has taken its place since.
func (t *task) fulfilled(w wish) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want != nil && t.want.kind == w.kind {
		t.want = nil
	}
}

func (t *task) wanted() wish {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want == nil {
		return wish{}
	}
	return *t.want
}

// asked returns the kind of the latest request. The caller holds t.mu.
func (t *task) asked() wishKind {
	if t.want == nil {
		return wishNone
	}
	return t.want.kind
}

// waiting returns a context that is cancelled when the task gets a request stronger than not.
func (t *task) waiting(ctx context.Context, not wishKind) (context.Context, context.CancelFunc) {
	wctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	t.cancel = cancel
	if t.asked() > not {
		cancel()
	}
	t.mu.Unlock()
	return wctx, func() {
		cancel()
		t.mu.Lock()
		t.cancel = nil
		t.mu.Unlock()
	}
}

func (t *task) restartPolicy() structs.Restart {
	if s := t.spec(); s != nil && s.Restart != nil {
		return *s.Restart
	}
	if g := t.r.group(); g != nil {
		return g.Restart
	}
	return structs.Restart{Mode: "fail"}
}

// restartsOnSuccess reports whether the task is restarted even after success: services, system tasks and sidecars are.
func (t *task) restartsOnSuccess() bool {
	s := t.spec()
	if s == nil {
		return false
	}
	if s.Lifecycle != nil {
		return s.Lifecycle.Sidecar
	}
	typ := t.r.job().Type
	return typ == structs.JobService || typ == structs.JobSystem
}

// running returns the driver's handle of a running task, else an error.
func (t *task) running() (driver.Task, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handle == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Task not running: %q of allocation %s is %s", t.name, t.r.id.Short(), t.rec.State.State)
	}
	return t.handle, nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
