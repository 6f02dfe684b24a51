package duty

import (
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Deadlines records missed deadlines of jobs. Apply checks again with log time, so each miss is recorded once, and
// never for a job that ended in time. If a job ends late before the duty has recorded it, Apply notices.
type Deadlines struct {
	queue *Queue[structs.JobKey]
}

// afterDeadline is the time from a deadline to the duty's command. Apply requires a log time later than the deadline.
const afterDeadline = time.Millisecond

// NewDeadlines returns the duty. Call Load first.
func NewDeadlines() *Deadlines { return &Deadlines{NewQueue(compareJobs)} }

// Load implements Duty.
func (d *Deadlines) Load(snap *state.Snapshot, _ structs.LogTime) {
	d.queue.Clear()
	for j := range snap.Jobs("", "") {
		d.look(snap, j.Key())
	}
}

// look sets the time at which a job misses its deadline, from a state.
func (d *Deadlines) look(snap *state.Snapshot, k structs.JobKey) {
	at := structs.LogTime(0)
	j, w := snap.JobByKey(k), snap.Workload(k)
	if j != nil && w != nil && j.Deadline != 0 && w.Missed == 0 && j.Placeable() {
		at = j.Deadline.Add(afterDeadline)
	}
	d.queue.Set(k, at)
}

// Feed implements Duty.
func (d *Deadlines) Feed(snap *state.Snapshot, delta *structs.Delta, _ structs.LogTime) {
	for i := range delta.Jobs {
		d.look(snap, delta.Jobs[i].Either().Key())
	}
	for i := range delta.Workloads {
		w := delta.Workloads[i].Either()
		d.look(snap, structs.JobKey{Namespace: w.Namespace, ID: w.JobID})
	}
}

// Due implements Duty.
func (d *Deadlines) Due(_ *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	for k, _, ok := d.queue.Take(now); ok; k, _, ok = d.queue.Take(now) {
		cmds = append(cmds, Command{Subject: "job " + k.String(),
			Command: structs.Command{By: structs.Submitter{Name: "deadline"},
				Body: &structs.WorkloadCommand{Namespace: k.Namespace, JobID: k.ID, Action: structs.ActionMissed}}})
	}
	return cmds, d.queue.Next()
}
