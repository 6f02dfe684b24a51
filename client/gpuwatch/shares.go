package gpuwatch

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/structs"
)

// How a share of GPU memory is held depends on the backend of its grant:
//
//	watch  Only this package compares what a task's processes hold with the share, and ends the task.
//	shim   A library in the task's processes books each allocation and refuses what exceeds the share. Its books are
//	       corrected here: memory of dead processes is freed, and memory that the driver counts and the library cannot see
//	       (contexts, code) is added. A program that bypasses the library is caught as under "watch".
//	dmem   The driver holds the task's control group to the share. Here it is checked that the limit is still in force.
//
// A task whose backend is no longer in force is ended.

// enforce checks and corrects what holds each share. fresh means that uses are of this look; before is booked's result from
// before the driver was asked.
func (w *Watch) enforce(ctx context.Context, have []gpu.Quota, uses []gpu.TaskUse, before map[gpu.Quota]int64, fresh bool) {
	was := w.beside
	w.beside = map[gpu.Quota]int64{}
	for _, q := range have {
		if b, ok := was[q]; ok {
			w.beside[q] = b
		}
		a := w.node.Alloc(q.Alloc)
		if a == nil || q.MiB == 0 || a.RunID(q.Task) == "" {
			continue
		}
		switch q.Backend {
		case structs.BackendShim:
			w.correct(a, q, uses, before, fresh)
		case structs.BackendDmem:
			w.checkLimit(ctx, a, q)
		}
	}
}

// stopExcess ends allocations whose tasks have held more than their share at two looks in a row.
func (w *Watch) stopExcess(have []gpu.Quota, uses []gpu.TaskUse) {
	var watched []gpu.Quota
	for _, q := range have {
		if q.MiB > 0 && (q.Backend == structs.BackendWatch || q.Backend == structs.BackendShim) {
			watched = append(watched, q)
		}
	}
	for _, x := range w.watcher.Look(uses, watched) {
		if a := w.node.Alloc(x.Alloc); a != nil {
			w.log.Warn("task exceeds its share of GPU memory; stopping it", "alloc", x.Alloc.Short(), "task", x.Task, "gpu", x.GPU, "quota_mib", x.QuotaMiB, "used_mib", x.UsedMiB)
			a.ExceedGPU(x.Task, x.GPU, x.QuotaMiB, x.UsedMiB)
		}
	}
}

// booked reads the books of shares of the backend "shim".
func (w *Watch) booked(have []gpu.Quota) map[gpu.Quota]int64 {
	out := map[gpu.Quota]int64{}
	for _, q := range have {
		if a := w.node.Alloc(q.Alloc); a != nil {
			if u, ok := books(a, q); ok {
				out[q] = u.UsedBytes
			}
		}
	}
	return out
}

// books reads the books of one share; it is not ok if the share has none.
func books(a Alloc, q gpu.Quota) (shim.Usage, bool) {
	dir := a.ShimDir(q.Task)
	if q.Backend != structs.BackendShim || q.MiB == 0 || dir == "" {
		return shim.Usage{}, false
	}
	f, err := shim.Open(dir, q.GPU)
	if err != nil {
		return shim.Usage{}, false
	}
	defer f.Close()
	u, err := f.Read()
	return u, err == nil
}

// correct frees what dead processes have booked and adds what the driver counts beyond the books. The books were read
// before and are read after the driver was asked; the larger figure counts, and the difference must be there at two looks.
// Otherwise a process that ended in between, or that the driver still lists, would take from the share of the next one.
func (w *Watch) correct(a Alloc, q gpu.Quota, uses []gpu.TaskUse, before map[gpu.Quota]int64, fresh bool) {
	dir := a.ShimDir(q.Task)
	if dir == "" {
		return
	}
	f, err := shim.Open(dir, q.GPU)
	if err != nil {
		w.lose(a, q, err)
		return
	}
	defer f.Close()
	u, err := f.Read()
	if err == nil && u.LimitBytes != q.MiB<<20 { // the task can write to the file
		err = f.SetLimit(q.MiB << 20)
	}
	if err != nil {
		w.lose(a, q, err)
		return
	}
	most := max(before[q], u.UsedBytes)
	n, err := f.Sweep(u.Processes, w.living.Gone)
	if err != nil {
		w.lose(a, q, err)
		return
	}
	if n > 0 {
		w.log.Debug("freed GPU memory booked by processes that are gone", "alloc", q.Alloc.Short(), "task", q.Task, "gpu", q.GPU, "processes", n)
		if u, err = f.Read(); err != nil {
			return // the next look repeats it
		}
	}
	w.meter.Booked(q, u.PeakBytes, u.Denied, time.Now())
	if !fresh {
		return
	}
	var held int64
	for _, x := range uses {
		if x.Alloc == q.Alloc && x.Task == q.Task && x.GPU == q.GPU {
			held = x.Bytes
		}
	}
	beside, was := max(held-most, 0), w.beside[q]
	w.beside[q] = beside
	if err := f.SetUntracked(min(beside, was)); err != nil {
		w.log.Warn("could not record GPU memory beyond the books", "alloc", q.Alloc.Short(), "task", q.Task, "error", err)
	}
}

// checkLimit checks that the driver still enforces a share of the backend "dmem".
func (w *Watch) checkLimit(ctx context.Context, a Alloc, q gpu.Quota) {
	if w.cfg.Device.MemoryLimit == nil {
		w.lose(a, q, errNoDevice)
		return
	}
	id := a.RunID(q.Task)
	if id == "" {
		return
	}
	l, err := w.cfg.Device.MemoryLimit(ctx, id, q.GPU)
	switch {
	case err != nil && !w.offersDmem(): // a driver that only does not answer may still enforce the share
		w.lose(a, q, err)
	case err == nil && l.Bytes != q.MiB<<20 && a.RunID(q.Task) != "":
		w.lose(a, q, fmt.Errorf("the driver limits it to %d bytes instead of %d", l.Bytes, q.MiB<<20))
	}
}

func (w *Watch) offersDmem() bool {
	for _, g := range w.node.Node().Resources.Devices {
		if _, ok := structs.GPUBackend(structs.BackendDmem, g.Attributes[structs.GPUEnforceAttribute].Str); ok {
			return true
		}
	}
	return false
}

// lose ends an allocation because nothing enforces a task's share any more, or its MIG instance is gone.
func (w *Watch) lose(a Alloc, q gpu.Quota, err error) {
	if a.Ended() || a.RunID(q.Task) == "" {
		return
	}
	w.log.Warn("a task's share of a GPU is no longer enforced; stopping the task", "alloc", q.Alloc.Short(), "task", q.Task, "gpu", q.GPU, "backend", q.Backend, "error", err)
	a.LoseGPU(q.Task, q.GPU, fmt.Sprintf("its share is no longer enforced by %s: %v", q.Backend, err))
}

// LimitMemory makes the driver enforce the shares of a task that is about to start under taskID.
func (w *Watch) LimitMemory(ctx context.Context, taskID string, grants []structs.Grant) error {
	if w.cfg.Device.LimitMemory == nil {
		return fmt.Errorf("this node cannot limit the GPU memory of a control group any more")
	}
	for _, g := range grants {
		within, cancel := context.WithTimeout(ctx, driverPatience)
		err := w.cfg.Device.LimitMemory(within, taskID, g.Instance, g.MemoryMiB<<20)
		cancel()
		if err != nil {
			return fmt.Errorf("limit the task to its share of GPU %s: %w", g.Instance, err)
		}
	}
	return nil
}
