package client

import (
	"context"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// watchNode adapts the agent to gpuwatch.Node.
type watchNode struct{ *Client }

func (n watchNode) Allocs() []gpuwatch.Alloc {
	list := n.Client.Allocs()
	out := make([]gpuwatch.Alloc, len(list))
	for i, r := range list {
		out[i] = r
	}
	return out
}

func (n watchNode) Alloc(id structs.AllocID) gpuwatch.Alloc {
	if r := n.Client.Alloc(id); r != nil {
		return r
	}
	return nil
}

func (n watchNode) SendEvents(ctx context.Context, events []structs.NodeEvent) {
	n.sendEvents(ctx, events)
}

func (n watchNode) PutGPUUses(u *agentstore.GPUUses) error { return n.store.PutGPUUses(u) }

func (n watchNode) Go(fn func()) bool { return n.threads.start(fn) }

// runnerGPUs adapts the GPU watch to runner.GPUs.
type runnerGPUs struct{ *gpuwatch.Watch }

func (g runnerGPUs) Settle(r *runner.Runner) { g.Watch.Settle(r) }

// GPUUses returns the GPU use of tasks whose allocations have not ended, ordered by allocation, task and GPU.
func (c *Client) GPUUses() []gpu.TaskUsage { return c.gpus.Uses() }

// RestoreGPUPower resets the power limits of GPUs that no allocation on this node limits.
func (c *Client) RestoreGPUPower(ctx context.Context) error { return c.gpus.RestorePower(ctx) }
