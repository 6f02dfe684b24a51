package fsm

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// placeJoint registers an all_at_once job of a gang of two and a group of one, and places it. It returns the allocations of
// both groups.
func placeJoint(t *testing.T, c *cluster) (gang, other []structs.AllocID) {
	t.Helper()
	j := benchJob("train", 2)
	j.Type, j.AllAtOnce = structs.JobBatch, true
	ps := *j.Groups[0]
	ps.Name, ps.Count = "ps", 1
	j.Groups[0].Gang = &structs.Gang{}
	j.Groups = append(j.Groups, &ps)
	j.Join()
	res := c.register(j)
	p := c.planFor("train", res.EvalID, 0, 3)
	p.Groups = []structs.GroupName{j.Groups[0].Name, "ps"}
	var places []structs.PlanPlace
	for i := range p.Parts {
		places = append(places, p.Parts[i].Places...)
	}
	places[2].Group, places[2].Index = 1, 0
	rosters := []*structs.Roster{{Namespace: "default", JobID: "train", Group: p.Groups[0], Reason: structs.RosterPlaced}, {Namespace: "default", JobID: "train", Group: "ps", Reason: structs.RosterPlaced}}
	for _, x := range places {
		m := structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, p.Groups[x.Group], x.Index), Index: x.Index, Node: p.Nodes[x.Node].ID, Name: "n"}
		rosters[x.Group].Members = append(rosters[x.Group].Members, m)
		if x.Group == 0 {
			gang = append(gang, m.Alloc)
		} else {
			other = append(other, m.Alloc)
		}
	}
	p.Parts, p.Rosters = []structs.PlanPart{{Places: places[:2]}}, rosters
	if r := c.apply(p).Plan; r.Accepted[0] || !strings.Contains(r.Refused, `group "ps" of the all_at_once job would have 0 of at least 1 allocations`) {
		t.Fatalf("the gang was placed without the other group: %+v", r)
	}
	p.Parts = []structs.PlanPart{{Places: places}}
	if r := c.apply(p).Plan; !r.Accepted[0] {
		t.Fatal(r.Refused)
	}
	return gang, other
}

// TestJointGroupsEndTogether: in the entry in which one allocation of an all_at_once job ends, the others of all groups
// stop, whichever group it is of, and what has ended well is not counted any more. Success ends nothing.
func TestJointGroupsEndTogether(t *testing.T) {
	observe := func(c *cluster, id structs.AllocID, as structs.ClientStatus) {
		c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: as, ClientDesc: "task a failed"}}})
	}
	for name, test := range map[string]struct {
		happens func(c *cluster, gang, other []structs.AllocID)
		desc    string // of those that stop; "": none does
		reason  string
	}{
		"the group of one fails": {func(c *cluster, gang, other []structs.AllocID) { observe(c, other[0], structs.ClientFailed) },
			"an allocation of the all_at_once job failed: train.ps[0] on n: task a failed", structs.RosterLost},
		"a member fails": {func(c *cluster, gang, other []structs.AllocID) { observe(c, gang[1], structs.ClientFailed) },
			"an allocation of the all_at_once job failed: train.group[1] on n: task a failed", structs.RosterLost},
		"a member is preempted": {func(c *cluster, gang, other []structs.AllocID) {
			p := c.planFor("train", c.f.Snapshot().AllocByID(gang[0]).EvalID, 3, 0)
			p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: gang[0], Desired: structs.DesiredEvict, Desc: "preempted by job boss", Preempt: structs.AllocID{9}}}}}
			c.apply(p)
		}, "an allocation of the all_at_once job was preempted: train.group[0] on n: preempted by job boss", structs.RosterPreempted},
		"the gang succeeds, then the other fails": {func(c *cluster, gang, other []structs.AllocID) {
			observe(c, gang[0], structs.ClientComplete)
			observe(c, gang[1], structs.ClientComplete)
			observe(c, other[0], structs.ClientFailed)
		}, "", structs.RosterLost},
		"the gang succeeds": {func(c *cluster, gang, other []structs.AllocID) {
			observe(c, gang[0], structs.ClientComplete)
			observe(c, gang[1], structs.ClientComplete)
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			gang, other := placeJoint(t, c)
			for _, id := range append(gang, other...) {
				observe(c, id, structs.ClientRunning)
			}
			test.happens(c, gang, other)
			s := c.f.Snapshot()
			told := 0
			for _, id := range append(gang, other...) {
				a := s.AllocByID(id)
				if a.Desired == structs.DesiredStop && strings.HasPrefix(a.DesiredDesc, descJoint) {
					told++
					if a.DesiredDesc != test.desc {
						t.Errorf("%s is told to stop because %q, want %q", a.Name(), a.DesiredDesc, test.desc)
					}
				}
				if !a.Terminal() && test.reason != "" {
					t.Errorf("%s goes on", a.Name())
				}
			}
			if (told > 0) != (test.desc != "") {
				t.Errorf("%d are told to stop because of another group", told)
			}
			for _, ro := range s.RostersByJob(structs.JobKey{Namespace: "default", ID: "train"}) {
				if ended := len(ro.Members) == 0; ended != (test.reason != "") || ended && (ro.Reason != test.reason || ro.Restarts != 1) {
					t.Errorf("roster of %s: %d members, %s, %d restarts", ro.Group, len(ro.Members), ro.Reason, ro.Restarts)
				}
			}
		})
	}
}

// TestCountsMakeAJobJoint: whether the groups of an all_at_once job run as one is decided again when counts change.
func TestCountsMakeAJobJoint(t *testing.T) {
	c := newCluster(t, 1)
	j := benchJob("train", 1)
	j.Type, j.AllAtOnce = structs.JobBatch, true
	j.Join()
	c.register(j)
	for _, n := range []int64{1, 2, 1} {
		c.apply(&structs.ScaleCommand{Namespace: "default", JobID: "train", Group: j.Groups[0].Name, Count: &n})
		if got := state.Jobs.Get(c.f.Snapshot(), structs.JobKey{Namespace: "default", ID: "train"}); got.IsJoint() != (n > 1) || got.Groups[0].Count != int(n) {
			t.Errorf("scaled to %d: joint %v, count %d", n, got.IsJoint(), got.Groups[0].Count)
		}
	}
}

// TestJobBecomesJoint: an allocation that ended well and ran before an update made its group joint is in no roster. It counts for its
// group, or the other groups of the job could never be placed.
func TestJobBecomesJoint(t *testing.T) {
	c := newCluster(t, 3)
	version := func(joint bool) *structs.Job {
		j := benchJob("train", 1)
		j.Type, j.AllAtOnce = structs.JobBatch, joint
		ps := *j.Groups[0]
		ps.Name = "ps"
		j.Groups = append(j.Groups, &ps)
		j.Join()
		return j
	}
	plan := func(res structs.Result, group structs.GroupName, places int) *structs.PlanEntry {
		p := c.planFor("train", res.EvalID, 0, places)
		p.Groups, p.JobVersion = []structs.GroupName{group}, res.Version
		return p
	}
	apply := func(p *structs.PlanEntry) {
		t.Helper()
		if r := c.apply(p).Plan; !r.Accepted[0] {
			t.Fatal(r.Refused)
		}
	}
	first := plan(c.register(version(false)), "ps", 1)
	apply(first)
	ps := structs.DeriveAllocID(first.EvalID, first.SnapshotIndex, "ps", 0)

	res := c.register(version(true))
	update := plan(res, "ps", 0)
	update.Parts = []structs.PlanPart{{Updates: []structs.PlanUpdate{{ID: ps}}}}
	apply(update)
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: ps, Client: structs.ClientComplete}}})
	if a := c.f.Snapshot().AllocByID(ps); a.JobVersion != res.Version || a.Client != structs.ClientComplete {
		t.Fatalf("version %d, %s", a.JobVersion, a.Client)
	}

	next := plan(res, "group", 1)
	member := structs.RosterMember{Alloc: structs.DeriveAllocID(next.EvalID, next.SnapshotIndex, "group", 0), Node: next.Nodes[0].ID, Name: "n"}
	next.Rosters = []*structs.Roster{{Namespace: "default", JobID: "train", Group: "group", Reason: structs.RosterPlaced, Members: []structs.RosterMember{member}}}
	apply(next)
}
