package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Gangs have a time in which their minimum must run (D21). The service waits for the earliest of them and has the gang
// dissolved when it is over; Apply checks again, so that one that assembled meanwhile goes on.

// gangDeadlines are the ends of the assemblies that are going on.
type gangDeadlines map[structs.RosterKey]*structs.Roster

func loadGangDeadlines(snap *state.Snapshot) gangDeadlines {
	d := gangDeadlines{}
	for r := range snap.Rosters() {
		d.set(r.Key(), r)
	}
	return d
}

// set takes note of a roster as it is now; nil when it is gone.
func (d gangDeadlines) set(k structs.RosterKey, r *structs.Roster) {
	if r == nil || r.Deadline == 0 {
		delete(d, k)
		return
	}
	d[k] = r
}

// next is the roster whose deadline comes first, or nil.
func (d gangDeadlines) next() (first *structs.Roster) {
	for _, r := range d {
		if first == nil || r.Deadline < first.Deadline || r.Deadline == first.Deadline && r.Key().Less(first.Key()) {
			first = r
		}
	}
	return first
}

// runGangs is the service.
func (s *Server) runGangs(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("gangs", 1024)
	defer s.Unsubscribe(sub)
	d := loadGangDeadlines(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		first := d.next()
		if first != nil {
			wait = max(first.Deadline.Sub(s.logNow()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					d = loadGangDeadlines(a.Snapshot)
					continue
				}
				for i := range a.Delta.Rosters {
					c := &a.Delta.Rosters[i]
					r := c.After
					if r == nil {
						r = c.Before
					}
					d.set(r.Key(), a.Snapshot.RosterByKey(r.Key()))
				}
			}
		case <-timer.C:
			if first == nil || first.Deadline > s.logNow() {
				continue
			}
			delete(d, first.Key())
			_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: "gang timeout"},
				Body: &structs.RosterCommand{Namespace: first.Namespace, JobID: first.JobID, Group: first.Group, Epoch: first.Epoch}})
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && structs.CodeOf(err) != structs.CodeConflict:
				s.log.Warn("could not end the assembly of a gang; trying again", "job", first.JobID, "group", first.Group, "error", err)
				if !pause(ctx, time.Second) {
					return nil
				}
				d = loadGangDeadlines(s.Published().Snapshot)
			}
		}
	}
}
