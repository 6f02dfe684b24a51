package fsm

import (
	"strconv"
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// lostBy returns what the jobs of a queue have lost.
func lostBy(c *cluster, queue structs.QueuePath) structs.QueueLoss { return preemptions(c, queue).Lost }

func preemptions(c *cluster, queue structs.QueuePath) structs.Preemptions {
	for p := range c.f.Snapshot().Preempted() {
		if p.Queue == queue {
			return *p
		}
	}
	return structs.Preemptions{}
}

// TestQueueLosses: work that ends after ten seconds on a GPU is lost to its queue if it was preempted, moved or lost with its
// node, once, and with it that of a gang which ends because of it. What ends for another reason is not, and services lose
// nothing.
func TestQueueLosses(t *testing.T) {
	evict := structs.PlanStop{Desired: structs.DesiredEvict, Preempt: structs.AllocID{9}}
	lost := structs.PlanStop{Desired: structs.DesiredStop, Client: structs.ClientLost}
	for name, test := range map[string]struct {
		format structs.Format // 0: the newest
		edit   func(*structs.Job)
		gang   bool
		moves  bool
		stop   structs.PlanStop // of the first allocation of two; none if it is zero
		ends   structs.ClientStatus
		purge  bool // the node of the first
		want   structs.QueueLoss
	}{
		"preempted":                    {stop: evict, ends: structs.ClientComplete, want: structs.QueueLoss{Preempt: 10}},
		"preempted by an older server": {format: feature.Oldest, stop: evict, ends: structs.ClientComplete},
		"a preempted service":          {edit: func(j *structs.Job) { j.Type = structs.JobService }, stop: evict, ends: structs.ClientComplete},
		"a preempted gang":             {gang: true, stop: evict, ends: structs.ClientComplete, want: structs.QueueLoss{Preempt: 20}},
		"its node is lost":             {stop: lost, want: structs.QueueLoss{Node: 10}},
		"the node of a gang is lost":   {gang: true, stop: lost, ends: structs.ClientFailed, want: structs.QueueLoss{Node: 20}},
		"its node is purged":           {purge: true, want: structs.QueueLoss{Node: 10}},
		"lost while it was stopping":   {stop: structs.PlanStop{Desired: structs.DesiredStop}, purge: true},
		"preempted, then lost":         {stop: evict, purge: true, want: structs.QueueLoss{Preempt: 10}},
		"drained":                      {moves: true, stop: structs.PlanStop{Desired: structs.DesiredStop}, ends: structs.ClientComplete, want: structs.QueueLoss{Drain: 10}},
		"stopped":                      {stop: structs.PlanStop{Desired: structs.DesiredStop}, ends: structs.ClientComplete},
		"a gang with a failed program": {gang: true, ends: structs.ClientFailed},
		"failed":                       {ends: structs.ClientFailed},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 20)
			if test.format == 0 {
				test.format = feature.Newest
			}
			c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: test.format, By: "test"})
			j := benchJob("web", 2)
			j.Queue, j.Preemptible = "lab", true
			if test.gang {
				j.Groups[0].Gang = &structs.Gang{}
			}
			if test.edit != nil {
				test.edit(j)
			}
			p := c.planFor("web", c.register(j).EvalID, 0, 2)
			p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
			ro := &structs.Roster{Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
			var ids []structs.AllocID
			for i := range p.Parts[0].Places {
				at := &p.Parts[0].Places[i]
				at.Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: strconv.Itoa(i)}}
				ids = append(ids, structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, at.Index))
				ro.Members = append(ro.Members, structs.RosterMember{Alloc: ids[i], Index: at.Index, Node: p.Nodes[at.Node].ID})
			}
			if test.gang {
				p.JobCreate, p.Rosters = c.f.Snapshot().JobByKey(key).CreateIndex, []*structs.Roster{ro}
			}
			if r := c.apply(p).Plan; !r.Accepted[0] {
				t.Fatal(r.Refused)
			}
			start := structs.LogTime(c.index) * 1e6
			report := func(ids []structs.AllocID, st structs.ClientStatus) {
				for _, id := range ids {
					c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: st, StartedAt: start}}})
				}
			}
			report(ids, structs.ClientRunning)
			c.index += 10_000 // ten seconds
			if test.moves {
				c.apply(&structs.AllocTransitionCommand{IDs: ids[:1], Transition: structs.Transition{Migrate: true}, Trigger: structs.TriggerNodeDrain})
			}
			if s := test.stop; s != (structs.PlanStop{}) {
				of := "web"
				if !s.Preempt.IsZero() {
					of = "high"
				}
				p = c.planFor(of, c.register(benchJob("other", 1)).EvalID, 0, 0)
				if of == "high" {
					p = c.planFor(of, c.register(benchJob(of, 1)).EvalID, 4, 1)
				} else {
					p.Parts = []structs.PlanPart{{}}
				}
				s.ID = ids[0]
				if s.Client != "" {
					c.apply(&structs.NodeStatusCommand{ID: c.f.Snapshot().AllocByID(s.ID).NodeID, Status: structs.NodeDown})
				}
				p.Parts[0].Stops = []structs.PlanStop{s}
				if r := c.apply(p).Plan; !r.Accepted[0] {
					t.Fatal(r.Refused)
				}
			}
			if test.purge {
				c.apply(&structs.NodePurgeCommand{IDs: []structs.NodeID{c.f.Snapshot().AllocByID(ids[0]).NodeID}})
			}
			switch {
			case test.ends != "" && test.gang:
				report(ids, test.ends)
			case test.ends != "":
				report(ids[:1], test.ends)
			}
			if got := lostBy(c, "lab"); got != test.want {
				t.Errorf("the queue lost %+v, want %+v", got, test.want)
			}
			if !test.gang { // a preemption on behalf of the queue keeps what it has lost
				own := benchJob("own", 1)
				own.Queue = "lab"
				p := c.planFor("own", c.register(own).EvalID, 5, 1)
				p.Parts[0].Stops = []structs.PlanStop{{ID: ids[1], Desired: structs.DesiredEvict, Preempt: structs.AllocID{8}}}
				if r := c.apply(p).Plan; !r.Accepted[0] {
					t.Fatal(r.Refused)
				}
				if got := lostBy(c, "lab"); got != test.want {
					t.Errorf("after a preemption on its behalf the queue lost %+v, want %+v", got, test.want)
				}
			}
		})
	}
}
