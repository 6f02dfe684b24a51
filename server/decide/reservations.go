package decide

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/structs"
)

// reservationsOf lists the reservations that a pass of a domain keeps: those of its node pool and of all of them, by id.
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

// reservationsOf lists the reservations that a pass keeps, with those that plans in flight make or drop: a pass that runs ahead
// of the commit of the one before it must not give away what that one reserved.
func (d *decider) reservationsOf(snap *state.Snapshot, domain structs.PoolName, now structs.LogTime) []*structs.Reservation {
	out := reservationsOf(snap, domain, now)
	for _, r := range d.planner.Reservations() {
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

// binding lists the reservations that bind all plans of a pass: those of operators, and those of jobs that it did not decide
// about. The reservations of its own jobs were made again by it, in the order of the line.
func (d *decider) binding(snap *state.Snapshot, pass *broker.Pass, now structs.LogTime) []*structs.Reservation {
	all := d.reservationsOf(snap, pass.Domain, now)
	if len(all) == 0 {
		return nil
	}
	own := make(map[string]bool, len(pass.Items))
	for i := range pass.Items {
		own[structs.ReservationID(pass.Items[i].Key)] = true
	}
	return slices.DeleteFunc(all, func(r *structs.Reservation) bool { return r.JobID != "" && own[r.ID] })
}

// reservedJobs lists the jobs of a domain that have a reservation, by id.
func (d *decider) reservedJobs(domain structs.PoolName) (keys []structs.JobKey) {
	for r := range d.pub.Snapshot.Reservations() {
		if r.JobID != "" && cmp.Or(r.Domain, structs.NodePoolDefault) == domain {
			keys = append(keys, structs.JobKey{Namespace: r.Namespace, ID: r.JobID})
		}
	}
	return keys
}

// wakeAt is when a domain has to be looked at again even if nothing happens: when its newest pass says, and when a reservation
// begins or an operator's ends.
func wakeAt(x *decided, now structs.LogTime) structs.LogTime {
	wake := x.report.Wake
	for _, r := range x.input.Reserved {
		for _, at := range [...]structs.LogTime{r.Start, r.End} {
			if at > now && (wake == 0 || at < wake) && (r.JobID == "" || at == r.Start) {
				wake = at
			}
		}
	}
	return wake
}
