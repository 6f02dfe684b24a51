package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// settle updates the status and the queue entry of every touched job from its allocations and evaluations.
//
//	pending --first allocation reported--> running --nothing runs or waits--> dead --registered again--> pending
func (x *tx) settle() {
	for _, k := range x.order {
		j := state.Jobs.Get(x, k)
		x.settleGangs(k, j)
		if j == nil {
			if state.Workloads.Get(x, k) != nil {
				state.Workloads.Delete(x, k)
			}
			if state.AcctOpen.Get(x, k) != nil && x.Counts(k).Holding == 0 {
				x.acctEnded(k, nil, nil)
			}
			x.unreserve(k)
			continue
		}
		status := jobStatus(j, x.Counts(k))
		if x.keep && j.Status == structs.JobDead {
			status = structs.JobDead
		}
		if status != j.Status {
			c := *j
			c.Status, c.ModifyIndex = status, x.index
			if w := state.Workloads.Get(x, k); w != nil && !j.Stop {
				c.StatusDesc = "" // left from an earlier end
				if status == structs.JobDead {
					c.StatusDesc = w.Spent
				}
			}
			state.Jobs.Put(x, &c)
			j = &c
		}
		x.settleWorkload(j)
	}
	x.settleLosses()
}

// jobStatus returns the status of a job with these counters.
func jobStatus(j *structs.Job, c state.JobCounts) structs.JobStatus {
	switch {
	case !j.Stop && (j.IsPeriodic() || j.IsParameterized() || j.Type == structs.JobSystem):
		return structs.JobRunning
	case c.Holding > 0 && c.Started > 0:
		return structs.JobRunning
	case c.Holding > 0 || c.OpenEvals > 0:
		return structs.JobPending
	case j.Stop || c.Allocs+c.Evals > 0:
		return structs.JobDead
	case j.Status == structs.JobDead:
		return structs.JobDead // its allocations and evaluations have been collected
	}
	return structs.JobPending
}

// settleWorkload keeps one queue entry per job that may wait for capacity. The entry is kept through updates of the
// job, and is deleted when the job is dead.
func (x *tx) settleWorkload(j *structs.Job) {
	k := j.Key()
	old := state.Workloads.Get(x, k)
	if j.Status == structs.JobDead || j.IsPeriodic() || j.IsParameterized() {
		if old != nil {
			if j.Status == structs.JobDead {
				x.acctEnded(k, j, old)
			}
			state.Workloads.Delete(x, k)
		}
		x.unreserve(k)
		return
	}
	if j.Stop {
		x.unreserve(k)
	}
	if old == nil {
		if state.AcctOpen.Get(x, k) != nil { // left by a purged job of this name: allocations that still hold are charged up to now
			x.acctEnded(k, nil, nil)
		}
		state.Workloads.Put(x, &structs.Workload{
			Namespace: j.Namespace, JobID: j.ID, Domain: j.NodePool, SubmitIndex: x.index, SubmitTime: x.time,
			Priority: j.Priority, Queue: j.Queue, Held: j.Hold, CreateIndex: x.index, ModifyIndex: x.index,
		})
		return
	}
	ends := j.Stop && old.Suspended != 0 // a job that is started again is not suspended, even if allocations of the old run still end
	if old.Domain != j.NodePool || old.Priority != j.Priority || old.Queue != j.Queue || x.attained[k] > 0 || ends {
		w := *old
		if ends {
			w.Suspended = 0
		}
		w.Domain, w.Priority, w.Queue, w.ModifyIndex = j.NodePool, j.Priority, j.Queue, x.index
		w.Attained += x.attained[k]
		state.Workloads.Put(x, &w)
	}
}
