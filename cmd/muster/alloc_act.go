package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type allocStopOptions struct {
	*env
	job             bool
	form            format
	monitor         monitorOptions
	noShutdownDelay bool
}

func newAllocStop(e *env) *cobra.Command {
	o := &allocStopOptions{env: e}
	c := e.verb("stop [options] ALLOCATION", "Stop an allocation; its job places another", "", `
muster alloc stop 8ba85cef
muster alloc stop -detach 8ba85cef
muster alloc stop -job example`, 1, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	f.BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "do not wait the group's shutdown_delay")
	return e.ofAlloc(c, &o.job)
}

func (o *allocStopOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	q := ns(al.Namespace)
	queryFlag(q, "no_shutdown_delay", o.noShutdownDelay)
	var resp wire.AllocStopResponse
	if _, err := a.put(ctx, "/v1/allocation/"+al.ID+"/stop", q, nil, &resp); err != nil {
		return fmt.Errorf("stop allocation %s: %w", shortID(al.ID, false), err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	return o.follow(ctx, a, o.monitor, al.Namespace, al.JobID, resp.EvalID, func(p *progress) { p.follow = true })
}

// allocTask finds an allocation, with job set one of a job, and completes the name in *task; "" selects all tasks.
func (e *env) allocTask(ctx context.Context, id string, job bool, task *string) (*api, *wire.Allocation, error) {
	a, err := e.api()
	if err != nil {
		return nil, nil, err
	}
	al, err := e.pickAlloc(ctx, a, id, job)
	if err == nil && *task != "" {
		*task, err = pickTask(al, *task)
	}
	return a, al, err
}

type allocRestartOptions struct {
	*env
	task          string
	job, allTasks bool
	form          format
}

func newAllocRestart(e *env) *cobra.Command {
	o := &allocRestartOptions{env: e}
	c := e.verb("restart [options] ALLOCATION [TASK]", "Restart the tasks of an allocation in place", "Restart the running tasks of an allocation where they are, or one of them.", `
muster alloc restart 8ba85cef
muster alloc restart -task server 8ba85cef
muster alloc restart -job example
muster alloc restart -all-tasks 8ba85cef   # those that have ended, too`, 1, 2, o.run)
	o.form.flags(c)
	c.Flags().StringVar(&o.task, "task", "", "only this task")
	c.Flags().BoolVar(&o.allTasks, "all-tasks", false, "all tasks, also those that prepare and those that have ended")
	return e.ofAlloc(c, &o.job)
}

func (o *allocRestartOptions) run(ctx context.Context, args []string) error {
	name, err := taskFlagOrArg(o.task, args)
	if err != nil {
		return err
	}
	if name != "" && o.allTasks {
		return fmt.Errorf("-all-tasks and task %q exclude each other: choose one", name)
	}
	a, al, err := o.allocTask(ctx, args[0], o.job, &name)
	if err != nil {
		return err
	}
	var resp wire.GenericResponse
	if _, err := a.put(ctx, "/v1/client/allocation/"+al.ID+"/restart", ns(al.Namespace), wire.AllocationRestartRequest{TaskName: name, AllTasks: o.allTasks}, &resp); err != nil {
		return fmt.Errorf("restart allocation %s: %w", shortID(al.ID, false), err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	what := "its running tasks"
	if name != "" {
		what = "task " + name
	} else if o.allTasks {
		what = "all its tasks"
	}
	o.printf("Allocation %q: restarting %s\n", shortID(al.ID, false), what)
	return nil
}

type allocSignalOptions struct {
	*env
	task, signal string
	job          bool
	form         format
}

func newAllocSignal(e *env) *cobra.Command {
	o := &allocSignalOptions{env: e}
	c := e.verb("signal [options] ALLOCATION [TASK]", "Send a signal to the tasks of an allocation", "", `
muster alloc signal -s SIGHUP 8ba85cef
muster alloc signal -s SIGUSR1 -task server 8ba85cef
muster alloc signal -s SIGHUP -job example`, 1, 2, o.run)
	o.form.flags(c)
	c.Flags().StringVarP(&o.signal, "signal", "s", "SIGKILL", "the signal, by name")
	c.Flags().StringVar(&o.task, "task", "", "only this task")
	return e.ofAlloc(c, &o.job)
}

func (o *allocSignalOptions) run(ctx context.Context, args []string) error {
	name, err := taskFlagOrArg(o.task, args)
	if err != nil {
		return err
	}
	a, al, err := o.allocTask(ctx, args[0], o.job, &name)
	if err != nil {
		return err
	}
	var resp wire.GenericResponse
	if _, err := a.put(ctx, "/v1/client/allocation/"+al.ID+"/signal", ns(al.Namespace), wire.AllocSignalRequest{Task: name, Signal: o.signal}, &resp); err != nil {
		return fmt.Errorf("signal allocation %s: %w", shortID(al.ID, false), err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Sent %s to allocation %q\n", o.signal, shortID(al.ID, false))
	return nil
}

type allocChecksOptions struct {
	*env
	form         format
	job, verbose bool
}

func newAllocChecks(e *env) *cobra.Command {
	o := &allocChecksOptions{env: e}
	c := e.verb("checks [options] ALLOCATION", "Show the health checks of an allocation", "", `
muster alloc checks 8ba85cef
muster alloc checks -job example
muster alloc checks -json 8ba85cef`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.verbose, "verbose", false, "groups, HTTP codes, times and ids, too")
	return e.ofAlloc(c, &o.job)
}

func (o *allocChecksOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	var checks map[string]struct {
		ID, Check, Group, Mode, Output, Service, Task, Status string
		StatusCode                                            int
		Timestamp                                             int64
	}
	if _, err := a.get(ctx, "/v1/client/allocation/"+al.ID+"/checks", ns(al.Namespace), &checks); err != nil {
		return fmt.Errorf("checks of allocation %s: %w", shortID(al.ID, false), err)
	}
	if done, err := o.form.done(o.env, checks); done || err != nil {
		return err
	}
	if len(checks) == 0 {
		o.printf("No checks in allocation %q\n", shortID(al.ID, o.verbose))
		return nil
	}
	head, rows := "Service|Task|Name|Mode|Status|Output", [][]string{}
	if o.verbose {
		head += "|Group|Code|Time|ID"
	}
	for _, k := range sortedKeys(checks) {
		c := checks[k]
		r := []string{c.Service, c.Task, c.Check, c.Mode, c.Status, c.Output}
		if o.verbose {
			r = append(r, c.Group, strconv.Itoa(c.StatusCode), date(time.Unix(c.Timestamp, 0)), c.ID)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}
