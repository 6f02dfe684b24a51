package verify

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// reservations are those that touch the nodes of an entry, seen at one time.
type reservations struct {
	now     structs.LogTime
	job     *structs.Job
	windows map[structs.NodeID][]*structs.Reservation // of operators
	places  map[structs.NodeID][]*model.ReservedPlace // of other jobs, by start
}

// reservationsOf returns nil when nothing is reserved on the nodes of an entry.
func reservationsOf(e *structs.PlanEntry, all []*structs.Reservation, now structs.LogTime) *reservations {
	if len(all) == 0 || len(e.Nodes) == 0 {
		return nil
	}
	mine := make(map[structs.NodeID]bool, len(e.Nodes))
	for i := range e.Nodes {
		mine[e.Nodes[i].ID] = true
	}
	b := &reservations{now: now, job: e.Job, windows: map[structs.NodeID][]*structs.Reservation{}, places: map[structs.NodeID][]*model.ReservedPlace{}}
	for _, r := range all {
		for _, id := range r.Nodes {
			if r.JobID == "" && mine[id] {
				b.windows[id] = append(b.windows[id], r)
			}
		}
		if r.JobID == "" || r.JobID == e.JobID && r.Namespace == e.Namespace {
			continue
		}
		for i := range r.Places {
			if p := &r.Places[i]; mine[p.Node] {
				b.places[p.Node] = append(b.places[p.Node], &model.ReservedPlace{Job: structs.JobKey{Namespace: r.Namespace, ID: r.JobID}, Start: r.Start, End: r.End,
					Held: &model.Held{ID: model.ReservedID(r.ID, i), Need: p.Need}})
			}
		}
	}
	if len(b.windows)+len(b.places) == 0 {
		return nil
	}
	for _, ps := range b.places { // each list alone: the order of the nodes does not matter
		slices.SortStableFunc(ps, func(x, y *model.ReservedPlace) int { return cmp.Compare(x.Start, y.Start) })
	}
	return b
}

// refuses returns the reservation that a placement on row i of a chunk would break, or "". o is what the row holds
// without the placement.
func (b *reservations) refuses(c *model.Chunk, i int, o *model.Occupancy, h *model.Held) string {
	if b == nil {
		return ""
	}
	until := h.Work.Ends(b.now)
	if until == 0 {
		until = model.Never
	}
	n := c.Nodes[i]
	for _, r := range b.windows[n.ID] {
		if model.Closes(r, b.job, h.Work.Latest(b.now), b.now) {
			return "closed by reservation " + r.ID
		}
	}
	ps := b.places[n.ID]
	if len(ps) == 0 {
		return ""
	}
	x := model.RowProfile{Points: model.ProfileOf(ps, o.Hold, b.now)}
	if short, whose := x.Refuses(c.Total[i], h.Need, c.MHz[i], until); short.Dim != structs.DimensionNone {
		return short.Dim.String() + " reserved for job " + whose.ID
	}
	return ""
}
