package fsm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// members counts what is meant to run of a gang, what has succeeded included. What is left of a job of that name that was
// purged is no member.
func members(s *state.Snapshot, j *structs.Job, tg *structs.Group) (n int) {
	r := s.RosterByKey(structs.RosterKey{Job: j.Key(), Group: tg.Name})
	for _, a := range s.AllocsByJob(j.Key()) {
		switch {
		case a.Group != tg.Name || a.CreateIndex < j.CreateIndex || a.IsStandby():
		case !a.Terminal():
			n++
		case r != nil && r.Rank(a.ID) >= 0 && a.Client == structs.ClientComplete && j.Type == structs.JobBatch:
			n++
		}
	}
	if r != nil {
		for _, m := range r.Members {
			if s.AllocByID(m.Alloc) == nil { // it had succeeded, and was collected
				n++
			}
		}
	}
	return n
}

// standbys checks that a gang whose last member has succeeded holds none.
func (r *run) standbys(s *state.Snapshot, j *structs.Job, tg *structs.Group, members int) {
	held, ended := 0, members > 0 && j.Type == structs.JobBatch
	for _, a := range s.AllocsByJob(j.Key()) {
		switch {
		case a.Group != tg.Name || a.CreateIndex < j.CreateIndex || a.Terminal():
		case a.IsStandby():
			held++
		default:
			ended = false
		}
	}
	if ro := s.RosterByKey(structs.RosterKey{Job: j.Key(), Group: tg.Name}); ro == nil || len(ro.Members) < members {
		ended = false
	}
	if held > 0 {
		r.saw("standby held")
	}
	r.check(!ended || held == 0, "gang %s.%s has ended and holds %d standbys", j.Key(), tg.Name, held)
}

// joint checks that no entry leaves some joint groups of a job running without the others. A group that ran before it was
// joint is on no roster, and one of the job with the others from its next start on.
func (r *run) joint(before, after *state.Snapshot, cmd structs.Command) {
	partly := func(s *state.Snapshot, j *structs.Job) (some, missing bool) {
		for _, tg := range j.Groups {
			if tg.Joint && tg.Least() > 0 {
				n := members(s, j, tg)
				some, missing = some || n > 0, missing || n == 0
				if ro := s.RosterByKey(structs.RosterKey{Job: j.Key(), Group: tg.Name}); n > 0 && (ro == nil || len(ro.Members) == 0) {
					return true, true
				}
			}
		}
		return some, missing
	}
	for j := range after.Jobs("", "") {
		was := before.JobByKey(j.Key())
		if !j.IsJoint() || !j.Placeable() || was == nil || was.SpecIndex != j.SpecIndex || isA[*structs.CollectCommand](cmd) {
			continue
		}
		some, missing := partly(after, j)
		had, lacked := partly(before, j)
		r.check(!some || !missing || had && lacked, "all_at_once job %s runs in part after command type %d", j.Key(), typeOf(cmd))
		switch {
		case some && !missing && !had:
			r.saw("joint job placed")
		case !some && had && !lacked:
			r.saw("joint job ended")
		}
	}
}

// gangs checks, after every entry, that every gang is complete or absent (D21) and that rosters are correct.
func (r *run) gangs(before, after *state.Snapshot, cmd structs.Command, res structs.Result, d structs.Delta) {
	for j := range after.Jobs("", "") {
		was := before.JobByKey(j.Key())
		for _, tg := range j.Groups {
			if !tg.IsGang() || isA[*structs.CollectCommand](cmd) || !j.Placeable() || was == nil || was.SpecIndex != j.SpecIndex {
				continue
			}
			n, m := members(before, j, tg), members(after, j, tg)
			r.standbys(after, j, tg, m)
			r.check(m == 0 || m >= tg.Least() || m >= n && n < tg.Least() && m == n, "gang %s.%s has %d members after command type %d, at least %d are needed; before it had %d",
				j.Key(), tg.Name, m, typeOf(cmd), tg.Least(), n)
		}
	}
	r.joint(before, after, cmd)
	for ro := range after.Rosters() {
		j := after.JobByKey(structs.JobKey{Namespace: ro.Namespace, ID: ro.JobID})
		r.check(j != nil, "the roster of %s has no job", ro.JobID)
		if isA[*structs.CollectCommand](cmd) {
			continue
		}
		for _, m := range ro.Members {
			a := after.AllocByID(m.Alloc)
			if a == nil {
				continue // it had ended, and was collected
			}
			r.check(a.Group == ro.Group && !a.ServerTerminal() && (!a.ClientTerminal() || a.Client == structs.ClientComplete), "roster of %s lists %s, which is %s and %s", ro.JobID, m.Alloc, a.Desired, a.Client)
		}
	}
	for _, c := range d.Rosters {
		a, b := c.Before, c.After
		if b == nil {
			continue
		}
		if a == nil {
			r.check(b.Epoch > 0, "a first roster has no epoch")
			r.saw("gang placed")
			continue
		}
		r.check(sameMembers(a.Members, b.Members) || b.Epoch > a.Epoch, "the members of %s changed, its epoch %d did not", b.JobID, b.Epoch)
		if more := b.Resizes.Total() - a.Resizes.Total(); more != 0 { // the list has one change for a batch of entries
			r.check(more > 0 && after.Has(feature.GangResizes) && b.Resizes.At > 0 && b.Resizes.From != b.Resizes.To, "resizes of %s: %+v after %+v", b.JobID, b.Resizes, a.Resizes)
			r.saw("gang resized")
		}
		switch {
		case b.Restarts > a.Restarts && b.Reason == structs.RosterTimeout:
			r.saw("gang timed out")
		case b.Restarts > a.Restarts:
			r.saw("gang restarted")
		case b.Epoch == a.Epoch && a.Deadline != 0 && b.Deadline == 0:
			r.saw("gang assembled")
		case len(b.Members) > len(a.Members) && len(a.Members) > 0:
			r.saw("gang grown")
		case b.Reason == structs.RosterLost && len(b.Members) > 0:
			r.saw("gang went on")
		}
	}
	plans := res.Plans
	if res.Plan != nil {
		plans = append(plans, res.Plan)
	}
	for _, p := range plans {
		if p != nil && strings.Contains(p.Refused, "of at least") {
			r.saw("partial gang refused")
		}
	}
	for _, c := range d.Workloads {
		if c.Before != nil && c.After != nil {
			if c.After.Preempted > c.Before.Preempted {
				r.check(c.After.SubmitIndex == c.Before.SubmitIndex, "a preempted job lost its place in the queue")
				r.saw("job preempted")
			}
			if c.After.Attained > c.Before.Attained {
				r.saw("service attained")
			}
		}
	}
}

// TestRendezvousPort: of what agents report, only the port of node rank 0 for the present epoch is taken, and the first
// one stays.
func TestRendezvousPort(t *testing.T) {
	c := newCluster(t, 3)
	j := benchJob("web", 2)
	j.Groups[0].Gang = &structs.Gang{}
	res := c.register(j)
	p := c.planFor("web", res.EvalID, 0, 2)
	p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
	ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Port: 9, Reason: structs.RosterPlaced}
	for i, place := range p.Parts[0].Places {
		ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place.Index), Node: p.Nodes[place.Node].ID, Index: i})
	}
	p.Rosters = []*structs.Roster{ro}
	if r := c.apply(p).Plan; !r.Accepted[0] {
		t.Fatal(r.Refused)
	}
	roster := func() *structs.Roster { return c.f.Snapshot().RosterByKey(ro.Key()) }
	for _, step := range []struct {
		member int
		epoch  uint64
		port   int
		want   int
	}{
		{0, 1, 0, 0}, {1, 1, 61001, 0}, {0, 2, 61002, 0}, {0, 1, 70000, 0}, {0, 1, 61003, 61003}, {0, 1, 61004, 61003},
	} {
		c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{
			ID: ro.Members[step.member].Alloc, Client: structs.ClientPending, GangEpoch: step.epoch, GangPort: step.port}}})
		if got := roster(); got == nil || got.Epoch != 1 || got.Port != step.want {
			t.Errorf("after %+v the roster is %+v", step, got)
		}
	}
	// A member fails: the port goes with the epoch.
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: ro.Members[1].Alloc, Client: structs.ClientFailed}}})
	if got := roster(); got.Epoch != 2 || got.Port != 0 {
		t.Errorf("the next epoch begins with %+v", got)
	}
}

// TestGangLosesAMemberToAPlan: a plan stops a member (its time is over) and would place another, which is refused, because
// something has changed since the decision. What is left is less than the minimum, and stops in the same entry.
func TestGangLosesAMemberToAPlan(t *testing.T) {
	for _, placed := range []bool{false, true} {
		c := newCluster(t, 3)
		j := benchJob("web", 4)
		j.Groups[0].Gang = &structs.Gang{Min: 2}
		res := c.register(j)
		p := c.planFor("web", res.EvalID, 0, 2)
		p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
		ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
		for _, place := range p.Parts[0].Places {
			ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place.Index), Index: place.Index, Node: p.Nodes[place.Node].ID})
		}
		p.Rosters = []*structs.Roster{ro}
		if r := c.apply(p).Plan; !r.Accepted[0] {
			t.Fatal(r.Refused)
		}
		first, second := ro.Members[0], ro.Members[1]

		p = c.planFor("web", res.EvalID, 2, 1)
		p.SnapshotIndex++ // or the new one would have an id that was given
		place := p.Parts[0].Places
		p.Parts = []structs.PlanPart{{Places: place}, {Stops: []structs.PlanStop{{ID: first.Alloc, Desired: structs.DesiredStop, Desc: "time is over"}}}}
		if !placed {
			p.Nodes[place[0].Node].Epoch += 7
		}
		next := &structs.Roster{Namespace: "default", JobID: "web", Group: ro.Group, Reason: structs.RosterPlaced, Members: []structs.RosterMember{second,
			{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place[0].Index), Index: place[0].Index, Node: p.Nodes[place[0].Node].ID}}}
		p.Rosters = []*structs.Roster{next}
		if r := c.apply(p).Plan; r.Accepted[0] != placed || !r.Accepted[1] {
			t.Fatal(r)
		}
		s := c.f.Snapshot()
		n := members(s, s.JobByKey(j.Key()), j.Groups[0])
		if want := map[bool]int{true: 2, false: 0}[placed]; n != want {
			t.Errorf("another placed: %t: %d members are meant to run, want %d; roster %+v", placed, n, want, s.RosterByKey(ro.Key()))
		}
	}
}

// TestGangSaysWhyItEnds: the remaining members of a gang get a description of which member was lost, and how, and none
// that the gang starts again: no entry knows that.
func TestGangSaysWhyItEnds(t *testing.T) {
	report := func(status structs.ClientStatus, desc string, events ...structs.TaskEvent) func(c *cluster, m structs.RosterMember) {
		return func(c *cluster, m structs.RosterMember) {
			c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: m.Alloc, Client: status, ClientDesc: desc,
				TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"b": {Failed: true}, "a": {Failed: status == structs.ClientFailed, Events: events}})}}})
		}
	}
	plan := func(stop structs.PlanStop) func(c *cluster, m structs.RosterMember) {
		return func(c *cluster, m structs.RosterMember) {
			p := c.planFor("web", c.f.Snapshot().AllocByID(m.Alloc).EvalID, 2, 0)
			stop.ID = m.Alloc
			p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{stop}}}
			c.apply(p)
		}
	}
	ended := structs.TaskEvent{Type: "Terminated", ExitCode: 3}
	again := structs.TaskEvent{Type: "Not Restarting", Fails: true}
	for name, c := range map[string]struct {
		happens func(c *cluster, m structs.RosterMember)
		want    string
	}{
		"failed":          {report(structs.ClientFailed, "task a failed", ended, again), "a member of the gang failed: web.group[0] on n0: task a failed, exit code 3"},
		"killed":          {report(structs.ClientFailed, "task a failed", structs.TaskEvent{Signal: 9, ExitCode: 137}, again), "a member of the gang failed: web.group[0] on n0: task a failed, signal 9"},
		"never started":   {report(structs.ClientFailed, "no such image"), "a member of the gang failed: web.group[0] on n0: no such image"},
		"says much":       {report(structs.ClientFailed, strings.Repeat("\u00e4", 300)), "a member of the gang failed: web.group[0] on n0: " + strings.Repeat("\u00e4", memberDescMax-len("a member of the gang failed: web.group[0] on n0: ")) + "..."},
		"a service ended": {report(structs.ClientComplete, "all tasks have ended well"), "a member of the gang ended: web.group[0] on n0: all tasks have ended well"},
		"stopped":         {plan(structs.PlanStop{Desired: structs.DesiredStop, Desc: "time is over"}), "a member of the gang was stopped: web.group[0] on n0: time is over"},
		"preempted":       {plan(structs.PlanStop{Desired: structs.DesiredEvict, Desc: "for a better one"}), "a member of the gang was preempted: web.group[0] on n0: for a better one"},
		"lost": {func(c *cluster, m structs.RosterMember) {
			c.apply(&structs.NodeStatusCommand{ID: m.Node, Status: structs.NodeDown})
			plan(structs.PlanStop{Client: structs.ClientLost, Desc: "node is down"})(c, m)
		},
			"a member of the gang was lost with its node: web.group[0] on n0"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := newCluster(t, 3)
			j := benchJob("web", 2)
			j.Type = structs.JobService
			j.Groups[0].Gang = &structs.Gang{}
			res := cl.register(j)
			p := cl.planFor("web", res.EvalID, 0, 2)
			p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
			ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
			for i, place := range p.Parts[0].Places {
				ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place.Index), Index: place.Index,
					Node: p.Nodes[place.Node].ID, Name: []string{"n0", "n1"}[i]})
			}
			p.Rosters = []*structs.Roster{ro}
			if r := cl.apply(p).Plan; !r.Accepted[0] {
				t.Fatal(r.Refused)
			}
			if again := cl.f.Snapshot().RosterByKey(ro.Key()).StartedAgain(); again != 0 {
				t.Errorf("a new gang was started again %d times", again)
			}
			c.happens(cl, ro.Members[0])
			s := cl.f.Snapshot()
			if a := s.AllocByID(ro.Members[1].Alloc); a.Desired != structs.DesiredStop || a.DesiredDesc != c.want {
				t.Errorf("the other is to %s because %q, want %q", a.Desired, a.DesiredDesc, c.want)
			}
			if next := s.RosterByKey(ro.Key()); next.Restarts != 1 || next.StartedAgain() != 0 {
				t.Errorf("nothing was placed since, and the roster is %+v", next)
			}
		})
	}
}

// TestResizesAreCounted: an elastic gang that continues with more or fewer members counts it, with its time and both sizes,
// and the decision log has a row of it. A gang that is placed or starts again is not resized, nor is one whose group is not
// elastic, and while an older server may be in the cluster nothing is counted.
func TestResizesAreCounted(t *testing.T) {
	for name, test := range map[string]struct {
		format  structs.Format
		elastic *structs.Elastic
		want    structs.GangResizes
		rows    string
	}{
		"elastic":         {feature.Newest, &structs.Elastic{Min: 1, Max: 3}, structs.GangResizes{Grown: 1, Shrunk: 1, From: 3, To: 2}, "places 2 stops 0 nodes 3, places 0 stops 1 nodes 2"},
		"elastic, before": {feature.Oldest, &structs.Elastic{Min: 1, Max: 3}, structs.GangResizes{}, ""},
		"of a fixed size": {feature.Newest, nil, structs.GangResizes{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: test.format, By: "test"})
			j := benchJob("web", 3)
			j.Groups[0].Gang, j.Groups[0].Elastic = &structs.Gang{Min: 1}, test.elastic
			res := c.register(j)
			ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
			if test.format > feature.Oldest {
				ro.Resizes.Grown = 9 // what a plan says of it does not count
			}
			roster := func() *structs.Roster { return c.f.Snapshot().RosterByKey(ro.Key()) }
			for _, n := range []int{1, 2} { // it is placed with one member, and grows by two
				p := c.planFor("web", res.EvalID, len(ro.Members), n)
				p.SnapshotIndex += structs.Index(len(ro.Members))
				for _, part := range p.Parts {
					place := part.Places[0]
					ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place.Index), Index: place.Index, Node: p.Nodes[place.Node].ID})
				}
				p.Rosters = []*structs.Roster{ro}
				if r := c.apply(p).Plan; r.Refused != "" {
					t.Fatal(r.Refused)
				}
				if n == 1 && roster().Resizes != (structs.GangResizes{}) {
					t.Errorf("a gang that is placed has %+v", roster().Resizes)
				}
			}
			if r := roster(); len(r.Members) != 3 || test.want.Grown > 0 && (r.Resizes.Grown != 1 || r.Resizes.From != 1 || r.Resizes.To != 3) {
				t.Errorf("grown, it has %d members and %+v", len(r.Members), r.Resizes)
			}
			stop := func(id structs.AllocID) {
				p := c.planFor("web", res.EvalID, 3, 0)
				p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: id, Desired: structs.DesiredStop, Desc: "for others"}}}}
				if r := c.apply(p).Plan; r.Refused != "" {
					t.Fatal(r.Refused)
				}
			}
			stop(ro.Members[2].Alloc)
			got := roster().Resizes
			if test.want.At = got.At; got != test.want || got.Total() > 0 != (got.At > 0) {
				t.Errorf("shrunk, it has %+v, want %+v", got, test.want)
			}
			stop(ro.Members[0].Alloc)
			stop(ro.Members[1].Alloc) // the last one: it ends
			if r := roster(); len(r.Members) > 0 || test.want.Grown > 0 && (r.Resizes.Shrunk != 2 || r.Resizes.To != 1) {
				t.Errorf("ended, it has %d members and %+v", len(r.Members), r.Resizes)
			}
			var rows []string
			for r := range c.f.Snapshot().Decisions(0) {
				if r.Kind == structs.DecidedResize && r.JobID == "web" && !r.Node.IsZero() && len(rows) < 2 {
					rows = append(rows, fmt.Sprintf("places %d stops %d nodes %d", r.Places, r.Stops, r.Nodes))
				}
			}
			if strings.Join(rows, ", ") != test.rows {
				t.Errorf("the decision log has %q, want %q", rows, test.rows)
			}
		})
	}
}

// TestGangOfARemovedGroup: when a job no longer has the group of an elastic gang, the end of its members is applied, and is no
// change of its size.
func TestGangOfARemovedGroup(t *testing.T) {
	c := newCluster(t, 2)
	c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Newest, By: "test"})
	j := benchJob("web", 2)
	j.Groups[0].Gang, j.Groups[0].Elastic = &structs.Gang{Min: 1}, &structs.Elastic{Min: 1, Max: 2}
	p := c.planFor("web", c.register(j).EvalID, 0, 2)
	ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
	for _, part := range p.Parts {
		place := part.Places[0]
		ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, place.Index), Index: place.Index, Node: p.Nodes[place.Node].ID})
	}
	p.Rosters = []*structs.Roster{ro}
	if r := c.apply(p).Plan; r.Refused != "" {
		t.Fatal(r.Refused)
	}
	other := benchJob("web", 1)
	other.Groups[0].Name = "other"
	c.register(other)
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: ro.Members[0].Alloc, Client: structs.ClientFailed}}})
	if r := c.f.Snapshot().RosterByKey(ro.Key()); r == nil || len(r.Members) > 1 || r.Resizes != (structs.GangResizes{}) {
		t.Errorf("after a member has failed, the roster is %+v", r)
	}
}

// TestNobodyWaitsForAMemberThatEnded: a member ends well just before or just after its gang grew. Those that were to join it
// stop; those that ran before have the time to assemble until all of it starts again.
func TestNobodyWaitsForAMemberThatEnded(t *testing.T) {
	for name, test := range map[string]struct {
		format structs.Format
		least  int  // its members before it grows
		first  bool // the end is reported before the growth is applied
		live   int  // members that have not ended, after it
		waits  bool // for its deadline
	}{
		"one, before the growth":        {feature.Newest, 1, true, 0, false},
		"one, after the growth":         {feature.Newest, 1, false, 0, false},
		"one of two, after the growth":  {feature.Newest, 2, false, 1, true},
		"one, with servers of format 1": {feature.Oldest, 1, false, 2, false},
		"one of two, before the growth": {feature.Newest, 2, true, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 8)
			c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: test.format, By: "test"})
			j := benchJob("web", 4)
			j.Groups[0].Gang, j.Groups[0].Elastic = &structs.Gang{Min: test.least}, &structs.Elastic{Min: test.least, Max: 4}
			res := c.register(j)
			ro := &structs.Roster{Namespace: "default", JobID: "web", Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
			roster := func() *structs.Roster { return c.f.Snapshot().RosterByKey(ro.Key()) }
			place := func(n int) {
				p := c.planFor("web", res.EvalID, len(ro.Members), n)
				p.SnapshotIndex += structs.Index(len(ro.Members))
				var all structs.PlanPart
				for i, part := range p.Parts {
					x := part.Places[0]
					x.Index = len(ro.Members)
					all.Places = append(all.Places, x)
					ro.Members = append(ro.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, x.Index), Index: x.Index, Node: p.Nodes[p.Parts[i].Places[0].Node].ID})
				}
				p.Parts, p.Rosters = []structs.PlanPart{all}, []*structs.Roster{ro}
				if r := c.apply(p).Plan; !r.Accepted[0] {
					t.Fatal(r.Refused)
				}
			}
			report := func(k int, client structs.ClientStatus) {
				c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: ro.Members[k].Alloc, Client: client, StartedAt: 1, GangEpoch: 1, GangPort: 61001}}})
			}
			place(test.least)
			for k := range test.least {
				report(k, structs.ClientRunning)
			}
			if roster().Port != 61001 {
				t.Fatalf("it has not formed: %+v", roster())
			}
			if test.first {
				report(0, structs.ClientComplete)
			}
			place(2)
			if !test.first {
				report(0, structs.ClientComplete)
			}
			live := 0
			for _, a := range c.f.Snapshot().AllocsByJob(j.Key()) {
				if !a.Terminal() {
					live++
				}
			}
			if r := roster(); live != test.live || r.Deadline != 0 != test.waits {
				t.Fatalf("%d members live, want %d; its time ends at %d: %+v", live, test.live, r.Deadline, r)
			}
			if !test.waits {
				return
			}
			report(1, structs.ClientComplete)
			if r := roster(); r.Deadline != 0 || len(r.Members) != 2 {
				t.Errorf("it has ended well: %+v", r)
			}
		})
	}
}
