package client

import (
	"context"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// gpuWatchEvery is how often the memory of tasks on shared GPUs is looked at. A program can take gigabytes in between:
// this is policing, not a wall.
const gpuWatchEvery = time.Second

// gpuWatchLoop holds tasks to their shares of GPU memory where the backend is "watch". It asks the driver only while such
// a task runs.
func (c *Client) gpuWatchLoop(ctx context.Context) {
	if c.cfg.GPUSamples == nil {
		return
	}
	tick := time.NewTicker(gpuWatchEvery)
	defer tick.Stop()
	w := &gpu.Watcher{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		quotas := c.gpuQuotas()
		if len(quotas) == 0 {
			w.Look(nil, nil)
			continue
		}
		within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
		samples, err := c.cfg.GPUSamples(within)
		cancel()
		if err != nil {
			continue // a driver that does not answer is the health check's business
		}
		for _, x := range w.Look(w.Uses(samples), quotas) {
			if r := c.Alloc(x.Alloc); r != nil {
				c.log.Warn("a task holds more GPU memory than its share; it is stopped", "alloc", x.Alloc.Short(), "task", x.Task, "gpu", x.GPU, "quota_mib", x.QuotaMiB, "used_mib", x.UsedMiB)
				r.ExceedGPU(x.Task, x.GPU, x.QuotaMiB, x.UsedMiB)
			}
		}
	}
}

// gpuQuotas are the shares that this agent watches, of allocations that have not ended.
func (c *Client) gpuQuotas() []gpu.Quota {
	var out []gpu.Quota
	for _, r := range c.Allocs() {
		if r.Final() != nil {
			continue
		}
		a := r.Alloc()
		for i := range a.Grants {
			if g := &a.Grants[i]; g.IsGPU() && g.MemoryMiB > 0 && g.Backend == structs.BackendWatch {
				out = append(out, gpu.Quota{Alloc: a.ID, Task: g.Task, GPU: g.Instance, MiB: g.MemoryMiB})
			}
		}
	}
	return out
}
