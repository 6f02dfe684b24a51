package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobRunOptions struct {
	*env
	file                              jobFile
	form                              format
	monitor                           monitorOptions
	checkIndex                        string
	output                            bool
	wait, waitEnd                     bool
	preserveCounts, preserveResources bool
	policyOverride                    bool
	evalPriority                      int
}

func newJobRun(e *env) *cobra.Command {
	o := &jobRunOptions{env: e}
	c := e.verb("run [options] FILE", "Submit a job file",
		`Submit a job file, new or changed, and follow it until everything has started, and a rolling update until it is complete
or stopped. Ctrl-C detaches; the job continues.

The exit code is 0 when everything was placed, 2 when not everything was, 1 on errors, when allocations of a service fail
while they start, when a rolling update stops, and when one of a batch job has failed for good by then. With -wait-end it follows the job until it has ended, and the exit code is
that of  muster job wait.`, `
muster job run example.muster.hcl
muster job run -detach -var version=2 web.hcl
muster job run -wait-end train.hcl        # exit code of the job
muster job run -check-index 42 web.hcl    # only if it has not changed since the plan
curl -s example.com/job.hcl | muster job run -`, 1, 1, o.run)
	o.form.template(c)
	o.file.flags(c)
	f := c.Flags()
	f.BoolVar(&o.monitor.detach, "detach", false, "only submit; print the evaluation's id and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	f.BoolVar(&o.wait, "wait", false, "when not everything can be placed, keep waiting instead of ending with exit code 2")
	f.BoolVar(&o.waitEnd, "wait-end", false, "keep waiting until the job has ended; the exit code is the job's")
	f.StringVar(&o.checkIndex, "check-index", "", "submit only if the job's modify index is this one; 0 means that it must be new")
	f.BoolVar(&o.output, "output", false, "print the job as JSON and submit nothing")
	f.BoolVar(&o.preserveCounts, "preserve-counts", false, "keep the counts of groups that are running")
	f.BoolVar(&o.preserveResources, "preserve-resources", false, "keep the resources of tasks that are running")
	f.BoolVar(&o.policyOverride, "policy-override", false, "accepted for Nomad's scripts; there are no such policies")
	f.IntVar(&o.evalPriority, "eval-priority", 0, "priority of the evaluation instead of the job's")
	return c
}

func (o *jobRunOptions) run(ctx context.Context, args []string) error {
	job, sub, err := o.file.read(ctx, o.env, args[0])
	if err != nil {
		return err
	}
	if o.output {
		return o.json(map[string]any{"Job": job})
	}
	req := wire.JobRegisterRequest{Job: job, Submission: sub, PreserveCounts: o.preserveCounts, PreserveResources: o.preserveResources,
		PolicyOverride: o.policyOverride, EvalPriority: o.evalPriority}
	if o.checkIndex != "" {
		n, err := strconv.ParseUint(o.checkIndex, 10, 64)
		if err != nil {
			return fmt.Errorf("-check-index %q is not a whole number", o.checkIndex)
		}
		req.EnforceIndex, req.JobModifyIndex = true, n
	}
	if o.waitEnd && (o.monitor.detach || o.form.tmpl != "") {
		return errors.New("-wait-end waits, and prints how the job ended: leave out -detach and -t")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, "/v1/jobs", ns(val(job.Namespace)), req, &resp); err != nil {
		return fmt.Errorf("submit job %q: %w", *job.ID, o.file.refused(o.env, err))
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.file.warn(o.env, resp.Warnings)
	if resp.EvalID == "" {
		o.println("Job registration successful")
		switch {
		case job.Periodic != nil && (job.Periodic.Enabled == nil || *job.Periodic.Enabled):
			o.hint("It is periodic: it is launched by the clock, or now with  muster job periodic force %s", *job.ID)
		case job.ParameterizedJob != nil:
			o.hint("It is a template: launch it with  muster job dispatch %s", *job.ID)
		}
		return nil
	}
	if o.monitor.detach {
		o.println("Job registration successful")
		o.printf("Evaluation ID: %s\n", resp.EvalID)
		at := inNamespace(val(job.Namespace)) + word(*job.ID)
		o.hint("What it does:  muster job status %[1]s   what it writes:  muster job logs %[1]s   why it waits:  muster job why %[1]s", at)
		return nil
	}
	err = o.follow(ctx, a, o.monitor, val(job.Namespace), *job.ID, resp.EvalID, func(p *progress) {
		p.follow, p.wait = true, o.wait || o.waitEnd
		p.gang = slices.ContainsFunc(job.TaskGroups, func(g *wire.TaskGroup) bool { return g != nil && g.Gang != nil })
		t := strings.ToLower(val(job.Type))
		p.service = t == "" || t == "service" || t == "system"
		p.update = p.service
	})
	var code exitCode
	if !o.waitEnd || err != nil && !errors.As(err, &code) || code == exitInterrupted {
		return err
	}
	w := &jobWaiter{env: o.env, api: a, namespace: orDefault(val(job.Namespace)), id: *job.ID}
	return w.report(ctx)
}
