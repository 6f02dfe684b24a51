package endpoint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// gangStates returns the state of each gang of a job: in the order of the job's groups, then gangs of groups that the
// job no longer has. reports say why groups were placed or not.
func gangStates(p *replica.Published, j *structs.Job, reports []*structs.GroupReport) []methods.GangState {
	snap := p.Snapshot
	rosters := map[structs.GroupName]*structs.Roster{}
	var names []structs.GroupName
	for _, g := range j.Groups {
		if g.Gang != nil {
			names = append(names, g.Name)
		}
	}
	for _, r := range snap.RostersByJob(j.Key()) {
		rosters[r.Group] = r
		if !slices.Contains(names, r.Group) {
			names = append(names, r.Group)
		}
	}
	out := make([]methods.GangState, 0, len(names))
	for _, name := range names {
		var report *structs.GroupReport
		for _, r := range reports {
			if r.Group == name && r.Placed < r.Wanted {
				report = r
				break
			}
		}
		st := gangState(snap, j, name, rosters[name], report)
		st.Topology = reachedBy(p, rosters[name])
		out = append(out, st)
	}
	return out
}

func gangState(snap *state.Snapshot, j *structs.Job, name structs.GroupName, r *structs.Roster, report *structs.GroupReport) methods.GangState {
	g := methods.GangState{Group: name}
	tg := j.Group(name)
	if tg != nil && tg.Gang != nil {
		g.Standby = tg.Gang.Standby
	}
	for _, a := range snap.AllocsByJob(j.Key()) {
		if a.Group == name && a.IsStandby() && !a.Terminal() {
			g.Standbys = append(g.Standbys, structs.RosterMember{Alloc: a.ID, Node: a.NodeID, Name: a.NodeName, Index: a.NameIndex})
		}
	}
	slices.SortFunc(g.Standbys, func(a, b structs.RosterMember) int { return cmp.Compare(a.Index, b.Index) })
	if tg != nil {
		g.Asked, g.Min, g.Max = tg.Count, tg.Least(), tg.Most()
	}
	if r == nil {
		r = &structs.Roster{}
	}
	complete := 0
	for i, m := range r.Members {
		a := snap.AllocByID(m.Alloc)
		if a == nil { // collected, so it ended successfully
			g.Status = append(g.Status, methods.GangMember{Client: structs.ClientComplete})
			complete++
			continue
		}
		x := methods.GangMember{Client: a.Client, Desired: a.Desired, StartedAt: a.StartedAt, Event: lastWords(a), Saved: a.Saved}
		g.Status = append(g.Status, x)
		switch a.Client {
		case structs.ClientRunning:
			g.Running++
			continue
		case structs.ClientComplete:
			complete++
			continue
		}
		why := string(a.Client)
		if ahead := waitsOn(snap, a); ahead != "" {
			why += ": " + ahead
		} else if x.Event != "" {
			why += ": " + x.Event
		}
		g.Missing = append(g.Missing, methods.GangMissing{Members: 1, NodeRank: i, Why: why})
	}
	placeable := tg != nil && j.Placeable() && j.Status != structs.JobDead
	switch n := len(r.Members); {
	case n > 0 && complete == n:
		g.State = methods.GangComplete
	case !placeable:
		g.State = methods.GangEnded
	case n == 0:
		g.State = methods.GangWaiting
	case r.Deadline == 0 && g.Running+complete >= g.Min:
		g.State = methods.GangRunning
	default:
		g.State = methods.GangAssembling
	}
	if short := g.Asked - len(r.Members); short > 0 && placeable && g.State != methods.GangComplete {
		m := methods.GangMissing{Members: short, NodeRank: -1}
		w := snap.Workload(j.Key())
		switch {
		case w != nil && w.Spent != "":
			m.Why = w.Spent
		case report != nil:
			m.Report = report
		case w == nil && j.StatusDesc != "":
			m.Why = j.StatusDesc
		default:
			m.Why = "nothing was decided about them yet"
		}
		g.Missing = append(g.Missing, m)
	}
	return g
}

// waitsOn says which work still occupies the place of an allocation, so that it cannot start; "" if none does.
func waitsOn(snap *state.Snapshot, a *structs.Allocation) string {
	n := 0
	var first *structs.Allocation
	for _, id := range a.WaitsOn {
		if o := snap.AllocByID(id); o != nil && structs.Holds(o) {
			if n++; first == nil {
				first = o
			}
		}
	}
	switch {
	case n == 0:
		return ""
	case n == 1:
		return "job " + first.JobID + " has not left its place yet"
	}
	return fmt.Sprintf("%d allocations, one of job %s, have not left its place yet", n, first.JobID)
}

// lastWords returns the text of the newest event of an allocation's tasks; "" for none.
func lastWords(a *structs.Allocation) string {
	var last *structs.TaskEvent
	for _, st := range a.TaskStates.All() {
		if n := len(st.Events); n > 0 && (last == nil || st.Events[n-1].Time > last.Time) {
			last = &st.Events[n-1]
		}
	}
	switch {
	case last == nil:
		return a.ClientDesc
	case last.Message == "":
		return last.Type
	}
	return last.Message
}
