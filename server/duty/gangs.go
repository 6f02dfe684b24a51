package duty

import (
	"cmp"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Gangs ends assemblies that take too long. A gang has a time in which its minimum must run (D21); when it is over, the
// duty has the gang dissolved. Apply checks again, so a gang that assembled meanwhile goes on.
type Gangs struct {
	queue *Queue[structs.RosterKey]
}

// NewGangs returns the duty; Load comes first.
func NewGangs() *Gangs {
	return &Gangs{NewQueue(func(a, b structs.RosterKey) int {
		return cmp.Or(compareJobs(a.Job, b.Job), cmp.Compare(a.Group, b.Group))
	})}
}

// Load implements Duty.
func (g *Gangs) Load(snap *state.Snapshot, _ structs.LogTime) {
	g.queue.Clear()
	for r := range snap.Rosters() {
		g.queue.Set(r.Key(), r.Deadline)
	}
}

// Feed implements Duty. A suspended gang is dropped when its deadline passes, because it cannot be dissolved. Its roster does
// not change if it stops being suspended without a resume, as when its suspended members end, so a change of such a member
// brings it back.
func (g *Gangs) Feed(snap *state.Snapshot, d *structs.Delta, _ structs.LogTime) {
	for i := range d.Rosters {
		g.set(snap, d.Rosters[i].Either().Key())
	}
	for i := range d.Allocs {
		if a := d.Allocs[i].Before; a != nil && a.Suspended() {
			g.set(snap, structs.RosterKey{Job: a.JobKey(), Group: a.Group})
		}
	}
}

// set reads the deadline of a gang from the state.
func (g *Gangs) set(snap *state.Snapshot, k structs.RosterKey) {
	at := structs.LogTime(0)
	if r := snap.RosterByKey(k); r != nil {
		at = r.Deadline
	}
	g.queue.Set(k, at)
}

// Due implements Duty.
func (g *Gangs) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	for k, _, ok := g.queue.Take(now); ok; k, _, ok = g.queue.Take(now) {
		r := snap.RosterByKey(k)
		if r == nil || r.Deadline == 0 || r.Deadline > now || r.Suspended(snap.AllocByID) {
			continue // Apply would refuse; the batch that says why, or the one that changes it, brings the gang back
		}
		cmds = append(cmds, Command{Subject: "job " + k.Job.String() + ", group " + k.Group,
			Command: structs.Command{By: structs.Submitter{Name: "gang timeout"},
				Body: &structs.RosterCommand{Namespace: k.Job.Namespace, JobID: k.Job.ID, Group: k.Group, Epoch: r.Epoch}}})
	}
	return cmds, g.queue.Next()
}
