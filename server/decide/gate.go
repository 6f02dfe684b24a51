package decide

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// A gate keeps a job from being placed whichever nodes are free: a hold, its begin time, or jobs that it depends on. It
// is computed from the state that the pass decides on.

// otherJobs gives scheduler.GateOf access to a state.
type otherJobs struct{ *state.Snapshot }

// recordsMax bounds the search for the accounting record of a job that is no longer registered. A dependent job is
// decided again when that job ends, long before so many others have ended.
const recordsMax = 2_000

// Known reports whether a job is registered, or has ended not long ago.
func Known(snap *state.Snapshot, k structs.JobKey) bool {
	return snap.JobByKey(k) != nil || otherJobs{snap}.LastRecord(k) != nil
}

// LastRecord returns the accounting record of a job's newest end, or nil.
func (o otherJobs) LastRecord(k structs.JobKey) *structs.AcctRecord {
	left := recordsMax
	for r := range o.AcctBack() {
		if r.Key() == k {
			return r
		}
		if left--; left == 0 {
			break
		}
	}
	return nil
}

// fillGate sets a workload's gate, and what has ended of an array. It returns why the gate can never open, or "".
func fillGate(w *contend.Workload, snap *state.Snapshot, now structs.LogTime) (never string) {
	if w.Job == nil || !w.Job.Placeable() {
		return ""
	}
	if w.Job.Array != nil {
		w.Ended = snap.ArrayByKey(w.Key)
	}
	g := scheduler.GateOf(w.Job, w.Queue, now, otherJobs{snap})
	w.Gate, w.Until, w.Met = g.Why, g.Until, g.Met
	return g.Never
}
