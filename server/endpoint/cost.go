package endpoint

import (
	"context"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// charge counts what a user's command asks for against the caller's allowance. giveBack is for a command that was refused.
// Callers with management rights have no limit.
func (s *Set) charge(ctx context.Context, body structs.CommandBody) (giveBack func(), err error) {
	caller := auth.Who(ctx).Payer()
	if caller == "" {
		return func() {}, nil
	}
	return s.env.Allowance(caller, asksFor(s.published().Snapshot, body))
}

// asksFor returns how many allocations a user's command asks for beyond those that its job has asked for before.
func asksFor(snap *state.Snapshot, body structs.CommandBody) int {
	switch c := body.(type) {
	case *structs.JobRegisterCommand:
		old := snap.JobByKey(c.Job.Key())
		if old != nil && fsm.SameSpec(c.Job, old) {
			return 0
		}
		j := c.Job
		if old != nil && c.PreserveCounts {
			j = fsm.WithCountsOf(j, old)
		}
		return asked(snap, j) // a new version may replace all that run
	case *structs.PeriodicLaunchCommand:
		return asked(snap, c.Child)
	case *structs.AllocTransitionCommand:
		return len(c.IDs) // they are replaced
	case *structs.ScaleCommand:
		if c.Count == nil {
			return 0
		}
		j := snap.JobByKey(structs.JobKey{Namespace: c.Namespace, ID: c.JobID})
		if j == nil || j.Group(c.Group) == nil {
			return 0
		}
		return max(allocsOf(snap, j, int(*c.Count))-allocsOf(snap, j, j.Group(c.Group).Count), 0)
	}
	return 0
}

// asked returns how many allocations a job asks for.
func asked(snap *state.Snapshot, j *structs.Job) int {
	if !j.Placeable() {
		return 0 // its children are charged
	}
	n := 0
	for _, g := range j.Groups {
		n += allocsOf(snap, j, g.Count)
	}
	return n
}

// allocsOf returns how many allocations a group of a job asks for.
func allocsOf(snap *state.Snapshot, j *structs.Job, count int) int {
	switch {
	case j.Array != nil:
		return count * j.Array.Count
	case j.Type == structs.JobSystem || j.Type == structs.JobSysBatch:
		return min(count, 1) * snap.NodeCount()
	}
	return count
}
