package client

import (
	"context"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// watchNode is the agent as package gpuwatch sees it. It implements gpuwatch.Node.
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

// runnerGPUs is the GPU watch as runners see it. It implements runner.GPUs.
type runnerGPUs struct{ *gpuwatch.Watch }

func (g runnerGPUs) Settle(r *runner.Runner) { g.Watch.Settle(r) }

// GPUUses is what tasks of allocations that have not ended use of GPUs, ordered by allocation, task and GPU.
func (c *Client) GPUUses() []gpu.TaskUsage { return c.gpus.Uses() }

// RestoreGPUPower resets the power limits of GPUs for which no allocation on this node wants one.
func (c *Client) RestoreGPUPower(ctx context.Context) error { return c.gpus.RestorePower(ctx) }
