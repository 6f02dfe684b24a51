package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/structs"
)

// Runner runs one allocation.
type Runner struct {
	cfg *Config
	id  structs.AllocID
	dir *allocdir.Dir // nil on nodes without allocation directories

	services services
	touched  atomic.Bool // a task may write below the allocation's directory, which is empty until then

	mu         sync.Mutex // guards the fields below
	state      state
	dirty      bool            // something changed since the last step
	ctx        context.Context // from Start: ends with the agent
	unhook     func()          // cancels hooks that wait, or nil
	alloc      *structs.Allocation
	tasks      []*task            // in the order of the group; never changed
	stopping   *stopReason        // why all tasks must end, or nil
	again      *structs.TaskEvent // why all tasks must be killed and run again, or nil
	setup      string             // why the hooks failed, or ""
	entered    bool               // the prolog was reached, so the epilog runs
	started    structs.LogTime    // the first start of a task
	delayUntil time.Time          // end of the group's shutdown delay, once it has begun
	final      *agentstore.Final  // how the allocation ended, or nil
	over       bool               // it has ended, and nothing of it is left
	done       broadcast          // it is over

	limit      timeLimit
	suspension suspension
	gang       membership
	saved      savedReport
}

// stopReason is why all tasks must end.
type stopReason struct {
	event structs.TaskEvent
	fail  bool // the allocation counts as failed
	desc  string
	force bool // do not wait for shutdown delays
	// lapsed: contact with the servers was lost for too long (see Runner.Lapse).
	lapsed bool
}

// New makes a runner for an allocation that the servers sent. rec is its record from an earlier agent, or nil.
func New(cfg *Config, a *structs.Allocation, rec *agentstore.AllocRecord) *Runner {
	r := &Runner{
		cfg: cfg, id: a.ID, alloc: a,
	}
	if cfg.Host.AllocsDir != "" {
		r.dir = allocdir.New(cfg.Host.AllocsDir, a.ID.String())
	}
	if g := a.Job.Group(a.Group); g != nil {
		for _, spec := range g.Tasks {
			var tr *agentstore.TaskRecord
			if rec != nil {
				tr = rec.Tasks[spec.Name]
			}
			r.tasks = append(r.tasks, newTask(r, spec.Name, tr))
		}
	}
	if rec != nil {
		r.touched.Store(true)
		r.final = rec.Final
		for _, t := range r.tasks {
			if t.rec.Phase == agentstore.PhaseStarting || t.rec.Phase == agentstore.PhaseBackoff {
				cfg.Host.Ledger.Adopt(a)
			}
			r.suspension.since = max(r.suspension.since, t.rec.Frozen) // as last reported, until the tasks are found again
			if s := t.rec.State.StartedAt; s != 0 && (r.started == 0 || s < r.started) {
				r.started = s
			}
		}
		if r.final != nil {
			cfg.Host.Ledger.Release(a.ID)
		}
	}
	return r
}

// log returns a logger that names the allocation. It is made for each message: a logger takes 300 bytes, and most
// allocations log nothing.
func (r *Runner) log() hclog.Logger { return r.cfg.Log.With("alloc", r.id.Short()) }

// ID returns the allocation's id.
func (r *Runner) ID() structs.AllocID { return r.id }

// Alloc returns the allocation as the servers last sent it. It must not be changed.
func (r *Runner) Alloc() *structs.Allocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alloc
}

func (r *Runner) job() *structs.Job { return r.Alloc().Job }

func (r *Runner) group() *structs.Group {
	a := r.Alloc()
	return a.Job.Group(a.Group)
}

// runLimit returns the wall-clock limit of the allocation; 0 for none.
func (r *Runner) runLimit() time.Duration {
	a := r.Alloc()
	if g := a.Job.Group(a.Group); g != nil {
		return a.Job.RunLimit(g)
	}
	return 0
}

// Dir returns the allocation's directory, or nil.
func (r *Runner) Dir() *allocdir.Dir { return r.dir }

// Done returns a channel that is closed when the allocation has ended.
func (r *Runner) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return closed
	}
	return r.done.next()
}

// closed is a channel that is closed.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// setOver closes the channels of Done.
func (r *Runner) setOver() {
	r.mu.Lock()
	r.over = true
	r.done.send()
	r.mu.Unlock()
}

// Final returns how the allocation ended, or nil while it has not.
func (r *Runner) Final() *agentstore.Final {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.final
}

// Ended reports whether the end of the allocation has been recorded.
func (r *Runner) Ended() bool { return r.Final() != nil }

// Released reports whether the servers know how the allocation ended, so that the drivers may forget its tasks.
func (r *Runner) Released() bool {
	f := r.Final()
	return f != nil && f.Acked
}

// Acked records that the servers know how the allocation ended, and makes the drivers forget its tasks. It does not
// block.
func (r *Runner) Acked() {
	r.mu.Lock()
	if r.final == nil || r.final.Acked || r.state == destroyed {
		r.mu.Unlock()
		return
	}
	f := *r.final
	f.Acked = true
	r.final = &f
	ctx := r.ctx
	r.mu.Unlock()
	r.cfg.Agent.Go(func() {
		if err := r.cfg.Host.Store.PutFinal(r.id, &f); err != nil && !errors.Is(err, agentstore.ErrClosed) && !r.isDestroyed() {
			r.log().Warn("remembering that an end was reported failed; it will be reported again", "error", err)
		}
		r.release(ctx)
	})
}

func (r *Runner) isDestroyed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == destroyed
}

// release makes the drivers forget the tasks of an allocation that has ended.
func (r *Runner) release(ctx context.Context) {
	for _, t := range r.tasks {
		t.destroyOld(ctx)
	}
}

// persist repeats a write until it succeeds: nothing may happen that is not on disk. On a full disk the tasks keep
// running, and the allocation makes no progress.
func (r *Runner) persist(ctx context.Context, what string, put func() error) {
	bo := backoff{min: 100 * time.Millisecond, max: 10 * time.Second}
	for {
		err := put()
		if err == nil || errors.Is(err, agentstore.ErrClosed) || ctx.Err() != nil {
			return
		}
		r.log().Error("agent state not written; trying again", "what", what, "error", err)
		if !sleep(ctx, bo.next()) {
			return
		}
	}
}

// changed reports the allocation and wakes the runner.
func (r *Runner) changed() {
	r.reportNow()
	r.wake()
}

// reportNow reports the allocation.
func (r *Runner) reportNow() {
	r.services.mu.Lock() // keeps reports in the order in which they were made
	list, since := r.services.serving(r)
	if o := r.observe(); o != nil {
		o.Services, o.HealthySince = list, since
		r.cfg.Servers.Report(o)
	}
	r.services.mu.Unlock()
}

// wake schedules another step.
func (r *Runner) wake() {
	stop := r.stopReason() != nil
	r.mu.Lock()
	r.dirty = true
	unhook, drive := r.unhook, r.state == resting
	if drive {
		r.to(driving)
	}
	ctx := r.ctx
	r.mu.Unlock()
	if stop && unhook != nil {
		unhook()
	}
	if drive && !r.cfg.Agent.Go(func() { r.drive(ctx) }) {
		r.mu.Lock()
		r.to(resting) // the agent is stopping
		r.mu.Unlock()
	}
}

// driveHere is wake for a goroutine of a task that has nothing else to do: it takes the next step itself.
func (r *Runner) driveHere(ctx context.Context) {
	r.mu.Lock()
	r.dirty = true
	drive := r.state == resting
	if drive {
		r.to(driving)
	}
	r.mu.Unlock()
	if drive {
		r.drive(ctx)
	}
}

// Report reports the allocation to the servers even if nothing changed.
func (r *Runner) Report() {
	if f := r.Final(); f != nil {
		r.cfg.Servers.Report(&f.Observed)
		return
	}
	r.changed()
}

// Update takes over a newer version of the allocation from the servers.
func (r *Runner) Update(a *structs.Allocation) error {
	if err := r.cfg.Host.Store.PutAlloc(a); err != nil {
		return fmt.Errorf("store allocation %s: %w", a.ID, err)
	}
	r.mu.Lock()
	if r.alloc.Suspended() != a.Suspended() {
		r.suspension.changed.send()
	}
	r.alloc = a
	r.mu.Unlock()
	r.changed()
	return nil
}

// Kill ends all tasks. fail makes the allocation count as failed. desc is reported to the servers.
func (r *Runner) Kill(desc string, fail bool) {
	e := event(EventKilling, desc)
	e.Fails = fail
	r.stop(&stopReason{event: e, fail: fail, desc: desc})
}

func (r *Runner) stop(s *stopReason) {
	r.mu.Lock()
	if r.stopping == nil {
		r.stopping = s
	}
	r.mu.Unlock()
	r.changed()
}

// stopReason returns why all tasks must end, or nil.
func (r *Runner) stopReason() *stopReason {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping == nil && r.alloc.ServerTerminal() {
		desc := r.alloc.DesiredDesc
		if desc == "" {
			desc = "the servers stopped the allocation"
		}
		r.stopping = &stopReason{event: event(EventKilling, desc), desc: desc, force: r.alloc.Transition.NoShutdownDelay}
	}
	return r.stopping
}

func (r *Runner) noShutdownDelay() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alloc.Transition.NoShutdownDelay || r.stopping != nil && r.stopping.force
}

// observe returns the report to the servers. It is nil before Start, and once the end has been recorded: finish reports
// that.
func (r *Runner) observe() *structs.AllocObserved {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.final != nil || r.state == created {
		return nil
	}
	o := &structs.AllocObserved{ID: r.id, Client: structs.ClientPending, ClientDesc: "no task has started yet"}
	states := make(map[string]*structs.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		st := t.state()
		states[t.name] = st
		if st.State == stateRunning && r.started == 0 {
			r.started = st.StartedAt
		}
	}
	o.TaskStates.Compact(states)
	if r.started != 0 {
		// Once running, the allocation is running until all tasks have ended: its resources are not free before.
		o.Client, o.ClientDesc = structs.ClientRunning, "tasks are running"
	}
	o.StartedAt, o.Frozen = r.started, r.suspension.since
	o.GangEpoch, o.GangPort = r.gang.epoch, r.gang.port
	o.Saved = r.newest()
	o.GPUUse = r.cfg.Host.GPUs.Use(r.alloc)
	if n := r.cfg.Host.Node(); n != nil && len(n.Resources.Networks) > 0 {
		o.NetworkIP = n.Resources.Networks[0].IP
	}
	return o
}

// Start runs the allocation until it has ended, or until ctx ends; its tasks then continue without the agent. Start
// does not block and is called once.
func (r *Runner) Start(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	final := r.final
	if final == nil {
		r.to(preparing)
	} else {
		r.to(ended)
	}
	r.mu.Unlock()
	r.cfg.Agent.Go(func() {
		if final == nil {
			r.begin(ctx)
			return
		}
		r.postrun()
		r.setOver()
		r.cfg.Agent.Ended(r)
		if final.Acked {
			r.release(ctx)
		} else {
			r.cfg.Servers.Report(&final.Observed)
		}
	})
}

// context returns the context of Start.
func (r *Runner) context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// begin runs the hooks, then drives.
func (r *Runner) begin(ctx context.Context) {
	r.changed()
	err := r.prerun(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !r.resumed() {
		r.notStarted(ctx, err)
	} else if err != nil { // a failed hook does not end tasks that run already
		r.log().Error("a hook failed; the allocation continues because its tasks already run", "error", err)
	}
	r.mu.Lock()
	r.to(driving)
	r.dirty = true
	r.mu.Unlock()
	r.drive(ctx)
}

// errStopped means that the servers stopped the allocation before any task started.
var errStopped = errors.New("stopped before it started")

// prerun runs the allocation's hooks. A stop of the allocation cancels a hook that waits.
func (r *Runner) prerun(ctx context.Context) error {
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.unhook = cancel
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.unhook = nil
		r.mu.Unlock()
	}()
	for _, h := range allocHooks() {
		if r.stopReason() != nil {
			return errStopped
		}
		if h.prerun == nil {
			continue
		}
		if err := h.prerun(hctx, r); err != nil {
			if r.stopReason() != nil && ctx.Err() == nil {
				return errStopped
			}
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

// notStarted ends an allocation whose hooks failed before any task started.
func (r *Runner) notStarted(ctx context.Context, err error) {
	e := event(EventSetupFailure, err.Error(), "setup_error", err.Error())
	if errors.Is(err, errStopped) {
		if s := r.stopReason(); s != nil {
			e = s.event
		}
	} else {
		r.log().Error("allocation cannot start", "error", err)
		e = failing(e)
		r.mu.Lock()
		r.setup = err.Error()
		r.mu.Unlock()
	}
	for _, t := range r.tasks {
		if !t.dead() {
			t.finish(ctx, e)
		}
	}
}

func (r *Runner) postrun() {
	hooks := allocHooks()
	slices.Reverse(hooks)
	for _, h := range hooks {
		if h.postrun != nil {
			h.postrun(r)
		}
	}
}

// finish records how the allocation ended, then reports it.
func (r *Runner) finish(ctx context.Context) {
	r.cfg.Host.GPUs.Settle(r)
	used := r.cfg.Host.GPUs.Use(r.Alloc())
	r.postrun()
	o := structs.AllocObserved{ID: r.id, Client: structs.ClientComplete, ClientDesc: "all tasks have ended well", GPUUse: used}
	var last structs.LogTime
	states := make(map[string]*structs.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		st := t.state()
		states[t.name] = st
		last = max(last, st.FinishedAt)
		if st.Failed && o.Client != structs.ClientFailed {
			o.Client, o.ClientDesc = structs.ClientFailed, "task "+t.name+" failed"
		}
	}
	o.TaskStates.Compact(states)
	r.mu.Lock()
	if last == 0 {
		last = now()
	}
	switch s := r.stopping; {
	case r.setup != "":
		o.Client, o.ClientDesc = structs.ClientFailed, r.setup
	case s != nil && s.lapsed:
		o.Client, o.ClientDesc, o.Lapsed = structs.ClientComplete, s.desc, true
	case s != nil && s.fail:
		o.Client, o.ClientDesc = structs.ClientFailed, s.desc
	case s != nil && o.Client != structs.ClientFailed:
		o.ClientDesc = s.desc
	}
	o.StartedAt, o.FinishedAt, o.Saved = r.started, last, r.newest()
	if n := r.cfg.Host.Node(); n != nil && len(n.Resources.Networks) > 0 {
		o.NetworkIP = n.Resources.Networks[0].IP
	}
	f := &agentstore.Final{Observed: o, EndedAt: last}
	r.mu.Unlock()
	r.persist(ctx, "end of the allocation", func() error { return r.cfg.Host.Store.PutFinal(r.id, f) })
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	r.final = f
	r.to(ended)
	r.mu.Unlock()
	r.setOver()
	r.cfg.Agent.Ended(r)
	r.cfg.Servers.Report(&f.Observed)
}

// Destroy removes the directories and the record of an allocation that has ended. It may be repeated.
func (r *Runner) Destroy() error {
	r.mu.Lock()
	if r.final == nil {
		r.mu.Unlock()
		return fmt.Errorf("allocation %s has not ended", r.id)
	}
	r.to(destroyed)
	ctx := r.ctx
	r.mu.Unlock()
	if ctx == nil {
		ctx = context.Background()
	}
	r.release(ctx)
	if r.dir != nil {
		if err := r.dir.Destroy(); err != nil {
			return fmt.Errorf("remove the directory of allocation %s: %w", r.id, err)
		}
	}
	return r.cfg.Host.Store.DeleteAlloc(r.id)
}
