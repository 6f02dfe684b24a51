package gpuwatch

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// keepEvery is the interval at which use is stored: the most that a killed agent loses.
const keepEvery = 15 * time.Second

// youngFor is how long a task counts as new. Young tasks are looked at as often as those on shared GPUs: many end soon.
const youngFor = 30 * time.Second

// Settle reads the records of an allocation's shares a last time, after its tasks have ended. They include tasks that
// ended between two measurements.
func (w *Watch) Settle(a Alloc) {
	if w.cfg.Device.Samples == nil {
		return
	}
	for _, q := range grantsOf(a.Alloc()) {
		if u, ok := books(a, q); ok {
			w.meter.Booked(q, u.PeakBytes, u.Denied, time.Now())
		}
	}
}

// Use returns what an allocation's tasks have used of its GPUs; nil if it has none. It does not block.
func (w *Watch) Use(a *structs.Allocation) []structs.GPUUse {
	if len(a.Grants) == 0 || w.cfg.Device.Samples == nil {
		return nil
	}
	return structs.GrantedGPUUse(a.Grants, w.meter.Totals(a.ID, time.Now()))
}

// UsesOf returns the GPU use of an allocation's tasks, unordered.
func (w *Watch) UsesOf(id structs.AllocID) []gpu.TaskUsage { return w.meter.Of(id) }

// Uses returns the GPU use of tasks whose allocations have not ended, ordered by allocation, task and GPU.
func (w *Watch) Uses() []gpu.TaskUsage {
	out := w.meter.All()
	slices.SortFunc(out, func(a, b gpu.TaskUsage) int {
		return cmp.Or(slices.Compare(a.Alloc[:], b.Alloc[:]), cmp.Compare(a.Task, b.Task), cmp.Compare(a.GPU, b.GPU))
	})
	return out
}

// young reports whether a task was granted its GPU less than youngFor ago.
func (w *Watch) young(have []gpu.Quota) bool {
	since := map[gpu.Quota]time.Time{}
	for _, u := range w.meter.All() {
		since[u.Quota] = u.Since
	}
	return slices.ContainsFunc(have, func(q gpu.Quota) bool {
		t, ok := since[q]
		return !ok || time.Since(t) < youngFor
	})
}

// keep stores what tasks have used, for the next start of the agent.
func (w *Watch) keep() {
	k := &agentstore.GPUUses{BootID: w.boot}
	for _, r := range w.meter.Rows() {
		k.List = append(k.List, agentstore.GPUUse{
			Alloc: r.Alloc, Since: structs.LogTimeOf(r.Since), Measured: structs.LogTimeOf(r.Measured), UsedBytes: r.UsedBytes, PeakBytes: r.PeakBytes,
			MiBMillis: r.MiBMillis, Counter: r.Counter, Task: r.Task, GPU: r.GPU, SMMillis: r.SMMillis, EnergyMJ: r.EnergyMJ, Denied: r.Denied,
			ActiveMillis: r.ActiveMillis, KnownMillis: r.KnownMillis,
		})
	}
	if err := w.node.PutGPUUses(k); err != nil && !errors.Is(err, agentstore.ErrClosed) {
		w.log.Warn("could not store what tasks have used of GPUs", "error", err)
	}
}

// Restore restores what an earlier agent stored, or nil. It is called once, before Run. boot is the boot id of the
// running kernel: after a reboot no task has continued, and the time since does not count.
func (w *Watch) Restore(k *agentstore.GPUUses, boot string) {
	w.boot = boot
	if k == nil || len(k.List) == 0 {
		return
	}
	var rows []gpu.Row
	for _, u := range k.List {
		rows = append(rows, gpu.Row{MiBMillis: u.MiBMillis, Counter: u.Counter, TaskUsage: gpu.TaskUsage{
			Quota: gpu.Quota{Alloc: u.Alloc, Task: u.Task, GPU: u.GPU}, UsedBytes: u.UsedBytes, PeakBytes: u.PeakBytes, MiBSeconds: u.MiBMillis / 1000,
			SMMillis: u.SMMillis, EnergyMJ: u.EnergyMJ, Denied: u.Denied, ActiveMillis: u.ActiveMillis, KnownMillis: u.KnownMillis, Since: u.Since.Time(), Measured: u.Measured.Time(),
		}})
	}
	w.meter.Restore(rows, k.BootID != "" && k.BootID == boot, time.Now())
}
