package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobInspectOptions struct {
	*env
	form          format
	hcl, withArgs bool
	version       string
}

func newJobInspect(e *env) *cobra.Command {
	o := &jobInspectOptions{env: e}
	c := e.verb("inspect [options] JOB", "Print a job as JSON, or as it was submitted", "", `
muster job inspect example
muster job inspect -hcl example               # the job file as it was submitted
muster job inspect -version 2 -t '{{.Priority}}' example`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.hcl, "hcl", false, "print the file that was submitted")
	c.Flags().BoolVar(&o.withArgs, "with-vars", false, "with -hcl, print the variables it was submitted with, too")
	c.Flags().StringVar(&o.version, "version", "", "this version instead of the newest, by number or tag")
	return c
}

func (o *jobInspectOptions) run(ctx context.Context, args []string) error {
	if o.withArgs && !o.hcl {
		return errors.New("-with-vars prints the variables below the file that was submitted: give -hcl, too")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	version := stub.Version
	if o.version != "" {
		if version, err = a.version(ctx, stub, o.version); err != nil {
			return err
		}
	}
	if o.hcl {
		if o.version == "" {
			var job wire.Job
			if _, err := a.get(ctx, jobPath(stub.ID), ns(stub.Namespace), &job); err != nil {
				return err
			}
			version = val(job.Version)
		}
		q := ns(stub.Namespace)
		q.Set("version", fmt.Sprint(version))
		var sub wire.JobSubmission
		if _, err := a.get(ctx, jobPath(stub.ID, "/submission"), q, &sub); err != nil {
			return fmt.Errorf("the source of job %q, version %d: %w", stub.ID, version, err)
		}
		if done, err := o.form.done(o.env, &sub); done || err != nil {
			return err
		}
		o.println(strings.TrimRight(sub.Source, "\n"))
		if o.withArgs {
			for _, k := range sortedKeys(sub.VariableFlags) {
				o.printf("# -var %s=%s\n", k, sub.VariableFlags[k])
			}
			if sub.Variables != "" {
				o.printf("\n# variables\n%s\n", strings.TrimRight(sub.Variables, "\n"))
			}
		}
		return nil
	}
	var job wire.Job
	if o.version == "" {
		if _, err := a.get(ctx, jobPath(stub.ID), ns(stub.Namespace), &job); err != nil {
			return err
		}
	} else {
		var resp wire.JobVersionsResponse
		if _, err := a.get(ctx, jobPath(stub.ID, "/versions"), ns(stub.Namespace), &resp); err != nil {
			return err
		}
		found := false
		for _, j := range resp.Versions {
			if val(j.Version) == version {
				job, found = *j, true
			}
		}
		if !found {
			return fmt.Errorf("job %q has no version %d; muster job history %s lists them", stub.ID, version, stub.ID)
		}
	}
	if o.form.tmpl != "" {
		return o.template(o.form.tmpl, &job)
	}
	return o.json(map[string]any{"Job": &job})
}
