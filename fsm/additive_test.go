package fsm

import (
	"reflect"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestTransitionsAddUp: what one request asked of an allocation stays asked when the next one asks for something else.
func TestTransitionsAddUp(t *testing.T) {
	kind := reflect.TypeFor[structs.Transition]()
	for i := range kind.NumField() {
		if kind.Field(i).Type.Kind() != reflect.Bool {
			continue
		}
		for other := range kind.NumField() {
			if other == i || kind.Field(other).Type.Kind() != reflect.Bool {
				continue
			}
			c := newCluster(t, 1)
			c.placeAll(c.register(service("1", 1)).EvalID, 0, 1)
			id := c.f.Snapshot().AllocsByJob(key)[0].ID
			for _, field := range []int{i, other} {
				cmd := &structs.AllocTransitionCommand{IDs: []structs.AllocID{id}}
				reflect.ValueOf(&cmd.Transition).Elem().Field(field).SetBool(true)
				c.apply(cmd)
			}
			got := reflect.ValueOf(c.f.Snapshot().AllocByID(id).Transition)
			if !got.Field(i).Bool() && asked[kind.Field(i).Name] || !got.Field(other).Bool() && asked[kind.Field(other).Name] {
				t.Errorf("after %s and %s: %+v", kind.Field(i).Name, kind.Field(other).Name, got)
			}
			break // one other shows it
		}
	}
}

// asked are the transitions that a request may ask for.
var asked = map[string]bool{"Migrate": true, "Reschedule": true, "ForceReschedule": true, "NoShutdownDelay": true, "Expire": true, "Leave": true}

func TestArrayEnds(t *testing.T) {
	for client, failed := range map[structs.ClientStatus]int{structs.ClientComplete: 0, structs.ClientFailed: 1} {
		c := newCluster(t, 1)
		j := benchJob("web", 1)
		j.Array = &structs.Array{Count: 1}
		c.placeAll(c.register(j).EvalID, 0, 1)
		c.observe(client)
		collect := &structs.CollectCommand{}
		for _, a := range c.f.Snapshot().AllocsByJob(key) {
			collect.Allocs = append(collect.Allocs, a.ID)
		}
		c.apply(collect)
		s := c.f.Snapshot().ArrayByKey(key)
		if s == nil {
			t.Fatalf("%s: no ends are kept", client)
		}
		if ok, bad := s.Count(); ok != 1-failed || bad != failed {
			t.Errorf("%s: %d complete and %d failed", client, ok, bad)
		}
	}
}

// TestBatchBy: the commands of a batch are those of who sent it.
func TestBatchBy(t *testing.T) {
	c := newCluster(t, 1)
	who := structs.Submitter{Name: "alice"}
	e := c.entryBy(&structs.BatchCommand{Commands: []structs.Command{{Body: &structs.JobRegisterCommand{Job: service("1", 1), Eval: true}}}}, who)
	if res, _, _ := c.f.ApplyBatch([]Entry{e}); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	if got := c.f.Snapshot().JobByKey(key).Submitter; got.Name != who.Name {
		t.Errorf("the job is that of %+v", got)
	}
}

// TestAgentRepeatsItself: a registration that changes nothing a decision reads evaluates no system job.
func TestAgentRepeatsItself(t *testing.T) {
	c := newCluster(t, 1)
	sys := benchJob("agent", 1)
	sys.Type = structs.JobSystem
	c.register(sys)
	n := *c.f.Snapshot().NodeByID(c.nodes[0].ID)
	n.HTTPAddr = "10.0.0.1:4646"
	if again := c.apply(&structs.NodeRegisterCommand{Node: &n}); len(again.Evals) > 0 {
		t.Errorf("a new address evaluates %v", again.Evals)
	}
	m := *c.f.Snapshot().NodeByID(c.nodes[0].ID)
	m.Resources.MemoryMiB *= 2
	if more := c.apply(&structs.NodeRegisterCommand{Node: &m}); len(more.Evals) != 1 {
		t.Errorf("more memory evaluates %v, want the system job", more.Evals)
	}
}

func TestDrainTells(t *testing.T) {
	c := newCluster(t, 1)
	c.apply(&structs.NodeDrainCommand{ID: c.nodes[0].ID, Strategy: &structs.DrainStrategy{Deadline: time.Hour}, Event: &structs.NodeEvent{Message: "to be repaired", Subsystem: "Drain"}})
	events := c.f.Snapshot().NodeByID(c.nodes[0].ID).Events
	if len(events) == 0 || events[len(events)-1].Message != "to be repaired" {
		t.Errorf("the node's events are %+v", events)
	}
}

// TestVictimIsDecidedAgain: a plan that stops work of another job has that job decided again.
func TestVictimIsDecidedAgain(t *testing.T) {
	c := newCluster(t, 1)
	c.placeAll(c.register(service("1", 1)).EvalID, 0, 1)
	victim := c.f.Snapshot().AllocsByJob(key)[0].ID
	res := c.register(benchJob("other", 1))
	p := c.planFor("other", res.EvalID, 0, 1)
	p.Parts[0].Stops = []structs.PlanStop{{ID: victim, Desired: structs.DesiredEvict, Preempt: structs.AllocID{9}}}
	c.apply(p)
	found := false
	for e := range c.f.Snapshot().Evals() {
		found = found || e.JobID == "web" && e.Trigger == structs.TriggerPreemption && e.Status == structs.EvalPending
	}
	if !found {
		t.Error("no evaluation of the job that was preempted")
	}
}

// TestMetOfTheSameVersion: that dependencies were met is kept only for the version that was decided.
func TestMetOfTheSameVersion(t *testing.T) {
	for version, want := range map[uint64]bool{0: false, 1: true} {
		c := newCluster(t, 1)
		c.register(service("1", 1))
		res := c.register(service("2", 1))
		p := c.planFor("web", res.EvalID, 0, 0)
		p.JobVersion, p.Workload = version, &structs.Workload{Namespace: "default", JobID: "web", Met: true}
		c.try(p)
		if w := c.f.Snapshot().Workload(key); w.Met != want {
			t.Errorf("a plan for version %d of 1: met is %t", version, w.Met)
		}
	}
}

// TestReservationOfRootQueue: a reservation may name the queue above all others, which is never created.
func TestReservationOfRootQueue(t *testing.T) {
	c := newCluster(t, 1)
	r := &structs.Reservation{ID: "all", Domain: structs.NodePoolDefault, Queues: []structs.QueuePath{structs.QueueRoot}, Nodes: []structs.NodeID{c.nodes[0].ID},
		Start: structs.LogTime(time.Hour), End: structs.LogTime(2 * time.Hour)}
	c.apply(&structs.ReserveCommand{Reservations: []*structs.Reservation{r}})
	r = new(*r)
	r.ID, r.Queues = "none", []structs.QueuePath{"nope"}
	c.refused(&structs.ReserveCommand{Reservations: []*structs.Reservation{r}}, `queue "nope" does not exist`)
}
