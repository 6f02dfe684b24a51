package reconcile

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// RollingUpdate returns the update rules of a group; nil if its allocations are replaced all at once.
func RollingUpdate(j *structs.Job, tg *structs.Group) *structs.Update { return j.RollingUpdate(tg) }

// OlderThan reports whether an allocation is of another version (or an earlier registration) of the job.
func OlderThan(a *structs.Allocation, j *structs.Job) bool {
	return a.JobVersion != j.Version || a.Job != nil && a.Job.CreateIndex != j.CreateIndex
}

// SettledAt returns since when an allocation counts as healthy in a rolling update, min_healthy_time included; 0: a task of it
// does not run or waits for its restart, or its checks do not pass. The time starts again with each restart of a task: Client remains
// "running" while the tasks of an allocation crash again and again, and StartedAt is that of the first run.
func SettledAt(a *structs.Allocation, u *structs.Update) structs.LogTime {
	if a.Client == structs.ClientPending || a.Client == structs.ClientFailed {
		return 0
	}
	since := a.SteadySince()
	if since != 0 && u.HealthCheck == structs.HealthByChecks && a.Job != nil && a.Job.Group(a.Group).Checked() {
		if a.HealthySince == 0 {
			return 0
		}
		since = max(since, a.HealthySince)
	}
	if since == 0 {
		return 0
	}
	return since.Add(HealthyFor(a, u))
}

// HealthyFor returns how long an allocation must run healthily to count as healthy in a rolling update:
// min_healthy_time, and twice as long with each restart of its tasks, up to healthy_deadline. Otherwise work that fails
// again and again after a little more than min_healthy_time would count as healthy for most of the time, and the update
// would replace everything by it.
func HealthyFor(a *structs.Allocation, u *structs.Update) time.Duration {
	long := u.MinHealthyTime
	for n, _, _ := a.LastFailure(); n > 0 && long < u.HealthyDeadline; n-- {
		long = min(2*max(long, time.Second), u.HealthyDeadline)
	}
	return long
}

// unsettled reports whether an allocation of the new version has not run healthily for long enough yet. One that failed has
// not: an update must not continue to replace what still runs.
func (r *reconciler) unsettled(a *structs.Allocation, u *structs.Update) bool {
	if u == nil || r.older(a) {
		return false
	}
	at := SettledAt(a, u)
	return at == 0 || r.now < at
}

// look returns when an allocation that is unsettled is worth another look: when it will have run healthily for long enough, or,
// before it runs, after as long again as it has existed, so that what takes long to start is seldom looked at.
func (r *reconciler) look(a *structs.Allocation, u *structs.Update) structs.LogTime {
	if at := SettledAt(a, u); at > r.now {
		return at
	}
	return r.now.Add(min(max(u.MinHealthyTime, rollingWaitMin, r.now.Sub(a.CreateTime)), rollingWaitDefault))
}

// replace replaces allocations of an old version, at most max_parallel at a time, and schedules an evaluation for the
// rest: after stagger for system jobs, otherwise when the next of the new version may count as healthy, of which look is the
// earliest time, 0 if no allocation exists yet. The old one is stopped in the same part that places the new one.
func (r *reconciler) replace(g *GroupPlan, stale []*structs.Allocation, unsettled int, look structs.LogTime, u *structs.Update) {
	limit := len(stale)
	if u != nil {
		limit = min(limit, max(0, u.MaxParallel-unsettled))
		if r.job.UpdateFailed != "" { // it stopped: what runs of the older version continues
			g.Counts.Ignore += int64(len(stale))
			return
		}
	}
	for _, a := range stale[:limit] {
		st := StopOf(a, descDestructive)
		g.Wants = append(g.Wants, Want{Index: a.NameIndex, Prev: a, Stop: &st, MayWait: true, Stays: true, Prefer: r.sticky(g.Tg, a), Pinned: r.pin(a)})
		g.Counts.Destructive++
	}
	g.Counts.Ignore += int64(len(stale) - limit)
	if limit == len(stale) {
		return
	}
	wait := rollingWaitDefault
	switch {
	case r.job.Type == structs.JobSystem && u.Stagger > 0:
		wait = u.Stagger
	case r.job.Type != structs.JobSystem && limit > 0:
		wait = min(max(u.MinHealthyTime, rollingWaitMin), rollingWaitDefault)
	}
	at := r.now.Add(wait)
	if r.job.Type != structs.JobSystem && look != 0 {
		at = min(at, look)
	}
	r.Later = append(r.Later, Later{At: at, Trigger: structs.TriggerRollingUpdate, Desc: "a rolling update goes on", Group: g.Name})
}
