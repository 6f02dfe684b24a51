package decide

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// PreemptWaitReports explains, for each group, why placed allocations of a job have not started: the work that they
// preempt has not ended yet (D19).
func PreemptWaitReports(snap *state.Snapshot, k structs.JobKey) (out []*structs.GroupReport) {
	jobs := map[structs.GroupName][]string{}
	waits, places := map[structs.GroupName]int64{}, map[structs.GroupName]int64{}
	for _, a := range snap.AllocsByJob(k) {
		if a.Terminal() || a.Client != structs.ClientPending {
			continue
		}
		open := false
		for _, id := range a.WaitsOn {
			o := snap.AllocByID(id)
			if o == nil || !structs.Holds(o) || o.JobKey() == k {
				continue
			}
			open = true
			waits[a.Group]++
			if !slices.Contains(jobs[a.Group], o.JobID) {
				jobs[a.Group] = append(jobs[a.Group], o.JobID)
			}
		}
		if open {
			places[a.Group]++
		}
	}
	for group, list := range jobs {
		slices.Sort(list)
		if len(list) > 5 {
			list = append(list[:5:5], "...")
		}
		out = append(out, &structs.GroupReport{Group: group, Code: structs.ReasonPreemptionPending, Wanted: places[group], Refusals: []structs.Refusal{{
			Code: structs.ReasonPreemptionPending, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptedWork, Subject: strings.Join(list, ", ")},
			Short: waits[group], Unit: structs.UnitAllocations, CuredBy: structs.EventAllocStopped}}})
	}
	slices.SortFunc(out, func(a, b *structs.GroupReport) int { return cmp.Compare(a.Group, b.Group) })
	return out
}

// PreemptWaiting lists the jobs, by key, that are placed but wait for preempted work to end. They have left the queue, but
// users still see them waiting.
func PreemptWaiting(snap *state.Snapshot) (out []*structs.Workload) {
	for w := range snap.Workloads() {
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		if w.Waiting > 0 || !w.BlockedEval.IsZero() {
			continue
		}
		reports := PreemptWaitReports(snap, k)
		if len(reports) == 0 {
			continue
		}
		c := *w
		c.Reason = structs.ReasonPreemptionPending
		for _, r := range reports {
			c.Waiting += r.Wanted
			c.Amount += r.Refusals[0].Short
		}
		out = append(out, &c)
	}
	return out
}
