package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// applySuspend freezes or resumes running work. It creates no new decision for it and releases no resources: agents see
// the request in the allocation. Nothing more of a suspended job is placed until it is resumed.
func applySuspend(x *tx, c *structs.SuspendCommand) *structs.Error {
	if !c.Alloc.IsZero() {
		return x.suspendAlloc(c)
	}
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	j, w := state.Jobs.Get(x, k), state.Workloads.Get(x, k)
	switch {
	case j == nil:
		return jobNotFound(k)
	case !j.Stop && (j.IsPeriodic() || j.IsParameterized()):
		return structs.Errorf(structs.CodeConflict, "job %q only makes other jobs: nothing of it runs that could be suspended or resumed; name one of those it has made", k.ID)
	case j.Stop || j.Status == structs.JobDead || w == nil:
		return structs.Errorf(structs.CodeConflict, "job %q has ended or is stopped; there is nothing to %s", k.ID, suspendWord(c))
	}
	var some []*structs.Allocation
	runs := false
	for _, a := range x.AllocsByJob(k) {
		if a.Terminal() {
			continue
		}
		runs = runs || a.Client != structs.ClientPending
		if a.Suspended() == c.Resume {
			some = append(some, a)
		}
	}
	switch {
	case c.Resume && w.Suspended == 0 && len(some) == 0:
		return structs.Errorf(structs.CodeConflict, "job %q is not suspended", k.ID)
	case !c.Resume && w.Suspended != 0:
		return structs.Errorf(structs.CodeConflict, "job %q is suspended already", k.ID)
	case !c.Resume && !runs:
		return structs.Errorf(structs.CodeConflict, "nothing of job %q runs, so there is nothing to suspend; hold it to keep it from starting", k.ID)
	}
	if err := x.assembling(some, c); err != nil {
		return err
	}
	x.suspend(some, c)
	n := *w
	if n.Suspended = x.time; c.Resume {
		n.Suspended = 0
	}
	if n.Suspended != w.Suspended {
		n.ModifyIndex = x.index
		state.Workloads.Put(x, &n)
		x.newEval(j, structs.TriggerHold, nil) // its waiting work may now, or may no longer, be placed
	}
	return nil
}

func suspendWord(c *structs.SuspendCommand) string {
	if c.Resume {
		return "resume"
	}
	return "suspend"
}

// suspendAlloc suspends or resumes one allocation, or all that runs as one with it: members that run without one hang or fail.
func (x *tx) suspendAlloc(c *structs.SuspendCommand) *structs.Error {
	a := state.Allocs.Get(x, c.Alloc)
	if a == nil {
		return structs.Errorf(structs.CodeNotFound, "Unknown allocation %q", c.Alloc)
	}
	w := state.Workloads.Get(x, a.JobKey())
	switch {
	case a.ClientTerminal():
		return structs.Errorf(structs.CodeConflict, "allocation %s has ended; there is nothing to %s", a.ID.Short(), suspendWord(c))
	case a.ServerTerminal():
		return structs.Errorf(structs.CodeConflict, "allocation %s is being stopped; there is nothing to %s", a.ID.Short(), suspendWord(c))
	case c.Resume && !a.Suspended():
		return structs.Errorf(structs.CodeConflict, "allocation %s is not suspended", a.ID.Short())
	case c.Resume && w != nil && w.Suspended != 0:
		return structs.Errorf(structs.CodeConflict, "allocation %s is suspended with all of job %q; resume the job", a.ID.Short(), a.JobID)
	case !c.Resume && a.Suspended():
		return structs.Errorf(structs.CodeConflict, "allocation %s is suspended already", a.ID.Short())
	case !c.Resume && a.Client == structs.ClientPending:
		return structs.Errorf(structs.CodeConflict, "allocation %s does not run yet, so there is nothing to suspend", a.ID.Short())
	}
	some := []*structs.Allocation{a}
	if x.groupOf(a).IsGang() {
		some = some[:0]
		for _, b := range x.AllocsByJob(a.JobKey()) {
			if a.Job.Together(a.Group, b.Group) && !b.Terminal() && b.Suspended() == c.Resume {
				some = append(some, b)
			}
		}
	}
	if err := x.assembling(some, c); err != nil {
		return err
	}
	x.suspend(some, c)
	return nil
}

// groupOf returns the group of an allocation, in the job version that it runs.
func (x *tx) groupOf(a *structs.Allocation) *structs.Group {
	if a.Job == nil {
		return nil
	}
	return a.Job.Group(a.Group)
}

// assembling refuses to suspend a gang that is still assembling: its deadline is running.
func (x *tx) assembling(some []*structs.Allocation, c *structs.SuspendCommand) *structs.Error {
	if c.Resume {
		return nil
	}
	for _, a := range some {
		if r := state.Rosters.Get(x, structs.RosterKey{Job: a.JobKey(), Group: a.Group}); r != nil && r.Deadline != 0 {
			return structs.Errorf(structs.CodeConflict, "gang %q of job %q is still assembling; it can be suspended once it runs", a.Group, a.JobID)
		}
	}
	return nil
}

// suspend writes the request to allocations. A resumed gang that was still assembling gets its time to assemble again.
func (x *tx) suspend(some []*structs.Allocation, c *structs.SuspendCommand) {
	moved := map[structs.RosterKey]bool{}
	for _, a := range some {
		x.serverWrote(a.Suspend(!c.Resume, x.cmd.By.Name, c.Reason, x.time))
		k := structs.RosterKey{Job: a.JobKey(), Group: a.Group}
		r := state.Rosters.Get(x, k)
		if !c.Resume || moved[k] || r == nil || r.Deadline == 0 {
			continue
		}
		moved[k] = true
		n := *r
		n.Deadline = n.Deadline.Add(max(0, x.time.Sub(a.Suspension.Since)))
		x.putRoster(&n)
	}
	x.logSuspension(some, c)
}

// logSuspension adds a row to the decision log about allocations of one job that were suspended or resumed.
func (x *tx) logSuspension(some []*structs.Allocation, c *structs.SuspendCommand) {
	if len(some) == 0 || !x.Has(feature.DecisionSuspensions) {
		return
	}
	k := some[0].JobKey()
	row := structs.DecisionRow{Kind: structs.DecidedSuspend, Stops: int64(len(some))}
	if c.Resume {
		row = structs.DecisionRow{Kind: structs.DecidedResume, Places: int64(len(some))}
	}
	row.Node, row.Nodes = x.nodesOf(len(some), func(i int) structs.AllocID { return some[i].ID })
	queue := structs.QueuePath("")
	j := state.Jobs.Get(x, k)
	if j != nil {
		queue = j.QueueName()
	}
	d := x.newDecisions(k, queue, structs.EvalID{})
	d.Policy, d.Reason, d.Actor = x.Policy(queue, j), structs.Trigger(c.Reason), actor(&x.cmd.By)
	d.Add(&row)
	x.PutDecisions(d)
}

// inheritedSuspension returns the suspension that a new gang member takes over from the others, or nil.
func (pl *planApply) inheritedSuspension(g *structs.Group) *structs.Suspension {
	if !g.IsGang() {
		return nil
	}
	s, known := pl.suspensions[g.Name]
	if !known { // once per gang and plan: a large gang has thousands of allocations
		for _, b := range pl.AllocsByJob(pl.key) {
			if (b.Group == g.Name || pl.job.Together(g.Name, b.Group)) && !b.Terminal() && b.Suspended() {
				s = &structs.Suspension{Since: pl.time, By: b.Suspension.By, Reason: b.Suspension.Reason}
				break
			}
		}
		if pl.suspensions == nil {
			pl.suspensions = map[structs.GroupName]*structs.Suspension{}
		}
		pl.suspensions[g.Name] = s
	}
	return s
}
