package fsm

import (
	"strconv"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// newDecisions begins an entry of the decision log (D23) about one job.
func (x *tx) newDecisions(k structs.JobKey, queue structs.QueuePath, eval structs.EvalID) *state.Decisions {
	d := &state.Decisions{Index: x.index, Time: x.time, Namespace: k.Namespace, JobID: k.ID, EvalID: eval, Queue: queue}
	if w := state.Workloads.Get(x, k); w != nil && w.SubmitTime != 0 {
		d.Wait = max(x.time.Sub(w.SubmitTime), 0)
	}
	return d
}

// logAccepted appends one row for each accepted part of the plan, and one for a reservation.
func (pl *planApply) logAccepted(accepted []bool) {
	var d *state.Decisions
	for i := range pl.p.Parts {
		if !accepted[i] {
			continue
		}
		if d == nil {
			d = pl.newDecisions(pl.key, pl.queue(), pl.p.EvalID)
			d.Grow(len(pl.p.Parts) - i)
		}
		if pl.Has(feature.DecisionReasons) {
			pl.addVictims(d, pl.p.Parts[i].Stops)
		}
		r := pl.row(&pl.p.Parts[i])
		d.Add(&r)
	}
	if r := pl.p.Reservation; r != nil && r.Start != 0 {
		if d == nil {
			d = pl.newDecisions(pl.key, pl.queue(), pl.p.EvalID)
		}
		row := structs.DecisionRow{Kind: structs.DecidedReserve, Nodes: int64(len(r.Places))}
		if len(r.Places) > 0 {
			row.Node = r.Places[0].Node
		}
		d.Add(&row)
	}
	if d == nil {
		return
	}
	if pl.Has(feature.DecisionReasons) {
		d.Policy = pl.Policy(pl.queue(), pl.job)
		d.Reason, d.Actor = pl.cause()
		if d.Actor == "" && pl.job != nil {
			d.Actor = actor(&pl.job.Submitter)
		}
	}
	pl.PutDecisions(d)
}

// cause returns why the plan's evaluation was made, and which user asked for it.
func (pl *planApply) cause() (why structs.Trigger, by string) {
	for _, e := range pl.p.Evals {
		if e.ID == pl.p.EvalID && e.Trigger != "" {
			return e.Trigger, e.By
		}
	}
	if e := state.Evals.Get(pl, pl.p.EvalID); e != nil {
		return e.Trigger, e.By
	}
	return "", ""
}

// actor names who sent a command.
func actor(s *structs.Submitter) string {
	switch {
	case s.Name != "":
		return s.Name
	case s.UID > 0:
		return "uid " + strconv.FormatInt(s.UID, 10)
	case !s.Accessor.IsZero():
		return s.Accessor.String()
	}
	return ""
}

// addVictims notes the other jobs whose work stops for the row that is added next.
func (pl *planApply) addVictims(d *state.Decisions, stops []structs.PlanStop) {
	first := len(d.Victims)
next:
	for i := range stops {
		s := &stops[i]
		if s.Preempt.IsZero() {
			continue
		}
		a := state.Allocs.Get(pl, s.ID)
		if a == nil || a.JobKey() == pl.key {
			continue
		}
		for k := range d.Victims[first:] {
			if v := &d.Victims[first+k]; v.Namespace == a.Namespace && v.JobID == a.JobID {
				v.Allocs++
				v.Lost, v.Saving = v.Lost+pl.unsaved(a), v.Saving+pl.mayWait(a)
				continue next
			}
		}
		d.Victims = append(d.Victims, structs.DecisionVictim{Row: int64(d.Len()), Namespace: a.Namespace, JobID: a.JobID, Allocs: 1, First: a.ID, Why: s.Desc, Lost: pl.unsaved(a), Saving: pl.mayWait(a)})
	}
}

// mayWait returns 1 if a victim may save its state before it ends, else 0.
func (pl *planApply) mayWait(a *structs.Allocation) int64 {
	if a.Job == nil || a.Client != structs.ClientRunning || !pl.Has(feature.DecisionSuspensions) {
		return 0
	}
	if g := a.Job.Group(a.Group); g != nil && g.Checkpoint != nil && g.Checkpoint.Heeds(structs.CausePreempt) {
		return 1
	}
	return 0
}

// unsaved returns the GPU-seconds that a victim loses unless it saves its state.
func (pl *planApply) unsaved(a *structs.Allocation) int64 {
	if !pl.Has(feature.DecisionLoss) {
		return 0
	}
	return a.Unsaved(a.SavedAs(state.Rosters.Get(pl, structs.RosterKey{Job: a.JobKey(), Group: a.Group})), pl.time)
}

func (pl *planApply) queue() structs.QueuePath {
	if pl.job == nil {
		return ""
	}
	return pl.job.QueueName()
}

// row describes one accepted part.
func (pl *planApply) row(part *structs.PlanPart) structs.DecisionRow {
	r := structs.DecisionRow{Places: int64(len(part.Places)), Stops: int64(len(part.Stops))}
	switch {
	case len(part.Places) > 0:
		p := &part.Places[0]
		r.Kind, r.Node, r.Nodes = structs.DecidedPlace, pl.p.Nodes[p.Node].ID, 1
		r.Score = pl.scoreOf(pl.p.Groups[p.Group])
		if pl.group(groupKey{pl.version(p), p.Group}).IsGang() {
			r.Kind = structs.DecidedGang
		}
		if len(part.Places) > 1 {
			seen := make(map[int]bool, len(part.Places))
			for i := range part.Places {
				seen[part.Places[i].Node] = true
			}
			r.Nodes = int64(len(seen))
		}
		for i := range part.Stops {
			if !part.Stops[i].Preempt.IsZero() {
				r.Kind = structs.DecidedPreempt
			}
		}
	case len(part.Stops) > 0:
		r.Kind = structs.DecidedStop
		r.Node, r.Nodes = pl.nodesOf(len(part.Stops), func(i int) structs.AllocID { return part.Stops[i].ID })
	default:
		r.Kind, r.Places = structs.DecidedUpdate, int64(len(part.Updates))
		r.Node, r.Nodes = pl.nodesOf(len(part.Updates), func(i int) structs.AllocID { return part.Updates[i].ID })
	}
	return r
}

// nodesOf returns the node of the first of n allocations, and how many nodes they are on.
func (x *tx) nodesOf(n int, id func(int) structs.AllocID) (first structs.NodeID, count int64) {
	var more map[structs.NodeID]bool
	for i := range n {
		a := state.Allocs.Get(x, id(i))
		switch {
		case a == nil || a.NodeID == first:
		case first.IsZero():
			first, count = a.NodeID, 1
		case !more[a.NodeID]:
			if more == nil {
				more = map[structs.NodeID]bool{}
			}
			more[a.NodeID] = true
			count++
		}
	}
	return first, count
}

// scoreOf returns the winning node's score for a group, from the plan's evaluation; 0 if it is not there.
func (pl *planApply) scoreOf(group structs.GroupName) int64 {
	for _, e := range pl.p.Evals {
		if e.ID != pl.p.EvalID {
			continue
		}
		for _, g := range e.PlacedGroups {
			if g.Group == group && len(g.Scores) > 0 {
				return g.Scores[0].Micro
			}
		}
	}
	return 0
}
