package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobEvalOptions struct {
	*env
	form            format
	monitor         monitorOptions
	forceReschedule bool
}

func newJobEval(e *env) *cobra.Command {
	o := &jobEvalOptions{env: e}
	c := e.verb("eval [options] JOB", "Evaluate a job again", "", `
muster job eval example
muster job eval -force-reschedule example   # place failed allocations elsewhere now`, 1, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.forceReschedule, "force-reschedule", false, "place failed allocations again now, regardless of their reschedule policy")
	f.BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	return c
}

func (o *jobEvalOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	req := wire.JobEvaluateRequest{JobID: stub.ID, EvalOptions: wire.EvalOptions{ForceReschedule: o.forceReschedule}}
	if _, err := a.put(ctx, jobPath(stub.ID, "/evaluate"), ns(stub.Namespace), req, &resp); err != nil {
		return fmt.Errorf("evaluate job %q: %w", stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, nil)
}
