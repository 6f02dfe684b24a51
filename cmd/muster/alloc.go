package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newAlloc(e *env) *cobra.Command {
	return e.group("alloc", "Look at allocations and work with them",
		"An allocation is one instance of a group on a node.", `
muster alloc status 8ba85cef
muster alloc logs -f 8ba85cef
muster alloc exec -it 8ba85cef /bin/sh
muster alloc port-forward 8ba85cef 8080:http
muster alloc fs 8ba85cef alloc/logs`,
		newAllocStatus, newAllocLogs, newAllocExec, newAllocForward, newAllocFS, newAllocCopy, newAllocStop, newAllocSuspend, newAllocResume, newAllocRestart, newAllocSignal, newAllocChecks)
}

// ofAlloc adds -job to a command whose first argument is an allocation: with -job it is a job.
func (e *env) ofAlloc(c *cobra.Command, job *bool) *cobra.Command {
	c.Flags().BoolVar(job, "job", false, "the argument is a job: use one of its allocations")
	return c
}

// pickAlloc finds an allocation by its id prefix or, with job set, an allocation of a job, preferably a running one.
func (e *env) pickAlloc(ctx context.Context, a *api, arg string, job bool) (*wire.Allocation, error) {
	if !job {
		if _, err := idPrefix("allocation", arg); err != nil {
			return nil, fmt.Errorf("%w; -job takes a job: -job %s", err, arg)
		}
		return a.alloc(ctx, arg)
	}
	stub, err := a.job(ctx, arg)
	if err != nil {
		return nil, err
	}
	var list []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), ns(stub.Namespace), &list); err != nil {
		return nil, err
	}
	var best *wire.AllocationListStub
	rank := func(s *wire.AllocationListStub) int {
		switch s.ClientStatus {
		case "running":
			return 0
		case "pending":
			return 1
		}
		return 2
	}
	for _, s := range list {
		if best == nil || rank(s) < rank(best) || (rank(s) == rank(best) && s.CreateIndex > best.CreateIndex) {
			best = s
		}
	}
	if best == nil {
		return nil, fmt.Errorf("job %q has no allocation (muster job why %s%s)", stub.ID, inNamespace(stub.Namespace), word(stub.ID))
	}
	var out wire.Allocation
	if _, err := a.get(ctx, "/v1/allocation/"+best.ID, ns(best.Namespace), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// tasksOf lists the tasks of an allocation, in job order.
func tasksOf(al *wire.Allocation) []string {
	var out []string
	if al.Job != nil {
		for _, g := range al.Job.TaskGroups {
			if val(g.Name) == al.TaskGroup {
				for _, t := range g.Tasks {
					out = append(out, t.Name)
				}
			}
		}
	}
	if len(out) == 0 {
		out = sortedKeys(al.TaskStates)
	}
	return out
}

// pickTask returns the task that a command should use: the named one, or the only one.
func pickTask(al *wire.Allocation, name string) (string, error) {
	tasks := tasksOf(al)
	if name != "" {
		for _, t := range tasks {
			if t == name {
				return t, nil
			}
		}
		return "", fmt.Errorf("allocation %s has no task %q: it has %v", shortID(al.ID, false), name, tasks)
	}
	switch len(tasks) {
	case 0:
		return "", fmt.Errorf("allocation %s has no tasks yet", shortID(al.ID, false))
	case 1:
		return tasks[0], nil
	}
	// prefer main tasks to those that only prepare or clean up
	main := ""
	for _, g := range al.Job.TaskGroups {
		if val(g.Name) != al.TaskGroup {
			continue
		}
		for _, t := range g.Tasks {
			if t.Lifecycle == nil || t.Lifecycle.Hook == "" {
				if main != "" {
					return "", fmt.Errorf("allocation %s has several tasks: say which of %v with -task", shortID(al.ID, false), tasks)
				}
				main = t.Name
			}
		}
	}
	if main != "" {
		return main, nil
	}
	return "", fmt.Errorf("allocation %s has several tasks: say which of %v with -task", shortID(al.ID, false), tasks)
}

// taskFlagOrArg reads a task from -task or from an argument: Nomad accepts both.
func taskFlagOrArg(flag string, args []string) (string, error) {
	switch {
	case len(args) < 2:
		return flag, nil
	case flag != "" && flag != args[1]:
		return "", fmt.Errorf("the task is named twice: -task %s and %s", flag, args[1])
	}
	return args[1], nil
}
