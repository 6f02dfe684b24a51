package fsm

import (
	"fmt"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

func applyPlan(x *tx, c *structs.PlanEntry) *structs.Error {
	p, err := x.plan(c)
	x.result.Plan = p
	return err
}

// applyPlans carries out several plans independently; a later one sees the changes of an earlier one.
func applyPlans(x *tx, c *structs.PlansCommand) *structs.Error {
	for _, e := range c.Entries {
		p, err := x.plan(e)
		if err != nil {
			p = &structs.PlanResult{Index: x.index, Accepted: make([]bool, len(e.Parts)), Refused: err.Msg}
		}
		x.result.Plans = append(x.result.Plans, p)
	}
	return nil
}

// planApply is one plan entry while it is applied.
type planApply struct {
	*tx
	p      *structs.PlanEntry
	key    structs.JobKey
	job    *structs.Job // nil if absent
	nodes  []*structs.Node
	groups map[groupKey]*structs.Group
	vector map[groupKey]structs.Vector

	liveMembers map[structs.GroupName]int                 // of each gang that was counted
	saved       map[structs.GroupName]*structs.Saved      // what each placed gang resumes from
	suspensions map[structs.GroupName]*structs.Suspension // of each placed gang; nil: not suspended
	evicted     []structs.JobKey                          // jobs preempted by the part that is being accepted
	returned    []structs.GroupName                       // gangs that return from the queue
	ids         structs.AllocIDs
	placing     []structs.AllocID // of the places of the part that is being checked
}

// groupKey identifies a group of a job version by its position in the entry.
type groupKey struct {
	version uint64
	group   int
}

// slot is one place of a group.
type slot struct {
	group structs.GroupName
	index int
}

// plan carries out one entry part by part. A part whose premises have changed is refused and changes nothing. An error
// means that the entry as a whole is invalid; it is returned before anything was changed.
func (x *tx) plan(e *structs.PlanEntry) (*structs.PlanResult, *structs.Error) {
	pl := &planApply{
		tx: x, p: e, key: structs.JobKey{Namespace: e.Namespace, ID: e.JobID}, ids: structs.AllocIDsOf(e.EvalID, e.SnapshotIndex),
		nodes: make([]*structs.Node, len(e.Nodes)), groups: map[groupKey]*structs.Group{}, vector: map[groupKey]structs.Vector{},
	}
	if err := pl.sane(); err != nil {
		return nil, err
	}
	pl.job = state.Jobs.Get(x, pl.key)
	for i, n := range e.Nodes {
		pl.nodes[i] = state.Nodes.Get(x, n.ID)
	}
	res := &structs.PlanResult{Index: x.index, Accepted: make([]bool, len(e.Parts))}
	whole, placed := true, false
	for i := range e.Parts {
		why := pl.refuse(&e.Parts[i])
		if why == "" {
			why = pl.overLimit(&e.Parts[i])
		}
		if why != "" {
			whole = false
			if res.Refused == "" {
				res.Refused = why
			}
			continue
		}
		for g := range pl.liveMembers {
			pl.liveMembers[g] += pl.change(&e.Parts[i], g)
		}
		pl.accept(&e.Parts[i])
		res.Accepted[i] = true
		placed = placed || len(e.Parts[i].Places) > 0
	}
	pl.rosters()
	pl.logAccepted(res.Accepted)
	pl.reserve(whole, placed)
	pl.evaluations(whole)
	x.touch(pl.key)
	return res, nil
}

// sane checks the references inside the entry.
func (pl *planApply) sane() *structs.Error {
	bad := func(part int, what string) *structs.Error {
		return structs.Errorf(structs.CodeInvalid, "plan for job %q: part %d %s", pl.p.JobID, part, what)
	}
	for i := range pl.p.Parts {
		for _, p := range pl.p.Parts[i].Places {
			switch {
			case p.Group < 0 || p.Group >= len(pl.p.Groups):
				return bad(i, fmt.Sprintf("refers to group %d of %d", p.Group, len(pl.p.Groups)))
			case p.Node < 0 || p.Node >= len(pl.p.Nodes):
				return bad(i, fmt.Sprintf("refers to node %d of %d", p.Node, len(pl.p.Nodes)))
			case p.Index < 0:
				return bad(i, fmt.Sprintf("places name index %d", p.Index))
			}
		}
		for _, s := range pl.p.Parts[i].Stops {
			switch s.Desired {
			case "", structs.DesiredStop, structs.DesiredEvict:
			default:
				return bad(i, fmt.Sprintf("stops an allocation as %q", s.Desired))
			}
			switch s.Client {
			case "", structs.ClientLost, structs.ClientUnknown:
			default:
				return bad(i, fmt.Sprintf("declares an allocation %q; a server may declare lost or unknown", s.Client))
			}
		}
	}
	for _, ev := range pl.p.Evals {
		if ev == nil || ev.ID.IsZero() {
			return structs.Errorf(structs.CodeInvalid, "plan for job %q writes an evaluation without an id", pl.p.JobID)
		}
	}
	return nil
}

func (pl *planApply) version(p *structs.PlanPlace) uint64 {
	if p.Version != nil {
		return *p.Version
	}
	return pl.p.JobVersion
}

func (pl *planApply) group(at groupKey) *structs.Group {
	g, ok := pl.groups[at]
	if !ok {
		if j := pl.JobVersion(pl.key, at.version); j != nil {
			g = j.Group(pl.p.Groups[at.group])
		}
		pl.groups[at] = g
		if g != nil {
			pl.vector[at] = structs.GroupVector(g)
		}
	}
	return g
}

// refuse returns why a part cannot be carried out, or "". It compares integers only (D6).
func (pl *planApply) refuse(part *structs.PlanPart) string {
	if len(part.Places)+len(part.Updates) > 0 {
		switch j := pl.job; {
		case j == nil:
			return "the job does not exist"
		case pl.p.JobCreate != 0 && j.CreateIndex != pl.p.JobCreate:
			return "the job was purged and registered again"
		case !j.Placeable():
			return "the job is stopped or a template"
		case pl.p.JobCreate == 0 && !pl.follows(j):
			return "the plan follows a registration that did not happen"
		case j.Version != pl.p.JobVersion:
			return fmt.Sprintf("the job is at version %d, the plan is for %d", j.Version, pl.p.JobVersion)
		case pl.queueEpoch() != pl.p.QueueEpoch:
			return fmt.Sprintf("queue %q is at epoch %d, the plan was decided at %d", j.QueueName(), pl.queueEpoch(), pl.p.QueueEpoch)
		}
	}
	var twice map[slot]bool
	if len(part.Places) > 1 {
		twice = make(map[slot]bool, len(part.Places))
	}
	pl.placing = pl.placing[:0]
	var claims map[structs.AllocID]bool
	for i := range part.Places {
		p := &part.Places[i]
		want, n, at := pl.p.Nodes[p.Node], pl.nodes[p.Node], slot{pl.p.Groups[p.Group], p.Index}
		id := pl.ids.ID(at.group, at.index)
		pl.placing = append(pl.placing, id)
		switch {
		case n == nil:
			return fmt.Sprintf("node %s does not exist", want.ID)
		case n.Epoch != want.Epoch:
			return fmt.Sprintf("node %s is at epoch %d, the plan was verified at %d", want.ID, n.Epoch, want.Epoch)
		case pl.group(groupKey{pl.version(p), p.Group}) == nil:
			return fmt.Sprintf("version %d has no group %q", pl.version(p), pl.p.Groups[p.Group])
		case state.Allocs.Get(pl, id) != nil:
			return fmt.Sprintf("allocation %s exists", id)
		case twice[at]:
			return fmt.Sprintf("name index %d of group %q is placed twice", p.Index, pl.p.Groups[p.Group])
		}
		if twice != nil {
			twice[at] = true
		}
		for _, id := range p.WaitsOn {
			why := pl.Claimed(id)
			if claims[id] && pl.Counting() {
				why = "is claimed twice"
			}
			if why != "" {
				return fmt.Sprintf("allocation %s, whose place is to be taken, %s", id, why)
			}
			if claims == nil {
				claims = map[structs.AllocID]bool{}
			}
			claims[id] = true
		}
	}
	for i := range part.Stops {
		s := &part.Stops[i]
		switch a := state.Allocs.Get(pl, s.ID); {
		case a == nil:
		case a.JobKey() != pl.key && s.Preempt.IsZero():
			return fmt.Sprintf("allocation %s belongs to job %q and is not preempted", s.ID, a.JobID)
		case s.Client != "" && pl.Has(feature.ReturnedNodes) && structs.Holds(a) && state.Nodes.Get(pl, a.NodeID).InTouch():
			return fmt.Sprintf("allocation %s is not %s: its node has returned", s.ID, s.Client)
		}
	}
	for _, u := range part.Updates {
		a := state.Allocs.Get(pl, u.ID)
		switch {
		case a == nil || a.JobKey() != pl.key:
			return fmt.Sprintf("allocation %s to update does not exist in the job", u.ID)
		case a.Terminal():
			return fmt.Sprintf("allocation %s to update has ended", u.ID)
		case pl.job.Group(a.Group) == nil:
			return fmt.Sprintf("version %d has no group %q", pl.job.Version, a.Group)
		}
	}
	return pl.partial(part)
}

// queueEpoch returns the epoch of the job's queue; 0 if the queue does not exist.
func (pl *planApply) queueEpoch() structs.Index {
	if q := state.Queues.Get(pl, pl.job.QueueName()); q != nil {
		return q.Epoch
	}
	return 0
}

// follows reports whether a plan that was made before its job was committed (D25) answers the evaluation of this
// specification: another registration may have taken the version that the plan expected.
func (pl *planApply) follows(j *structs.Job) bool {
	e := state.Evals.Get(pl, pl.p.EvalID)
	return e != nil && e.JobKey() == pl.key && e.JobSpecIndex == j.SpecIndex
}

func (pl *planApply) accept(part *structs.PlanPart) {
	pl.evicted = pl.evicted[:0]
	for i := range part.Stops {
		pl.stop(&part.Stops[i])
	}
	for i := range part.Places {
		pl.place(&part.Places[i], pl.placing[i])
	}
	for _, u := range part.Updates {
		a := *state.Allocs.Get(pl, u.ID)
		a.JobVersion = pl.p.JobVersion
		a.Resources = structs.GroupVector(pl.job.Group(a.Group))
		a.EvalID = pl.p.EvalID
		pl.serverWrote(&a)
	}
}

func (pl *planApply) place(p *structs.PlanPlace, id structs.AllocID) {
	n := pl.nodes[p.Node]
	at := groupKey{pl.version(p), p.Group}
	a := &structs.Allocation{
		ID: id, EvalID: pl.p.EvalID, Namespace: pl.job.Namespace, JobID: pl.job.ID, JobVersion: at.version,
		Group: pl.group(at).Name, NameIndex: p.Index, NodeID: n.ID, NodeName: n.Name, Resources: pl.vector[at],
		Grants: p.Grants, Ports: p.Ports, Cores: p.Cores, Desired: structs.DesiredRun, WaitsOn: p.WaitsOn,
		CreateTime: pl.time, CreateIndex: pl.index, Client: structs.ClientPending, Expect: p.Expect,
	}
	line := structs.Lineage{Previous: p.Previous, Reschedules: p.Resched, Restarts: p.Restarts, Requeues: p.Requeues, RestartReason: p.Reason}
	if w := state.Workloads.Get(pl, pl.key); w != nil {
		line.Preempted = w.Preempted
	}
	line.Resume = pl.resume(pl.group(at), &line)
	a.SetLineage(line)
	a.Suspension = pl.inheritedSuspension(pl.group(at))
	pl.serverWrote(a)
	pl.countReturn(a)
	if pl.p.LinkNext && !p.Previous.IsZero() {
		if prev := state.Allocs.Get(pl, p.Previous); prev != nil && prev.JobKey() == pl.key {
			c := *prev
			c.OwnLineage().Next = a.ID
			pl.serverWrote(&c)
		}
	}
}

// resume returns the checkpoint that new work resumes from, or nil: the newest of the allocation that it replaces, or
// the newest complete one of its gang. While the gang has none, that is the one from which its members resumed. Before gangs
// were observed (structs.GangCheckpoint), it is the newest of any member.
func (pl *planApply) resume(g *structs.Group, line *structs.Lineage) *structs.Saved {
	if g.Checkpoint == nil {
		return nil
	}
	of := func(o *structs.Allocation) *structs.Saved { return o.Lineage().Resume.Newer(o.Saved) }
	if g.Gang == nil {
		if o := state.Allocs.Get(pl, line.Previous); o != nil && o.JobKey() == pl.key {
			return of(o)
		}
		return nil
	}
	if line.Previous.IsZero() && line.Restarts == 0 {
		return nil // the job starts from the beginning
	}
	newest, known := pl.saved[g.Name]
	if !known { // once per gang and plan
		newest = pl.resumeGang(g.Name, of)
		if pl.saved == nil {
			pl.saved = map[structs.GroupName]*structs.Saved{}
		}
		pl.saved[g.Name] = newest
	}
	return newest
}

// resumeGang is resume for a gang. of returns the newest checkpoint that one allocation knows.
func (pl *planApply) resumeGang(group structs.GroupName, of func(*structs.Allocation) *structs.Saved) (newest *structs.Saved) {
	if r := state.Rosters.Get(pl, structs.RosterKey{Job: pl.key, Group: group}); r != nil && r.Checkpoint != nil && r.Checkpoint.Parts > 0 {
		if r.Checkpoint.Newest != nil {
			return r.Checkpoint.Newest
		}
		of = func(o *structs.Allocation) *structs.Saved { return o.Lineage().Resume }
	}
	for _, o := range pl.AllocsByJob(pl.key) {
		if o.Group == group && o.CreateIndex < pl.index && o.CreateIndex >= pl.job.CreateIndex {
			newest = newest.Newer(of(o))
		}
	}
	return newest
}

func (pl *planApply) stop(s *structs.PlanStop) {
	old := state.Allocs.Get(pl, s.ID)
	if old == nil {
		return // collected meanwhile: as good as stopped
	}
	a := *old
	if s.Desired != "" && a.Desired == structs.DesiredRun {
		a.Desired, a.DesiredDesc, a.OwnLineage().Asked = structs.Share(s.Desired), s.Desc, pl.time
		a.EndsFor(s.Cause)
		if !s.Preempt.IsZero() {
			a.OwnLineage().PreemptedBy = s.Preempt
			if s.Desired == structs.DesiredEvict && !a.ClientTerminal() {
				pl.preempted(&a)
			}
		}
	}
	if !s.Followup.IsZero() {
		a.OwnLineage().FollowupEval = s.Followup
	}
	if s.Client != "" && !a.ClientTerminal() {
		a.Client, a.ClientDesc = structs.Share(s.Client), structs.Share(s.Desc)
		switch s.Client {
		case structs.ClientLost:
			a.FinishedAt = pl.time
			pl.attain(&a)
			pl.lostWithNode(&a)
			pl.loses(&a, old.Desired == structs.DesiredRun)
		case structs.ClientUnknown:
			if a.Lineage().DisconnectedAt == 0 {
				a.OwnLineage().DisconnectedAt = pl.time
			}
		}
	}
	pl.serverWrote(&a)
	if a.JobKey() != pl.key && !old.Terminal() {
		pl.evalOf(old, structs.TriggerPreemption, nil)
	}
}

// evaluations writes the evaluations of the plan. Unless every part was accepted, the deciding evaluation stays open
// and the results about the rest (a blocked evaluation, the reason of waiting) are dropped, because they will be
// computed again.
func (pl *planApply) evaluations(whole bool) {
	for i, e := range pl.p.Evals {
		if !whole && (e.Status == structs.EvalBlocked || e.ID == pl.p.EvalID) {
			continue
		}
		pl.putEval(e, i)
		if e.Trigger == structs.TriggerRollingUpdate && !e.Terminal() && pl.Has(feature.OneRollingUpdate) {
			pl.oneRollingUpdate(e)
		}
	}
	w := pl.p.Workload
	if w == nil || !whole {
		return
	}
	old := state.Workloads.Get(pl, pl.key)
	if old == nil {
		return
	}
	n := *old // a plan does not change place in the queue, priority and queue
	n.BlockedEval, n.Reason, n.Position, n.Waiting = w.BlockedEval, w.Reason, w.Position, w.Waiting
	n.Amount, n.StartEst, n.Told = w.Amount, w.StartEst, w.Told
	n.Spent = w.Spent
	n.Met = n.Met || w.Met && pl.job != nil && pl.job.Version == pl.p.JobVersion
	if n != *old {
		n.ModifyIndex = pl.index
		state.Workloads.Put(pl, &n)
	}
}

// oneRollingUpdate cancels the evaluations that were to continue a rolling update before the newest one: every decision makes
// one, and each of them would make the next.
func (pl *planApply) oneRollingUpdate(newest *structs.Evaluation) {
	for _, e := range pl.EvalsByJob(newest.JobKey()) {
		if e.Trigger == structs.TriggerRollingUpdate && !e.Terminal() && e.ID != newest.ID && e.ID != pl.p.EvalID {
			pl.cancelEval(e, newest.ID, "superseded by evaluation "+newest.ID.Short())
		}
	}
}
