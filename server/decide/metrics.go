package decide

import (
	"slices"

	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/structs"
)

// Metrics count since the process began, over all terms in which this server led.
type Metrics struct {
	Term         uint64 // newest term
	InFlight     int    // passes in progress, and plans and log entries without an answer
	Broker       broker.Counters
	Planner      planner.Counters
	Holding      broker.Len // at most a second old; zero while this server does not lead
	Panics       int64      // decisions that panicked
	Reloads      int64      // times the broker was rebuilt from the state
	Backfilled   int64      // jobs placed while capacity was reserved for others
	Preempted    int64      // jobs preempted
	GangRestarts int64      // gangs restarted
	GangResizes  int64      // elastic gangs that continued with more or fewer members
	Reservations ReservationMetrics
}

// feed counts preemptions, and restarts and resizes of gangs, in a batch of the log.
func (m *Metrics) feed(d *structs.Delta) {
	for _, c := range d.Preempted {
		if c.After != nil {
			m.Preempted += c.After.Total
		}
		if c.Before != nil {
			m.Preempted -= c.Before.Total
		}
	}
	for _, c := range d.Rosters {
		if c.Before != nil && c.After != nil {
			m.GangRestarts += max(0, c.After.StartedAgain()-c.Before.StartedAgain())
			m.GangResizes += max(0, c.After.Resizes.Total()-c.Before.Resizes.Total())
		}
	}
}

// ReservationMetrics count the outcomes of waiting jobs' reservations (D20) while this server led.
type ReservationMetrics struct {
	Made    int64
	Earlier int64 // moved to an earlier time
	Later   int64 // moved to a later time
	Kept    int64 // the job was placed by the reserved time
	Late    int64 // the job was placed later
	Dropped int64 // the job ended, or no longer needs a reservation
}

// feed counts the changes in a batch of the log. waits reports whether a job still waits after it.
func (m *ReservationMetrics) feed(d *structs.Delta, waits func(structs.JobKey) bool) {
	for i := range d.Reserved {
		a, b := d.Reserved[i].Before, d.Reserved[i].After
		switch {
		case a != nil && a.JobID == "" || b != nil && b.JobID == "":
		case a == nil:
			m.Made++
		case b != nil && b.Start < a.Start:
			m.Earlier++
		case b != nil && b.Start > a.Start:
			m.Later++
		case b != nil:
		case !placedIn(d, a) || waits(structs.JobKey{Namespace: a.Namespace, ID: a.JobID}):
			m.Dropped++
		case d.Time <= a.Start:
			m.Kept++
		default:
			m.Late++
		}
	}
}

// placedIn reports whether a batch placed an allocation of a reservation's job.
func placedIn(d *structs.Delta, r *structs.Reservation) bool {
	return slices.ContainsFunc(d.Allocs, func(c structs.Changed[structs.Allocation]) bool {
		return c.Before == nil && c.After != nil && c.After.Namespace == r.Namespace && c.After.JobID == r.JobID
	})
}
