package server

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/structs"
)

// reservations are the reservations that a pass of a domain keeps: those of its node pool and of all of them, by id.
func reservationsOf(snap *state.Snapshot, domain structs.PoolName, now structs.LogTime) []*structs.Reservation {
	var out []*structs.Reservation
	for r := range snap.Reservations() {
		if r.JobID == "" && r.End != 0 && r.End <= now {
			continue
		}
		if domain == structs.NodePoolAll || r.Domain == structs.NodePoolAll || cmp.Or(r.Domain, structs.NodePoolDefault) == domain {
			out = append(out, r)
		}
	}
	return out
}

// reservations are the reservations that a pass keeps, with those that plans in flight make or drop: a pass that runs ahead of the
// commit of the one before it must not give away what that one promised.
func (p *decider) reservationsOf(snap *state.Snapshot, domain structs.PoolName, now structs.LogTime) []*structs.Reservation {
	out := reservationsOf(snap, domain, now)
	for _, r := range p.planner.Reservations() {
		at, found := slices.BinarySearchFunc(out, r.ID, func(o *structs.Reservation, id string) int { return strings.Compare(o.ID, id) })
		switch {
		case found && r.Start == 0:
			out = slices.Delete(out, at, at+1)
		case found:
			out[at] = r
		case r.Start != 0 && (domain == structs.NodePoolAll || cmp.Or(r.Domain, structs.NodePoolDefault) == domain):
			out = slices.Insert(out, at, r)
		}
	}
	return out
}

// binding are the reservations that bind the plans of a pass whatever else it decided: those of operators, and the promises
// to jobs that it did not decide about. Promises to its own jobs were made anew, in the order of the line.
func (p *decider) binding(snap *state.Snapshot, pass broker.Pass, now structs.LogTime) []*structs.Reservation {
	all := p.reservationsOf(snap, pass.Domain, now)
	if len(all) == 0 {
		return nil
	}
	own := make(map[string]bool, len(pass.Items))
	for i := range pass.Items {
		own[structs.ReservationID(pass.Items[i].Key)] = true
	}
	return slices.DeleteFunc(all, func(r *structs.Reservation) bool { return r.JobID != "" && own[r.ID] })
}

// reservedJobs are the jobs of a domain with a promise, by id.
func (p *decider) reservedJobs(domain structs.PoolName) (keys []structs.JobKey) {
	for r := range p.pub.Snapshot.Reservations() {
		if r.JobID != "" && cmp.Or(r.Domain, structs.NodePoolDefault) == domain {
			keys = append(keys, structs.JobKey{Namespace: r.Namespace, ID: r.JobID})
		}
	}
	return keys
}

// wakeAt is when a domain has to be looked at again though nothing may happen: as its newest pass says, and when a
// reservation begins or an operator's ends.
func wakeAt(d *decided, now structs.LogTime) structs.LogTime {
	wake := d.report.Wake
	for _, r := range d.input.Reserved {
		for _, at := range [...]structs.LogTime{r.Start, r.End} {
			if at > now && (wake == 0 || at < wake) && (r.JobID == "" || at == r.Start) {
				wake = at
			}
		}
	}
	return wake
}
