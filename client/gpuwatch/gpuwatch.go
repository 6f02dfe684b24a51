// Package gpuwatch watches the GPUs that tasks of this node have been granted. It holds tasks to their share of GPU memory,
// measures what each task uses, puts power limits back after a task, and notifies tasks and servers of GPU errors, of GPUs
// that idle and of memory that runs full.
//
// Watch.Run is one goroutine. What may block on a driver, a disk or a task's command runs in a goroutine of its own, at
// most one of each kind.
package gpuwatch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/structs"
)

// Events of tasks that this package adds. The others are in package runner.
const (
	eventPressure = "GPU Memory Pressure"
	eventFault    = "GPU Fault"  // caused by a program, not by the device
	eventHealth   = "GPU Health" // the health of the device changed
	eventIdle     = "GPU Idle"   // the task has computed nothing for Config.Idle
)

// watchEvery is the interval between looks at shared GPUs. A program can allocate gigabytes in between: the watch
// polices shares, it does not prevent their excess.
const watchEvery = time.Second

// meterEvery is the interval between looks at whole GPUs, where only use is measured.
const meterEvery = 5 * time.Second

// driverPatience bounds each call of the GPU driver.
const driverPatience = 10 * time.Second

// Node is the agent around the watch.
type Node interface {
	// Node returns the node as it is registered now.
	Node() *structs.Node
	// Allocs lists the allocations on the node, in any order. Those that have ended may be among them.
	Allocs() []Alloc
	// Alloc is one of them, or nil.
	Alloc(id structs.AllocID) Alloc
	// SendEvents reports events of the node to the servers.
	SendEvents(ctx context.Context, events []structs.NodeEvent)
	// PutGPUUses stores what tasks have used of GPUs.
	PutGPUUses(u *agentstore.GPUUses) error
	// Go runs fn in a goroutine that the agent waits for when it stops. It returns false, and does not run fn, once the
	// agent is stopping.
	Go(fn func()) bool
}

// Alloc is an allocation on the node. *runner.Runner implements it.
type Alloc interface {
	Alloc() *structs.Allocation
	// Ended reports whether the end of the allocation has been recorded.
	Ended() bool
	TaskStates
	TaskControl
}

// TaskStates is what the watch reads about the tasks of an allocation.
type TaskStates interface {
	// RunID returns the id that the driver knows the running task by; "" while the task does not run.
	RunID(task string) string
	// Active reports whether the task runs and is not suspended.
	Active(task string) bool
	// StartedAt returns the start of the task's present run; 0 while it does not run.
	StartedAt(task string) structs.LogTime
	// ShimDir returns the directory with the task's shares under the backend "shim"; "" if it has none.
	ShimDir(task string) string
	// GPURequest returns the request that the task's GPU grants answer, and these grants; nil if there is none.
	GPURequest(task string) (*structs.GPURequest, []structs.Grant)
	// PowerLimits returns the power limits in watts that tasks want, by GPU; the name "" asks for those of all tasks.
	PowerLimits(task string) map[string]int64
}

// TaskControl is what the watch does to the tasks of an allocation.
type TaskControl interface {
	// NoteGPU adds an event to a task that has not ended. details are pairs of key and value.
	NoteGPU(ctx context.Context, task, kind, message string, details ...string)
	// ExceedGPU ends the allocation because the task holds more than its share of a GPU's memory.
	ExceedGPU(task, uuid string, quotaMiB, usedMiB int64)
	// LoseGPU ends the allocation because a GPU, or what enforces the task's share of it, is gone.
	LoseGPU(task, uuid, why string)
	// Signal sends a signal to the task.
	Signal(ctx context.Context, task, signal string) error
	// NotifyBy runs a command in the task.
	NotifyBy(ctx context.Context, task string, command []string) error
}

// Device is what the node can do with its GPUs. A nil function means that it cannot.
type Device struct {
	// Samples measures the GPUs and the memory of each process now. nil: nothing is watched or measured.
	Samples func(context.Context) ([]gpu.Sample, error)
	// Instance returns the GPU that holds a MIG instance, and the instance's number there. nil: there are no instances.
	Instance func(uuid string) (parent string, gi int64, ok bool)
	// Reports delivers errors as the driver reports them. nil: there are none.
	Reports <-chan gpu.Report
	// LimitMemory makes the driver limit a task (backend "dmem"), named by its id, to bytes of a GPU; -1 removes the
	// limit. MemoryLimit reads the limit.
	LimitMemory func(ctx context.Context, taskID, uuid string, bytes int64) error
	MemoryLimit func(ctx context.Context, taskID, uuid string) (gpu.MemoryLimit, error)
	// LimitPower sets the power limit of a GPU. RestorePower resets the limit of every GPU that wanted does not list.
	LimitPower   func(ctx context.Context, uuid string, watts int64) error
	RestorePower func(ctx context.Context, wanted func() map[string]bool) error
}

// Config configures a Watch.
type Config struct {
	Device Device
	// Idle is how long a task may hold GPUs and compute nothing before it is notified. 0: no limit.
	Idle     time.Duration
	Pressure Pressure
}

// Watch watches the GPUs of a node.
type Watch struct {
	cfg   Config
	node  Node
	log   hclog.Logger
	boot  string    // the kernel's boot id, set by Restore
	meter gpu.Meter // guards itself

	// The fields below belong to the goroutine of Run.
	watcher  gpu.Watcher
	living   shim.Living
	pressure *pressure
	looked   time.Time               // at the GPUs, last
	kept     time.Time               // use was last stored
	beside   map[gpu.Quota]int64     // bytes that a task held beyond its books, at the last look
	ill      map[gpu.Quota]string    // last reported health; "" is healthy
	missing  map[gpu.Quota]int       // looks in a row at which a task's MIG instance was absent and others were present
	idled    map[gpu.Quota]bool      // the task was notified that the GPU idles
	paused   map[gpu.Quota]time.Time // when the task was last seen suspended or not running
	keeping  atomic.Bool             // a goroutine stores use
	restore  atomic.Bool             // a goroutine restores power limits
	stuck    bool                    // power limits could not be restored; belongs to that goroutine
}

// New makes a watch. It does nothing before Run.
func New(cfg Config, node Node, log hclog.Logger) *Watch {
	return &Watch{cfg: cfg, node: node, log: log}
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	if w.cfg.Device.Samples == nil {
		return
	}
	w.beside, w.pressure = map[gpu.Quota]int64{}, newPressure(w)
	w.node.Go(func() { w.pressure.sender.Run(ctx) })
	defer w.keep()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.cfg.Device.Reports:
			w.report(ctx, e)
		case <-tick.C:
			w.tick(ctx)
		}
	}
}

// tick does what is due: each second for shared GPUs and young tasks, every meterEvery otherwise.
func (w *Watch) tick(ctx context.Context) {
	have := w.grants()
	w.health(ctx, have)
	w.alone(&w.restore, func() { w.restorePower(ctx) })
	if len(have) == 0 {
		w.nobody(ctx)
		return
	}
	shared := slices.ContainsFunc(have, func(q gpu.Quota) bool { return q.MiB > 0 })
	if !shared && time.Since(w.looked) < meterEvery && !w.young(have) {
		return
	}
	w.looked = time.Now()
	w.look(ctx, have)
	if time.Since(w.kept) >= keepEvery && w.alone(&w.keeping, w.keep) {
		w.kept = w.looked
	}
}

// alone runs fn in a goroutine, unless the previous one is still busy: a driver or a disk that hangs must not block Run.
func (w *Watch) alone(busy *atomic.Bool, fn func()) bool {
	return busy.CompareAndSwap(false, true) && w.node.Go(func() {
		defer busy.Store(false)
		fn()
	})
}

// nobody is the tick of a node without grants. GPUs with thresholds are still measured: processes outside of tasks may
// fill their memory.
func (w *Watch) nobody(ctx context.Context) {
	w.pressure.shares(ctx, nil)
	if len(w.cfg.Pressure.Device) > 0 && time.Since(w.looked) >= meterEvery {
		w.looked = time.Now()
		within, cancel := context.WithTimeout(ctx, driverPatience)
		if samples, err := w.cfg.Device.Samples(within); err == nil {
			w.pressure.devices(samples)
		}
		cancel()
	}
	w.watcher.Look(nil, nil)
	clear(w.beside)
	w.meter.Measure(time.Now(), nil, nil, nil, nil)
}

// look measures the GPUs once and acts on the result. A driver that does not answer causes no action: the health check
// reports it.
func (w *Watch) look(ctx context.Context, have []gpu.Quota) {
	within, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	before := w.booked(have)
	samples, err := w.cfg.Device.Samples(within)
	var uses []gpu.TaskUse
	if err == nil {
		uses = w.watcher.Uses(samples)
		w.meter.Measure(time.Now(), samples, uses, have, w.startedAt)
	}
	w.enforce(within, have, uses, before, err == nil)
	if err != nil {
		return
	}
	w.stopExcess(have, uses)
	w.pressure.shares(ctx, have)
	w.pressure.devices(samples)
	w.idle(ctx)
}

// grants returns the GPUs of allocations that have not ended.
func (w *Watch) grants() []gpu.Quota {
	var out []gpu.Quota
	for _, a := range w.node.Allocs() {
		if !a.Ended() {
			out = append(out, grantsOf(a.Alloc())...)
		}
	}
	return out
}

func grantsOf(a *structs.Allocation) []gpu.Quota {
	var out []gpu.Quota
	for i := range a.Grants {
		if g := &a.Grants[i]; g.IsGPU() {
			out = append(out, gpu.Quota{Alloc: a.ID, Task: g.Task, GPU: g.Instance, MiB: g.MemoryMiB, Backend: g.Backend})
		}
	}
	return out
}

// startedAt returns the start of the present run of the task that has a grant; 0 while it does not run.
func (w *Watch) startedAt(q gpu.Quota) structs.LogTime {
	if a := w.node.Alloc(q.Alloc); a != nil {
		return a.StartedAt(q.Task)
	}
	return 0
}

// errNoDevice is the answer of a node that cannot ask its driver.
var errNoDevice = errors.New("this agent cannot ask the driver for it")
