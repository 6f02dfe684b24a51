package scheduler_test

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

func TestPast(t *testing.T) {
	var p search.Past
	for range 100 {
		p = p.Learn(true, 2*time.Hour, time.Hour)
	}
	if p.Ends != 100 || p.Success != model.Micro || p.Speed < 1_990_000 || p.Speed > 2_000_000 {
		t.Errorf("always twice as fast: %+v", p)
	}
	p = p.Learn(false, time.Hour, time.Hour)
	if p.Success != 875_000 {
		t.Errorf("one failure counts for an eighth: %+v", p)
	}
	if q := p.Learn(true, 1<<62, time.Millisecond); q.Speed > p.Speed+model.Micro {
		t.Errorf("one wrong expectation moves the speed from %d to %d", p.Speed, q.Speed)
	}
}

// learned prefers nodes where work went well; a job's own choice of policy comes before the pool's; replaying needs the
// history.
func TestLearned(t *testing.T) {
	nodes := []*structs.Node{node(1), node(2), node(3)}
	j := job("l", 1)
	j.Placement = "learned"
	in := scheduler.Input{View: model.NewView(10, nodes, nil, nil), Now: 1, Pending: []contend.Workload{load(j, 1)},
		History: map[structs.NodeID]search.Past{nodes[0].ID: {Ends: 9, Success: 400_000, Speed: model.Micro}, nodes[2].ID: {Ends: 9, Success: model.Micro, Speed: 3 * model.Micro}}}
	on := func(in scheduler.Input, p search.Policy) structs.NodeID {
		plan, _ := scheduler.Schedule(in, p)
		return plan.Entries[0].Nodes[0].ID
	}
	if got := on(in, policy.For(nil, structs.SchedulerConfig{})); got != nodes[2].ID {
		t.Errorf("the fast node is %v, not %v", nodes[2].ID, got)
	}
	delete(in.History, nodes[2].ID)
	if got := on(in, policy.For(nil, structs.SchedulerConfig{Algorithm: "binpack"})); got != nodes[1].ID {
		t.Errorf("a node that fails was not avoided: %v", got)
	}
	b, err := scheduler.Dump(in, "learned")
	if err != nil {
		t.Fatal(err)
	}
	again, name, err := scheduler.Load(b)
	if err != nil || on(again, policy.Builtin[name]) != nodes[1].ID {
		t.Errorf("replayed: %v", err)
	}
}

// Taints keep jobs away: some for good, some as long as there is another node.
func TestTaints(t *testing.T) {
	nodes := []*structs.Node{node(1), node(2), node(3), node(4)}
	nodes[3].Tainted = []structs.Taint{{Key: "gone", Effect: structs.TaintNoExecute, Since: 1}}
	nodes[0].Meta = map[string]string{"taint.dedicated": "nlp:no-schedule"}
	nodes[1].Meta = map[string]string{"taint.spot": ":prefer-no-schedule"}
	on := func(tolerations []structs.Toleration, avail int) structs.NodeID {
		list := nodes[:max(avail, 0)]
		if avail < 0 {
			list = nodes[3:]
		}
		j := job("t", 1)
		j.Tolerations = tolerations
		plan, _ := scheduler.Schedule(scheduler.Input{View: model.NewView(10, list, nil, nil), Now: 1, Pending: []contend.Workload{load(j, 1)}}, policy.Builtin[structs.AlgorithmDefault])
		if len(plan.Entries[0].Nodes) == 0 {
			return structs.NodeID{}
		}
		return plan.Entries[0].Nodes[0].ID
	}
	for _, c := range []struct {
		what        string
		tolerations []structs.Toleration
		avail       int
		want        structs.NodeID
	}{
		{"none tolerated", nil, 3, nodes[2].ID},
		{"the soft one is the last choice", nil, 2, nodes[1].ID},
		{"the hard one is none", nil, 1, structs.NodeID{}},
		{"tolerated by key", []structs.Toleration{{Key: "dedicated"}}, 3, nodes[0].ID},
		{"another value", []structs.Toleration{{Key: "dedicated", Value: "cv"}}, 1, structs.NodeID{}},
		{"all tolerated", []structs.Toleration{{}}, 2, nodes[0].ID},
		{"what moves work away is no place for it", []structs.Toleration{{Key: "dedicated", For: time.Hour, Effect: structs.TaintNoExecute}}, 4, nodes[2].ID},
		{"tolerated for good", []structs.Toleration{{Key: "gone"}}, -1, nodes[3].ID},
		{"tolerated to stay for a while", []structs.Toleration{{Key: "gone", For: time.Hour}}, -1, structs.NodeID{}},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got := on(c.tolerations, c.avail); got != c.want {
				t.Errorf("%s: on %v, want %v", c.what, got, c.want)
			}
		})
	}
}
