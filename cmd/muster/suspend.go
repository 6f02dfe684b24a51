package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// suspendVerb is suspend or resume, of a job or an allocation.
type suspendVerb struct {
	*env
	form   format
	alloc  bool // not of a job
	job    bool // the allocation is one of a job
	resume bool
	reason string
}

func newJobSuspend(e *env) *cobra.Command {
	o := &suspendVerb{env: e}
	return o.command("suspend [options] JOB", "Suspend a job's running allocations in place",
		"Suspend a job's running allocations in place until the job is resumed, and place no more of it meanwhile. Its processes keep their memory and their allocated resources: GPUs, GPU memory, memory and cores stay the job's and are charged, and CPU is not given to others. The time of the suspension does not count against its wall-clock limit.", `
muster job suspend train
muster job suspend -reason "the file server is down" train
muster job resume train`)
}

func newJobResume(e *env) *cobra.Command {
	o := &suspendVerb{env: e, resume: true}
	return o.command("resume [options] JOB", "Let a suspended job go on", "Let a suspended job go on where it stood still, and be placed again.", `
muster job resume train`)
}

func newAllocSuspend(e *env) *cobra.Command {
	o := &suspendVerb{env: e, alloc: true}
	return o.command("suspend [options] ALLOCATION", "Suspend an allocation in place",
		"Suspend an allocation in place until it is resumed; of a gang, all its members. It keeps its resources, and is charged for them.", `
muster alloc suspend 8ba85cef
muster alloc resume 8ba85cef`)
}

func newAllocResume(e *env) *cobra.Command {
	o := &suspendVerb{env: e, alloc: true, resume: true}
	return o.command("resume [options] ALLOCATION", "Let a suspended allocation go on", "Let a suspended allocation go on where it stood still; of a gang, all its members.", `
muster alloc resume 8ba85cef`)
}

func (o *suspendVerb) command(use, short, long, example string) *cobra.Command {
	c := o.verb(use, short, long, example, 1, 1, o.run)
	o.form.flags(c)
	if !o.resume {
		c.Flags().StringVar(&o.reason, "reason", "", "the reason, shown to users who look at it")
	}
	if o.alloc {
		return o.ofAlloc(c, &o.job)
	}
	return c
}

func (o *suspendVerb) run(ctx context.Context, args []string) error {
	verb, done := "suspend", "suspended"
	if o.resume {
		verb, done = "resume", "resumed"
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var path, name, namespace string
	if o.alloc {
		al, err := o.pickAlloc(ctx, a, args[0], o.job)
		if err != nil {
			return err
		}
		path, name, namespace = "/v1/allocation/"+al.ID+"/"+verb, fmt.Sprintf("allocation %q", shortID(al.ID, false)), al.Namespace
	} else {
		stub, err := a.job(ctx, args[0])
		if err != nil {
			return err
		}
		path, name, namespace = jobPath(stub.ID, "/"+verb), fmt.Sprintf("job %q", stub.ID), stub.Namespace
	}
	var body any
	if o.reason != "" {
		body = wire.SuspendRequest{Reason: o.reason}
	}
	var resp wire.SuspendResponse
	if _, err := a.put(ctx, path, ns(namespace), body, &resp); err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("%s is %s: %s\n", strings.ToUpper(name[:1])+name[1:], done, plural(int64(len(resp.AllocIDs)), "allocation"))
	if !o.resume {
		o.printf("What %s stays granted and charged meanwhile: %s\n", holds(len(resp.AllocIDs)), amountHeld(&resp))
	}
	return nil
}

func holds(n int) string {
	if n == 1 {
		return "it holds"
	}
	return "they hold"
}

// amountHeld describes what suspended allocations hold.
func amountHeld(r *wire.SuspendResponse) string {
	var parts []string
	if r.GPUs > 0 {
		parts = append(parts, fmt.Sprintf("%.4g GPU with the memory that its processes have taken", r.GPUs))
		if r.GPUs != 1 {
			parts[0] = fmt.Sprintf("%.4g GPUs with the memory that its processes have taken", r.GPUs)
		}
	}
	return strings.Join(append(parts, mib(r.MemoryMB)+" of memory", fmt.Sprintf("%d MHz", r.CPU)), ", ")
}

// allocState returns an allocation's client status, or the state of its suspension.
func allocState(client string, s *wire.Suspension) string {
	if s != nil && s.State != "" {
		return s.State
	}
	return client
}

// standsStill describes an allocation's suspension in a line; "" if it runs.
func (e *env) standsStill(s *wire.Suspension) string {
	if s == nil || s.State == "" {
		return ""
	}
	text := s.State
	if s.Since != 0 {
		text += " for " + time.Since(time.Unix(0, s.Since)).Round(time.Second).String()
	}
	if s.By != "" {
		text += " by " + s.By
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}
