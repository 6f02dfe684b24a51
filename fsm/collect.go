package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// applyCollect deletes what garbage collection chose from an older state. Each object is checked again and skipped if
// it is alive by now. Allocations go first, because evaluations, jobs and nodes wait for them.
func applyCollect(x *tx, c *structs.CollectCommand) *structs.Error {
	x.keep = true
	ended := arrayEnds{}
	for _, id := range c.Allocs {
		if a := state.Allocs.Get(x, id); a != nil && a.ClientTerminal() && (a.ServerTerminal() || x.over(a) || x.ofArray(a)) {
			ended.note(x, a)
			x.dropAlloc(a)
		}
	}
	ended.write(x)
	for _, id := range c.Evals {
		if e := state.Evals.Get(x, id); e != nil && e.Terminal() {
			state.Evals.Delete(x, id)
			x.touch(e.JobKey())
		}
	}
	for _, k := range c.Jobs {
		j := state.Jobs.Get(x, k)
		if j == nil || j.Status != structs.JobDead {
			continue
		}
		if n := x.Counts(k); n.Holding > 0 || n.OpenEvals > 0 {
			continue
		}
		if !j.Stop && (j.Type == structs.JobService || j.Type == structs.JobSystem || j.IsPeriodic() || j.IsParameterized()) {
			continue // it may run again without another registration
		}
		x.forget(j)
	}
	for _, id := range c.Nodes {
		n := state.Nodes.Get(x, id)
		if n == nil || n.Status != structs.NodeDown {
			continue
		}
		busy := false
		for _, a := range x.AllocsByNode(id) {
			busy = busy || structs.Holds(a)
		}
		if !busy {
			state.Nodes.Delete(x, id)
		}
	}
	for _, id := range c.Tokens {
		if t := state.Tokens.Get(x, id); t != nil && t.Expired(x.time) {
			state.Tokens.Delete(x, id)
		}
	}
	return nil
}

// over reports whether the outcome of an allocation no longer matters: its job is gone or dead, it was replaced, or it
// belongs to an older version. Otherwise the scheduler still counts it (a finished batch allocation does not run
// again).
func (x *tx) over(a *structs.Allocation) bool {
	j := state.Jobs.Get(x, a.JobKey())
	return j == nil || j.Status == structs.JobDead || !a.Lineage().Next.IsZero() || a.JobVersion != j.Version
}

func (x *tx) dropAlloc(a *structs.Allocation) {
	x.acctCollected(a)
	x.DeleteAlloc(a.ID)
	x.touch(a.JobKey())
	if x.JobVersion(a.JobKey(), a.JobVersion) != nil {
		x.pruneVersions(a.JobKey())
	}
}

// forget removes a job with everything that belongs to it. None of it may be alive.
func (x *tx) forget(j *structs.Job) {
	k := j.Key()
	for _, a := range x.AllocsByJob(k) {
		x.DeleteAlloc(a.ID)
	}
	for _, e := range x.EvalsByJob(k) {
		state.Evals.Delete(x, e.ID)
	}
	state.Jobs.Delete(x, k)
	state.Workloads.Delete(x, k)
	state.Versions.Delete(x, k)
	state.Launches.Delete(x, k)
	state.Scaling.Delete(x, k)
	state.Arrays.Delete(x, k)
	x.touch(k)
}
