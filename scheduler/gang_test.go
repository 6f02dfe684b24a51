package scheduler_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// applyRosters writes the rosters of a plan, as Apply does.
func (w *world) applyRosters(e *structs.PlanEntry) {
	for _, in := range e.Rosters {
		old := w.gangs[in.Key()]
		n := *in
		if w.jobs[in.Key().Job] == nil {
			continue
		}
		there := slices.DeleteFunc(slices.Clone(in.Members), func(m structs.RosterMember) bool {
			a := w.allocs[m.Alloc]
			if a != nil && a.CreateIndex != w.index+1 && (old == nil || old.Rank(a.ID) < 0) {
				return true // of a gang that was dissolved since the decision
			}
			return a == nil || a.ServerTerminal() || a.ClientTerminal() && a.Client != structs.ClientComplete
		})
		if old != nil && len(there) < w.jobs[in.Key().Job].Group(in.Group).Least() {
			for _, m := range old.Members { // fewer than the minimum: Settle ends them
				if a := w.allocs[m.Alloc]; a != nil && !slices.ContainsFunc(there, func(x structs.RosterMember) bool { return x.Alloc == m.Alloc }) {
					there = append(there, m)
				}
			}
		}
		n.Members = there
		if len(n.Members) == 0 {
			continue
		}
		n.Epoch = 1
		if old != nil {
			n.Epoch, n.Restarts, n.AvoidNodes, n.Suspects = old.Epoch+1, old.Restarts, old.AvoidNodes, nil
			n.Checkpoint = old.Checkpoint
		}
		n.Deadline = w.jobs[in.Key().Job].Group(in.Group).GangDeadline(w.now)
		w.gangs[in.Key()] = &n
		if old == nil || len(old.Members) == 0 {
			w.counts["gangs placed"]++
		} else if len(n.Members) > len(old.Members) {
			w.counts["gangs grown"]++
		}
	}
}

// tookStandbys counts the places of standbys that a part takes over.
func (w *world) tookStandbys(part *structs.PlanPart) {
	for i := range part.Places {
		for _, id := range part.Places[i].WaitsOn {
			if a := w.allocs[id]; a != nil && a.IsStandby() {
				w.counts["standbys used"]++
			}
		}
	}
}

// settleGangs updates rosters to the allocations, as Apply does at every index.
func (w *world) settleGangs() {
	var keys []structs.RosterKey
	for k := range w.gangs {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b structs.RosterKey) int {
		if a.Less(b) {
			return -1
		}
		return 1
	})
	find := func(id structs.AllocID) *structs.Allocation { return w.allocs[id] }
	for _, k := range keys {
		j := w.jobs[k.Job]
		if j == nil {
			delete(w.gangs, k)
			continue
		}
		var tg *structs.Group
		if j.Placeable() {
			tg = j.Group(k.Group)
		}
		old := w.gangs[k]
		w.settled(old, tg, j.Type == structs.JobBatch, find)
		if next := w.gangs[k]; tg != nil && tg.Joint && next.Restarts > old.Restarts {
			w.endOthers(j, next.Reason, find)
		}
	}
}

// endOthers ends the joint groups of a job that have members, as Apply does when one was ended.
func (w *world) endOthers(j *structs.Job, reason string, find func(structs.AllocID) *structs.Allocation) {
	for _, g := range j.Groups {
		if ro := w.gangs[structs.RosterKey{Job: j.Key(), Group: g.Name}]; g.Joint && ro != nil && len(ro.Members) > 0 {
			w.counts["joint groups ended"]++
			next, stop := ro.End(reason, find)
			w.takeRoster(ro, next, stop)
		}
	}
}

func (w *world) settled(old *structs.Roster, tg *structs.Group, batch bool, find func(structs.AllocID) *structs.Allocation) {
	next, stop := old.Settle(tg, batch, find)
	w.takeRoster(old, next, stop)
}

func (w *world) takeRoster(old, next *structs.Roster, stop []structs.AllocID) {
	if next == nil {
		return
	}
	w.gangs[old.Key()] = next
	for _, id := range stop {
		a := *w.allocs[id]
		a.Desired, a.DesiredDesc = structs.DesiredStop, "the gang is started again"
		w.putAlloc(&a)
	}
	switch {
	case next.Restarts > old.Restarts:
		w.counts["gangs restarted"]++
	case len(next.Members) < len(old.Members):
		w.counts["gangs reduced"]++
	}
	if next.Epoch != old.Epoch {
		w.addEval(old.Key().Job, structs.TriggerRetryFailed)
	}
}

// timeouts ends the assembly of gangs whose time is over, as the leader's service and Apply do.
func (w *world) timeouts() (n int) {
	find := func(id structs.AllocID) *structs.Allocation { return w.allocs[id] }
	for _, ro := range w.gangs {
		if ro.Deadline != 0 && ro.Deadline <= w.now {
			next, stop := ro.Dissolve(structs.RosterTimeout, find)
			w.takeRoster(ro, next, stop)
			if j := w.jobs[ro.Key().Job]; j != nil && j.Group(ro.Group) != nil && j.Group(ro.Group).Joint {
				w.endOthers(j, next.Reason, find)
			}
			n++
		}
	}
	return n
}

// preempted counts an eviction, as Apply does.
func (w *world) preempted(e *structs.PlanEntry, a *structs.Allocation, s *structs.PlanStop) {
	if s.Preempt.IsZero() {
		return
	}
	line := a.OwnLineage()
	line.PreemptedBy, line.Asked = s.Preempt, w.now
	if s.Desired != structs.DesiredEvict {
		w.counts["shrunk"]++
		return
	}
	w.counts["evicted"]++
	key := a.JobKey()
	for _, b := range w.allocs {
		if b.JobKey() == key && b.ID != a.ID && b.Lineage().Asked == w.now && b.Lineage().PreemptedBy != (structs.AllocID{}) && b.Desired == structs.DesiredEvict {
			return // counted once a pass
		}
	}
	q := structs.Workload{Namespace: key.Namespace, JobID: key.ID}
	if old := w.queue[key]; old != nil {
		q = *old
	}
	q.Preempted++
	w.queue[key] = &q
	queue := structs.QueueDefault
	if j := w.jobs[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]; j != nil {
		queue = j.QueueName()
	}
	for _, p := range w.taken {
		if p.Queue == queue {
			p.Recent, p.Total = append(p.Recent, w.now), p.Total+1
			return
		}
	}
	w.taken = append(w.taken, &structs.Preemptions{Queue: queue, Recent: []structs.LogTime{w.now}, Total: 1})
}

// grows reports whether some gang may grow beyond its minimum, or get standbys.
func (w *world) grows() bool {
	for _, j := range w.jobs {
		for _, g := range j.Groups {
			if g.Gang != nil && (g.Least() < g.Most() || g.Gang.Standby > 0) || g.Elastic != nil {
				return true
			}
		}
	}
	return false
}

// partial removes one member from a gang's minimum: Verify must refuse the part.
func (w *world) partial(e *structs.PlanEntry) {
	for i := range e.Parts {
		p := e.Parts[i]
		if len(p.Places) < 2 || e.Job == nil {
			continue
		}
		tg := e.Job.Group(e.Groups[p.Places[0].Group])
		if tg == nil || tg.Gang == nil || tg.IsStandby(p.Places[0].Index) {
			continue
		}
		members := 0
		for _, x := range p.Places {
			if !tg.IsStandby(x.Index) {
				members++
			}
		}
		if members != tg.Least() || members == 1 && len(p.Places) > 1 { // standbys only: Apply checks those
			continue
		}
		cut := *e
		cut.Parts = slices.Clone(e.Parts)
		p.Places = p.Places[1:]
		cut.Parts[i] = p
		cut.Rosters = nil
		v := verify.Verify(w.view, w.flight, &cut)
		w.check(!v.Accepted[i], "Verify accepts a gang %s with %d of at least %d members", e.JobID, members-1, tg.Least())
		w.counts["parts of gangs cut"]++
	}
}

// cutShort reports that a part would leave a gang below its minimum, because members have ended since the decision.
// Verify assumes that the members of a roster run; Apply checks, as here.
func (w *world) cutShort(e *structs.PlanEntry, part *structs.PlanPart) bool {
	j := w.jobs[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]
	for _, p := range part.Places {
		tg := j.Group(e.Groups[p.Group])
		if tg == nil || tg.Gang == nil {
			continue
		}
		ro, n := w.gangs[structs.RosterKey{Job: structs.JobKey{Namespace: e.Namespace, ID: e.JobID}, Group: tg.Name}], 0
		for _, a := range w.allocs {
			stops := slices.ContainsFunc(part.Stops, func(s structs.PlanStop) bool {
				return s.ID == a.ID && (s.Desired != "" || s.Client == structs.ClientLost)
			})
			done := ro != nil && ro.Rank(a.ID) >= 0 && !a.ServerTerminal() && a.Client == structs.ClientComplete && j.Type == structs.JobBatch
			if a.JobID == e.JobID && a.Namespace == e.Namespace && a.Group == tg.Name && !a.IsStandby() && (!a.Terminal() && !stops || done) {
				n++
			}
		}
		for _, q := range part.Places {
			if q.Group == p.Group && !tg.IsStandby(q.Index) {
				n++
			}
		}
		if n < tg.Least() {
			w.counts["gangs refused for lost members"]++
			return true
		}
	}
	return false
}

// auditGangs checks that no gang runs partly, that no two members of one share a GPU, and that rosters are true.
func (w *world) auditGangs() {
	type place struct {
		key  structs.RosterKey
		node structs.NodeID
		gpu  string
	}
	live, standbys, ending := map[structs.RosterKey]int{}, map[structs.RosterKey]int{}, map[structs.RosterKey]int{}
	taken := map[place]structs.AllocID{}
	for _, a := range w.allocs {
		j := w.jobs[a.JobKey()]
		if j == nil || !j.Placeable() {
			continue
		}
		tg := j.Group(a.Group)
		if !tg.IsGang() {
			continue
		}
		k := structs.RosterKey{Job: a.JobKey(), Group: a.Group}
		ro := w.gangs[k]
		switch {
		case a.IsStandby():
			w.check(ro == nil || ro.Rank(a.ID) < 0, "a standby of gang %v is on its roster", k)
			if !a.Terminal() && a.Job.Version == j.Version {
				standbys[k]++
			}
		case !a.Terminal() || ro != nil && ro.Rank(a.ID) >= 0 && a.Client == structs.ClientComplete:
			live[k]++
		case structs.Holds(a):
			ending[k]++
		}
		if structs.Holds(a) && tg.Gang != nil {
			for _, g := range a.Grants {
				at := place{k, a.NodeID, g.Instance}
				other := w.allocs[taken[at]]
				w.check(other == nil || other.ID == a.ID || slices.Contains(a.WaitsOn, other.ID) || slices.Contains(other.WaitsOn, a.ID), "two members of gang %v have GPU %s", k, g.Instance)
				taken[at] = a.ID
			}
		}
	}
	for k, n := range standbys {
		w.counts["standbys held"]++
		w.check(n <= w.jobs[k.Job].Group(k.Group).Gang.Standby, "gang %v holds %d standbys and asks for %d", k, n, w.jobs[k.Job].Group(k.Group).Gang.Standby)
		if live[k] == 0 && ending[k] == 0 { // the gang waits: its standbys are about to be given back
			due := false
			for _, e := range w.evals {
				due = due || e.JobKey() == k.Job && e.Status == structs.EvalPending && e.WaitUntil <= w.now
			}
			w.check(due || w.flight.HasJob(k.Job), "gang %v waits and holds %d standbys", k, n)
		}
	}
	for k, n := range live {
		tg := w.jobs[k.Job].Group(k.Group)
		ro := w.gangs[k]
		w.check(n >= tg.Least() || ro != nil && ro.Epoch == w.least[k].epoch && n >= w.least[k].least, "gang %v has %d of at least %d members", k, n, tg.Least())
		if n >= tg.Least() && ro != nil {
			w.least[k] = leastOf{ro.Epoch, n}
		}
	}
	w.auditJoint(live)
}

// auditJoint checks that no joint group runs without the others, once a version of its job has run as a whole. live is the
// number of members by gang.
func (w *world) auditJoint(live map[structs.RosterKey]int) {
	for key, j := range w.jobs {
		if !j.IsJoint() || !j.Placeable() {
			continue
		}
		some, all := false, true
		for _, g := range j.Groups {
			if g.Joint && g.Count > 0 {
				on := live[structs.RosterKey{Job: key, Group: g.Name}] > 0
				some, all = some || on, all && on
			}
		}
		switch {
		case some && all:
			w.counts["joint jobs ran"]++
			w.whole[key] = j.SpecIndex
		case some:
			w.check(w.whole[key] != j.SpecIndex, "some groups of all_at_once job %s run without the others", key)
		}
	}
}

// leastOf is how many members a gang has had since an epoch: a new version may ask for more than it has.
type leastOf struct {
	epoch uint64
	least int
}

// putQueue makes or changes a queue.
func (w *world) putQueue(q *structs.Queue) {
	if w.queues == nil {
		w.queues = &contend.QueueTable{}
	}
	w.queues.Queues = slices.DeleteFunc(w.queues.Queues, func(o *structs.Queue) bool { return o.Path == q.Path })
	w.queues.Queues = append(w.queues.Queues, q)
	slices.SortFunc(w.queues.Queues, func(a, b *structs.Queue) int { return cmp.Compare(a.Path, b.Path) })
}

// queueTable is the queues with what they hold; nil when there are none.
func (w *world) queueTable() *contend.QueueTable {
	if w.queues == nil {
		return nil
	}
	t := &contend.QueueTable{Queues: w.queues.Queues, Total: w.queues.Total, Tenants: w.queues.Tenants}
	for _, n := range t.Tenants {
		u := &structs.QueueUsage{Path: structs.UseNamespace(n.Namespace)}
		for _, a := range w.allocs {
			if structs.Holds(a) && a.Namespace == n.Namespace {
				u.Held = u.Held.Add(structs.AmountOf(a))
			}
		}
		t.Usage = append(t.Usage, u)
	}
	for _, q := range t.Queues {
		u := &structs.QueueUsage{Path: q.Path}
		for _, a := range w.allocs {
			if structs.Holds(a) && a.Job != nil && q.Path.Contains(a.Job.QueueName()) {
				u.Held = u.Held.Add(structs.AmountOf(a))
			}
		}
		t.Usage = append(t.Usage, u)
	}
	return t
}

// TestSmallerGangKeepsMembers: a member whose index is beyond a smaller gang is replaced under the index of a member,
// not of a standby, and no index is given twice.
func TestSmallerGangKeepsMembers(t *testing.T) {
	old := job("train", 2)
	old.Groups[0].Gang = &structs.Gang{Min: 1, Standby: 1}
	j := job("train", 1)
	j.Version, j.SpecIndex = 1, 9
	j.Groups[0].Gang = &structs.Gang{Min: 1, Standby: 1}
	j.Groups[0].Tasks[0].Resources.MemoryMiB = 300
	nodes := []*structs.Node{node(1), node(2)}
	a := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "train", Job: old, Group: "g", NameIndex: 1, NodeID: nodes[0].ID, Resources: structs.GroupVector(old.Groups[0]),
		Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateIndex: 6}
	v := model.NewView(7, nodes, []*structs.Allocation{a}, nil)
	plan, _ := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{load(j, 1, a)}}, binpack)
	var got []int
	for _, e := range plan.Entries {
		for _, p := range e.Parts {
			for _, x := range p.Places {
				got = append(got, x.Index)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{0, 1}) {
		t.Errorf("placed indexes %v, want the member as 0 and the standby as 1", got)
	}
}

// TestSpentGangDoesNotGrow: when a batch gang has used up its run time, no member joins in the place of another.
func TestSpentGangDoesNotGrow(t *testing.T) {
	j := job("train", 4)
	j.Type = structs.JobBatch
	j.Groups[0].Gang = &structs.Gang{Min: 2}
	j.Groups[0].MaxRunDuration = time.Minute
	now := structs.LogTime(time.Hour)
	n := node(1)
	var as []*structs.Allocation
	for i := range 2 {
		as = append(as, &structs.Allocation{ID: structs.AllocID{byte(i + 1)}, Namespace: "default", JobID: "train", Job: j, Group: "g", NameIndex: i, NodeID: n.ID,
			Resources: structs.GroupVector(j.Groups[0]), Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateIndex: 6, CreateTime: 1, StartedAt: 1})
	}
	roster := &structs.Roster{Namespace: "default", JobID: "train", Group: "g", Epoch: 1, Members: []structs.RosterMember{{Alloc: as[0].ID}, {Alloc: as[1].ID}}}
	for _, stopped := range []bool{false, true} {
		for i := range as {
			if a := *as[i]; stopped {
				a.Desired, a.DesiredDesc = structs.DesiredStop, structs.DescMaxRun
				as[i] = &a
			}
		}
		l := load(j, 1, as...)
		l.Rosters = []*structs.Roster{roster}
		plan, _ := scheduler.Schedule(scheduler.Input{View: model.NewView(7, []*structs.Node{n}, as, nil), Now: now, Pending: []contend.Workload{l}}, binpack)
		for _, e := range plan.Entries {
			for _, p := range e.Parts {
				if len(p.Places) > 0 {
					t.Errorf("stopped %v: %d members join", stopped, len(p.Places))
				}
			}
		}
	}
}
