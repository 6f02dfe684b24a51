package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// restartLimit is how long one batch may take until its allocations run again.
const restartLimit = 5 * time.Minute

type jobRestartOptions struct {
	*env
	form                       format
	groups, tasks              []string
	index                      int
	batch                      string
	pause                      time.Duration
	reschedule, allTasks, yes  bool
	noShutdownDelay, keepGoing bool
}

func newJobRestart(e *env) *cobra.Command {
	o := &jobRestartOptions{env: e}
	c := e.verb("restart [options] JOB", "Restart what runs of a job",
		`Restart the tasks of a job's running allocations where they are, one allocation after the other, or -batch-size at a time: the next batch
begins when all of this one run again. With -reschedule allocations are stopped and placed anew, maybe on other nodes.

The first allocation that cannot be restarted ends it, unless -on-error continue.`, `
muster job restart web
muster job restart -group api -batch-size 25% -batch-wait 10s web
muster job restart -index 3 -task trainer sweep
muster job restart -reschedule -yes web`, 1, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.StringSliceVar(&o.groups, "group", nil, "only these groups; may be given again")
	f.StringSliceVar(&o.tasks, "task", nil, "only these tasks; may be given again")
	f.IntVar(&o.index, "index", -1, "only the allocation with this index, such as 3 for web.api[3]")
	f.StringVar(&o.batch, "batch-size", "1", "how many at a time: a number, or a share such as 25%")
	f.DurationVar(&o.pause, "batch-wait", 0, "pause between batches")
	f.BoolVar(&o.reschedule, "reschedule", false, "stop the allocations and place them anew")
	f.BoolVar(&o.allTasks, "all-tasks", false, "all tasks, also those that prepare and those that have ended")
	f.BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "with -reschedule: do not wait the group's shutdown_delay")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.Var((*onError)(&o.keepGoing), "on-error", "what a failure does: fail or continue")
	return c
}

// onError is the value of -on-error.
type onError bool

// Set implements pflag.Value.
func (v *onError) Set(s string) error {
	if s != "fail" && s != "continue" {
		return errors.New("want fail or continue")
	}
	*v = s == "continue"
	return nil
}

// String implements pflag.Value.
func (v *onError) String() string {
	if *v {
		return "continue"
	}
	return "fail"
}

// Type implements pflag.Value.
func (v *onError) Type() string { return "string" }

// batchSize reads a number or a share of n.
func batchSize(s string, n int) (int, error) {
	digits, share := strings.CutSuffix(s, "%")
	v, err := strconv.Atoi(digits)
	if err != nil || v < 1 || share && v > 100 {
		return 0, fmt.Errorf("-batch-size %q: want a number from 1, or a share such as 25%%", s)
	}
	if share {
		v = max(1, n*v/100)
	}
	return v, nil
}

func (o *jobRestartOptions) run(ctx context.Context, args []string) error {
	switch {
	case o.allTasks && len(o.tasks) > 0:
		return errors.New("-all-tasks and -task exclude each other: choose one")
	case o.reschedule && (o.allTasks || len(o.tasks) > 0):
		return errors.New("-reschedule replaces whole allocations: leave out -task and -all-tasks")
	case o.noShutdownDelay && !o.reschedule:
		return errors.New("-no-shutdown-delay is about -reschedule; tasks that restart in place do not wait it")
	case o.pause < 0:
		return fmt.Errorf("-batch-wait %s is negative", o.pause)
	}
	if _, err := batchSize(o.batch, 1); err != nil {
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
	if o.reschedule && (stub.Type == "system" || stub.Type == "sysbatch") {
		return fmt.Errorf("a job of type %s has its allocation on every node: restart them in place, without -reschedule", stub.Type)
	}
	list, err := o.pick(ctx, a, stub)
	if err != nil {
		return err
	}
	how := "Restart"
	if o.reschedule {
		how = "Stop and place anew"
	}
	if len(list) > 1 {
		sure := o.env.ask
		if !o.yes && a.notMine(ctx, stub.User) {
			sure = o.confirm
		}
		if err := sure(ctx, o.yes, "%s %d allocations of job %q in namespace %q, of %s, which hold %s?", how, len(list), stub.ID, stub.Namespace, cmp.Or(stub.User, "nobody known"), plural(heldBy(list), "GPU")); err != nil {
			return err
		}
	}
	size, err := batchSize(o.batch, len(list))
	if err != nil {
		return err
	}
	failed := 0
	for n := 0; n < len(list); n += size {
		if n > 0 && o.pause > 0 && !sleepFor(ctx, o.pause) {
			return exitCode(exitInterrupted)
		}
		batch := list[n:min(n+size, len(list))]
		bad, err := o.restart(ctx, a, batch)
		if ctx.Err() != nil {
			o.hint("Interrupted: the allocations from number %d of %d on were not restarted", n+len(batch)+1, len(list))
			return exitCode(exitInterrupted)
		}
		if err != nil && !o.keepGoing {
			return fmt.Errorf("%w\n%d of %d allocations were restarted before", err, n+len(batch)-bad, len(list))
		}
		if err != nil {
			o.hint("Error: %v", err)
		}
		failed += bad
	}
	if o.form.json || o.form.tmpl != "" {
		if _, err := o.form.done(o.env, list); err != nil {
			return err
		}
	} else {
		o.printf("Job %q: %d of %d allocations restarted\n", stub.ID, len(list)-failed, len(list))
	}
	if failed > 0 {
		return exitCode(exitError)
	}
	return nil
}

// pick lists the running allocations that are meant, in the order of groups and indices.
func (o *jobRestartOptions) pick(ctx context.Context, a *api, stub *wire.JobListStub) ([]*wire.AllocationListStub, error) {
	var all, list []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), ns(stub.Namespace), &all); err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.ClientStatus == "running" && s.DesiredStatus == "run" && (len(o.groups) == 0 || slices.Contains(o.groups, s.TaskGroup)) && (o.index < 0 || nameIndex(s.Name) == o.index) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("nothing that is meant runs of job %q (muster job status %s%s)", stub.ID, inNamespace(stub.Namespace), word(stub.ID))
	}
	slices.SortFunc(list, func(x, y *wire.AllocationListStub) int {
		return cmp.Or(strings.Compare(x.TaskGroup, y.TaskGroup), cmp.Compare(nameIndex(x.Name), nameIndex(y.Name)))
	})
	for _, task := range o.tasks {
		if !slices.ContainsFunc(list, func(s *wire.AllocationListStub) bool { return s.TaskStates[task] != nil }) {
			return nil, fmt.Errorf("no allocation of job %q runs a task %q", stub.ID, task)
		}
	}
	return list, nil
}

// restart restarts a batch and waits until it runs again. It returns how many could not be, and why the first.
func (o *jobRestartOptions) restart(ctx context.Context, a *api, batch []*wire.AllocationListStub) (bad int, first error) {
	fail := func(s *wire.AllocationListStub, err error) {
		bad++
		first = cmp.Or(first, fmt.Errorf("restart allocation %s (%s): %w", shortID(s.ID, false), s.Name, err))
	}
	var asked []*wire.AllocationListStub
	for _, s := range batch {
		if err := o.ask(ctx, a, s); err != nil {
			fail(s, err)
			continue
		}
		asked = append(asked, s)
	}
	ctx, stop := context.WithTimeout(ctx, restartLimit)
	defer stop()
	for _, s := range asked {
		if err := o.again(ctx, a, s); err != nil {
			fail(s, err)
			continue
		}
		if !o.form.json && o.form.tmpl == "" {
			o.printf("Allocation %q (%s) runs again\n", shortID(s.ID, false), s.Name)
		}
	}
	return bad, first
}

// ask sends the request for one allocation.
func (o *jobRestartOptions) ask(ctx context.Context, a *api, s *wire.AllocationListStub) error {
	q := ns(s.Namespace)
	if o.reschedule {
		queryFlag(q, "no_shutdown_delay", o.noShutdownDelay)
		_, err := a.put(ctx, "/v1/allocation/"+s.ID+"/stop", q, nil, nil)
		return err
	}
	reqs := []wire.AllocationRestartRequest{{AllTasks: o.allTasks}}
	if len(o.tasks) > 0 {
		reqs = nil
		for _, task := range o.tasks {
			if s.TaskStates[task] != nil {
				reqs = append(reqs, wire.AllocationRestartRequest{TaskName: task})
			}
		}
	}
	for _, req := range reqs {
		if _, err := a.put(ctx, "/v1/client/allocation/"+s.ID+"/restart", q, req, nil); err != nil {
			return err
		}
	}
	return nil
}

// again waits until an allocation, or what replaces it, runs.
func (o *jobRestartOptions) again(ctx context.Context, a *api, was *wire.AllocationListStub) error {
	for {
		var list []*wire.AllocationListStub
		if _, err := a.get(ctx, jobPath(was.JobID, "/allocations"), ns(was.Namespace), &list); err != nil {
			return err
		}
		for _, s := range list {
			switch {
			case o.reschedule && s.Name == was.Name && s.CreateIndex > was.CreateIndex:
				if s.ClientStatus == "running" || s.ClientStatus == "complete" {
					return nil
				} else if over(s) {
					return fmt.Errorf("its replacement %s is %s", shortID(s.ID, false), s.ClientStatus)
				}
			case !o.reschedule && s.ID == was.ID && over(s):
				return fmt.Errorf("it is %s", s.ClientStatus)
			case !o.reschedule && s.ID == was.ID && o.restarted(was, s):
				return nil
			}
		}
		if !sleepFor(ctx, pollEvery) {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("it does not run again after %s", restartLimit)
			}
			return ctx.Err()
		}
	}
}

// restarted reports whether the tasks that were to restart have done so and run.
func (o *jobRestartOptions) restarted(was, is *wire.AllocationListStub) bool {
	for name, t := range was.TaskStates {
		if t == nil || len(o.tasks) > 0 && !slices.Contains(o.tasks, name) || t.State != "running" {
			continue
		}
		now := is.TaskStates[name]
		if now == nil || now.State != "running" || now.Restarts == t.Restarts {
			return false
		}
	}
	return is.ClientStatus == "running"
}

// heldBy counts the GPUs that allocations hold.
func heldBy(list []*wire.AllocationListStub) (n int64) {
	for _, s := range list {
		if v, err := strconv.ParseInt(gpusHeld(s.AllocatedResources), 10, 64); err == nil {
			n += v
		}
	}
	return n
}
