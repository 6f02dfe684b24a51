package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobRevertOptions struct {
	*env
	form    format
	monitor monitorOptions
}

func newJobRevert(e *env) *cobra.Command {
	o := &jobRevertOptions{env: e}
	c := e.verb("revert [options] JOB VERSION|TAG", "Go back to an earlier version of a job", "Go back to an earlier version of a job. It becomes a new version with the old content.", `
muster job revert example 3
muster job revert example known-good`, 2, 2, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	c.Flags().BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	return c
}

func (o *jobRevertOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	version, err := a.version(ctx, stub, args[1])
	if err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/revert"), ns(stub.Namespace), wire.JobRevertRequest{JobID: stub.ID, JobVersion: version}, &resp); err != nil {
		return fmt.Errorf("revert job %q to version %d: %w%s", stub.ID, version, err, historyHint(err, stub))
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.warn(resp.Warnings)
	if resp.EvalID == "" {
		o.printf("Job %q reverted to version %d\n", stub.ID, version)
		return nil
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, func(p *progress) { p.follow, p.update = true, true })
}

// version reads a version number, or finds the version of a tag.
func (a *api) version(ctx context.Context, stub *wire.JobListStub, arg string) (uint64, error) {
	if n, err := strconv.ParseUint(arg, 10, 64); err == nil {
		return n, nil
	}
	var resp wire.JobVersionsResponse
	if _, err := a.get(ctx, jobPath(stub.ID, "/versions"), ns(stub.Namespace), &resp); err != nil {
		return 0, err
	}
	for _, j := range resp.Versions {
		if j.VersionTag != nil && j.VersionTag.Name == arg {
			return val(j.Version), nil
		}
	}
	return 0, fmt.Errorf("job %q has no version tagged %q, and that is no number; muster job history %s%s lists versions", stub.ID, arg, inNamespace(stub.Namespace), word(stub.ID))
}

// historyHint names the command that lists a job's versions, where the servers refused one.
func historyHint(err error, stub *wire.JobListStub) string {
	if answer := (*apiError)(nil); errors.As(err, &answer) && (answer.Status == http.StatusNotFound || answer.Status == http.StatusBadRequest) {
		return fmt.Sprintf("; muster job history %s%s lists versions", inNamespace(stub.Namespace), word(stub.ID))
	}
	return ""
}
