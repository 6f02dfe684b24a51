package histories

import (
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// moving is what a plan says of an allocation that leaves its node because of a drain.
const moving = "alloc is being migrated"

// Moved checks what a pass does about drains. It places nothing on a node that takes no work, and what it takes off a node has a
// new place, unless the deadline has passed or the work has its turn to save its state.
func (c *Judge) Moved(in *scheduler.Input, plan *scheduler.Plan) {
	for _, pe := range plan.Entries {
		for i := range pe.Parts {
			c.moved(in, pe, &pe.Parts[i])
		}
	}
}

// who names the gangs among what drains take off nodes.
func who(a *structs.Allocation) string {
	if a.Job.Group(a.Group).IsGang() {
		return "gangs "
	}
	return ""
}

func (c *Judge) moved(in *scheduler.Input, pe *structs.PlanEntry, part *structs.PlanPart) {
	placed := map[structs.AllocID]bool{}
	for k := range part.Places {
		p := &part.Places[k]
		placed[p.Previous] = true
		if n := in.View.Node(pe.Nodes[p.Node].ID); n == nil || !n.Ready() {
			c.Fail("%s is placed on node %s, which takes no work", pe.JobID, pe.Nodes[p.Node].ID.Short())
		}
	}
	for k := range part.Stops {
		s := &part.Stops[k]
		a := c.alloc(in, s.ID)
		if a == nil || s.Desc != moving {
			continue
		}
		n := in.View.Node(a.NodeID)
		switch {
		case placed[s.ID]:
			c.Counts[who(a)+"moved by a drain"]++
		case n == nil || n.Drain == nil || n.Drain.ForceAt > 0 && in.Now >= n.Drain.ForceAt:
			c.Counts[who(a)+"stopped at the deadline of a drain"]++
		case a.Transition.Leave:
			c.Counts["stopped by a drain in its turn to save"]++
		default:
			c.Fail("%s of %s is stopped before the deadline of a drain, and has no other place", s.ID.Short(), pe.JobID)
		}
	}
}
