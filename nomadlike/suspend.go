package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// jobSuspend serves PUT /v1/job/:id/suspend and resume.
func jobSuspend(resume bool) func(*call) (any, error) {
	return func(c *call) (any, error) {
		var body wire.SuspendRequest
		if err := c.optionalBody(&body); err != nil {
			return nil, err
		}
		return c.suspended(invoke(c, methods.JobSuspend, &methods.JobSuspendRequest{JobID: c.params["id"], Resume: resume, Reason: body.Reason}))
	}
}

// allocSuspend serves PUT /v1/allocation/:id/suspend and resume.
func allocSuspend(resume bool) func(*call) (any, error) {
	return func(c *call) (any, error) {
		id, err := pathID[structs.AllocID](c, "alloc")
		if err != nil {
			return nil, err
		}
		var body wire.SuspendRequest
		if err := c.optionalBody(&body); err != nil {
			return nil, err
		}
		return c.suspended(invoke(c, methods.AllocSuspend, &methods.AllocSuspendRequest{AllocID: id, Resume: resume, Reason: body.Reason}))
	}
}

func (c *call) suspended(resp *methods.SuspendResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	out := &wire.SuspendResponse{
		Index: uint64(resp.Index), EvalID: resp.EvalID.String(), AllocIDs: []string{},
		GPUs: float64(resp.Amount.GPUMilli) / 1000, GPUMemoryMB: resp.Amount.GPUMemoryMiB, CPU: resp.Amount.CPU, MemoryMB: resp.Amount.MemoryMiB,
	}
	for _, id := range resp.AllocIDs {
		out.AllocIDs = append(out.AllocIDs, id.String())
	}
	return out, nil
}
