package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobStartOptions struct {
	*env
	form    format
	monitor monitorOptions
}

func newJobStart(e *env) *cobra.Command {
	o := &jobStartOptions{env: e}
	c := e.verb("start [options] JOB", "Start a stopped job again", "Start a stopped job again, as it was when it was stopped.", `
muster job start example
muster job start -detach example`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	c.Flags().BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	return c
}

func (o *jobStartOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	if !stub.Stop {
		return fmt.Errorf("job %q is not stopped: it is %s", stub.ID, stub.Status)
	}
	var job wire.Job
	if _, err := a.get(ctx, jobPath(stub.ID), ns(stub.Namespace), &job); err != nil {
		return err
	}
	req := wire.JobRegisterRequest{Job: &job, EnforceIndex: true, JobModifyIndex: val(job.JobModifyIndex)}
	no := false
	job.Stop = &no
	var sub wire.JobSubmission
	q := ns(stub.Namespace)
	q.Set("version", fmt.Sprint(val(job.Version)))
	if _, err := a.get(ctx, jobPath(stub.ID, "/submission"), q, &sub); err == nil {
		req.Submission = &sub
	} else if !notFound(err) {
		return err
	}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, "/v1/jobs", ns(stub.Namespace), req, &resp); err != nil {
		return fmt.Errorf("start job %q: %w", stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if resp.EvalID == "" {
		o.printf("Job %q started\n", stub.ID)
		return nil
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, func(p *progress) { p.follow = true })
}
