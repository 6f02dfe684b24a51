package fsm

import "github.com/muster-sched/muster/structs"

// applyCollect deletes what garbage collection chose from an older state. Each object is checked again, and one that
// came to life meanwhile is passed over. Allocations go first, because evaluations, jobs and nodes wait for them.
func applyCollect(x *tx, c *structs.CollectCommand) *structs.Error {
	x.keep = true
	ended := arrayEnds{}
	for _, id := range c.Allocs {
		if a := x.Allocs.Get(id); a != nil && a.ClientTerminal() && (a.ServerTerminal() || x.over(a) || x.ofArray(a)) {
			ended.note(x, a)
			x.dropAlloc(a)
		}
	}
	ended.write(x)
	for _, id := range c.Evals {
		if e := x.Evals.Get(id); e != nil && e.Terminal() {
			x.Evals.Delete(id)
			x.touch(e.JobKey())
		}
	}
	for _, k := range c.Jobs {
		j := x.Jobs.Get(k)
		if j == nil || j.Status != structs.JobDead {
			continue
		}
		if n := x.Counts(k); n.Holding > 0 || n.OpenEvals > 0 {
			continue
		}
		if !j.Stop && (j.Type == structs.JobService || j.Type == structs.JobSystem || j.IsPeriodic() || j.IsParameterized()) {
			continue // it may run again without being registered anew
		}
		x.forget(j)
	}
	for _, id := range c.Nodes {
		n := x.Nodes.Get(id)
		if n == nil || n.Status != structs.NodeDown {
			continue
		}
		busy := false
		for _, a := range x.AllocsByNode(id) {
			busy = busy || structs.Holds(a)
		}
		if !busy {
			x.Nodes.Delete(id)
		}
	}
	for _, id := range c.Tokens {
		if t := x.Tokens.Get(id); t != nil && t.Expired(x.time) {
			x.Tokens.Delete(id)
		}
	}
	return nil
}

// over reports whether nobody will look at how an allocation ended: its job is gone or dead, it was replaced, or it
// belongs to an older version. Otherwise the scheduler still counts it (a finished batch allocation is not run again).
func (x *tx) over(a *structs.Allocation) bool {
	j := x.Jobs.Get(a.JobKey())
	return j == nil || j.Status == structs.JobDead || !a.Next.IsZero() || a.JobVersion != j.Version
}

func (x *tx) dropAlloc(a *structs.Allocation) {
	x.acctCollected(a)
	x.DeleteAlloc(a.ID)
	x.touch(a.JobKey())
	if x.JobVersion(a.JobKey(), a.JobVersion) != nil {
		x.pruneVersions(a.JobKey())
	}
}

// forget removes a job with everything that belongs to it. Nothing of it may be alive.
func (x *tx) forget(j *structs.Job) {
	k := j.Key()
	for _, a := range x.AllocsByJob(k) {
		x.DeleteAlloc(a.ID)
	}
	for _, e := range x.EvalsByJob(k) {
		x.Evals.Delete(e.ID)
	}
	x.Jobs.Delete(k)
	x.Workloads.Delete(k)
	x.Versions.Delete(k)
	x.Launches.Delete(k)
	x.Scaling.Delete(k)
	x.Arrays.Delete(k)
	x.touch(k)
}
