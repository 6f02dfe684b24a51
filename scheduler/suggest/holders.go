package suggest

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Holders is running work that holds the room of a workload only because it is not preemptible: by the preemption rule of
// its queue, the workload would take that room.
type Holders struct {
	Allocs int64
	Jobs   []structs.JobKey // whose they are, sorted
	Until  structs.LogTime  // when the last of them is expected to end; 0: unknown
}

// holders decides as if all running work were preemptible. The rule order is tried for work of a lower priority.
func (a *adviser) holders() *Holders {
	what := a.in
	what.Pending, what.Yields = []contend.Workload{a.load}, true
	a.tries++
	plan, rep := scheduler.Schedule(what, a.p)
	a.looks += rep.Steps
	if len(rep.Workloads) != 1 || rep.Workloads[0].Failed || rep.Workloads[0].Refused != "" {
		return nil
	}
	var out Holders
	endless := false
	for _, e := range plan.Entries {
		for _, part := range e.Parts {
			for i := range part.Stops {
				h := a.heldOn(e.Nodes, part.Stops[i].ID) // what stops elsewhere belongs to the gangs of those
				if h == nil || h.Work.Job == nil || h.Work.Ending || h.Work.Job.MayPreempt() {
					continue
				}
				out.Allocs++
				out.Jobs = append(out.Jobs, h.Work.Job.Key())
				ends := h.Work.Ends(a.in.Now)
				endless, out.Until = endless || ends == 0, max(out.Until, ends)
			}
		}
	}
	if out.Allocs == 0 {
		return nil
	}
	if endless {
		out.Until = 0
	}
	slices.SortFunc(out.Jobs, func(x, y structs.JobKey) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.ID, y.ID))
	})
	out.Jobs = slices.Compact(out.Jobs)
	return &out
}

// heldOn returns what an allocation holds on one of some nodes, or nil.
func (a *adviser) heldOn(nodes []structs.PlanNode, id structs.AllocID) *model.Held {
	for i := range nodes {
		if k, at, found := a.in.View.Locate(nodes[i].ID); found {
			if h := a.in.View.Chunks[k].Hold[at].Get(id); h != nil {
				return h
			}
		}
	}
	return nil
}
