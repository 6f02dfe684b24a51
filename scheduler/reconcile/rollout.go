package reconcile

import (
	"fmt"

	"github.com/muster-sched/muster/structs"
)

// Rollout is how far the rolling update to a job's version is.
type Rollout struct {
	Settled bool                  // all that the job wants is of this version and healthy, and nothing older runs
	Failed  string                // why the update must stop; "": it need not
	Late    []*structs.Allocation // not healthy within healthy_deadline, by the order of allocs: others are to take their places
	Next    structs.LogTime       // when time alone changes the answer; 0: never
	Groups  []GroupRollout        // those that are updated a few at a time, in the order of the job
}

// GroupRollout is how far the rolling update of one group is.
type GroupRollout struct {
	Group     *structs.Group
	Update    *structs.Update
	Want      int             // healthy allocations that end the update
	Placed    int             // allocations of this version, without those that their nodes lost or a drain moved
	Healthy   int             // of those that run
	Unhealthy int             // that failed, or were not healthy within healthy_deadline
	By        structs.LogTime // when the next allocation must be healthy; 0: no time is set, or none waits
	Overdue   string          // why that time, or another of the version's deadlines, has passed without; "": it has not
}

// Rolls reports whether a job has groups that are updated a few allocations at a time.
func Rolls(j *structs.Job) bool { return j.Rolls() }

// RolloutOf returns how far a job's rolling update is. rolling is false for a job that updates nothing a few at a time, whose
// update has ended, or that is stopped. Allocations that have no place yet do not count as late: an update may wait in the
// queue.
func RolloutOf(j *structs.Job, allocs []*structs.Allocation, now structs.LogTime) (r Rollout, rolling bool) {
	if j == nil || !j.Placeable() || j.Array != nil || j.Stable || j.UpdateFailed != "" {
		return r, false
	}
	r = Measure(j, allocs, now)
	return r, len(r.Groups) > 0
}

// Measure returns how far the update to a version is or was, also of one that has ended.
func Measure(j *structs.Job, allocs []*structs.Allocation, now structs.LogTime) (r Rollout) {
	r.Settled = true
	for _, g := range j.Groups {
		if u := RollingUpdate(j, g); u != nil && !g.IsGang() {
			r.group(j, g, u, allocs, now)
		}
	}
	if r.Failed != "" {
		r.Settled, r.Late = false, nil
	}
	return r
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
	own := GroupRollout{Group: g, Update: u, Want: 1}
	defer func() {
		own.Healthy = settled
		r.Groups = append(r.Groups, own)
	}()
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
		own.Placed++
		if a.Client == structs.ClientFailed {
			own.Unhealthy++
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
	if j.Type != structs.JobSystem {
		own.Want = g.Fewest()
	}
	r.Settled = r.Settled && len(unsettled) == 0 && settled >= own.Want
	if len(unsettled) == 0 {
		return
	}
	ends := j.Version > 0 && r.Failed == "" // a first version has nothing to go back to: it is only said to be overdue
	due := func(at structs.LogTime) bool { return ends && r.due(at, now) || !ends && at <= now }
	begun := now
	var late *structs.Allocation
	for _, a := range unsettled {
		begun = min(begun, first[a.NameIndex])
		if a.Client == structs.ClientFailed {
			late = a
			continue
		}
		if u.HealthyDeadline > 0 && due(max(a.CreateTime, j.SubmitTime).Add(u.HealthyDeadline)) {
			late = a
			own.Unhealthy++
			if _, _, may := NextReschedule(&g.Reschedule, a); ends && may && j.Type != structs.JobSystem && !a.Transition.Reschedule {
				r.Late = append(r.Late, a)
			}
		}
	}
	if u.ProgressDeadline > 0 {
		own.By = max(progress, begun).Add(u.ProgressDeadline)
	}
	switch {
	case u.ProgressDeadline <= 0 && late != nil:
		own.Overdue = fmt.Sprintf("group %q: allocation %s is unhealthy", g.Name, late.ID.Short())
	case u.ProgressDeadline > 0 && due(own.By):
		own.Overdue = fmt.Sprintf("group %q: no further allocation became healthy within progress_deadline (%s); %d of %d are", g.Name, structs.ShortDuration(u.ProgressDeadline), settled, own.Want)
	}
	if ends {
		r.Failed = own.Overdue
	}
}
