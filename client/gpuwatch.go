package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// gpuWatchEvery is how often the memory of tasks on shared GPUs is looked at. A program can take gigabytes in between:
// this is policing, not a wall.
const gpuWatchEvery = time.Second

// gpuMeterEvery is how often whole GPUs are looked at, where nothing is to be policed.
const gpuMeterEvery = 5 * time.Second

// migLooks is for how many looks in a row a task's MIG instance must be missing before the task is ended: its GPU may be
// given to others as a whole meanwhile.
const migLooks = 3

// gpuWatch holds tasks to their shares of GPU memory. Where the backend is "watch" nothing else does. Where it is "shim",
// what the library has booked is compared with what the driver says: the difference (contexts, code) is made part of the
// books, and a program that goes around the library is caught. A backend that is not in force any more ends its task.
type gpuWatch struct {
	c        *Client
	watcher  gpu.Watcher
	living   shim.Living
	pressure *pressure
	beside   map[gpu.Quota]int64     // bytes held beside the books, at the last look
	stuck    bool                    // power limits could not be put back; of restore alone
	ill      map[gpu.Quota]string    // what was told last of the GPU's health; "" is well
	idled    map[gpu.Quota]bool      // that a GPU is idle was told
	stood    map[gpu.Quota]time.Time // when tasks were last seen that did not run, or were suspended
	missing  map[gpu.Quota]int       // looks in a row without a task's MIG instance, while the driver showed others
}

func (c *Client) gpuWatchLoop(ctx context.Context) {
	if c.cfg.GPUSamples == nil {
		return
	}
	tick := time.NewTicker(gpuWatchEvery)
	defer tick.Stop()
	w := &gpuWatch{c: c, pressure: newPressure(c), beside: map[gpu.Quota]int64{}}
	c.threads.start(func() { w.pressure.sender.Run(ctx) })
	defer c.keepGPUUse()
	var looked, kept time.Time
	var keeping, restoring atomic.Bool
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-c.cfg.GPUReports:
			w.tell(ctx, e)
			continue
		case <-tick.C:
		}
		have := c.gpuGrants()
		w.health(ctx, have)
		if restoring.CompareAndSwap(false, true) {
			c.threads.start(func() { // a driver that hangs holds up nobody
				defer restoring.Store(false)
				w.restore(ctx)
			})
		}
		shared := false
		for _, q := range have {
			shared = shared || q.MiB > 0
		}
		if len(have) == 0 {
			w.idle(ctx, &looked)
			w.watcher.Look(nil, nil)
			clear(w.beside)
			c.meter.Measure(time.Now(), nil, nil, nil, nil)
			continue
		}
		if !shared && time.Since(looked) < gpuMeterEvery && !c.youngGPUUse(have) {
			continue
		}
		looked = time.Now()
		w.look(ctx, have)
		if time.Since(kept) >= gpuKeepEvery && keeping.CompareAndSwap(false, true) {
			kept = looked
			c.threads.start(func() { // a disk that hangs holds up nobody
				defer keeping.Store(false)
				c.keepGPUUse()
			})
		}
	}
}

// restore puts power limits back. That it cannot is told once.
func (w *gpuWatch) restore(ctx context.Context) {
	err := w.c.RestoreGPUPower(ctx)
	if ctx.Err() != nil || (err != nil) == w.stuck {
		return
	}
	if w.stuck = err != nil; w.stuck {
		w.c.log.Warn("will be tried again", "error", err)
	}
}

// idle looks at GPUs that nobody here has been given, if their memory has thresholds: processes of others may fill it.
func (w *gpuWatch) idle(ctx context.Context, looked *time.Time) {
	w.pressure.shares(ctx, nil)
	if len(w.c.cfg.Pressure.Device) == 0 || time.Since(*looked) < gpuMeterEvery {
		return
	}
	*looked = time.Now()
	within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
	defer cancel()
	if samples, err := w.c.cfg.GPUSamples(within); err == nil {
		w.pressure.devices(samples)
	}
}

// look compares once.
func (w *gpuWatch) look(ctx context.Context, have []gpu.Quota) {
	within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
	defer cancel()
	for q := range w.beside {
		if !slices.Contains(have, q) {
			delete(w.beside, q)
		}
	}
	before := w.booked(have)
	samples, err := w.c.cfg.GPUSamples(within)
	var uses []gpu.TaskUse
	if err == nil { // a driver that does not answer is the health check's business
		uses = w.watcher.Uses(samples)
		w.c.meter.Measure(time.Now(), samples, uses, have, w.c.startedAt)
	}
	for _, q := range have {
		r := w.c.Alloc(q.Alloc)
		if r == nil || q.MiB == 0 || !r.Started(q.Task) {
			continue
		}
		switch q.Backend {
		case structs.BackendShim:
			w.books(r, q, uses, before, err == nil)
		case structs.BackendDmem:
			w.limit(within, r, q)
		}
	}
	if err != nil {
		return
	}
	var watched []gpu.Quota
	for _, q := range have {
		if q.MiB > 0 && (q.Backend == structs.BackendWatch || q.Backend == structs.BackendShim) {
			watched = append(watched, q)
		}
	}
	for _, x := range w.watcher.Look(uses, watched) {
		if r := w.c.Alloc(x.Alloc); r != nil {
			w.c.log.Warn("a task holds more GPU memory than its share; it is stopped", "alloc", x.Alloc.Short(), "task", x.Task, "gpu", x.GPU, "quota_mib", x.QuotaMiB, "used_mib", x.UsedMiB)
			r.ExceedGPU(x.Task, x.GPU, x.QuotaMiB, x.UsedMiB)
		}
	}
	w.pressure.shares(ctx, have)
	w.pressure.devices(samples)
	w.idles(ctx)
}

// idles tells tasks once that they have had GPUs for long and computed nothing, and again when they did meanwhile.
func (w *gpuWatch) idles(ctx context.Context) {
	if w.c.cfg.GPUIdle <= 0 {
		return
	}
	for t, gpus := range w.idleNow(w.c.GPUUses(), func(t taskOf) bool {
		r := w.c.Alloc(t.alloc)
		return r != nil && r.Goes(t.name)
	}) {
		if r := w.c.Alloc(t.alloc); r != nil {
			r.TellGPU(ctx, t.name, runner.EventGPUIdle, fmt.Sprintf("GPU %s: nothing has been computed for %s", strings.Join(gpus, ", "), w.c.cfg.GPUIdle), "gpu", strings.Join(gpus, ","))
		}
	}
}

// taskOf is a task of an allocation.
type taskOf struct {
	alloc structs.AllocID
	name  string
}

// idleNow gives the GPUs that are to be told to be idle, by task. Time in which a task does not run yet, or is suspended, is
// none in which it could compute; goes tells whether it could.
func (w *gpuWatch) idleNow(uses []gpu.TaskUsage, goes func(taskOf) bool) map[taskOf][]string {
	told, stood, news := map[gpu.Quota]bool{}, map[gpu.Quota]time.Time{}, map[taskOf][]string{}
	for _, u := range uses {
		t := taskOf{u.Alloc, u.Task}
		if u.Idle.IsZero() {
			continue
		}
		if !goes(t) {
			stood[u.Quota], told[u.Quota] = u.Measured, w.idled[u.Quota]
			continue
		}
		since := u.Idle
		if s := w.stood[u.Quota]; !s.IsZero() {
			if stood[u.Quota] = s; s.After(since) {
				since = s
			}
		}
		if !w.idled[u.Quota] && u.Measured.Sub(since) < w.c.cfg.GPUIdle {
			continue
		}
		if told[u.Quota] = true; !w.idled[u.Quota] {
			news[t] = append(news[t], u.GPU)
		}
	}
	w.idled, w.stood = told, stood
	return news
}

// booked is what the books of shares say before the driver is asked.
func (w *gpuWatch) booked(have []gpu.Quota) map[gpu.Quota]int64 {
	out := map[gpu.Quota]int64{}
	for _, q := range have {
		r := w.c.Alloc(q.Alloc)
		if q.Backend != structs.BackendShim || q.MiB == 0 || r == nil || r.ShimDir(q.Task) == "" {
			continue
		}
		if f, err := shim.Open(r.ShimDir(q.Task), q.GPU); err == nil {
			if u, err := f.Read(); err == nil {
				out[q] = u.UsedBytes
			}
			f.Close()
		}
	}
	return out
}

// books brings the books of a task's share up to date: what processes had that are gone, and what is held beside them.
// The driver was asked between two looks at the books, of which the larger counts, and what is found beside them must be
// there twice: a process that ended in between, or one that the driver has not forgotten yet, must not take the share of
// the next one.
func (w *gpuWatch) books(r *runner.Runner, q gpu.Quota, uses []gpu.TaskUse, before map[gpu.Quota]int64, fresh bool) {
	dir := r.ShimDir(q.Task)
	if dir == "" {
		return
	}
	f, err := shim.Open(dir, q.GPU)
	if err != nil {
		w.vanished(r, q, err)
		return
	}
	defer f.Close()
	u, err := f.Read()
	if err == nil && u.LimitBytes != q.MiB<<20 { // who writes there can also write this; it is put right
		err = f.SetLimit(q.MiB << 20)
	}
	if err != nil {
		w.vanished(r, q, err)
		return
	}
	most := max(before[q], u.UsedBytes)
	n, err := f.Sweep(u.Processes, w.living.Gone)
	if err != nil {
		w.vanished(r, q, err)
		return
	}
	if n > 0 {
		w.c.log.Debug("freed GPU memory that processes had booked which are gone", "alloc", q.Alloc.Short(), "task", q.Task, "gpu", q.GPU, "processes", n)
		if u, err = f.Read(); err != nil {
			return // next time
		}
	}
	w.c.meter.Booked(q, u.PeakBytes, u.Denied, time.Now())
	if !fresh {
		return
	}
	var held int64
	for _, x := range uses {
		if x.Alloc == q.Alloc && x.Task == q.Task && x.GPU == q.GPU {
			held = x.Bytes
		}
	}
	beside := max(held-most, 0)
	was := w.beside[q]
	w.beside[q] = beside
	if err := f.SetUntracked(min(beside, was)); err != nil {
		w.c.log.Warn("GPU memory beside the books could not be noted", "alloc", q.Alloc.Short(), "task", q.Task, "error", err)
	}
}

// limit checks that the driver still holds a task to its share.
func (w *gpuWatch) limit(ctx context.Context, r *runner.Runner, q gpu.Quota) {
	if w.c.cfg.GPULimit == nil {
		w.vanished(r, q, errors.New("this agent cannot ask the driver for it"))
		return
	}
	id := r.RunID(q.Task)
	if id == "" {
		return
	}
	l, err := w.c.cfg.GPULimit(ctx, id, q.GPU)
	switch {
	case err != nil && w.gone():
		w.vanished(r, q, err)
	case err == nil && l.Bytes != q.MiB<<20 && r.Started(q.Task):
		w.vanished(r, q, fmt.Errorf("the driver holds it to %d bytes instead of %d", l.Bytes, q.MiB<<20))
	}
}

// gone reports whether the node does not offer the backend "dmem" any more; a driver that does not answer is no reason to
// end a task that it may well hold to its share.
func (w *gpuWatch) gone() bool {
	for _, g := range w.c.Node().Resources.Devices {
		if _, ok := structs.GPUBackend(structs.BackendDmem, g.Attributes[structs.GPUEnforceAttribute].Str); ok {
			return false
		}
	}
	return true
}

func (w *gpuWatch) vanished(r *runner.Runner, q gpu.Quota, err error) {
	if r.Final() != nil || !r.Started(q.Task) {
		return
	}
	w.c.log.Warn("what holds a task to its share of a GPU is not there any more; the task is stopped", "alloc", q.Alloc.Short(), "task", q.Task, "gpu", q.GPU, "backend", q.Backend, "error", err)
	r.LoseGPU(q.Task, q.GPU, fmt.Sprintf("its share is not enforced by %s any more: %v", q.Backend, err))
}

// tell notes an error of a GPU at the tasks that have it: as the GPU's, or as what a program did to it.
func (w *gpuWatch) tell(ctx context.Context, e gpu.Report) {
	for _, q := range w.c.gpuGrants() {
		if r := w.c.Alloc(q.Alloc); r != nil && slices.Contains(e.Devices, q.GPU) {
			kind, whose := runner.EventGPUFault, "a program's fault"
			if e.Device {
				kind, whose = structs.TaskEventGPUError, "the device's fault"
			}
			r.TellGPU(ctx, q.Task, kind, fmt.Sprintf("GPU %s: %s, %s", q.GPU, e.Text, whose), "gpu", q.GPU, "xid", strconv.FormatInt(e.XID, 10))
		}
	}
}

// health tells tasks when the health of their GPUs changes, and ends those whose MIG instance somebody has destroyed.
func (w *gpuWatch) health(ctx context.Context, have []gpu.Quota) {
	state := map[string]string{}
	for _, g := range w.c.Node().Resources.Devices {
		for _, in := range g.Instances {
			if state[in.ID] = in.HealthDesc; !in.Healthy && in.HealthDesc == "" {
				state[in.ID] = "unhealthy"
			}
		}
	}
	next, missing := map[gpu.Quota]string{}, map[gpu.Quota]int{}
	for _, q := range have {
		now, known := state[q.GPU]
		if !known {
			now = "it is not on this node any more"
		}
		next[q] = now
		r := w.c.Alloc(q.Alloc)
		if r != nil && !known && q.Backend == structs.BackendMIG && len(state) > 0 {
			if missing[q] = w.missing[q] + 1; missing[q] == migLooks {
				w.vanished(r, q, errors.New("the MIG instance is not on this node any more"))
			}
		}
		if was := w.ill[q]; was == now || r == nil {
			continue
		}
		msg := "GPU " + q.GPU + " is well again"
		if now != "" {
			msg = "GPU " + q.GPU + ": " + now
		}
		r.TellGPU(ctx, q.Task, runner.EventGPUHealth, msg, "gpu", q.GPU)
	}
	w.ill, w.missing = next, missing
}

// gpuGrants are the GPUs of allocations that have not ended, with the shares of them.
func (c *Client) gpuGrants() []gpu.Quota {
	var out []gpu.Quota
	for _, r := range c.Allocs() {
		if r.Final() != nil {
			continue
		}
		out = append(out, grantsOf(r.Alloc())...)
	}
	return out
}

// grantsOf are the GPUs of an allocation.
func grantsOf(a *structs.Allocation) []gpu.Quota {
	var out []gpu.Quota
	for i := range a.Grants {
		if g := &a.Grants[i]; g.IsGPU() {
			out = append(out, gpu.Quota{Alloc: a.ID, Task: g.Task, GPU: g.Instance, MiB: g.MemoryMiB, Backend: g.Backend})
		}
	}
	return out
}

// limitGPUs is what runners call before a task starts whose shares the driver is to enforce, or nil.
func (c *Client) limitGPUs() func(ctx context.Context, taskID string, grants []structs.Grant) error {
	if c.cfg.LimitGPU == nil {
		return nil
	}
	return func(ctx context.Context, taskID string, grants []structs.Grant) error {
		for _, g := range grants {
			within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
			err := c.cfg.LimitGPU(within, taskID, g.Instance, g.MemoryMiB<<20)
			cancel()
			if err != nil {
				return fmt.Errorf("hold the task to its share of GPU %s: %w", g.Instance, err)
			}
		}
		return nil
	}
}
