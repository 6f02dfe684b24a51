package scheduler

import "github.com/muster-sched/muster/structs"

// EachAllocation calls f with what each allocation that the view knows holds, in the order of nodes and ids, until f returns
// false. The records are made for the caller, and hold no more than decisions see.
func (v *View) EachAllocation(f func(a *structs.Allocation) bool) {
	for _, c := range v.chunks {
		for i, h := range c.hold {
			for e := range h.all() {
				if !f(e.allocation(c.ids[i])) {
					return
				}
			}
		}
	}
}

func (h *held) allocation(node structs.NodeID) *structs.Allocation {
	w := &h.work
	a := &structs.Allocation{ID: h.id, NodeID: node, Resources: h.need, Client: structs.ClientRunning, Desired: structs.DesiredRun, Job: w.job, Group: w.group,
		CreateTime: w.began, Expect: w.expect}
	if w.job != nil {
		a.Namespace, a.JobID, a.JobVersion = w.job.Namespace, w.job.ID, w.job.Version
	}
	if w.still != 0 {
		a.Suspension = &structs.Suspension{Since: w.still}
	}
	if w.saved != 0 {
		a.Saved = &structs.Saved{Time: w.saved}
	}
	if w.ending {
		a.Desired = structs.DesiredStop
	}
	if r := h.rare; r != nil {
		a.WaitsOn, a.Ports, a.Cores, a.Grants = r.waits, r.ports, r.cores, r.grants
	}
	return a
}
