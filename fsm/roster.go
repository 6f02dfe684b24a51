package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// Rosters (D21) are kept so that no entry leaves part of a gang: when an entry removes members (an agent's report, a
// plan, a preemption), it also settles the gang. If a gang falls below its minimum, its remaining members stop in that
// entry.

const (
	descMember      = "a member of the gang"                 // how the reason why the others end begins
	descJoint       = "an allocation of the all_at_once job" // the same, for its other groups
	descTooLate     = "it was to join a gang of which a member has ended well"
	descStandbyBack = "the standby is given back: its gang has ended"
	preemptionsFor  = time.Hour // how long the preemptions of a queue are remembered individually
)

// applyRoster ends the assembly of a gang at its deadline.
func applyRoster(x *tx, c *structs.RosterCommand) *structs.Error {
	k := structs.RosterKey{Job: structs.JobKey{Namespace: c.Namespace, ID: c.JobID}, Group: c.Group}
	r := state.Rosters.Get(x, k)
	switch {
	case r == nil || r.Epoch != c.Epoch || r.Deadline == 0 || x.time < r.Deadline:
		return structs.Errorf(structs.CodeConflict, "gang %s of job %q has assembled or changed, or its time is not over", k.Group, k.Job.ID)
	case r.Suspended(state.Allocs.Lookup(x)):
		return structs.Errorf(structs.CodeConflict, "gang %s of job %q is suspended; its time to assemble does not pass", k.Group, k.Job.ID)
	}
	next, stop := r.Dissolve(structs.RosterTimeout, state.Allocs.Lookup(x))
	x.putRoster(next)
	x.endMembers(stop, "the gang did not assemble in time", "")
	if j := state.Jobs.Get(x, k.Job); j != nil && j.Placeable() {
		if tg := j.Group(k.Group); tg != nil && tg.Joint {
			x.endOthers(j, "gang "+string(k.Group)+" of the all_at_once job did not assemble in time", "", next.Reason, nil)
		}
		x.newEval(j, structs.TriggerRetryFailed, nil)
	}
	return nil
}

func (x *tx) putRoster(r *structs.Roster) {
	x.countResize(r)
	x.keepSaving(r)
	r.ModifyIndex = x.index
	if r.CreateIndex == 0 {
		r.CreateIndex = x.index
	}
	state.Rosters.Put(x, r)
}

// keepSaving notes a change of its members with the checkpoints of a gang.
func (x *tx) keepSaving(r *structs.Roster) {
	was, j := state.Rosters.Get(x, r.Key()), state.Jobs.Get(x, r.Key().Job)
	if was != nil && was.Epoch != r.Epoch && j != nil && j.Group(r.Group).SavesAsOne() && x.Has(feature.GangCheckpoints) {
		r.KeepSaving(was, x.time)
	}
}

// saving notes what reports of its members' checkpoints mean for a gang. One report may have many members, so that gangs
// are looked at once each, in the order of their first report.
func (x *tx) saving(gangs []structs.RosterKey) {
	seen := make(map[structs.RosterKey]bool, len(gangs))
	for _, k := range gangs {
		r, j := state.Rosters.Get(x, k), state.Jobs.Get(x, k.Job)
		if seen[k] || r == nil || j == nil || !j.Group(k.Group).SavesAsOne() {
			continue
		}
		seen[k] = true
		if next := r.Saving(j.Group(k.Group).Checkpoint, state.Allocs.Lookup(x)); next != nil {
			x.putRoster(next)
		}
	}
}

// countResize counts a change of an elastic gang's number of members, and logs it.
func (x *tx) countResize(r *structs.Roster) {
	if !x.Has(feature.GangResizes) {
		return
	}
	j := state.Jobs.Get(x, r.Key().Job)
	if j == nil || j.Group(r.Group) == nil || j.Group(r.Group).Elastic == nil || !r.CountResize(state.Rosters.Get(x, r.Key()), x.time) {
		return
	}
	more := int64(r.Resizes.To - r.Resizes.From)
	row := structs.DecisionRow{Kind: structs.DecidedResize, Places: max(more, 0), Stops: max(-more, 0), Node: r.Members[0].Node}
	seen := make(map[structs.NodeID]bool, len(r.Members))
	for i := range r.Members {
		seen[r.Members[i].Node] = true
	}
	row.Nodes = int64(len(seen))
	d := x.newDecisions(j.Key(), j.QueueName(), structs.EvalID{})
	d.Add(&row)
	x.PutDecisions(d)
}

// endMembers stops the remaining members of a gang. With a cause they may save their state first.
func (x *tx) endMembers(ids []structs.AllocID, desc, cause string) {
	for _, id := range ids {
		a := *state.Allocs.Get(x, id)
		a.Desired, a.DesiredDesc, a.OwnLineage().Asked = structs.DesiredStop, desc, x.time
		a.EndsFor(cause)
		x.serverWrote(&a)
	}
}

// causeOf returns the stop cause of the first member that servers have stopped, so that the whole gang can save its
// state together. It returns "" if a member was lost.
func (x *tx) causeOf(was *structs.Roster, reason string) string {
	if reason == structs.RosterLost {
		return ""
	}
	for _, m := range was.Members {
		if a := state.Allocs.Get(x, m.Alloc); a != nil && !a.ClientTerminal() && a.EndCause() != "" {
			return a.EndCause()
		}
	}
	return ""
}

// memberDescMax limits the characters of a member's failure in the description of the others.
const memberDescMax = 200

// whyEnded describes why the rest of a gang ends: the member that it lost (who, in words), and how. The worst loss counts
// (see structs.Roster.Settle). Whether the gang starts again is decided later and not part of it.
func (x *tx) whyEnded(who string, was *structs.Roster, batch bool) string {
	worst, why := 0, who+" is gone"
	for _, m := range was.Members {
		a := state.Allocs.Get(x, m.Alloc)
		if a == nil {
			continue // collected: it had succeeded
		}
		var bad int
		var what, how string
		switch {
		case a.Desired == structs.DesiredEvict:
			bad, what, how = 2, "was preempted", a.DesiredDesc
		case a.ServerTerminal() && a.Client != structs.ClientLost:
			bad, what, how = 1, "was stopped", a.DesiredDesc
		case a.Client == structs.ClientLost:
			bad, what = 4, "was lost with its node"
		case a.Client == structs.ClientFailed:
			bad, what, how = 3, "failed", a.ClientDesc+exitOf(a)
		case a.Client == structs.ClientComplete && !batch:
			bad, what, how = 3, "ended", a.ClientDesc
		}
		if bad <= worst {
			continue
		}
		worst, why = bad, fmt.Sprintf("%s %s: %s on %s", who, what, a.Name(), m.Name)
		if how != "" {
			why += ": " + how
		}
	}
	if text := []rune(why); len(text) > memberDescMax {
		why = string(text[:memberDescMax]) + "..."
	}
	return why
}

// exitOf describes how the first failed task ended; "" if it did not start.
func exitOf(a *structs.Allocation) string {
	for _, st := range a.TaskStates.All() {
		if st == nil || !st.Failed {
			continue
		}
		for i := len(st.Events) - 1; i >= 0; i-- {
			switch e := &st.Events[i]; {
			case e.Signal != 0:
				return fmt.Sprintf(", signal %d", e.Signal)
			case e.ExitCode != 0:
				return fmt.Sprintf(", exit code %d", e.ExitCode)
			}
		}
		return ""
	}
	return ""
}

// rendezvous stores the port that the agent of node rank 0 has reserved for a gang. Only the first one of an epoch
// counts: members may have started with it.
func (x *tx) rendezvous(a *structs.Allocation, u *structs.AllocObserved) {
	r := state.Rosters.Get(x, structs.RosterKey{Job: a.JobKey(), Group: a.Group})
	if r == nil || r.Epoch != u.GangEpoch || r.Port != 0 || r.Rank(a.ID) != 0 || u.GangPort < 1 || u.GangPort > 65535 {
		return
	}
	n := *r
	n.Port = u.GangPort
	x.putRoster(&n)
}

// settleGangs updates the rosters of a job after changes of its allocations. When a joint group (structs.Job.Join) is
// ended to be started again, the other joint groups are ended in the same entry.
func (x *tx) settleGangs(k structs.JobKey, j *structs.Job) {
	var ended, was *structs.Roster // a joint group that was ended by this entry: its roster after and before
	for _, r := range x.RostersByJob(k) {
		if j == nil {
			state.Rosters.Delete(x, r.Key())
			continue
		}
		var tg *structs.Group
		if j.Placeable() {
			tg = j.Group(r.Group)
		}
		next, stop := r.Settle(tg, j.Type == structs.JobBatch, state.Allocs.Lookup(x))
		why := ""
		if next == nil || next.Epoch == r.Epoch {
			if late, joined, is := x.unformed(r, j, tg); is {
				next, stop, why = late, joined, descTooLate
			}
		}
		if next == nil {
			x.endStandbys(r, j, tg)
			continue
		}
		x.putRoster(next)
		if tg != nil && tg.Joint && next.Restarts > r.Restarts {
			ended, was = next, r
		}
		switch {
		case len(stop) > 0 && why != "":
			x.endMembers(stop, why, "")
		case len(stop) > 0:
			x.losesWith(r, next.Reason, stop)
			x.endMembers(stop, x.whyEnded(descMember, r, j.Type == structs.JobBatch), x.causeOf(r, next.Reason))
		}
		x.endStandbys(next, j, tg)
		if next.Epoch != r.Epoch && tg != nil {
			x.newEval(j, structs.TriggerRetryFailed, nil)
		}
	}
	if ended != nil {
		x.endJoint(j, was, ended.Reason)
	}
}

// unformed settles a gang that has changed and cannot form again, because a member has ended well before it could join:
// the others would wait for it for ever. Members that never started stop, if the gang is whole without them. Those that
// ran before may be about to end well too: they have the time of a gang to assemble, and then all of it starts again. It
// returns the roster to write, or nil for none, and the members to stop; is is false for any other gang.
func (x *tx) unformed(r *structs.Roster, j *structs.Job, tg *structs.Group) (next *structs.Roster, stop []structs.AllocID, is bool) {
	if !x.Has(feature.EndedGangs) || r.Port != 0 || r.Epoch < 2 || j.Type != structs.JobBatch || tg == nil || tg.Gang == nil {
		return nil, nil, false
	}
	var stay []structs.RosterMember
	ended := 0
	for _, m := range r.Members {
		a := state.Allocs.Get(x, m.Alloc)
		switch {
		case a == nil || a.Client == structs.ClientComplete:
			ended++
		case a.StartedAt == 0 && a.CreateIndex > r.CreateIndex:
			stop = append(stop, m.Alloc)
			continue
		}
		stay = append(stay, m)
	}
	if ended == 0 || ended == len(r.Members) {
		return nil, nil, false
	}
	n := *r
	if len(stop) > 0 && len(stay) >= tg.Least() {
		n.Members, n.Reason, n.Deadline = stay, structs.RosterShrunk, 0
		n.Epoch++
		if ended < len(stay) {
			n.Deadline = tg.GangDeadline(x.time)
		}
		return &n, stop, true
	}
	if r.Deadline != 0 {
		return nil, nil, true
	}
	n.Deadline = tg.GangDeadline(x.time)
	return &n, nil, true
}

// endJoint ends the joint groups of a job that still run, or have ended well, because one was ended: was is its roster
// before. What has ended well is started again with the rest.
func (x *tx) endJoint(j *structs.Job, was *structs.Roster, reason string) {
	x.endOthers(j, x.whyEnded(descJoint, was, j.Type == structs.JobBatch), x.causeOf(was, reason), reason, was)
}

// endOthers ends the joint groups of a job that run: those on a roster, and those that were placed before their group was
// joint. was is the roster, as it was, of the group that lost a member; nil for none.
func (x *tx) endOthers(j *structs.Job, why, cause, reason string, was *structs.Roster) {
	for _, r := range x.RostersByJob(j.Key()) {
		if tg := j.Group(r.Group); tg != nil && tg.Joint && len(r.Members) > 0 {
			next, _ := r.End(reason, state.Allocs.Lookup(x))
			x.putRoster(next)
		}
	}
	var stop []structs.AllocID
	for _, a := range x.AllocsByJob(j.Key()) {
		if tg := j.Group(a.Group); tg != nil && tg.Joint && !a.Terminal() && !a.IsStandby() && a.CreateIndex >= j.CreateIndex {
			stop = append(stop, a.ID)
		}
	}
	x.losesWith(was, reason, stop)
	x.endMembers(stop, why, cause)
}

// endStandbys stops the standbys of a gang when the last of its members has succeeded: no decision would follow that
// could stop them.
func (x *tx) endStandbys(r *structs.Roster, j *structs.Job, tg *structs.Group) {
	if tg == nil || tg.Gang == nil || tg.Gang.Standby <= 0 || len(r.Members) == 0 || j.Type != structs.JobBatch {
		return
	}
	for _, m := range r.Members {
		if a := state.Allocs.Get(x, m.Alloc); a != nil && a.Client != structs.ClientComplete {
			return
		}
	}
	var stop []structs.AllocID
	for _, a := range x.AllocsByJob(r.Key().Job) {
		if a.Group == r.Group && a.IsStandby() && !a.Terminal() {
			stop = append(stop, a.ID)
		}
	}
	x.endMembers(stop, descStandbyBack, "")
}

// rosters writes the plan's rosters whose members were placed. Members that were refused, or have ended since the
// decision, are left out. A roster without changes is not written. If too few members are left, ended ones stay on it
// for settleGangs.
func (pl *planApply) rosters() {
	if pl.job == nil {
		return // purged: its parts were refused, and its remaining allocations are no gang
	}
	for _, in := range pl.p.Rosters {
		key := structs.RosterKey{Job: pl.key, Group: in.Group}
		old := state.Rosters.Get(pl, key)
		n := *in
		n.Namespace, n.JobID = pl.key.Namespace, pl.key.ID
		n.Members = slices.Clone(in.Members)
		if old != nil { // the decision may not have seen the newest members
			for _, m := range old.Members {
				if n.Rank(m.Alloc) < 0 {
					n.Members = append(n.Members, m)
				}
			}
		}
		tg := pl.job.Group(in.Group)
		n.Members = slices.DeleteFunc(n.Members, func(m structs.RosterMember) bool {
			a := state.Allocs.Get(pl, m.Alloc)
			return (old == nil || old.Rank(m.Alloc) < 0) && (a == nil || a.CreateIndex != pl.index) // refused, or of a gang that was dissolved since the decision
		})
		there := slices.DeleteFunc(slices.Clone(n.Members), func(m structs.RosterMember) bool {
			a := state.Allocs.Get(pl, m.Alloc)
			return a == nil || a.JobKey() != pl.key || a.ServerTerminal() || a.ClientTerminal() && a.Client != structs.ClientComplete
		})
		if old == nil || !tg.IsGang() || len(there) >= tg.Least() {
			n.Members = there
		} // otherwise too few are left: members that this entry has ended stay on the roster, so that Settle ends the rest
		n.Epoch, n.Port, n.Restarts, n.AvoidNodes, n.Suspects, n.CreateIndex, n.Resizes, n.Checkpoint = 1, 0, 0, nil, nil, 0, structs.GangResizes{}, nil
		if old != nil {
			if len(n.Members) == 0 || sameMembers(old.Members, n.Members) {
				continue
			}
			n.Epoch, n.Restarts, n.AvoidNodes, n.CreateIndex, n.Resizes = old.Epoch+1, old.Restarts, old.AvoidNodes, old.CreateIndex, old.Resizes
			n.Checkpoint = old.Checkpoint
		}
		if len(n.Members) == 0 {
			continue
		}
		n.Deadline = 0
		if tg.IsGang() {
			running := 0
			for _, m := range n.Members {
				if a := state.Allocs.Get(pl, m.Alloc); a == nil || a.Client == structs.ClientRunning || a.Client == structs.ClientComplete {
					running++
				}
			}
			if running < tg.Least() {
				n.Deadline = tg.GangDeadline(pl.time)
			}
		}
		pl.putRoster(&n)
	}
}

// lostWithNode blames the node of a former gang member that had not stopped yet when its node was lost. A member on the
// roster is settled at the end of the entry.
func (x *tx) lostWithNode(a *structs.Allocation) {
	r := state.Rosters.Get(x, structs.RosterKey{Job: a.JobKey(), Group: a.Group})
	if r == nil || r.Rank(a.ID) >= 0 {
		return
	}
	x.putRoster(r.Blame(a.NodeID))
}

func sameMembers(a, b []structs.RosterMember) bool {
	return slices.EqualFunc(a, b, func(x, y structs.RosterMember) bool { return x.Alloc == y.Alloc })
}

// live counts the members of a group's gang that count towards its minimum: those that should run and, in a batch job,
// those that have succeeded since the gang started. Remaining allocations of a purged job of the same name do not
// count.
func (pl *planApply) live(group structs.GroupName) int {
	if n, known := pl.liveMembers[group]; known {
		return n
	}
	r := state.Rosters.Get(pl, structs.RosterKey{Job: pl.key, Group: group})
	n := 0
	for _, a := range pl.AllocsByJob(pl.key) {
		switch {
		case a.Group != group || a.CreateIndex < pl.job.CreateIndex || a.IsStandby():
		case !a.Terminal():
			n++
		case a.ServerTerminal() || a.Client != structs.ClientComplete || pl.job.Type != structs.JobBatch:
		case r != nil && r.Rank(a.ID) >= 0, r == nil && a.JobVersion == pl.job.Version: // a group that ran before it became joint has no roster
			n++
		}
	}
	if pl.liveMembers == nil {
		pl.liveMembers = make(map[structs.GroupName]int)
	}
	pl.liveMembers[group] = n
	return n
}

// partial returns a reason if a part would leave a gang with fewer members than its minimum, else "".
func (pl *planApply) partial(part *structs.PlanPart) string {
	var seen []int
	for i := range part.Places {
		p := &part.Places[i]
		if slices.Contains(seen, p.Group) {
			continue
		}
		seen = append(seen, p.Group)
		g := pl.group(groupKey{pl.version(p), p.Group})
		if !g.IsGang() {
			continue
		}
		n := pl.live(g.Name) + pl.change(part, g.Name)
		if n < g.Least() {
			return fmt.Sprintf("gang %q would have %d of at least %d members", g.Name, n, g.Least())
		}
	}
	if len(part.Places) > 0 && pl.job.IsJoint() {
		return pl.partialJoint(part)
	}
	return ""
}

// partialJoint returns a reason if a part would place joint groups while another one, which has none on its roster, would
// stay without its minimum, else "".
func (pl *planApply) partialJoint(part *structs.PlanPart) string {
	places := false // of a joint group
	for i := range part.Places {
		g := pl.group(groupKey{pl.version(&part.Places[i]), part.Places[i].Group})
		places = places || g != nil && g.Joint
	}
	for _, g := range pl.job.Groups {
		if !places || !g.Joint {
			continue
		}
		if r := state.Rosters.Get(pl, structs.RosterKey{Job: pl.key, Group: g.Name}); r != nil && len(r.Members) > 0 {
			continue // it runs; if this part ends too much of it, all are ended at the end of the entry
		}
		if n := pl.live(g.Name) + pl.change(part, g.Name); n < g.Least() {
			return fmt.Sprintf("group %q of the all_at_once job would have %d of at least %d allocations", g.Name, n, g.Least())
		}
	}
	return ""
}

// change returns by how much a part changes the number of members of a group.
func (pl *planApply) change(part *structs.PlanPart, group structs.GroupName) int {
	n := 0
	for i := range part.Places {
		if p := &part.Places[i]; pl.p.Groups[p.Group] == group {
			if g := pl.group(groupKey{pl.version(p), p.Group}); g != nil && g.IsStandby(p.Index) {
				continue
			}
			n++
		}
	}
	for i := range part.Stops {
		s := &part.Stops[i]
		if a := state.Allocs.Get(pl, s.ID); a != nil && a.JobKey() == pl.key && a.Group == group && a.CreateIndex >= pl.job.CreateIndex && !a.Terminal() && !a.IsStandby() && (s.Desired != "" || s.Client == structs.ClientLost) {
			n--
		}
	}
	return n
}

// preempted counts an eviction, once per part for the victim's job: for that, its submitter, and the queue on whose behalf it
// happened.
func (pl *planApply) preempted(victim *structs.Allocation) {
	key := victim.JobKey()
	if slices.Contains(pl.evicted, key) {
		return
	}
	pl.evicted = append(pl.evicted, key)
	if w := state.Workloads.Get(pl, key); w != nil {
		n := *w
		n.Preempted++
		n.ModifyIndex = pl.index
		state.Workloads.Put(pl, &n)
	}
	if j := pl.jobOf(victim); j != nil {
		pl.count(j, structs.UserLoss{Preempted: 1})
	}
	queue := structs.QueueDefault
	if pl.job != nil {
		queue = pl.job.QueueName()
	}
	row := structs.Preemptions{Queue: queue, Total: 1, ModifyIndex: pl.index}
	if old := state.Preemptions.Get(pl, queue); old != nil {
		row.Total, row.Lost, row.Users = old.Total+1, old.Lost, old.Users
		for i, t := range old.Recent {
			if t > pl.time.Add(-preemptionsFor) && len(old.Recent)-i < structs.PreemptionsKept {
				row.Recent = append(row.Recent, t)
			}
		}
	}
	row.Recent = append(row.Recent, pl.time)
	state.Preemptions.Put(pl, &row)
}

// attain adds the service of an allocation that has just ended to its job's queue entry.
func (x *tx) attain(a *structs.Allocation) {
	if a.StartedAt == 0 || a.FinishedAt <= a.StartedAt {
		return
	}
	got := int64(a.FinishedAt.Sub(a.StartedAt)) / 1e9
	if gpus := structs.AmountOf(a).GPUMilli; gpus > 0 {
		got = got * gpus / 1000
	}
	if got == 0 {
		return
	}
	if x.attained == nil {
		x.attained = make(map[structs.JobKey]int64)
	}
	x.attained[a.JobKey()] += got
}
