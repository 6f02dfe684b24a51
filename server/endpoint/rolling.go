package endpoint

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// updateHoldsMax limits the allocations in methods.Updating.
const updateHoldsMax = 5

// updatingOf returns the groups of a job whose allocations are still replaced by those of its newest version, a few at a time,
// and what each of these updates waits for.
func updatingOf(snap *state.Snapshot, j *structs.Job, now structs.LogTime) (out []methods.Updating) {
	if !j.Placeable() || j.Array != nil {
		return nil
	}
	var allocs []*structs.Allocation
	for _, g := range j.Groups {
		u := reconcile.RollingUpdate(j, g)
		if u == nil || g.IsGang() {
			continue
		}
		if allocs == nil {
			allocs = snap.AllocsByJob(j.Key())
		}
		up := updatingGroup(snap, j, g, u, allocs, now)
		ends := j.Version > 0 && !j.Stable && snap.Has(feature.UpdateDeadlines) // it ends when the version is marked
		if up.Failed = j.UpdateFailed; up.Old > 0 || ends && (up.Failed != "" || up.Settled < up.New || up.Settled < int64(g.Fewest()) && j.Type == structs.JobService) {
			out = append(out, up)
		}
	}
	if len(out) == 0 {
		return nil
	}
	next := structs.LogTime(0)
	for _, e := range snap.EvalsByJob(j.Key()) {
		if e.Status == structs.EvalPending && e.WaitUntil != 0 && (next == 0 || e.WaitUntil < next) {
			next = e.WaitUntil
		}
	}
	for i := range out {
		if out[i].Failed == "" {
			out[i].Next = next
		}
	}
	return out
}

func updatingGroup(snap *state.Snapshot, j *structs.Job, g *structs.Group, u *structs.Update, allocs []*structs.Allocation, now structs.LogTime) methods.Updating {
	up := methods.Updating{Group: g.Name, To: j.Version, AtOnce: int64(u.MaxParallel), Since: j.SubmitTime}
	for _, a := range allocs {
		if a.Group != g.Name || a.ServerTerminal() || !a.Lineage().Next.IsZero() {
			continue
		}
		if reconcile.OlderThan(a, j) {
			if !a.ClientTerminal() && (a.Job == nil || reconcile.Destructive(a.Job, j, g.Name)) {
				up.Old++
				up.From = max(up.From, a.JobVersion)
			}
			continue
		}
		up.New++
		up.Since = max(up.Since, a.CreateTime)
		if at := reconcile.SettledAt(a, u); at != 0 && at <= now {
			up.Settled++
			continue
		}
		if len(up.Holds) == updateHoldsMax {
			up.MoreHolds++
			continue
		}
		up.Holds = append(up.Holds, holdOf(snap, a, u))
	}
	return up
}

// holdOf says why an allocation of the new version does not count as healthy yet.
func holdOf(snap *state.Snapshot, a *structs.Allocation, u *structs.Update) methods.UpdateHold {
	h := methods.UpdateHold{ID: a.ID, Name: a.Name(), Since: a.CreateTime, Why: methods.HoldStarts}
	if n := snap.NodeByID(a.NodeID); n != nil {
		h.NodeName = n.Name
	}
	last := structs.LogTime(0)
	h.Restarts, last, h.ExitCode = a.LastFailure()
	switch at := reconcile.SettledAt(a, u); {
	case a.Client == structs.ClientFailed:
		h.Why, h.Since = methods.HoldFailed, a.FinishedAt
		if h.Since == 0 {
			h.Since = a.ModifyTime
		}
		if e := snap.EvalByID(a.Lineage().FollowupEval); e != nil && e.Status == structs.EvalPending {
			h.Until = e.WaitUntil
		}
	case at != 0:
		h.Why, h.Since, h.Until = methods.HoldSettles, at.Add(-reconcile.HealthyFor(a, u)), at
	case a.Client == structs.ClientRunning && a.StartedAt != 0 && a.SteadySince() == 0:
		if h.Restarts > 0 {
			h.Why, h.Since = methods.HoldRestarts, max(last, a.StartedAt)
		}
	case a.Client == structs.ClientRunning && a.StartedAt != 0:
		h.Why, h.Since = methods.HoldChecks, a.StartedAt
	}
	return h
}
