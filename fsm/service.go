package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// register replaces the registrations of an allocation by those in its agent's report, which is complete. Only
// differences are written. A pending health does not replace a known one: a restarted agent runs its checks from the
// beginning. Invalid lists are refused before the log; if one is in it, it changes nothing, because the entry has the
// reports of other nodes too.
func (x *tx) register(a *structs.Allocation, list []structs.ServiceRegistration) {
	had := x.ServicesByAlloc(a.ID)
	if len(had) == 0 && len(list) == 0 {
		return
	}
	if !a.Serves() || structs.CheckServices(a.ID, list) != nil {
		return // PutAlloc has removed the registrations of an allocation that does not serve
	}
	datacenter := ""
	if n := state.Nodes.Get(x, a.NodeID); n != nil {
		datacenter = n.Datacenter
	}
	keep := make(map[structs.ServiceKey]bool, len(list))
	for i := range list {
		r := list[i]
		r.Namespace, r.JobID, r.AllocID, r.NodeID, r.Datacenter = a.Namespace, a.JobID, a.ID, a.NodeID, datacenter
		r.CreateIndex, r.ModifyIndex = x.index, x.index
		old := state.Services.Get(x, r.Key())
		if old != nil && old.AllocID != a.ID {
			continue // another allocation's
		}
		keep[r.Key()] = true
		if old != nil {
			r.CreateIndex = old.CreateIndex
			if r.Health == structs.HealthPending && old.Health != structs.HealthNone {
				r.Health = old.Health
			}
			if old.Same(&r) {
				continue
			}
		}
		state.Services.Put(x, &r)
	}
	for _, r := range had {
		if !keep[r.Key()] {
			state.Services.Delete(x, r.Key())
		}
	}
}

// applyServiceDelete removes one registration. If its allocation still offers the service, the next report adds it
// again.
func applyServiceDelete(x *tx, c *structs.ServiceDeleteCommand) *structs.Error {
	k := structs.ServiceKey{Namespace: c.Namespace, Service: c.Service, ID: c.ID}
	if state.Services.Get(x, k) == nil {
		return structs.Errorf(structs.CodeNotFound, "service registration not found")
	}
	state.Services.Delete(x, k)
	return nil
}
