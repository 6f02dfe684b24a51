package decide

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/structs"
)

// reservationsOf returns the reservations that a pass of a domain must respect: those of its node pool and of all
// pools, by ID.
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

// reservationsOf also includes what plans in flight make or drop. A pass that runs ahead of an earlier one's commit
// must not give away what that one reserved.
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

// binding returns the reservations that bind the plans of a pass: those of operators, and of jobs that the pass did not
// decide. The pass has renewed the reservations of its own jobs in the order of the line.
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

// reservedJobs returns the jobs of a domain that have a reservation, by ID.
func (d *decider) reservedJobs(domain structs.PoolName) (keys []structs.JobKey) {
	for r := range d.pub.Snapshot.Reservations() {
		if r.JobID != "" && cmp.Or(r.Domain, structs.NodePoolDefault) == domain {
			keys = append(keys, structs.JobKey{Namespace: r.Namespace, ID: r.JobID})
		}
	}
	return keys
}

// wakeAt returns when a domain must be looked at even without an event: when its newest pass says so, when a
// reservation begins or an operator's one ends, or when a waiting job has waited for its queue's bound, after which it
// gets a reservation.
func wakeAt(x *decided, now structs.LogTime) structs.LogTime {
	wake := x.report.Wake
	for _, r := range x.input.Reserved {
		for _, at := range [...]structs.LogTime{r.Start, r.End} {
			if at > now && (wake == 0 || at < wake) && (r.JobID == "" || at == r.Start) {
				wake = at
			}
		}
	}
	rules := contend.Rules{Queues: x.input.Queues, Config: &x.input.Config}
	for i := range x.input.Pending {
		w := &x.input.Pending[i]
		since, bound := w.WaitingSince(), rules.Of(w.QueueName()).MaxWait
		if since == 0 || bound == structs.MaxWaitOff {
			continue
		}
		if at := since.Add(bound + 1); at > now && (wake == 0 || at < wake) {
			wake = at
		}
	}
	return wake
}
