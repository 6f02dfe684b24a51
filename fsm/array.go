package fsm

import (
	"maps"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// arrayEnds collects how collected allocations of arrays ended, by job, so that a command writes each array once.
type arrayEnds map[structs.JobKey][]structs.ArrayEnd

// note records the end of an allocation that is about to be collected, if it is the end of an index.
func (e arrayEnds) note(x *tx, a *structs.Allocation) {
	j := state.Jobs.Get(x, a.JobKey())
	if j == nil || j.Array == nil || a.CreateIndex < j.CreateIndex || !a.Lineage().Next.IsZero() || a.Transition.Requeue {
		return
	}
	limit := a.DesiredDesc == structs.DescMaxRun
	if a.Client == structs.ClientLost || a.ServerTerminal() && !limit {
		return // not an end: the index runs again, or was no longer wanted
	}
	e[a.JobKey()] = append(e[a.JobKey()], structs.ArrayEnd{Index: a.NameIndex, Failed: limit || a.Client != structs.ClientComplete})
}

func (e arrayEnds) write(x *tx) {
	for _, k := range slices.SortedFunc(maps.Keys(e), func(a, b structs.JobKey) int {
		if a.Less(b) {
			return -1
		}
		return 1
	}) {
		state.Arrays.Put(x, &structs.ArrayState{Namespace: k.Namespace, JobID: k.ID, Ended: state.Arrays.Get(x, k).With(e[k]), ModifyIndex: x.index})
	}
}

// ofArray reports whether the allocation belongs to an array and will not change any more, so that its end can be kept
// as a run. The leader has checked that a failed one is not retried.
func (x *tx) ofArray(a *structs.Allocation) bool {
	j := state.Jobs.Get(x, a.JobKey())
	if j == nil || j.Array == nil || a.Transition.ForceReschedule || a.Client == structs.ClientLost {
		return false
	}
	f := state.Evals.Get(x, a.Lineage().FollowupEval)
	return a.Client == structs.ClientComplete || f == nil || f.Terminal()
}

// retry lets work that failed for good run again: failed indices of an array, and allocations that are not rescheduled.
func (x *tx) retry(j *structs.Job) *structs.Error {
	k := j.Key()
	again := 0
	if s := state.Arrays.Get(x, k); s != nil {
		n := *s
		n.Ended = nil
		for _, r := range s.Ended {
			if r.Failed {
				again += r.To - r.From + 1
			} else {
				n.Ended = append(n.Ended, r)
			}
		}
		n.ModifyIndex = x.index
		state.Arrays.Put(x, &n)
	}
	for _, a := range x.AllocsByJob(k) {
		if a.Client != structs.ClientFailed || a.Desired != structs.DesiredRun || !a.Lineage().Next.IsZero() || a.CreateIndex < j.CreateIndex {
			continue
		}
		n := *a
		n.Transition.ForceReschedule = true
		x.serverWrote(&n)
		again++
	}
	if again == 0 {
		return structs.Errorf(structs.CodeConflict, "nothing of job %q has failed for good, so there is nothing to retry", j.ID)
	}
	x.newEval(j, structs.TriggerRetryFailed, nil)
	return nil
}
