package verify

import (
	"fmt"
	"maps"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Verify checks a plan entry against a view that may be newer than the one it was decided on, and against the plans in
// flight. Each part is accepted or refused whole (D18); an accepted part uses capacity that the parts after it no
// longer have.
//
// A node whose epoch has not moved has the pool, datacenter, attributes, drivers, capacity and eligibility that the
// decision saw (D6). Therefore only free capacity is counted again, with the fit function of the decision itself, and
// the required rules about other jobs nearby (peersOfEntry). Whether the job still has the version that was decided is
// checked by Job, and finally by Apply.
func Verify(v *model.View, f model.Overlay, e *structs.PlanEntry) Verdict {
	return VerifyReserved(v, f, e, nil, 0)
}

// VerifyReserved is Verify with reservations (D20): the windows of operators, and the reservations of other jobs that
// bind this entry. The caller leaves out reservations of jobs that were decided in the same pass, since only the pass
// knows which of them come after this job in the queue.
func VerifyReserved(v *model.View, f model.Overlay, e *structs.PlanEntry, reserved []*structs.Reservation, now structs.LogTime) Verdict {
	t := trial{
		view: v, flight: f, entry: e,
		nodes:    make(map[structs.NodeID]*model.Sum),
		reserved: reservationsOf(e, reserved, now),
		gangs:    gangsOf(e),
		peers:    peersOfEntry(v, f, e),
		power:    model.NewPowerCheck(v, f),
	}
	out := Verdict{Accepted: make([]bool, len(e.Parts))}
	for i := range e.Parts {
		if node, why := t.part(&e.Parts[i]); why != "" {
			out.Refused = append(out.Refused, Refused{Part: i, Node: node, Why: why})
			out.Refresh = v.Index()
			continue
		}
		out.Accepted[i] = true
	}
	out.Sums = t.nodes
	return out
}

// Verdict is the answer about one plan entry.
type Verdict struct {
	Accepted []bool                        // one per part
	Refused  []Refused                     // one per refused part, in order
	Refresh  structs.Index                 // the index of the view that refused: decide again on a view at least as new; 0 when all was accepted
	Sums     map[structs.NodeID]*model.Sum // of the nodes that places were tried on, with the accepted parts
}

// Refused is the reason why one part was refused.
type Refused struct {
	Part int
	Node structs.NodeID // zero: not about a node
	Why  string
}

// All reports whether every part was accepted.
func (v Verdict) All() bool { return len(v.Refused) == 0 }

// Job checks an entry against the newest version of its job; job is nil when there is none. It returns the reason for a
// refusal, or "". An entry that only stops is never refused: stopping does not depend on the version.
func Job(job *structs.Job, e *structs.PlanEntry) string {
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

// trial is the verification of one entry: what its nodes hold with the parts that were accepted so far.
type trial struct {
	view     *model.View
	flight   model.Overlay
	entry    *structs.PlanEntry
	nodes    map[structs.NodeID]*model.Sum // of nodes that a place was tried on
	reserved *reservations                 // nil: none on the entry's nodes
	gangs    gangs                         // nil: no group is a gang
	peers    *peerCheck                    // nil: no rule can be broken
	power    *model.PowerCheck
}

// part accepts a part, or leaves the trial as it was and returns the reason, with the node if it is about one.
func (t *trial) part(p *structs.PlanPart) (structs.NodeID, string) {
	if why := t.gangs.partial(t.entry, p); why != "" {
		return structs.NodeID{}, why
	}
	t.power.Begin()
	before := make(map[structs.NodeID]*model.Sum, len(p.Places))
	for k := range p.Places {
		node, why := t.place(p, k, before)
		if why == "" {
			continue
		}
		t.power.Back()
		maps.Copy(t.nodes, before)
		for i := range p.Places[:k] {
			pl := &p.Places[i]
			t.peers.took(pl.Group, t.view.Node(t.entry.Nodes[pl.Node].ID), -1)
		}
		return node, why
	}
	t.gangs.joined(t.entry, p)
	return structs.NodeID{}, ""
}

// place takes the capacity of place k of a part, or returns the reason why it cannot be had. before receives what the
// node held, unless an earlier place of the part is on it.
func (t *trial) place(p *structs.PlanPart, k int, before map[structs.NodeID]*model.Sum) (structs.NodeID, string) {
	e, pl := t.entry, &p.Places[k]
	id, h, ok := model.HeldOfPlace(e, pl)
	if !ok {
		return id, fmt.Sprintf("place %d refers to a group or node that the entry does not list", k)
	}
	c, i, found := t.view.Locate(id)
	if !found {
		return id, fmt.Sprintf("node %s is gone", id.Short())
	}
	ch := t.view.Chunks[c]
	n := ch.Nodes[i]
	switch {
	case n.Epoch != e.Nodes[pl.Node].Epoch:
		return id, fmt.Sprintf("node %s changed at index %d, after the decision (epoch %d)", id.Short(), n.Epoch, e.Nodes[pl.Node].Epoch)
	case !n.Ready():
		return id, fmt.Sprintf("node %s is not ready for placements", id.Short())
	}
	sum, seen := t.nodes[id]
	if !seen {
		view := model.Occupancy{Used: ch.Used[i], Hold: ch.Hold[i]}
		sum = &model.Sum{Node: n, View: view, All: t.flight.Over(n, view)}
	}
	o := sum.All
	if o.Hold.Has(h.ID) {
		return id, fmt.Sprintf("allocation %s exists already", h.ID.Short())
	}
	for _, w := range pl.WaitsOn {
		if !slices.ContainsFunc(p.Stops, func(s structs.PlanStop) bool { return s.ID == w }) {
			return id, fmt.Sprintf("waits for %s, which the part does not stop", w.Short())
		}
	}
	if why := t.misgiven(pl, n, h); why != "" {
		return id, fmt.Sprintf("node %s: %s", id.Short(), why)
	}
	next, short := model.Fits(n, ch.Total[i], ch.MHz[i], o, h)
	if short.Dim != structs.DimensionNone {
		return id, fmt.Sprintf("node %s: %s short by %d", id.Short(), short.Dim, short.Short)
	}
	if why := t.reserved.refuses(ch, i, &o, h); why != "" {
		return id, fmt.Sprintf("node %s: %s", id.Short(), why)
	}
	if why := t.peers.refuses(pl.Group, n); why != "" {
		return id, fmt.Sprintf("node %s: %s", id.Short(), why)
	}
	if short := t.power.Refuses(n, o, next); short > 0 {
		return id, fmt.Sprintf("node %s: the power budget of node pool %s is short by %d W", id.Short(), n.Pool, short)
	}
	if _, have := before[id]; !have {
		before[id] = sum
	}
	t.nodes[id] = &model.Sum{Node: n, View: sum.View, All: next}
	t.peers.took(pl.Group, n, 1)
	return id, ""
}

// misgiven returns why a place gives a task devices that its job does not allow, or "".
func (t *trial) misgiven(pl *structs.PlanPlace, n *structs.Node, h *model.Held) string {
	if t.entry.Job == nil || h.Rare == nil || pl.Version != nil && *pl.Version != t.entry.Job.Version {
		return ""
	}
	tg := t.entry.Job.Group(t.entry.Groups[pl.Group])
	if tg == nil {
		return ""
	}
	return match.Misgiven(t.entry.Job, tg, n, h.Rare.Grants)
}
