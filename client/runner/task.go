package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// States of a task as the servers know them.
const (
	statePending = "pending"
	stateRunning = "running"
	stateDead    = "dead"
)

// startPatience is how long a driver may take to start a task before the start is asked for again under the same id.
const startPatience = 90 * time.Second

// starting bounds how many tasks are being started at once that need nothing but this node's own work. A thousand that
// begin together are not done sooner, and each mount that one of them makes is copied for every other.
var starting = make(chan struct{}, min(24, 4+2*runtime.NumCPU()))

// startRepeats is how often a start with an unknown outcome is repeated before it counts as failed.
const startRepeats = 3

// task is one task of an allocation.
type task struct {
	r    *Runner
	name string

	still sync.Mutex // held while it is made to stand still or go on; before mu

	mu sync.Mutex
	// rec is what is stored. rec.State is replaced, never changed, so that reports may share it.
	rec      agentstore.TaskRecord
	api      io.Closer   // the task's socket to the agent's API; nil unless it is open
	handle   driver.Task // nil unless the task has been started and not ended
	last     driver.Task // of the last run, ended, until the driver has forgotten it; nil after a restart of the agent
	want     wish        // what somebody asked of the task while it ran
	cancel   context.CancelFunc
	active   bool          // its goroutine runs
	looks    *lookups      // of its templates, or nil
	progress *progress     // follows the checkpoints of the run, or nil
	heard    chan struct{} // closed at the next checkpoint; nil when nobody waits
	over     chan struct{} // closed when it is dead; nil until somebody asks for it
	unsure   bool          // it was found again: whether it stands still is not known
	trouble  string        // why it could not be suspended, as last told
}

// wish is what a running (or waiting) task is asked to do.
type wish struct {
	kind  wishKind
	event structs.TaskEvent // why
}

type wishKind uint8

const (
	wishNone wishKind = iota
	wishRestart
	wishUnhealthy // a restart that the restart policy decides on
	wishKill
)

func newTask(r *Runner, name string, rec *agentstore.TaskRecord) *task {
	t := &task{r: r, name: name}
	if rec != nil {
		t.rec = *rec
	}
	if t.rec.State == nil {
		t.rec.State = &structs.TaskState{State: statePending, Events: []structs.TaskEvent{event(EventReceived, "Task received by client")}}
	}
	return t
}

// spec is the task as the allocation's current job version says, or nil if the group has lost it.
func (t *task) spec() *structs.Task {
	if g := t.r.group(); g != nil {
		return g.Task(t.name)
	}
	return nil
}

// state is the task's current state; not to be changed.
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
	never  durable = iota // it is told, not stored
	soon                  // before anything that is stored after it
	before                // before change returns
)

// change replaces the record under the lock, tells the runner and stores it.
func (t *task) change(ctx context.Context, store durable, fn func(rec *agentstore.TaskRecord, st *structs.TaskState), events ...structs.TaskEvent) {
	t.mu.Lock()
	st := *t.rec.State
	if fn != nil {
		fn(&t.rec, &st)
	}
	if len(events) > 0 {
		st.Events = append(slices.Clip(st.Events), events...)
		if n := len(st.Events) - eventsKept; n > 0 {
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
		t.r.cfg.Store.PutTaskSoon(t.r.id, t.name, &rec, func(err error) {
			if !errors.Is(err, agentstore.ErrClosed) {
				t.r.log.Error("agent state not written; after a restart it is found out again", "what", "task "+t.name, "error", err)
			}
		})
	case before:
		t.r.persist(ctx, "task "+t.name, func() error { return t.r.cfg.Store.PutTask(t.r.id, t.name, &rec) })
	}
	t.r.changed()
}

// note adds an event.
func (t *task) note(ctx context.Context, e structs.TaskEvent) { t.change(ctx, never, nil, e) }

// id names one run of the task towards its driver.
func (t *task) id(attempt int64) string {
	return taskPrefix(t.r.id, t.name) + strconv.FormatInt(attempt, 10)
}

// taskPrefix is what the ids of all runs of a task begin with. Names that drivers might not take are hashed.
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

// start runs the task in a goroutine of its own unless it runs or has ended.
func (t *task) start(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active || t.rec.Phase == agentstore.PhaseDead {
		return
	}
	t.active = t.r.cfg.Go(func() {
		t.destroyOld(ctx) // of the run before this one
		t.run(ctx)
	})
}

// idle says that the task has no goroutine any more.
func (t *task) idle() {
	t.mu.Lock()
	t.active = false
	t.mu.Unlock()
	t.r.changed()
}

// ask tells the task's goroutine what is wanted; a kill is not taken back. Without a goroutine the task has never been
// started (or has ended) and a kill ends it here.
func (t *task) ask(ctx context.Context, w wish) {
	t.mu.Lock()
	if t.rec.Phase == agentstore.PhaseDead || t.want.kind >= w.kind {
		t.mu.Unlock()
		return
	}
	t.want = w
	active, cancel := t.active, t.cancel
	t.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if !active && w.kind == wishKill {
		t.finish(ctx, w.event)
	}
}

func (t *task) wanted() wish {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.want
}

// waiting makes a context that ends when somebody asks something of the task.
func (t *task) waiting(ctx context.Context, not wishKind) (context.Context, context.CancelFunc) {
	wctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	t.cancel = cancel
	if t.want.kind > not {
		cancel()
	}
	t.mu.Unlock()
	return wctx, cancel
}

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

// run takes the task from where its record says until it runs, or to its end, or to the end of ctx (the agent stops; the
// task goes on).
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
			} else if t.awaitGoing(ctx) || t.wanted().kind == wishRestart {
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

// begin records that the driver is about to be asked.
func (t *task) begin(ctx context.Context) {
	t.change(ctx, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.Handle, rec.ResumeAt, rec.BootID, rec.Epoch = agentstore.PhaseStarting, nil, 0, t.r.cfg.BootID, 0
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
	if w := t.wanted(); w.kind == wishKill {
		t.finish(ctx, w.event)
		return
	}
	t.mu.Lock()
	t.want = wish{}
	t.mu.Unlock()
	if t.awaitGoing(ctx) {
		t.begin(ctx)
	} // else it comes here again
}

// attempt finds or starts a run of the task. It gives nil when the task does not run: what follows from that has then
// been recorded.
func (t *task) attempt(ctx context.Context) driver.Task {
	handle, err := t.obtain(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		t.startFailed(ctx, err)
	case handle == nil: // lost while the agent was away
		t.ended(ctx, nil, &driver.ExitResult{ExitCode: -1, LostStatus: true, Err: "the task was gone when the agent came back", EndedAt: time.Now()})
	}
	return handle
}

// obtain finds the running task again, or starts it. A nil task without an error means that it is lost.
func (t *task) obtain(ctx context.Context) (driver.Task, error) {
	t.mu.Lock()
	rec := t.rec
	t.mu.Unlock()
	spec := t.spec()
	if spec == nil {
		return nil, driver.Permanent(fmt.Errorf("the job has no task %q any more", t.name))
	}
	drv := t.r.cfg.Drivers[spec.Driver]
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
		select {
		case starting <- struct{}{}:
			defer func() { <-starting }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
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

// recover asks the driver for a task that was started before. It keeps asking while the driver cannot tell: giving up
// would start a second one beside it.
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
		t.r.log.Warn("cannot find out about a task that was running", "task", t.name, "error", err)
		if !warned {
			warned = true
			t.note(ctx, event(EventDriverFailure, "The driver cannot tell whether the task still runs: "+err.Error()))
		}
		if !sleep(ctx, bo.next()) {
			return nil, ctx.Err()
		}
	}
}

// adopt records a task that runs.
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
	// Until this is on disk the record says that a start was asked for: asking again under the same id finds the task.
	t.change(ctx, soon, func(rec *agentstore.TaskRecord, ts *structs.TaskState) {
		rec.Handle, rec.Old, rec.Forced = st.State, nil, false // its boot id stays that of its start
		ts.State = stateRunning
		if ts.StartedAt == 0 || !again {
			ts.StartedAt = started
		}
		ts.FinishedAt = 0
	}, ev...)
	t.serveAPI() // of a task that was found again
	t.watchTemplates(ctx, h)
	t.follow(ctx, h)
}

// watch hands a running task over to a new goroutine that waits for its end. A task spends its life waiting, and
// simulated nodes have a hundred of them each: the goroutine that started it has grown its stack, a new one stays small.
func (t *task) watch(ctx context.Context, h driver.Task) {
	if !t.r.cfg.Go(func() { t.wait(ctx, h) }) {
		t.idle()
	}
}

// wait waits until the run ends or something is asked of the task.
func (t *task) wait(ctx context.Context, h driver.Task) {
	if h, ok := h.(driver.Teller); ok {
		h.Tell(func(message string) { t.note(ctx, event(EventDriver, message)) })
	}
	wctx, cancel := t.waiting(ctx, wishNone)
	res, err := h.Wait(wctx)
	cancel()
	t.woken(ctx, h, &res, err)
}

// woken does what follows from the end of a wait.
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
		t.r.log.Warn("waiting for a task failed", "task", t.name, "error", err)
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

// waitAgain is the pause after a wait that failed; it is doubled at random.
const waitAgain = time.Second

// waitResult is h.Wait with the result as a pointer.
func waitResult(ctx context.Context, h driver.Task) (*driver.ExitResult, error) {
	res, err := h.Wait(ctx)
	return &res, err
}

func lostResult() *driver.ExitResult {
	return &driver.ExitResult{ExitCode: -1, LostStatus: true, Err: "the node has lost the task", EndedAt: time.Now()}
}

// stop ends a run that is asked to end: shutdown delay, signal, patience, kill.
func (t *task) stop(ctx context.Context, h driver.Task) *driver.ExitResult {
	w := t.wanted()
	t.thaw(ctx, h, thawToEnd)
	if w.event.Type != EventKilling { // that one is told below, with the patience
		t.note(ctx, w.event)
	}
	spec := t.spec()
	if spec == nil {
		spec = &structs.Task{Name: t.name}
	}
	if w.kind == wishKill && spec.ShutdownDelay > 0 && !t.r.noShutdownDelay() {
		t.note(ctx, event(EventWaitingShut, fmt.Sprintf("Waiting for shutdown_delay of %s before killing the task.", spec.ShutdownDelay)))
		dctx, cancel := context.WithTimeout(ctx, spec.ShutdownDelay)
		res, err := waitResult(dctx, h)
		cancel()
		if err == nil {
			return res
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	if w.kind == wishKill {
		if res := t.save(ctx, h, t.r.endCause()); res != nil {
			return res
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	timeout := spec.KillTimeout
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	if most := t.r.cfg.MaxKillTimeout; most > 0 && timeout > most {
		timeout = most
	}
	t.note(ctx, killing(timeout, w.event))
	bo := backoff{min: 200 * time.Millisecond, max: 10 * time.Second}
	for {
		err := h.Stop(ctx, spec.KillSignal, timeout)
		if err == nil {
			var res *driver.ExitResult
			if res, err = waitResult(ctx, h); err == nil {
				return res
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, driver.ErrLost) {
			return lostResult()
		}
		t.r.log.Error("killing a task failed; trying again", "task", t.name, "error", err)
		if !sleep(ctx, bo.next()) {
			return nil
		}
	}
}

// setupError is a failure before the driver was asked.
type setupError struct {
	hook string
	err  error
}

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

func (t *task) startFailed(ctx context.Context, err error) {
	t.r.log.Warn("task did not start", "task", t.name, "error", err)
	e := event(EventDriverFailure, err.Error(), "driver_error", err.Error())
	var se *setupError
	if errors.As(err, &se) {
		e = event(EventSetupFailure, fmt.Sprintf("%s: %v", se.hook, se.err), "setup_error", err.Error())
	}
	if w := t.wanted(); w.kind == wishKill {
		t.finish(ctx, e, w.event)
		return
	}
	permanent := errors.Is(err, driver.ErrPermanent) || structs.CodeOf(err) == structs.CodeInvalid
	t.conclude(ctx, nil, false, permanent, e)
}

// ended records the end of a run and what follows from it, in one write, and only then lets the driver forget it.
func (t *task) ended(ctx context.Context, h driver.Task, res *driver.ExitResult) {
	e := terminated(res)
	t.rest(ctx, res.Successful())
	for _, k := range taskHooks {
		if k.exited != nil {
			k.exited(t)
		}
	}
	w := t.wanted()
	switch w.kind {
	case wishKill:
		killed := event(EventKilled, "Task successfully killed")
		t.close(ctx, h, soon, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase = agentstore.PhaseDead
			st.State, st.FinishedAt = stateDead, e.Time
		}, e, killed)
	case wishRestart:
		t.mu.Lock()
		t.want = wish{}
		t.mu.Unlock()
		t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, now()
			rec.Attempt++
			rec.Forced = true
			st.State, st.LastRestart = statePending, now()
			st.Restarts++
		}, e, restarting(0, "Restart requested"))
	case wishUnhealthy:
		t.mu.Lock()
		t.want = wish{}
		t.mu.Unlock()
		t.conclude(ctx, h, false, false, e)
	default:
		if res.LostStatus && t.rebooted() {
			t.resume(ctx, h, e)
			return
		}
		t.conclude(ctx, h, res.Successful(), false, e)
	}
}

// rebooted reports whether the machine was started anew since the run began. What a gang does about a member that is gone
// is for the servers to say.
func (t *task) rebooted() bool {
	if g := t.r.group(); g == nil || g.Gang != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.BootID != "" && t.r.cfg.BootID != "" && t.rec.BootID != t.r.cfg.BootID
}

// resume runs a task again that a restart of the machine has ended. It is not the task's fault, and does not count.
func (t *task) resume(ctx context.Context, h driver.Task, e structs.TaskEvent) {
	at := now()
	t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, at
		rec.Attempt++
		st.State, st.LastRestart = statePending, at
		st.Restarts++
	}, e, restarting(0, "The node was restarted"))
}

// conclude lets the restart policy decide.
func (t *task) conclude(ctx context.Context, h driver.Task, success, permanent bool, e structs.TaskEvent) {
	at := now()
	policy := t.restartPolicy()
	t.mu.Lock()
	recent := prune(t.rec.Recent, at, policy.Interval)
	t.mu.Unlock()
	v := decide(policy, recent, at, success, t.restartsOnSuccess(), permanent, rand.Float64())
	if v.again {
		t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, at.Add(v.delay)
			rec.Attempt++
			rec.Recent = append(slices.Clip(recent), at)
			st.State, st.LastRestart = statePending, at
			st.Restarts++
		}, e, restarting(v.delay, v.reason))
		return
	}
	events := []structs.TaskEvent{e}
	if v.reason != "" {
		n := event(EventNotRestarting, v.reason, detailRestartReason, v.reason)
		n.Fails = v.fail
		events = append(events, n)
	}
	t.close(ctx, h, soon, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase = agentstore.PhaseDead
		st.State, st.FinishedAt = stateDead, e.Time
		st.Failed = v.fail
	}, events...)
}

// close writes the end of a run, then destroys what the driver keeps of it. What it keeps of the last run is destroyed
// only when the servers know how that ended (see Runner.Acked): should the agent's own memory be lost before, the driver
// still knows, and the task is not run again. That is also why the end of the last run need not be on disk before the
// allocation's own end is.
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
		t.r.log.Warn("cleaning up after a task failed; it is tried again at the agent's next start", "task", t.name, "error", err)
		return
	}
	t.mu.Lock()
	t.rec.Old = nil
	t.mu.Unlock()
}

// destroyOld cleans up after a run whose end was recorded.
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
		if spec == nil || t.r.cfg.Drivers[spec.Driver] == nil {
			return
		}
		h, err = t.r.cfg.Drivers[spec.Driver].Recover(ctx, old)
	}
	if err == nil {
		err = h.Destroy(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		t.r.log.Warn("cleaning up after an earlier run failed", "task", t.name, "error", err)
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

// restartsOnSuccess is true for what is meant to run for ever: services, system tasks and sidecars.
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

// running gives the driver's handle of the running task.
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
