package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/cron"
	"github.com/muster-sched/muster/nomadlike/wire"
)

func newJobPeriodic(e *env) *cobra.Command {
	return e.group("periodic", "Launch periodic jobs by hand", "", `muster job periodic force nightly`, newJobPeriodicForce)
}

type jobPeriodicForceOptions struct {
	*env
	form    format
	monitor monitorOptions
}

func newJobPeriodicForce(e *env) *cobra.Command {
	o := &jobPeriodicForceOptions{env: e}
	c := e.verb("force [options] JOB", "Launch a periodic job now", "", `
muster job periodic force nightly
muster job periodic force -detach nightly`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.monitor.detach, "detach", false, "only launch it; print the evaluation's id and end")
	c.Flags().BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	return c
}

func (o *jobPeriodicForceOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	if !stub.Periodic {
		return fmt.Errorf("job %q is not periodic", stub.ID)
	}
	var resp wire.PeriodicForceResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/periodic/force"), ns(stub.Namespace), nil, &resp); err != nil {
		return fmt.Errorf("launch job %q: %w", stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, "", resp.EvalID, func(p *progress) { p.follow = true })
}

// nextLaunch returns the next launch of a periodic job; zero if there is none.
func nextLaunch(p *wire.PeriodicConfig, now time.Time) time.Time {
	loc := time.UTC
	if tz := val(p.TimeZone); tz != "" {
		if l, err := time.LoadLocation(tz); err == nil {
			loc = l
		}
	}
	specs := p.Specs
	if s := val(p.Spec); s != "" {
		specs = append([]string{s}, specs...)
	}
	next, _ := cron.Next(specs, now.In(loc)) // the server has refused what cannot be read
	return next
}
