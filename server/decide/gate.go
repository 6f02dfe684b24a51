package decide

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Gates: what keeps a job from being placed whatever the nodes offer (a hold, its begin time, the jobs that it waits for)
// is computed from the state that the pass decides on.

// otherJobs shows a state to scheduler.GateOf.
type otherJobs struct{ *state.Snapshot }

// recordsMax bounds the accounting records that are looked through for a job that is not registered any more. A job that
// waits for it is decided again when it ends, long before that many others have.
const recordsMax = 2_000

// LastRecord is what was kept of a job's newest end.
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

// fillGate fills in the gate of a workload, and what has ended of an array. It returns why the gate can never open; "" if
// it can.
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
