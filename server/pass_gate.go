package server

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Gates: what keeps a job from being placed whatever the nodes offer (a hold, its begin time, the jobs that it waits for)
// is computed from the state that the pass decides on.

// others shows a state to scheduler.GateOf.
type others struct{ *state.Snapshot }

// recordsLooked bounds the accounting records that are looked through for a job that is not registered any more. A job
// that waits for it is decided again when it ends, long before that many others have.
const recordsLooked = 2_000

// LastRecord is what was kept of a job's newest end.
func (o others) LastRecord(k structs.JobKey) *structs.AcctRecord {
	left := recordsLooked
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

// fillGate fills in the gate of a workload, and what has ended of an array.
func fillGate(w *contend.Workload, snap *state.Snapshot, now structs.LogTime) (never string) {
	if w.Job == nil || !w.Job.Placeable() {
		return ""
	}
	if w.Job.Array != nil {
		w.Ended = snap.ArrayByKey(w.Key)
	}
	g := scheduler.GateOf(w.Job, w.Queue, now, others{snap})
	w.Gate, w.Until, w.Met = g.Why, g.Until, g.Met
	return g.Never
}

// gate fills in the gate of a workload of a pass. A job whose gate can never open is stopped.
func (p *decider) gate(w *contend.Workload, committed bool, now structs.LogTime) {
	if never := fillGate(w, p.pub.Snapshot, now); never != "" && committed {
		p.failJob(w.Key, never)
	}
}

// failJob stops a job that can never do what it was submitted for. Until that is in the state, passes meet the job again;
// only one command is under way at a time.
func (p *decider) failJob(k structs.JobKey, why string) {
	if p.failing[k] {
		return
	}
	p.failing[k] = true
	prop := p.s.Propose(replica.LanePriority, structs.Command{By: structs.Submitter{Name: "scheduler"},
		Body: &structs.WorkloadCommand{Namespace: k.Namespace, JobID: k.ID, Action: structs.ActionFail, Reason: why}})
	p.writes++
	go func() {
		<-prop.Done()
		res, err := prop.Result()
		if err == nil && res.Err != nil {
			err = res.Err
		}
		if err != nil {
			p.s.log.Warn("a job that can never start was not stopped; the next pass tries again", "job", k, "why", why, "error", err)
		}
		p.landed <- landed{ended: &k}
	}()
}

// links shows the newest state that the broker was fed to the broker.
type links struct{ p *decider }

// DependsOn gives the jobs that a job waits for.
func (l links) DependsOn(k structs.JobKey) []structs.JobKey {
	j := l.p.pub.Snapshot.JobByKey(k)
	if j == nil {
		return nil
	}
	var out []structs.JobKey
	for i := range j.Depends {
		out = append(out, j.Depends[i].On(j))
	}
	return out
}

// ChangedAt is when a job changed last; 0 when it is not there.
func (l links) ChangedAt(k structs.JobKey) structs.Index {
	if j := l.p.pub.Snapshot.JobByKey(k); j != nil {
		return j.ModifyIndex
	}
	return 0
}
