package fsm

import (
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// TestDecisionSaysWhy: a row of the decision log has the policy in force, why the job was decided on, who submitted it and
// whom it preempted; while an older server may be in the cluster it has none of it.
func TestDecisionSaysWhy(t *testing.T) {
	for _, format := range []structs.Format{feature.Oldest, feature.Newest} {
		c := newCluster(t, 1)
		c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: format, By: "test"})
		c.queues(&structs.Queue{Path: "research", Order: structs.OrderFair, Preempt: structs.PreemptPriority}, &structs.Queue{Path: "research/nlp", Backfill: structs.BackfillConservative})
		c.placeAll(c.register(service("1", 3)).EvalID, 0, 3)
		own := c.f.Snapshot().AllocsByJob(key)

		job := benchJob("other", 3)
		job.Queue, job.Placement = "research/nlp", "spread"
		e := c.entryBy(&structs.JobRegisterCommand{Job: job, Eval: true}, structs.Submitter{Name: "alice"})
		res, _, _ := c.f.ApplyBatch([]Entry{e})
		if res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		p := c.planFor("other", res[0].EvalID, 0, 2)
		p.QueueEpoch = c.f.Snapshot().QueueByPath("research/nlp").Epoch
		stop := func(i int, why string) structs.PlanStop {
			return structs.PlanStop{ID: own[i].ID, Desc: why, Desired: structs.DesiredEvict, Preempt: structs.AllocID{9}}
		}
		p.Parts[0].Stops = []structs.PlanStop{stop(0, "7 GPU seconds are lost"), stop(1, "7 GPU seconds are lost")}
		p.Parts[1].Stops = []structs.PlanStop{stop(2, "3 GPU seconds are lost")}
		if got := c.apply(p); got.Plan.Refused != "" {
			t.Fatalf("format %d: %s", format, got.Plan.Refused)
		}

		var rows []structs.DecisionRow
		for r := range c.f.Snapshot().Decisions(0) {
			if r.JobID == "other" {
				rows = append(rows, r)
			}
		}
		if len(rows) != 2 {
			t.Fatalf("format %d: %d rows, want 2", format, len(rows))
		}
		for i, r := range rows {
			if r.Kind != structs.DecidedPreempt || r.Stops != int64(2-i) {
				t.Errorf("format %d: row %d is %+v", format, i, r)
			}
			if format < feature.DecisionReasons.Format {
				if r.Policy != "" || r.Reason != "" || r.Actor != "" || r.Victims != nil {
					t.Errorf("format %d has what it does not know: %+v", format, r)
				}
				continue
			}
			if r.Policy != "fair/conservative/priority/spread" || r.Reason != structs.TriggerJobRegister || r.Actor != "alice" {
				t.Errorf("policy %q, reason %q, actor %q", r.Policy, r.Reason, r.Actor)
			}
			want := structs.DecisionVictim{Row: int64(i), Namespace: "default", JobID: "web", Allocs: int64(2 - i), First: own[2*i].ID, Why: []string{"7 GPU seconds are lost", "3 GPU seconds are lost"}[i]}
			if len(r.Victims) != 1 || r.Victims[0] != want {
				t.Errorf("row %d has victims %+v, want %+v", i, r.Victims, want)
			}
		}
	}
	for who, want := range map[structs.Submitter]string{{Name: "alice", UID: 7}: "alice", {UID: 7}: "uid 7", {UID: -1}: "", {}: "", {UID: -1, Accessor: structs.AccessorID{15: 1}}: "00000000-0000-0000-0000-000000000001"} {
		if got := actor(&who); got != want {
			t.Errorf("%+v is %q, want %q", who, got, want)
		}
	}
	c := newCluster(t, 1)
	c.place("plain", 1)
	for r := range c.f.Snapshot().Decisions(0) {
		if r.Policy != "adaptive/easy-sjf/order/"+structs.AlgorithmDefault || r.Victims != nil {
			t.Errorf("without settings: %+v", r)
		}
	}
}

// TestDecisionSaysWhoActed: what follows from an act of a user has that user as its actor, not the submitter of the job, and
// what the leader does for a drain has the one who asked for it; while an older server may be in the cluster, the submitter.
func TestDecisionSaysWhoActed(t *testing.T) {
	for _, format := range []structs.Format{feature.Oldest, feature.Newest} {
		c := newCluster(t, 1)
		c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: format, By: "test"})
		node := c.nodes[0].ID
		by := func(who string, body structs.CommandBody) structs.Result {
			t.Helper()
			res, _, _ := c.f.ApplyBatch([]Entry{c.entryBy(body, structs.Submitter{Name: who})})
			if res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
			return res[0]
		}
		c.placeAll(by("alice", &structs.JobRegisterCommand{Job: service("1", 2), Eval: true}).EvalID, 0, 2)
		own := c.f.Snapshot().AllocsByJob(key)

		by("carol", &structs.NodeDrainCommand{ID: node, Strategy: &structs.DrainStrategy{}})
		drained := by("drain", &structs.AllocTransitionCommand{IDs: []structs.AllocID{own[0].ID}, Transition: structs.Transition{Migrate: true}, Trigger: structs.TriggerNodeDrain}).EvalID
		moved := by("drain", &structs.AllocTransitionCommand{IDs: []structs.AllocID{own[0].ID}, Transition: structs.Transition{Migrate: true}, Trigger: structs.TriggerNodeDrain}).EvalID
		move := c.planFor("web", moved, 0, 0)
		move.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: own[0].ID, Desired: structs.DesiredStop, Desc: "moved"}}}}
		if r := c.apply(move).Plan; r.Refused != "" {
			t.Fatal(r.Refused)
		}
		lost := by("heartbeats", &structs.NodeStatusCommand{ID: node, Status: structs.NodeDown}).EvalID
		stopped := by("bob", &structs.JobDeregisterCommand{Namespace: key.Namespace, JobID: key.ID}).EvalID
		want := map[structs.EvalID]string{drained: "carol", lost: "", stopped: "bob"}
		for id, who := range want {
			if format < feature.DecisionActors.Format {
				who = ""
			}
			if e := c.f.Snapshot().EvalByID(id); e == nil || e.By != who {
				t.Errorf("format %d: the evaluation is %+v, want it by %q", format, e, who)
			}
		}
		p := c.planFor("web", stopped, 0, 0)
		p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: own[1].ID, Desired: structs.DesiredStop, Desc: "stopped"}}}}
		if r := c.apply(p).Plan; r.Refused != "" {
			t.Fatal(r.Refused)
		}
		actors := ""
		for r := range c.f.Snapshot().Decisions(0) {
			actors += r.Actor + " "
		}
		if want := map[bool]string{true: "alice alice carol bob ", false: "    "}[format >= feature.DecisionActors.Format]; actors != want {
			t.Errorf("format %d: the actors are %q, want %q", format, actors, want)
		}
	}
}

// TestDecisionHasTheLoss: a row that preempts has, for each job, the GPU-seconds that its allocations worked since they
// started; while an older server may be in the cluster it has none.
func TestDecisionHasTheLoss(t *testing.T) {
	for _, format := range []structs.Format{feature.Oldest, feature.Newest} {
		c := newCluster(t, 1)
		c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: format, By: "test"})
		p := c.planFor("web", c.register(service("1", 2)).EvalID, 0, 2)
		for i := range p.Parts {
			p.Parts[i].Places[0].Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: string('a' + rune(2*i))}, {Task: "task", Device: "nvidia/gpu/H100", Instance: string('b' + rune(2*i))}}
		}
		if r := c.apply(p).Plan; r.Refused != "" {
			t.Fatal(r.Refused)
		}
		report := &structs.AllocObservedCommand{}
		for _, a := range c.f.Snapshot().AllocsByJob(key) {
			report.Updates = append(report.Updates, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning, StartedAt: structs.LogTime(c.index) * 1e6})
		}
		c.apply(report)
		own := c.f.Snapshot().AllocsByJob(key)
		if own[0].StartedAt == 0 || len(own[0].Grants) != 2 {
			t.Fatalf("it does not run on two GPUs: %+v", own[0])
		}
		c.index += 10_000 // ten seconds
		p = c.planFor("other", c.register(benchJob("other", 1)).EvalID, 0, 1)
		for i := range own {
			p.Parts[0].Stops = append(p.Parts[0].Stops, structs.PlanStop{ID: own[i].ID, Desired: structs.DesiredEvict, Preempt: structs.AllocID{9}})
		}
		if r := c.apply(p).Plan; r.Refused != "" {
			t.Fatal(r.Refused)
		}
		want := int64(0)
		if format >= feature.DecisionLoss.Format {
			want = 2 * 2 * 10
		}
		for r := range c.f.Snapshot().Decisions(0) {
			for _, v := range r.Victims {
				if v.Lost != want {
					t.Errorf("format %d: %d GPU seconds are lost, want %d", format, v.Lost, want)
				}
				want = -1 // seen
			}
		}
		if format >= feature.DecisionLoss.Format && want != -1 {
			t.Error("no row has a victim")
		}
	}
}
