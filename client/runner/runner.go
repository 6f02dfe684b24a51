package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Config is what a Runner needs of the agent around it. Runners share one Config.
type Config struct {
	Store   agentstore.Store
	Drivers driver.Set
	// Networks makes networks of allocations' own; nil: there are none here.
	Networks Networks
	Ledger   *Ledger
	Log      hclog.Logger

	Region string
	BootID string
	// Node is the node as it is registered now.
	Node func() *structs.Node
	// Await returns when none of the named allocations runs here any more.
	Await func(ctx context.Context, ids []structs.AllocID) error
	// Report is told of every change of what the servers should know. It must not block.
	Report func(o structs.AllocObserved)

	// AllocsDir is where the allocations' directories are; "" makes none, for drivers that need none.
	AllocsDir string
	// HideDir is what isolated tasks must not see: the agent's data directory.
	HideDir string
	// SecretsInMemory keeps secrets on a memory file system when the agent may mount one.
	SecretsInMemory bool
	// MaxKillTimeout bounds a task's kill_timeout; 0 does not.
	MaxKillTimeout time.Duration
	// EnforceDisk kills an allocation that uses more disk than it asked for.
	EnforceDisk bool
	// PidsMax bounds the processes of a task; 0 does not.
	PidsMax int64
	// DefaultUsers is whom tasks without a user run as, by driver, when the agent is root.
	DefaultUsers map[string]string
	// ServeTask answers the agent's API on the socket of a task of that allocation until it is closed; nil: tasks get none.
	ServeTask func(alloc structs.AllocID, task string, l net.Listener) io.Closer
	// Variables reads the cluster's variables and services for templates; nil: they have none.
	Variables Variables
	// SaveTurn asks whether it is the turn of an allocation, which is to end, to save its state; nil: always.
	SaveTurn func(ctx context.Context, id structs.AllocID) (*methods.SaveTurn, error)
	// RunAs says whom tasks may run as that name a user; nil: everybody that the drivers take.
	RunAs *RunAs
	// Fabric are variables of the agent's that all tasks get, under those of the job.
	Fabric map[string]string
	// RDMAFiles are the device files of the node's RDMA adapters; nil, for simulated nodes: there are none to give.
	RDMAFiles func() ([]driver.DeviceFile, error)
	// ClaimPatience is how long an allocation waits for devices, cores and ports that are not there or not free; 0 is 30 s.
	ClaimPatience time.Duration
	// DeviceNodes are the device files of granted devices, with those that all of a kind share; an error when a grant's
	// are not known now. nil: grants have none.
	DeviceNodes func(grants []structs.Grant) ([]driver.DeviceNode, error)
	// GPUs limits and measures tasks on GPUs.
	GPUs GPUs
	// Ports reserves the rendezvous ports of gangs whose first member is here; nil, for simulated nodes, only pretends.
	Ports *Ports
	// Launcher is the program that starts the ranks of a task (package ranks), as a path on the host; "" for none.
	Launcher string
	// Oversubscribe lets a task use up to MemoryMaxMiB.
	Oversubscribe bool
	// Go runs fn in a goroutine that the agent waits for when it stops. It reports false, and runs nothing, once the
	// agent is stopping.
	Go func(fn func()) bool
	// Ended is told of each allocation whose end has been recorded.
	Ended func(r *Runner)
	// Prolog and Epilog are the operator's commands before and after an allocation's tasks, or nil.
	Prolog, Epilog *Command
	// Fault is told that something is wrong with the node, which shall be drained for that reason. It must not block.
	Fault func(reason string)
	// Well is closed once the node is known to be well; nothing is started before. nil does not wait.
	Well <-chan struct{}
	// CheckpointPoll and CheckpointSettle are how often checkpoints are looked for, whatever groups say, and how long one must
	// not change to be complete; 0 for what groups say, and for 3 s.
	CheckpointPoll, CheckpointSettle time.Duration
	// Inherit names variables of the agent's environment that tasks get; nil for the default.
	Inherit []string
}

// GPUs limits tasks on GPUs and measures what they use.
type GPUs interface {
	// LimitMemory makes the GPU driver enforce the shares (backend "dmem") of a task that is about to start under taskID.
	LimitMemory(ctx context.Context, taskID string, grants []structs.Grant) error
	// LimitPower sets the power limit of a GPU until the allocation has ended.
	LimitPower(ctx context.Context, uuid string, watts int64) error
	// Settle measures an allocation a last time. Its tasks have ended.
	Settle(r *Runner)
	// Use is what an allocation's tasks have used of its GPUs. It does not block.
	Use(a *structs.Allocation) []structs.GPUUse
}

// Runner runs one allocation.
type Runner struct {
	cfg *Config
	id  structs.AllocID
	log hclog.Logger
	dir *allocdir.Dir // nil without directories

	mu         sync.Mutex
	alloc      *structs.Allocation
	tasks      []*task // in the order of the group
	stopping   *stopReason
	again      *structs.TaskEvent // all tasks shall be killed and run anew
	setup      string             // why the hooks failed, or ""
	started    structs.LogTime    // first task running
	final      *agentstore.Final
	destroyed  bool
	entered    bool            // the prolog's turn has come
	live       bool            // Start was called
	busy       bool            // a goroutine drives the allocation
	dirty      bool            // something has changed since it last looked
	overtime   bool            // the allocation is ended because its time is over
	limitAt    structs.LogTime // the end of its time, as armed; 0: not armed
	unlimit    func()          // disarms it, or nil
	frozen     structs.LogTime // since when all its tasks stand still; 0: they do not
	looking    *time.Timer     // of a suspended allocation, until it is looked at again; nil: not armed
	moved      chan struct{}   // closed, and made anew, when the servers suspend or resume it
	ctx        context.Context // of Start: the agent's life
	unhook     func()          // ends the hooks that wait, or nil
	delayUntil time.Time       // end of the group's shutdown delay, once it was begun
	roster     *structs.Roster // who is in the gang, as the servers last said; nil before
	heard      chan struct{}   // closed, and made anew, when roster changes
	port       int             // rendezvous port reserved here, or 0
	savedTold  time.Time       // when a checkpoint was last reported
	savedDue   bool            // the next one is going to be
	portEpoch  uint64          // of the roster that it was reserved for

	services services

	// touched is set before anybody may write below the allocation's directory, which is empty until then.
	touched atomic.Bool

	done chan struct{} // closed when the allocation is client-terminal
}

// stopReason is why all tasks shall end.
type stopReason struct {
	event structs.TaskEvent
	fail  bool // the allocation counts as failed
	desc  string
	force bool // do not wait for shutdown delays
}

// New makes a runner for an allocation the servers sent, or from its record of an earlier life.
func New(cfg *Config, a *structs.Allocation, rec *agentstore.AllocRecord) *Runner {
	r := &Runner{
		cfg: cfg, id: a.ID, alloc: a,
		log:  cfg.Log.With("alloc", a.ID.Short()),
		done: make(chan struct{}), heard: make(chan struct{}), moved: make(chan struct{}),
	}
	if cfg.AllocsDir != "" {
		r.dir = allocdir.New(cfg.AllocsDir, a.ID.String())
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
				cfg.Ledger.Adopt(a)
			}
			r.frozen = max(r.frozen, t.rec.Frozen) // as the servers were told, until it is looked at
			if s := t.rec.State.StartedAt; s != 0 && (r.started == 0 || s < r.started) {
				r.started = s
			}
		}
		if r.final != nil {
			cfg.Ledger.Release(a.ID)
		}
	}
	return r
}

// ID names the allocation.
func (r *Runner) ID() structs.AllocID { return r.id }

// Alloc is the allocation as the servers last sent it.
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

// runLimit is the wall-clock limit of the allocation; 0 for none.
func (r *Runner) runLimit() time.Duration {
	a := r.Alloc()
	if g := a.Job.Group(a.Group); g != nil {
		return a.Job.RunLimit(g)
	}
	return 0
}

// Dir is the allocation's directory, or nil.
func (r *Runner) Dir() *allocdir.Dir { return r.dir }

// Done is closed when the allocation has ended for good.
func (r *Runner) Done() <-chan struct{} { return r.done }

// Final is how the allocation ended, or nil while it has not.
func (r *Runner) Final() *agentstore.Final {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.final
}

// Ended reports whether the end of the allocation has been recorded.
func (r *Runner) Ended() bool { return r.Final() != nil }

// Released reports whether the drivers have been allowed to forget the allocation's tasks: the servers know how it ended.
func (r *Runner) Released() bool {
	f := r.Final()
	return f != nil && f.Acked
}

// Acked records that the servers know how the allocation ended, and lets the drivers forget its tasks. It does not wait.
func (r *Runner) Acked() {
	r.mu.Lock()
	if r.final == nil || r.final.Acked || r.destroyed {
		r.mu.Unlock()
		return
	}
	f := *r.final
	f.Acked = true
	r.final = &f
	ctx := r.ctx
	r.mu.Unlock()
	r.cfg.Go(func() {
		if err := r.cfg.Store.PutFinal(r.id, &f); err != nil && !errors.Is(err, agentstore.ErrClosed) && !r.isDestroyed() {
			r.log.Warn("remembering that an end was reported failed; it will be reported again", "error", err)
		}
		r.release(ctx)
	})
}

func (r *Runner) isDestroyed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.destroyed
}

// release lets the drivers forget the tasks of an allocation that has ended.
func (r *Runner) release(ctx context.Context) {
	for _, t := range r.tasks {
		t.destroyOld(ctx)
	}
}

// persist writes until it is written: what is not on disk must not happen. A full disk stops the allocation's progress,
// not its tasks.
func (r *Runner) persist(ctx context.Context, what string, put func() error) {
	bo := backoff{min: 100 * time.Millisecond, max: 10 * time.Second}
	for {
		err := put()
		if err == nil || errors.Is(err, agentstore.ErrClosed) || ctx.Err() != nil {
			return
		}
		r.log.Error("agent state not written; trying again", "what", what, "error", err)
		if !sleep(ctx, bo.next()) {
			return
		}
	}
}

// changed reports what is new and makes the coordinator look. While nothing changes an allocation has no goroutine but
// those of its tasks.
func (r *Runner) changed() {
	r.services.mu.Lock() // reports come in the order of what they tell
	list, since := r.services.serving(r)
	if o, ok := r.observe(); ok {
		o.Services, o.HealthySince = list, since
		r.cfg.Report(o)
	}
	r.services.mu.Unlock()
	r.wake()
}

// wake makes the coordinator look.
func (r *Runner) wake() {
	stop := r.stopReason() != nil
	r.mu.Lock()
	r.dirty = true
	unhook, drive := r.unhook, r.live && !r.busy
	if drive {
		r.busy = true
	}
	ctx := r.ctx
	r.mu.Unlock()
	if stop && unhook != nil {
		unhook()
	}
	if drive && !r.cfg.Go(func() { r.drive(ctx) }) {
		r.mu.Lock()
		r.busy = false // the agent stops
		r.mu.Unlock()
	}
}

// Tell reports what the servers should know, whether it has changed or not.
func (r *Runner) Tell() {
	if f := r.Final(); f != nil {
		r.cfg.Report(f.Observed)
		return
	}
	r.changed()
}

// Update is told of a newer version of the allocation from the servers.
func (r *Runner) Update(a *structs.Allocation) error {
	if err := r.cfg.Store.PutAlloc(a); err != nil {
		return fmt.Errorf("store allocation %s: %w", a.ID, err)
	}
	r.mu.Lock()
	if r.alloc.Suspended() != a.Suspended() {
		close(r.moved)
		r.moved = make(chan struct{})
	}
	r.alloc = a
	r.mu.Unlock()
	r.changed()
	return nil
}

// Kill ends all tasks. With fail the allocation counts as failed. desc is for the servers.
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

// stopReason is why the tasks shall end, or nil.
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

// observe is what the servers should know now. It is not ok once the end has been recorded: that is reported by finish.
func (r *Runner) observe() (structs.AllocObserved, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.final != nil || !r.live {
		return structs.AllocObserved{}, false
	}
	o := structs.AllocObserved{ID: r.id, Client: structs.ClientPending, ClientDesc: "no task has started yet"}
	o.TaskStates = make(map[string]*structs.TaskState, len(r.tasks))
	for _, t := range r.tasks {
		st := t.state()
		o.TaskStates[t.name] = st
		if st.State == stateRunning && r.started == 0 {
			r.started = st.StartedAt
		}
	}
	if r.started != 0 {
		// Once running it stays so until everything has ended: what it holds is not free before.
		o.Client, o.ClientDesc = structs.ClientRunning, "tasks are running"
	}
	o.StartedAt, o.Frozen = r.started, r.frozen
	o.GangEpoch, o.GangPort = r.portEpoch, r.port
	o.Saved = r.newest()
	o.GPUUse = r.cfg.GPUs.Use(r.alloc)
	if n := r.cfg.Node(); n != nil && len(n.Resources.Networks) > 0 {
		o.NetworkIP = n.Resources.Networks[0].IP
	}
	return o, true
}

// Start lets the allocation run until it has ended, or until ctx ends; its tasks then go on without the agent. It does
// not wait. It is called once.
func (r *Runner) Start(ctx context.Context) {
	r.mu.Lock()
	r.live, r.busy, r.ctx = true, true, ctx
	final := r.final
	r.mu.Unlock()
	r.cfg.Go(func() {
		if final == nil {
			r.begin(ctx)
			return
		}
		r.postrun()
		close(r.done)
		r.cfg.Ended(r)
		if final.Acked {
			r.release(ctx)
		} else {
			r.cfg.Report(final.Observed)
		}
	})
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
	} else if err != nil { // what runs already is not ended by a hook; it is ended by those who may
		r.log.Error("allocation goes on in spite of a hook that failed", "error", err)
	}
	r.mu.Lock()
	r.dirty = true
	r.mu.Unlock()
	r.drive(ctx)
}

// errStopped means that the servers stopped the allocation before it started anything.
var errStopped = errors.New("stopped before it started")

// prerun runs the allocation's hooks. Stopping the allocation ends those that wait.
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

// notStarted ends an allocation whose hooks failed: no task has been started by this agent.
func (r *Runner) notStarted(ctx context.Context, err error) {
	e := event(EventSetupFailure, err.Error(), "setup_error", err.Error())
	if errors.Is(err, errStopped) {
		if s := r.stopReason(); s != nil {
			e = s.event
		}
	} else {
		r.log.Error("allocation cannot start", "error", err)
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
	r.cfg.GPUs.Settle(r)
	used := r.cfg.GPUs.Use(r.Alloc())
	r.postrun()
	o := structs.AllocObserved{ID: r.id, Client: structs.ClientComplete, ClientDesc: "all tasks have ended well", TaskStates: map[string]*structs.TaskState{}, GPUUse: used}
	var last structs.LogTime
	for _, t := range r.tasks {
		st := t.state()
		o.TaskStates[t.name] = st
		last = max(last, st.FinishedAt)
		if st.Failed && o.Client != structs.ClientFailed {
			o.Client, o.ClientDesc = structs.ClientFailed, "task "+t.name+" failed"
		}
	}
	r.mu.Lock()
	if last == 0 {
		last = now()
	}
	switch s := r.stopping; {
	case r.setup != "":
		o.Client, o.ClientDesc = structs.ClientFailed, r.setup
	case s != nil && s.fail:
		o.Client, o.ClientDesc = structs.ClientFailed, s.desc
	case s != nil && o.Client != structs.ClientFailed:
		o.ClientDesc = s.desc
	}
	o.StartedAt, o.FinishedAt, o.Saved = r.started, last, r.newest()
	if n := r.cfg.Node(); n != nil && len(n.Resources.Networks) > 0 {
		o.NetworkIP = n.Resources.Networks[0].IP
	}
	f := &agentstore.Final{Observed: o, EndedAt: last}
	r.mu.Unlock()
	r.persist(ctx, "end of the allocation", func() error { return r.cfg.Store.PutFinal(r.id, f) })
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	r.final = f
	r.mu.Unlock()
	close(r.done)
	r.cfg.Ended(r)
	r.cfg.Report(o)
}

// Destroy removes the directories and the record of an allocation that has ended.
func (r *Runner) Destroy() error {
	r.mu.Lock()
	if r.final == nil {
		r.mu.Unlock()
		return fmt.Errorf("allocation %s has not ended", r.id)
	}
	r.destroyed = true
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
	return r.cfg.Store.DeleteAlloc(r.id)
}
