package duty

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/cron"
	"github.com/muster-sched/muster/structs"
)

// Periodic launches children of periodic jobs. The last launch is in the state, written with the child in one entry.
// Apply refuses a second launch for the same time, and under prohibit_overlap a launch while a child is live. It
// decides that from the state alone; a leader that remembered children would forget them with its leadership and start
// an overlapping child. Launches missed while there was no leader are made up by one, for the newest missed time.
type Periodic struct {
	queue   *Queue[structs.JobKey]
	refuses func(*state.Snapshot, *structs.Job) error
	report  func(structs.JobKey, error)
}

// missedMax bounds the search for the newest missed time. At the bound, the newest one found is used.
const missedMax = 10_000

// NewPeriodic returns the duty. Call Load first. refuses returns why a job may not launch now, or nil; the launch is then
// recorded without a child, so that it is not made up for later. report is called for such jobs and for those whose cron
// expression or time zone cannot be read.
func NewPeriodic(refuses func(*state.Snapshot, *structs.Job) error, report func(structs.JobKey, error)) *Periodic {
	return &Periodic{NewQueue(compareJobs), refuses, report}
}

// Load implements Duty.
func (p *Periodic) Load(snap *state.Snapshot, now structs.LogTime) {
	p.queue.Clear()
	for j := range snap.Jobs("", "") {
		if j.IsPeriodic() {
			p.plan(snap, j.Key(), now)
		}
	}
}

// Feed implements Duty.
func (p *Periodic) Feed(snap *state.Snapshot, d *structs.Delta, now structs.LogTime) {
	for i := range d.Jobs {
		if c := &d.Jobs[i]; c.After != nil && c.After.IsPeriodic() || c.Before != nil && c.Before.IsPeriodic() {
			p.plan(snap, c.Either().Key(), now)
		}
	}
	for i := range d.Launches {
		if l := d.Launches[i].After; l != nil {
			p.plan(snap, structs.JobKey{Namespace: l.Namespace, ID: l.JobID}, now)
		}
	}
}

// plan sets when a job launches next.
func (p *Periodic) plan(snap *state.Snapshot, k structs.JobKey, now structs.LogTime) {
	at, err := nextDue(snap, snap.JobByKey(k), now.Time())
	if err != nil {
		p.report(k, err)
	}
	p.queue.Set(k, structs.LogTimeOf(at))
}

// nextDue returns when a job launches next, as of now; the zero time for never. A launch time that has passed since the
// last launch is due at once; if several have, the newest is used.
func nextDue(snap *state.Snapshot, j *structs.Job, now time.Time) (time.Time, error) {
	if j == nil || !j.IsPeriodic() || j.Stop || !j.Periodic.Enabled {
		return time.Time{}, nil
	}
	from := j.SubmitTime // of this version: a changed expression causes no launches for the past
	if l := snap.PeriodicLaunch(j.Key()); l != nil {
		from = max(from, l.Launch)
	}
	at, err := NextLaunch(j.Periodic, from.Time())
	if err != nil {
		return time.Time{}, err
	}
	for n := 0; !at.IsZero() && n < missedMax; n++ {
		later, err := NextLaunch(j.Periodic, at)
		if err != nil || later.IsZero() || later.After(now) {
			break
		}
		at = later
	}
	return at, nil
}

// Due implements Duty. After a launch, the job is queued for a later time even if the state does not have the launch
// yet.
func (p *Periodic) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	for k, at, ok := p.queue.Take(now); ok; k, at, ok = p.queue.Take(now) {
		j := snap.JobByKey(k)
		if j == nil || !j.IsPeriodic() || j.Stop {
			continue
		}
		launch := Launch(j, at, false)
		if err := p.refuses(snap, j); err != nil {
			p.report(k, err)
			launch.Child = nil
		}
		// The child gets its parent's submitter.
		cmds = append(cmds, Command{Subject: "job " + k.String(), Command: structs.Command{By: j.Submitter, Body: launch}})
		if later, err := NextLaunch(j.Periodic, at.Time()); err == nil {
			p.queue.Set(k, structs.LogTimeOf(later))
		}
	}
	return cmds, p.queue.Next()
}

// Launch returns the command that launches a periodic job for a time. It holds the child; Apply makes its evaluation.
func Launch(parent *structs.Job, at structs.LogTime, forced bool) *structs.PeriodicLaunchCommand {
	c := *parent
	c.ID = fmt.Sprintf("%s/periodic-%d", parent.ID, at.Time().Unix())
	c.Name, c.ParentID, c.Periodic = c.ID, parent.ID, nil
	c.Stop, c.Stable, c.Version, c.VersionTag = false, false, 0, nil
	c.Status, c.StatusDesc, c.CreateIndex, c.ModifyIndex, c.SpecIndex = "", "", 0, 0, 0
	return &structs.PeriodicLaunchCommand{Namespace: parent.Namespace, JobID: parent.ID, Launch: at, Child: &c, Forced: forced}
}

// NextLaunch returns the first time after t at which a periodic job launches, over all its expressions, in the job's
// time zone. It returns the zero time if there is none or the job is disabled.
func NextLaunch(p *structs.Periodic, t time.Time) (time.Time, error) {
	if p == nil || !p.Enabled {
		return time.Time{}, nil
	}
	zone := time.UTC
	if p.TimeZone != "" {
		var err error
		if zone, err = time.LoadLocation(p.TimeZone); err != nil {
			return time.Time{}, structs.Errorf(structs.CodeInvalid, "time zone %q is not known here; want a name like Europe/Berlin", p.TimeZone)
		}
	}
	next, err := cron.Next(p.Specs, t.In(zone))
	if err != nil {
		return time.Time{}, structs.Errorf(structs.CodeInvalid, "%v", err)
	}
	return next, nil
}
