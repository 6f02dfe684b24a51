package duty

import (
	"cmp"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Gangs dissolves gangs that do not assemble in time: the minimum of a gang must run before its deadline (D21). Apply
// checks again, so a gang that has assembled meanwhile keeps running.
type Gangs struct {
	queue *Queue[structs.RosterKey]
}

// NewGangs returns the duty. Call Load first.
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

// Feed implements Duty. When the deadline of a suspended gang passes, the gang leaves the queue, because it cannot be
// dissolved. If its suspended members end without a resume, it is no longer suspended though its roster does not
// change. So a change of such a member adds it to the queue again.
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

// set queues a gang by its deadline in the state.
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
			continue // Apply would refuse; a change of the roster or of a member queues the gang again
		}
		cmds = append(cmds, Command{Subject: "job " + k.Job.String() + ", group " + string(k.Group),
			Command: structs.Command{By: structs.Submitter{Name: "gang timeout"},
				Body: &structs.RosterCommand{Namespace: k.Job.Namespace, JobID: k.Job.ID, Group: k.Group, Epoch: r.Epoch}}})
	}
	return cmds, g.queue.Next()
}
