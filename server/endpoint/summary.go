package endpoint

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Summarize counts a job's allocations and children by state.
func Summarize(snap *state.Snapshot, j *structs.Job) *methods.Summary {
	sum := &methods.Summary{Namespace: j.Namespace, JobID: j.ID, Groups: map[structs.GroupName]methods.GroupSummary{},
		CreateIndex: j.CreateIndex, ModifyIndex: j.ModifyIndex}
	if j.IsPeriodic() || j.IsParameterized() {
		for ch := range snap.ChildrenOf(j.Key()) {
			switch ch.Status {
			case structs.JobPending:
				sum.ChildrenPending++
			case structs.JobRunning:
				sum.ChildrenRunning++
			case structs.JobDead:
				sum.ChildrenDead++
			}
		}
	}
	for _, g := range j.Groups {
		sum.Groups[g.Name] = methods.GroupSummary{}
	}
	var g methods.GroupSummary // of group name
	name := structs.GroupName("")
	for _, a := range snap.AllocsByJob(j.Key()) {
		if a.CreateIndex < j.CreateIndex {
			continue // of an earlier job with this ID
		}
		if a.Group != name {
			if name != "" {
				sum.Groups[name] = g
			}
			name, g = a.Group, sum.Groups[a.Group]
		}
		switch a.Client {
		case structs.ClientPending:
			g.Starting++
		case structs.ClientRunning:
			g.Running++
		case structs.ClientComplete:
			g.Complete++
		case structs.ClientFailed:
			g.Failed++
		case structs.ClientLost:
			g.Lost++
		case structs.ClientUnknown:
			g.Unknown++
		}
		sum.ModifyIndex = max(sum.ModifyIndex, a.ModifyIndex)
	}
	if name != "" {
		sum.Groups[name] = g
	}
	if j.Array != nil && len(j.Groups) == 1 {
		return arraySummary(snap, j, sum)
	}
	// The newest evaluation that was decided has the number of queued allocations.
	var newest *structs.Evaluation
	for _, e := range snap.EvalsByJob(j.Key()) {
		sum.ModifyIndex = max(sum.ModifyIndex, e.ModifyIndex)
		if e.Queued != nil && (newest == nil || e.ModifyIndex > newest.ModifyIndex) {
			newest = e
		}
	}
	if newest != nil && !j.Stop {
		for name, n := range newest.Queued {
			if g, ok := sum.Groups[name]; ok {
				g.Queued = n
				sum.Groups[name] = g
			}
		}
	}
	return sum
}
