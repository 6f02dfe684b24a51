package fsm

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// applyWorkload holds, releases, requeues or ends a job.
func applyWorkload(x *tx, c *structs.WorkloadCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	j := state.Jobs.Get(x, k)
	switch {
	case j == nil:
		return jobNotFound(k)
	case !j.Placeable():
		return structs.Errorf(structs.CodeConflict, "job %q is stopped or a template; there is nothing to %s", k.ID, c.Action)
	}
	w := state.Workloads.Get(x, k)
	if c.Action == structs.ActionRetry {
		return x.retry(j)
	}
	if w == nil {
		return structs.Errorf(structs.CodeConflict, "job %q has ended; there is nothing to %s", k.ID, c.Action)
	}
	switch c.Action {
	case structs.ActionHold, structs.ActionRelease:
		n := *w
		n.Held, n.ModifyIndex = c.Action == structs.ActionHold, x.index
		if !n.Held {
			n.NotBefore = 0
		}
		if n.Held != w.Held || n.NotBefore != w.NotBefore {
			state.Workloads.Put(x, &n)
		}
		x.newEval(j, structs.TriggerHold, nil)
	case structs.ActionRequeue:
		return x.requeue(j, w)
	case structs.ActionMissed:
		if j.Deadline == 0 || x.time <= j.Deadline || w.Missed != 0 {
			return structs.Errorf(structs.CodeConflict, "job %q has no deadline that it has missed and that is not known", k.ID)
		}
		n := *w
		n.Missed, n.ModifyIndex = j.Deadline, x.index
		state.Workloads.Put(x, &n)
	case structs.ActionFail:
		x.fail(j, c.Reason)
	default:
		return structs.Errorf(structs.CodeInvalid, "%.64q cannot be done to a job; want hold, release, requeue, retry or fail", c.Action)
	}
	return nil
}

// applyJobPriority changes a job's priority: in the queue, and in preemption for running allocations of its newest
// version. It creates no version, so that nothing is updated; a later registered specification has its own priority.
func applyJobPriority(x *tx, c *structs.JobPriorityCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	j := state.Jobs.Get(x, k)
	switch {
	case c.Priority < structs.JobPriorityMin || c.Priority > structs.JobPriorityMax:
		return structs.Errorf(structs.CodeInvalid, "priority is %d; want %d to %d", c.Priority, structs.JobPriorityMin, structs.JobPriorityMax)
	case j == nil:
		return jobNotFound(k)
	case !j.Placeable():
		return structs.Errorf(structs.CodeConflict, "job %q is stopped or a template; its priority cannot be changed", k.ID)
	case state.Workloads.Get(x, k) == nil:
		return structs.Errorf(structs.CodeConflict, "job %q has ended; its priority cannot be changed", k.ID)
	}
	x.result.SpecIndex, x.result.Version = j.SpecIndex, j.Version
	if j.Priority == c.Priority {
		return nil
	}
	n := *j
	n.Priority, n.SpecIndex, n.ModifyIndex = c.Priority, x.index, x.index // callers that enforce an index must notice the new priority
	state.Jobs.Put(x, &n)
	x.result.SpecIndex = n.SpecIndex
	for _, a := range x.AllocsByJob(k) {
		if a.JobVersion == n.Version && structs.Holds(a) {
			c := *a
			c.ModifyIndex, c.ModifyTime = x.index, x.time
			x.PutAlloc(&c) // links it to the current job; its agent is not notified
		}
	}
	x.newEval(&n, structs.TriggerPriority, nil)
	return nil
}

// requeue asks for every allocation of a job to be stopped and started again when its turn comes.
func (x *tx) requeue(j *structs.Job, w *structs.Workload) *structs.Error {
	stopped := 0
	for _, a := range x.AllocsByJob(j.Key()) {
		if a.Terminal() || a.Transition.Requeue {
			continue
		}
		n := *a
		n.Transition.Requeue = true
		x.serverWrote(&n)
		stopped++
	}
	if stopped == 0 {
		return structs.Errorf(structs.CodeConflict, "nothing of job %q runs, so there is nothing to requeue", j.ID)
	}
	n := *w
	n.Requeued, n.ModifyIndex = n.Requeued+1, x.index
	state.Workloads.Put(x, &n)
	x.newEval(j, structs.TriggerRequeue, nil)
	return nil
}

// countReturn counts work that returns from the queue in its job's workload: a gang, and all joint groups, once per
// entry, other work per allocation.
func (pl *planApply) countReturn(a *structs.Allocation) {
	if a.Lineage().Requeues == 0 || a.Lineage().Previous.IsZero() {
		return
	}
	prev := state.Allocs.Get(pl, a.Lineage().Previous)
	if prev == nil || a.Lineage().Requeues <= prev.Lineage().Requeues {
		return
	}
	if g := pl.job.Group(a.Group); g.IsGang() {
		unit := a.Group
		if g.Joint {
			unit = "" // all joint groups return as one
		}
		if slices.Contains(pl.returned, unit) {
			return
		}
		pl.returned = append(pl.returned, unit)
	}
	w := state.Workloads.Get(pl, pl.key)
	if w == nil {
		return
	}
	n := *w
	n.Returned.Add(a.Lineage().RestartReason)
	if a.Lineage().RestartReason != structs.RequeueByHand { // a requeue by hand was counted when it was requested
		n.Requeued++
	}
	n.ModifyIndex = pl.index
	state.Workloads.Put(pl, &n)
}

// fail stops a job that can never do what it was submitted for.
func (x *tx) fail(j *structs.Job, why string) {
	k := j.Key()
	stopped := *j
	stopped.Stop = true
	n := *x.putSpec(&stopped, j, nil)
	n.StatusDesc = why
	if x.Has(feature.KeptSubmitters) { // it is still theirs who submitted it
		n.Submitter = j.Submitter
	}
	state.Jobs.Put(x, &n)
	x.result.SpecIndex, x.result.Version = n.SpecIndex, n.Version
	x.cancelEvals(k, x.newEval(&n, structs.TriggerJobDeregister, nil), why)
}

// respec copies hold and dependencies of a new specification to the queue entry.
func (x *tx) respec(old, j *structs.Job) {
	w := state.Workloads.Get(x, j.Key())
	if old == nil || w == nil || old == j {
		return
	}
	n := *w
	if old.Hold != j.Hold {
		n.Held = j.Hold
	}
	if !slices.Equal(old.Depends, j.Depends) {
		n.Met = false
	}
	if old.Deadline != j.Deadline {
		n.Missed = 0
	}
	n.Spent = "" // a new version starts fresh
	if n != *w {
		n.ModifyIndex = x.index
		state.Workloads.Put(x, &n)
	}
}
