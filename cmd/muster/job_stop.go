package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobStopOptions struct {
	*env
	monitor            monitorOptions
	purge, yes, global bool
	noShutdownDelay    bool
	evalPriority       int
	form               format
	pick               selection
}

func newJobStop(e *env) *cobra.Command {
	o := &jobStopOptions{env: e}
	c := e.verb("stop [options] JOB... | -user USER | -name PATTERN | ...", "Stop jobs",
		`Stop jobs and all their allocations. A stopped job can be started again until it is collected; -purge forgets it at once.

Instead of jobs, -name, -user, -queue and -state say which ones; all that are given must hold. It then counts the jobs, their people and the GPUs they
hold, and asks, on stderr: the output may go into a pipe. It also asks about a job of another user, and about one of which only the beginning
was given. Where there is no terminal to ask at, all these need -yes.`, `
muster job stop example
muster job stop -purge -yes example
muster job stop -detach web api
muster job stop -name 'sweep-*' -state pending
muster job stop -namespace ml -user alice -yes`, 0, -1, o.run)
	o.form.flags(c)
	o.pick.flags(c)
	f := c.Flags()
	f.BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	f.BoolVar(&o.purge, "purge", false, "forget the job altogether")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.BoolVar(&o.global, "global", false, "in every region of a job that has several")
	f.BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait the job's shutdown_delay")
	f.IntVar(&o.evalPriority, "eval-priority", 0, "priority of the evaluation instead of the job's")
	return c
}

func (o *jobStopOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	switch {
	case o.pick.given() && len(args) > 0:
		return errors.New("jobs and a selection exclude each other: name jobs, or use -name, -user, -queue, -state and -all")
	case o.pick.given():
		return o.many(ctx, a)
	case len(args) == 0:
		return errors.New("name a job, or say which ones with -name, -user, -queue, -state or -all (muster job stop -help)")
	}
	worst := 0
	for _, arg := range args {
		err := o.stop(ctx, a, arg)
		var code exitCode
		switch {
		case err == nil:
		case len(args) == 1 || ctx.Err() != nil:
			return err
		case errors.As(err, &code):
			worst = max(worst, int(code))
		default:
			o.hint("Error: %v", err)
			worst = max(worst, exitError)
		}
	}
	if worst != 0 {
		return exitCode(worst)
	}
	return nil
}

func (o *jobStopOptions) stop(ctx context.Context, a *api, arg string) error {
	stub, err := a.job(ctx, arg)
	if err != nil {
		return err
	}
	if err := o.sure(ctx, a, arg, stub); err != nil {
		return err
	}
	resp, err := o.deregister(ctx, a, stub)
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if resp.EvalID == "" {
		o.printf("Job %q stopped\n", stub.ID)
		return nil
	}
	err = o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, nil)
	if err == nil && !o.purge && !o.monitor.detach {
		verb, id := "start", stub.ID
		if stub.ParentID != "" && strings.Contains(id, "/dispatch-") {
			verb, id = "dispatch", stub.ParentID
		}
		o.hint("Start it again:  muster job %s %s%s", verb, inNamespace(stub.Namespace), word(id))
	}
	return err
}

// sure asks about a job that the user did not name in full, or that is to be forgotten, and about one of another user.
// Without a terminal the latter needs -yes, and so does a job that is only the beginning of a name.
func (o *jobStopOptions) sure(ctx context.Context, a *api, arg string, stub *wire.JobListStub) error {
	if o.yes {
		return nil
	}
	others := a.notMine(ctx, stub.User)
	if stub.ID == arg && !o.purge && !others {
		return nil
	}
	question, err := o.blast(ctx, a, []*wire.JobListStub{stub})
	if err != nil {
		return err
	}
	if others || stub.ID != arg {
		return o.confirm(ctx, false, "%s", question)
	}
	return o.ask(ctx, false, "%s", question)
}

// deregister sends the request for one job.
func (o *jobStopOptions) deregister(ctx context.Context, a *api, stub *wire.JobListStub) (*wire.JobDeregisterResponse, error) {
	q := ns(stub.Namespace)
	queryFlag(q, "purge", o.purge)
	queryFlag(q, "global", o.global)
	queryFlag(q, "no_shutdown_delay", o.noShutdownDelay)
	if o.evalPriority != 0 {
		q.Set("eval_priority", strconv.Itoa(o.evalPriority))
	}
	var resp wire.JobDeregisterResponse
	if _, err := a.delete(ctx, jobPath(stub.ID), q, &resp); err != nil {
		return nil, fmt.Errorf("stop job %q: %w", stub.ID, err)
	}
	return &resp, nil
}
