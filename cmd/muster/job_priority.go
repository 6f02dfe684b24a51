package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type jobPriorityOptions struct {
	*env
	form format
}

func newJobPriority(e *env) *cobra.Command {
	o := &jobPriorityOptions{env: e}
	c := e.verb("priority [options] JOB PRIORITY", "Change the priority of a job that waits or runs",
		"Change the priority of a job that waits or runs: a number from 1 to 100, or critical (90), high (70), normal (50), low (30) or scavenger (10). It holds at once, makes no new version and restarts nothing. A job file that is submitted later brings its own.", `
muster job priority example 80
muster job priority example low`, 2, 2, o.run)
	o.form.flags(c)
	return c
}

// priorityOf parses a priority: a number or a name.
func priorityOf(s string) (int, error) {
	n, known := wire.Priorities[s]
	if !known {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < structs.JobPriorityMin || n > structs.JobPriorityMax {
			return 0, fmt.Errorf("%q is no priority; give a number from %d to %d, or critical (90), high (70), normal (50), low (30) or scavenger (10)", s, structs.JobPriorityMin, structs.JobPriorityMax)
		}
	}
	return n, nil
}

func (o *jobPriorityOptions) run(ctx context.Context, args []string) error {
	n, err := priorityOf(args[1])
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/priority"), ns(stub.Namespace), wire.JobPriorityRequest{Priority: &n}, &resp); err != nil {
		return fmt.Errorf("change the priority of job %q: %w", stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Job %q has priority %d\n", stub.ID, n)
	return nil
}
