package verify

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Verify checks a plan entry, part by part, against a view that may be newer than the one it was decided on, and the
// plans in flight. A part stands or falls alone (D18); an accepted part debits its nodes for the parts after it. What
// depends on the job alone (version present, not stopped) is VerifyJob's and, finally, Apply's to check. An equal node
// epoch means that pool, datacenter, attributes, drivers, capacity and eligibility are as they were when the decision
// looked at them (D6), so only what is free has to be counted again: with the same fit function as the decision's; and who is near, where
// that is a condition (peersOfEntry).
func Verify(v *model.View, f model.Overlay, e *structs.PlanEntry) Verdict {
	return VerifyReserved(v, f, e, nil, 0)
}

// VerifyReserved is Verify that treats reservations as bookings in time (D20), as seen at now: windows of operators, and the
// promises that bind this entry, which are those of workloads that were not decided together with it. What was promised to
// somebody behind it in the line does not bind it; only whoever decided knows who that is.
func VerifyReserved(v *model.View, f model.Overlay, e *structs.PlanEntry, booked []*structs.Reservation, now structs.LogTime) Verdict {
	bk := bookingsOf(e, booked, now)
	out := Verdict{Accepted: make([]bool, len(e.Parts))}
	state := make(map[structs.NodeID]model.Occupancy)
	gangs, near := gangCount(e), peersOfEntry(v, f, e)
	power := model.NewPowerCheck(v, f)
	for i := range e.Parts {
		node, why := structs.NodeID{}, partialGang(e, &e.Parts[i], gangs)
		if why == "" {
			node, why = verifyPart(v, f, e, &e.Parts[i], state, bk, near, power)
		}
		if why != "" {
			out.Refused = append(out.Refused, Refused{Part: i, Node: node, Why: why})
			out.Refresh = v.Index()
			continue
		}
		joined(e, &e.Parts[i], gangs)
		out.Accepted[i] = true
	}
	return out
}

// bookings are the reservations that touch the nodes of an entry.
type bookings struct {
	now      structs.LogTime
	job      *structs.Job
	windows  map[structs.NodeID][]*structs.Reservation
	reserved map[structs.NodeID][]*model.ReservedPlace // by start
}

// bookingsOf gives nil when nothing is booked on the nodes of an entry.
func bookingsOf(e *structs.PlanEntry, booked []*structs.Reservation, now structs.LogTime) *bookings {
	if len(booked) == 0 || len(e.Nodes) == 0 {
		return nil
	}
	mine := make(map[structs.NodeID]bool, len(e.Nodes))
	for i := range e.Nodes {
		mine[e.Nodes[i].ID] = true
	}
	b := &bookings{now: now, job: e.Job, windows: map[structs.NodeID][]*structs.Reservation{}, reserved: map[structs.NodeID][]*model.ReservedPlace{}}
	for _, r := range booked {
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
				b.reserved[p.Node] = append(b.reserved[p.Node], &model.ReservedPlace{Job: structs.JobKey{Namespace: r.Namespace, ID: r.JobID}, Start: r.Start, End: r.End,
					Held: &model.Held{ID: model.ReservedID(r.ID, i), Need: p.Need}})
			}
		}
	}
	if len(b.windows)+len(b.reserved) == 0 {
		return nil
	}
	for _, ps := range b.reserved { // each by itself: the order of the nodes does not matter
		slices.SortStableFunc(ps, func(x, y *model.ReservedPlace) int { return cmp.Compare(x.Start, y.Start) })
	}
	return b
}

// Refuses says what a placement on a row would take of what is booked there, or "". o is what is held without it.
func (b *bookings) refuses(c *model.Chunk, i int, o *model.Occupancy, h *model.Held) string {
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
	ps := b.reserved[n.ID]
	if len(ps) == 0 {
		return ""
	}
	x := model.RowProfile{Points: model.ProfileOf(ps, o.Hold, b.now)}
	if short, whose := x.Refuses(c.Total[i], h.Need, c.MHz[i], until); short.Dim != structs.DimensionNone {
		return short.Dim.String() + " promised to job " + whose.ID
	}
	return ""
}

// gangCount counts, by row of an entry's groups, the members that a gang has. It begins with those that the roster lists
// and the entry does not place: they are taken to be there, and Apply checks them. A group that is no gang has -1.
func gangCount(e *structs.PlanEntry) []int {
	var out []int
	for g, name := range e.Groups {
		if e.Job == nil {
			return nil
		}
		tg := e.Job.Group(name)
		if tg == nil || tg.Gang == nil {
			continue
		}
		if out == nil {
			out = slices.Repeat([]int{-1}, len(e.Groups))
		}
		out[g] = 0
		listed := make(map[structs.AllocID]bool)
		for _, ro := range e.Rosters {
			if ro.Group == name {
				for _, m := range ro.Members {
					listed[m.Alloc] = true
				}
			}
		}
		for i := range e.Parts {
			for k := range e.Parts[i].Places {
				if pl := &e.Parts[i].Places[k]; pl.Group == g && !tg.IsSpare(pl.Index) {
					delete(listed, structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, name, pl.Index))
				}
			}
		}
		out[g] = len(listed)
	}
	return out
}

// partialGang says that a part would place some members of a gang without the rest of its minimum, or "".
func partialGang(e *structs.PlanEntry, p *structs.PlanPart, count []int) string {
	if count == nil || len(p.Places) == 0 {
		return ""
	}
	more := make([]int, len(count))
	for k := range p.Places {
		if g := p.Places[k].Group; g >= 0 && g < len(more) && !e.Job.Group(e.Groups[g]).IsSpare(p.Places[k].Index) {
			more[g]++
		}
	}
	for g, n := range more {
		if n == 0 || count[g] < 0 { // of spares alone: whether their gang is there is Apply's to check
			continue
		}
		if least := e.Job.Group(e.Groups[g]).Least(); count[g]+n < least {
			return fmt.Sprintf("gang %q would have %d of at least %d members", e.Groups[g], count[g]+n, least)
		}
	}
	return ""
}

// joined counts the places of an accepted part as members.
func joined(e *structs.PlanEntry, p *structs.PlanPart, count []int) {
	for k := range p.Places {
		if g := p.Places[k].Group; g >= 0 && g < len(count) && count[g] >= 0 && !e.Job.Group(e.Groups[g]).IsSpare(p.Places[k].Index) {
			count[g]++
		}
	}
}

// VerifyJob checks an entry against the newest version of its job; job is nil when there is none. It gives the reason
// for a refusal, or "". An entry that only stops is never refused: stopping does not depend on the version.
func VerifyJob(job *structs.Job, e *structs.PlanEntry) string {
	places := slices.ContainsFunc(e.Parts, func(p structs.PlanPart) bool { return len(p.Places)+len(p.Updates) > 0 })
	switch {
	case !places:
		return ""
	case job == nil && e.JobCreate == 0:
		return "" // it may follow its job in the log (D25); Apply refuses it if it does not
	case job == nil:
		return fmt.Sprintf("job %s/%s is gone", e.Namespace, e.JobID)
	case e.JobCreate != 0 && job.CreateIndex != e.JobCreate:
		return fmt.Sprintf("job %s/%s was purged and registered again", e.Namespace, e.JobID)
	case job.Version != e.JobVersion:
		return fmt.Sprintf("job %s/%s is at version %d, the plan is for version %d", e.Namespace, e.JobID, job.Version, e.JobVersion)
	case job.Stop:
		return fmt.Sprintf("job %s/%s was stopped", e.Namespace, e.JobID)
	}
	return ""
}

// verifyPart debits the part's placements in state, or leaves state as it was and says why not.
func verifyPart(v *model.View, f model.Overlay, e *structs.PlanEntry, p *structs.PlanPart,
	state map[structs.NodeID]model.Occupancy, bk *bookings, near *peerCheck, power *model.PowerCheck) (structs.NodeID, string) {
	undo := make(map[structs.NodeID]model.Occupancy, len(p.Places))
	done := 0
	power.Begin()
	fail := func(node structs.NodeID, format string, args ...any) (structs.NodeID, string) {
		power.Back()
		for id, o := range undo {
			state[id] = o
		}
		for k := range done {
			pl := &p.Places[k]
			near.took(pl.Group, v.Node(e.Nodes[pl.Node].ID), -1)
		}
		return node, fmt.Sprintf(format, args...)
	}
	for k := range p.Places {
		pl := &p.Places[k]
		id, h, ok := model.HeldOfPlace(e, pl)
		if !ok {
			return fail(id, "place %d refers to a group or node that the entry does not list", k)
		}
		c, i, found := v.Locate(id)
		if !found {
			return fail(id, "node %s is gone", id.Short())
		}
		ch := v.Chunks[c]
		n := ch.Nodes[i]
		switch {
		case n.Epoch != e.Nodes[pl.Node].Epoch:
			return fail(id, "node %s changed at index %d, after the decision (epoch %d)", id.Short(), n.Epoch, e.Nodes[pl.Node].Epoch)
		case !n.Ready():
			return fail(id, "node %s is not ready for placements", id.Short())
		}
		o, seen := state[id]
		if !seen {
			o = f.Over(n, model.Occupancy{Used: ch.Used[i], Hold: ch.Hold[i]})
		}
		if o.Hold.Has(h.ID) {
			return fail(id, "allocation %s exists already", h.ID.Short())
		}
		for _, w := range pl.WaitsOn {
			if !slices.ContainsFunc(p.Stops, func(s structs.PlanStop) bool { return s.ID == w }) {
				return fail(id, "waits for %s, which the part does not stop", w.Short())
			}
		}
		next, why := model.Fits(n, ch.Total[i], ch.MHz[i], o, h)
		if why.Dim != structs.DimensionNone {
			return fail(id, "node %s: %s short by %d", id.Short(), why.Dim, why.Short)
		}
		if why := bk.refuses(ch, i, &o, h); why != "" {
			return fail(id, "node %s: %s", id.Short(), why)
		}
		if why := near.refuses(pl.Group, n); why != "" {
			return fail(id, "node %s: %s", id.Short(), why)
		}
		if short := power.Refuses(n, o, next); short > 0 {
			return fail(id, "node %s: the power budget of node pool %s is short by %d W", id.Short(), n.Pool, short)
		}
		if _, have := undo[id]; !have {
			undo[id] = o
		}
		state[id] = next
		near.took(pl.Group, n, 1)
		done++
	}
	return structs.NodeID{}, ""
}

// Verdict is the answer about one plan entry.
type Verdict struct {
	Accepted []bool        // one per part
	Refused  []Refused     // one per refused part, in order
	Refresh  structs.Index // the index of the view that refused: decide again on a view at least as new; 0 when all was accepted
}

// Refused says why one part was refused.
type Refused struct {
	Part int
	Node structs.NodeID // zero: not about a node
	Why  string
}

// All reports whether every part was accepted.
func (v Verdict) All() bool { return len(v.Refused) == 0 }
