package endpoint

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/structs"
)

// plannedPlacesMax is the maximum number of places that a dry run lists.
const plannedPlacesMax = 256

// entriesOf returns the entries of a plan that are the job's.
func entriesOf(plan *scheduler.Plan, k structs.JobKey) []*structs.PlanEntry {
	var out []*structs.PlanEntry
	for _, e := range plan.Entries {
		if e.Namespace == k.Namespace && e.JobID == k.ID {
			out = append(out, e)
		}
	}
	return out
}

// plannedPlaces lists where a dry run places allocations of the job, by group and index, and counts those beyond
// plannedPlacesMax.
func plannedPlaces(snap *state.Snapshot, entries []*structs.PlanEntry) (places []methods.PlannedPlace, more int64) {
	for _, e := range entries {
		for _, part := range e.Parts {
			for i := range part.Places {
				pl := &part.Places[i]
				id := e.Nodes[pl.Node].ID
				p := methods.PlannedPlace{Group: e.Groups[pl.Group], Index: pl.Index, NodeID: id}
				n := snap.NodeByID(id)
				if n != nil {
					p.NodeName = n.Name
				}
				for g := range pl.Grants {
					if pl.Grants[g].IsGPU() {
						p.GPUs = append(p.GPUs, plannedGPU(n, &pl.Grants[g]))
					}
				}
				slices.SortStableFunc(p.GPUs, func(a, b methods.PlannedGPU) int {
					return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Index, b.Index))
				})
				places = append(places, p)
			}
		}
	}
	slices.SortStableFunc(places, func(a, b methods.PlannedPlace) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
	})
	if n := len(places) - plannedPlacesMax; n > 0 {
		places, more = places[:plannedPlacesMax], int64(n)
	}
	return places, more
}

// plannedGPU describes a GPU that a dry run grants.
func plannedGPU(n *structs.Node, g *structs.Grant) methods.PlannedGPU {
	out := methods.PlannedGPU{ID: g.Instance, Model: structs.DeviceModel(g.Device), Index: -1, ShareMiB: g.MemoryMiB}
	if n == nil {
		return out
	}
	for i := range n.Resources.Devices {
		if d := &n.Resources.Devices[i]; d.HasID(g.Device) {
			out.Index = int64(slices.IndexFunc(d.Instances, func(in structs.DeviceInstance) bool { return in.ID == g.Instance }))
		}
	}
	return out
}

// plannedUse returns what the limits that the job is charged to hold before and after: of the quota of its namespace, and of its
// queue and those above it. After is what they would hold with all allocations that the job asks for, those that wait included.
func plannedUse(snap *state.Snapshot, j *structs.Job, entries []*structs.PlanEntry, reports []*structs.GroupReport, region string, may *acl.ACL) []methods.PlannedUse {
	type change struct {
		ns   string
		path structs.QueuePath
		by   structs.Amount
	}
	var changes []change
	var mine structs.Amount
	for _, e := range entries {
		for _, part := range e.Parts {
			for i := range part.Places {
				pl := &part.Places[i]
				if pl.Group < len(e.Asks) {
					mine = mine.Add(structs.Amount{CPU: e.Asks[pl.Group].CPU, MemoryMiB: e.Asks[pl.Group].MemoryMiB})
				}
				for g := range pl.Grants {
					mine = mine.Add(structs.GrantAmount(&pl.Grants[g]))
				}
			}
			for _, st := range part.Stops {
				a := snap.AllocByID(st.ID)
				if a == nil || a.Terminal() || st.Desired != structs.DesiredStop && st.Desired != structs.DesiredEvict && st.Preempt.IsZero() {
					continue
				}
				c := change{ns: a.Namespace, path: structs.QueueDefault}
				if a.Job != nil {
					c.path = a.Job.QueueName()
				}
				c.by = structs.Amount{}.Sub(structs.AmountOf(a))
				changes = append(changes, c)
			}
		}
	}
	for _, r := range reports {
		if g := j.Group(r.Group); g != nil && r.Wanted > r.Placed {
			mine = mine.Add(structs.GroupAmount(g).Times(r.Wanted - r.Placed))
		}
	}
	changes = append(changes, change{j.Namespace, j.QueueName(), mine})
	sum := func(in func(change) bool) (by structs.Amount) {
		for _, c := range changes {
			if in(c) {
				by = by.Add(c.by)
			}
		}
		return by
	}
	var out []methods.PlannedUse
	if n := snap.Namespace(j.Namespace); n != nil && n.Quota != "" {
		if q := snap.Quota(n.Quota); q != nil && q.Limit(region) != nil {
			held := snap.QuotaHeld(q.Name)
			out = append(out, methods.PlannedUse{Kind: "quota", Name: q.Name, Before: held, Limit: q.Limit(region).Hard, After: held.Add(sum(func(c change) bool {
				of := snap.Namespace(c.ns)
				return of != nil && of.Quota == q.Name
			}))})
		}
	}
	for path := range j.QueueName().Lineage() {
		q := snap.QueueByPath(path)
		if q == nil || q.Limit == nil || !may.AllowQueue(string(path), acl.CapQueueRead) {
			continue
		}
		held := snap.QueueUse(path, "").Held
		out = append(out, methods.PlannedUse{Kind: "queue", Name: string(path), Before: held, Limit: *q.Limit, After: held.Add(sum(func(c change) bool { return path.Contains(c.path) }))})
	}
	return out
}
