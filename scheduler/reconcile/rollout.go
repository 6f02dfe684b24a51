package reconcile

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Rollout is how far the rolling update to a job's version is.
type Rollout struct {
	Settled bool                  // all that the job wants is of this version and healthy, and nothing older runs
	Failed  string                // why the update must stop; "": it need not
	Late    []*structs.Allocation // not healthy within healthy_deadline, by the order of allocs: others are to take their places
	Next    structs.LogTime       // when time alone changes the answer; 0: never
}

// Rolls reports whether a job has groups that are updated a few allocations at a time.
func Rolls(j *structs.Job) bool {
	return slices.ContainsFunc(j.Groups, func(g *structs.Group) bool { return RollingUpdate(j, g) != nil && !g.IsGang() })
}

// RolloutOf returns how far a job's rolling update is. rolling is false for a job that updates nothing a few at a time, whose
// update has ended, or that is stopped. Allocations that have no place yet do not count as late: an update may wait in the
// queue.
func RolloutOf(j *structs.Job, allocs []*structs.Allocation, now structs.LogTime) (r Rollout, rolling bool) {
	if j == nil || !j.Placeable() || j.Array != nil || j.Stable || j.UpdateFailed != "" {
		return r, false
	}
	r.Settled = true
	for _, g := range j.Groups {
		if u := RollingUpdate(j, g); u != nil && !g.IsGang() {
			rolling = true
			r.group(j, g, u, allocs, now)
		}
	}
	if r.Failed != "" {
		r.Settled, r.Late = false, nil
	}
	return r, rolling
}

// due reports whether a time has come. If not, the answer changes then.
func (r *Rollout) due(at, now structs.LogTime) bool {
	if at <= now {
		return true
	}
	if r.Next == 0 || at < r.Next {
		r.Next = at
	}
	return false
}

func (r *Rollout) group(j *structs.Job, g *structs.Group, u *structs.Update, allocs []*structs.Allocation, now structs.LogTime) {
	settled := 0
	progress := j.SubmitTime // when the newest allocation became healthy
	var unsettled []*structs.Allocation
	first := make(map[int]structs.LogTime) // by index: when an allocation of this version was first placed, but those that their nodes lost
	for _, a := range allocs {
		if a.Group != g.Name {
			continue
		}
		if OlderThan(a, j) {
			r.Settled = r.Settled && a.Terminal()
			continue
		}
		if a.Client == structs.ClientLost || a.ServerTerminal() && a.Transition.Migrate {
			continue // neither a lost node nor a drain says anything of the version
		}
		at := max(a.CreateTime, j.SubmitTime) // it may have been placed for an earlier version that it did not differ from
		if was, ok := first[a.NameIndex]; !ok || at < was {
			first[a.NameIndex] = at
		}
		if a.ServerTerminal() || a.Client == structs.ClientComplete || !a.Lineage().Next.IsZero() {
			continue
		}
		switch at := SettledAt(a, u); {
		case at != 0 && r.due(at, now):
			settled++
			progress = max(progress, at)
		case a.Client != structs.ClientUnknown:
			unsettled = append(unsettled, a)
		}
	}
	want := 1
	if j.Type != structs.JobSystem {
		want = g.Fewest()
	}
	r.Settled = r.Settled && len(unsettled) == 0 && settled >= want
	if len(unsettled) == 0 || j.Version == 0 || r.Failed != "" {
		return
	}
	begun := now
	var late *structs.Allocation
	for _, a := range unsettled {
		begun = min(begun, first[a.NameIndex])
		if a.Client == structs.ClientFailed {
			late = a
			continue
		}
		if u.HealthyDeadline > 0 && r.due(max(a.CreateTime, j.SubmitTime).Add(u.HealthyDeadline), now) {
			late = a
			if _, _, may := NextReschedule(&g.Reschedule, a); may && j.Type != structs.JobSystem && !a.Transition.Reschedule {
				r.Late = append(r.Late, a)
			}
		}
	}
	switch {
	case u.ProgressDeadline <= 0 && late != nil:
		r.Failed = fmt.Sprintf("group %q: allocation %s is unhealthy", g.Name, late.ID.Short())
	case u.ProgressDeadline > 0 && r.due(max(progress, begun).Add(u.ProgressDeadline), now):
		r.Failed = fmt.Sprintf("group %q: no further allocation became healthy within progress_deadline (%s); %d of %d are", g.Name, structs.ShortDuration(u.ProgressDeadline), settled, want)
	}
}
