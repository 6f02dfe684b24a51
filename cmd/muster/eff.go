package main

import (
	"context"

	"github.com/spf13/cobra"
)

type effOptions struct {
	*env
	form format
}

func newEff(e *env) *cobra.Command {
	o := &effOptions{env: e}
	c := e.verb("eff [options] JOB", "Compare what a job asked for with what it used",
		"Compare what a job asked for with what it used: GPU hours held and busy, the peak of GPU memory, GPUs that stood idle, memory and processor time,\nand what to change. GPU use is what the agents measured: of running allocations up to now, of ended ones as the records have it (30 days). What\nwas not measured is unknown, and never counts as idle. Busy GPU hours are hours with all multiprocessors busy. Memory and processor time are\nmeasured of running tasks only. Hours count all allocations; idle GPUs and advice about GPUs count the newest run, once it has run for a minute.\nFor a job that has not started, eff shows what it asks for. The hours of a part of a GPU need the size of the GPU: it is read from the node, which\nneeds node:read, or measured while the allocation runs.", `
muster eff train
muster eff -json train
muster eff -t '{{.GPUHoursBusy}}' train`, 1, 1, o.run)
	o.form.flags(c)
	return c
}

// effGPU is one GPU, or a part of one, that an allocation holds or held.
type effGPU struct {
	AllocID, NodeName, GPU, Model string
	HeldSeconds                   float64
	Part                          *float64 // of the GPU that was asked for: 1 for all of it; absent: the size of the GPU is unknown
	AskedMiB                      int64    // 0: unknown
	PeakMiB                       *int64   // absent: not measured
	BusySeconds                   *float64 // with all multiprocessors; absent: not measured
	Idle                          bool     // measured for effMinimum, and busy for less than a hundredth of the time
	Earlier                       bool     `json:",omitempty"` // of an allocation before the newest run
}

// efficiency is what eff prints; also its JSON form. Absent figures are unknown.
type efficiency struct {
	Namespace, JobID, Status string
	GPUsAsked                int64    `json:",omitempty"` // of a job without allocations that hold GPUs: what it asks for, parts included
	NotStarted               bool     `json:",omitempty"`
	GPUHoursAsked            *float64 // held; a part of a GPU counts as that part
	GPUHoursBusy             *float64 // of those that were measured
	GPUHoursBusyAtLeast      bool     `json:",omitempty"` // GPUHoursBusy is a sum that does not say which GPUs were measured
	GPUHoursUnmeasured       *float64 // of GPUHoursAsked
	GPUMemoryAskedMiB        int64    // on the GPU with the peak; 0: unknown
	GPUMemoryPeakMiB         *int64   // on one GPU
	GPUs                     []effGPU `json:",omitempty"`
	IdleGPUs                 int      // of JudgedGPUs
	JudgedGPUs               int      // of the newest run: those that were measured for at least a minute
	EarlierAllocations       int      // with GPUs, before the newest run
	RanSeconds               float64  // the longest allocation of the newest run
	MemoryAskedMiB           int64    // of the allocation with the peak
	MemoryPeakMiB            *int64   // of one running allocation
	CoresBusy                *float64 // of running allocations, now
	CoresAsked, MHzAsked     int64    // of the same
	AllocationsLeftOut       int      // beyond those that were looked at
	Advice                   []string

	forgotten  bool     // it has ended, and neither its allocations nor its record are there
	asked      []string // of GPUsAsked, by group
	askedParts int64    // of GPUsAsked
	askedMiB   int64    // of GPUs, of a job that ended and asked for parts of unknown size
	gpuBusy    float64  // GPU hours busy of GPUs that are judged and of known size
	gpuHeld    float64  // GPU hours held by the same
	unknownGPU bool     // a part of a GPU of unknown size was held
}

func (o *effOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	f, err := o.measure(ctx, a, args[0])
	if err != nil {
		return err
	}
	f.advise()
	if done, err := o.form.done(o.env, f); done || err != nil {
		return err
	}
	o.print(f)
	return nil
}
