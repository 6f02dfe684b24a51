package client

import (
	"errors"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// gpuKeepEvery is how often what tasks have used of GPUs is written down. An agent that is killed loses the use of what
// ends before it is back, and peaks, of at most that long.
const gpuKeepEvery = 15 * time.Second

// gpuYoung is how long a task counts as new: it is looked at as often as those on shared GPUs, because many end soon.
const gpuYoung = 30 * time.Second

// gpuUse tells runners what their tasks used of GPUs. It implements runner.GPUMeter.
type gpuUse struct{ c *Client }

// Settle takes in what the books of an allocation's shares say at its end, which also know of tasks that nobody saw.
func (g gpuUse) Settle(r *runner.Runner) {
	for _, q := range grantsOf(r.Alloc()) {
		dir := r.ShimDir(q.Task)
		if q.Backend != structs.BackendShim || q.MiB == 0 || dir == "" {
			continue
		}
		f, err := shim.Open(dir, q.GPU)
		if err != nil {
			continue // never started, or swept away
		}
		if u, err := f.Read(); err == nil {
			g.c.meter.Booked(q, u.PeakBytes, u.Denied, time.Now())
		}
		f.Close()
	}
}

// Use is what an allocation's tasks have used.
func (g gpuUse) Use(a *structs.Allocation) []structs.GPUUse {
	if len(a.Grants) == 0 {
		return nil
	}
	return structs.GrantedGPUUse(a.Grants, g.c.meter.Totals(a.ID, time.Now()))
}

// youngGPUUse reports whether a grant is new.
func (c *Client) youngGPUUse(have []gpu.Quota) bool {
	since := map[gpu.Quota]time.Time{}
	for _, u := range c.meter.All() {
		since[u.Quota] = u.Since
	}
	for _, q := range have {
		if t, ok := since[q]; !ok || time.Since(t) < gpuYoung {
			return true
		}
	}
	return false
}

// keepGPUUse writes down what tasks have used, for the agent's next life.
func (c *Client) keepGPUUse() {
	rows := c.meter.Rows()
	k := &agentstore.GPUUses{BootID: c.run.BootID}
	for _, r := range rows {
		k.List = append(k.List, agentstore.GPUUse{
			Alloc: r.Alloc, Since: structs.LogTimeOf(r.Since), Measured: structs.LogTimeOf(r.Measured), UsedBytes: r.UsedBytes, PeakBytes: r.PeakBytes,
			MiBMillis: r.MiBMillis, Counter: r.Counter, Task: r.Task, GPU: r.GPU, SMMillis: r.SMMillis, EnergyMJ: r.EnergyMJ, Denied: r.Denied,
			ActiveMillis: r.ActiveMillis, KnownMillis: r.KnownMillis,
		})
	}
	if err := c.store.PutGPUUses(k); err != nil && !errors.Is(err, agentstore.ErrClosed) {
		c.log.Warn("what tasks have used of GPUs could not be written down", "error", err)
	}
}

// restoreGPUUse takes up what an earlier life of the agent wrote down.
func (c *Client) restoreGPUUse(k *agentstore.GPUUses) {
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
	c.meter.Restore(rows, k.BootID != "" && k.BootID == c.run.BootID, time.Now())
}

// startedAt is when the task began its present run; 0 while it does not run.
func (c *Client) startedAt(q gpu.Quota) structs.LogTime {
	if r := c.Alloc(q.Alloc); r != nil {
		return r.StartedAt(q.Task)
	}
	return 0
}
