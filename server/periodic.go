package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Periodic jobs launch children by the clock. The last launch is in the state, written with the child in one entry, and
// Apply refuses to launch twice for one time, or beside a live child under prohibit_overlap (bug 25); so the service
// may forget everything at any moment. What was missed while no leader was there is launched once, for the newest of the
// missed times.

// missedMax bounds the search for the newest missed time; beyond it the one found so far is launched.
const missedMax = 10_000

// launchRetry is the wait after a launch that could not be written.
const launchRetry = time.Second

// NextLaunch is the first time after t at which a periodic job launches, over all its expressions; the zero time when
// there is none, or the job is switched off. Times are in the job's time zone.
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
	var first time.Time
	for _, spec := range p.Specs {
		next, err := cronNext(spec, t.In(zone))
		if err != nil {
			return time.Time{}, err
		}
		if !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first, nil
}

// cronNext turns a panic of the parser into an error, because the expression is a stranger's.
func cronNext(spec string, t time.Time) (next time.Time, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = structs.Errorf(structs.CodeInvalid, "cron expression %q cannot be read: %v", spec, r)
		}
	}()
	e, err := cronexpr.Parse(spec)
	if err != nil {
		return time.Time{}, structs.Errorf(structs.CodeInvalid, "cron expression %q cannot be read: %v", spec, err)
	}
	return e.Next(t), nil
}

// launch is the next launch of one job.
type launch struct {
	key structs.JobKey
	at  time.Time
}

// schedulePeriodic says when a job launches next, seen from now. A time that passed since the last launch is due at once;
// of several the newest counts.
func schedulePeriodic(snap *state.Snapshot, j *structs.Job, now time.Time) (launch, bool, error) {
	if j == nil || !j.IsPeriodic() || j.Stop || !j.Periodic.Enabled {
		return launch{}, false, nil
	}
	from := j.SubmitTime // of this version: a changed expression does not launch for the past
	if l := snap.PeriodicLaunch(j.Key()); l != nil {
		from = max(from, l.Launch)
	}
	at, err := NextLaunch(j.Periodic, from.Time())
	for n := 0; err == nil && !at.IsZero() && n < missedMax; n++ {
		later, lerr := NextLaunch(j.Periodic, at)
		if lerr != nil || later.IsZero() || later.After(now) {
			break
		}
		at = later
	}
	return launch{j.Key(), at}, err == nil && !at.IsZero(), err
}

// childOf is the child that a launch makes.
func childOf(parent *structs.Job, at time.Time) *structs.Job {
	c := *parent
	c.ID = fmt.Sprintf("%s/periodic-%d", parent.ID, at.Unix())
	c.Name, c.ParentID, c.Periodic = c.ID, parent.ID, nil
	c.Stop, c.Stable, c.Version, c.VersionTag = false, false, 0, nil
	c.Status, c.StatusDesc, c.CreateIndex, c.ModifyIndex, c.SpecIndex = "", "", 0, 0, 0
	return &c
}

// launches is a list sorted by time, then key; periodic jobs are few beside allocations.
type launches []launch

func (l *launches) set(in launch, ok bool) {
	*l = slices.DeleteFunc(*l, func(x launch) bool { return x.key == in.key })
	if !ok {
		return
	}
	i, _ := slices.BinarySearchFunc(*l, in, func(a, b launch) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.ID, b.key.ID))
	})
	*l = slices.Insert(*l, i, in)
}

// runPeriodic is the service.
func (s *Server) runPeriodic(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("periodic", 256)
	defer s.Unsubscribe(sub)
	var list launches
	plan := func(snap *state.Snapshot, key structs.JobKey) {
		next, ok, err := schedulePeriodic(snap, snap.JobByKey(key), s.logNow().Time())
		if err != nil {
			s.log.Error("periodic job cannot be launched", "job", key, "error", err)
		}
		next.key = key
		list.set(next, ok)
	}
	all := func(snap *state.Snapshot) {
		list = nil
		for j := range snap.Jobs("", "") {
			if j.IsPeriodic() {
				plan(snap, j.Key())
			}
		}
	}
	all(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if len(list) > 0 {
			wait = max(list[0].at.Sub(s.logNow().Time()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					all(a.Snapshot)
					continue
				}
				for i := range a.Delta.Jobs {
					if c := &a.Delta.Jobs[i]; c.After != nil && c.After.IsPeriodic() {
						plan(a.Snapshot, c.After.Key())
					} else if c.After == nil && c.Before != nil && c.Before.IsPeriodic() {
						list.set(launch{key: c.Before.Key()}, false)
					}
				}
				for i := range a.Delta.Launches {
					if l := a.Delta.Launches[i].After; l != nil {
						plan(a.Snapshot, structs.JobKey{Namespace: l.Namespace, ID: l.JobID})
					}
				}
			}
		case <-timer.C:
			now := s.logNow().Time()
			for len(list) > 0 && !list[0].at.After(now) {
				due := list[0]
				_, err := s.launch(ctx, due.key, due.at, false, structs.Submitter{Name: "periodic"})
				switch code := structs.CodeOf(err); {
				case ctx.Err() != nil:
					return nil
				case err == nil, code == structs.CodeConflict, code == structs.CodeNotFound, code == structs.CodeInvalid:
					if err != nil {
						s.log.Info("periodic launch was refused", "job", due.key, "at", due.at, "why", err)
					}
					// The next time is after this one, whether or not the state says so yet.
					job := s.Published().Snapshot.JobByKey(due.key)
					ok := job != nil && job.IsPeriodic() && !job.Stop
					next := launch{key: due.key}
					if ok {
						next.at, err = NextLaunch(job.Periodic, due.at)
						ok = err == nil && !next.at.IsZero()
					}
					list.set(next, ok)
				default:
					s.log.Warn("periodic launch could not be written; trying again", "job", due.key, "error", err)
					list.set(launch{due.key, now.Add(launchRetry)}, true)
				}
			}
		}
	}
}

// launch writes one launch: the child with its evaluation, and that it happened.
func (s *Server) launch(ctx context.Context, key structs.JobKey, at time.Time, forced bool, by structs.Submitter) (structs.Result, error) {
	job := s.Published().Snapshot.JobByKey(key)
	switch {
	case job == nil:
		return structs.Result{}, structs.Errorf(structs.CodeNotFound, "job %q not found in namespace %q", key.ID, key.Namespace)
	case !job.IsPeriodic():
		return structs.Result{}, structs.Errorf(structs.CodeInvalid, "job %q is not periodic", key.ID)
	}
	if by.Name == "periodic" {
		by = job.Submitter // the child runs in the name of who submitted its parent
	}
	return s.ApplyLane(ctx, LanePriority, structs.Command{By: by, Body: &structs.PeriodicLaunchCommand{
		Namespace: key.Namespace, JobID: key.ID, Launch: structs.LogTimeOf(at), Child: childOf(job, at), Forced: forced}})
}

// forcePeriodic is Hooks.ForcePeriodic: a launch for this very second.
func (s *Server) forcePeriodic(ctx context.Context, key structs.JobKey, by structs.Submitter) (structs.Result, error) {
	return s.launch(ctx, key, s.logNow().Time().Truncate(time.Second), true, by)
}

// logNow is the log time of this moment.
func (s *Server) logNow() structs.LogTime { return s.clock.mint(structs.LogTime(s.lastTime.Load())) }
