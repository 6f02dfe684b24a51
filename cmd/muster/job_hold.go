package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// workVerb is hold, release, requeue or retry, which differ only in words.
type workVerb struct {
	*env
	form   format
	action string
	done   string // past tense
}

func (e *env) workVerb(action, done, short, example string) *cobra.Command {
	o := &workVerb{env: e, action: action, done: done}
	c := e.verb(action+" [options] JOB", short, "", example, 1, 1, o.run)
	o.form.flags(c)
	return c
}

func newJobHold(e *env) *cobra.Command {
	return e.workVerb("hold", "is on hold", "Place nothing more of a job until it is released", `
muster job hold example   # running allocations continue, no more start`)
}

func newJobRelease(e *env) *cobra.Command {
	return e.workVerb("release", "is released", "End the hold of a job", `
muster job release example`)
}

func newJobRequeue(e *env) *cobra.Command {
	return e.workVerb("requeue", "returns to the queue", "Stop a running job and return it to its queue", `
muster job requeue example   # keeps its place in the queue; hold it first to stop it for longer`)
}

func newJobRetry(e *env) *cobra.Command {
	return e.workVerb("retry", "is tried again where it failed", "Run the failed parts of a job again", `
muster job retry example   # of an array: the failed indices`)
}

func (o *workVerb) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/"+o.action), ns(stub.Namespace), nil, &resp); err != nil {
		return fmt.Errorf("%s job %q: %w", o.action, stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Job %q %s\n", stub.ID, o.done)
	return nil
}
