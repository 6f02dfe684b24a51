package contend

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// flat is a policy that rates all nodes alike.
type flat struct{}

func (flat) Name() string                      { return "flat" }
func (flat) Fit(*search.Use) int64             { return 0 }
func (flat) Weights() search.Weights           { return search.Weights{Fit: 1} }
func (flat) Rotates() bool                     { return false }
func (flat) Capabilities() search.Capabilities { return search.Capabilities{} }

const testNow = structs.LogTime(1000 * time.Hour)

// running is an allocation of a preemptible job that has held GPUs of a node since some time before testNow.
func running(job *structs.Job, id byte, index int, n *structs.Node, first, gpus int, since time.Duration) *structs.Allocation {
	a := &structs.Allocation{ID: structs.AllocID{id}, Namespace: job.Namespace, JobID: job.ID, Job: job, Group: "g", NameIndex: index, NodeID: n.ID,
		Desired: structs.DesiredRun, Client: structs.ClientRunning, Resources: structs.Vector{CPU: 100, MemoryMiB: 64},
		CreateTime: testNow.Add(-since), StartedAt: testNow.Add(-since)}
	for i := first; i < first+gpus; i++ {
		a.Grants = append(a.Grants, structs.Grant{Task: "t", Device: n.Resources.Devices[0].ID(), Instance: n.Resources.Devices[0].Instances[i].ID, SizeMiB: 80_000})
	}
	return a
}

// lowJob is a preemptible job of low priority.
func lowJob(id string, count int, gpus int64) *structs.Job {
	j := gpuWork(id, "low", count, structs.GPURequest{Count: gpus}).Job
	j.Preemptible, j.Priority = true, 20
	return j
}

// cheapest looks for victims for a job of high priority that needs GPUs.
func cheapest(t *testing.T, nodes []*structs.Node, allocs []*structs.Allocation, gpus int64, queues *QueueTable) (node string, stops []string, e *Eviction) {
	t.Helper()
	w := search.NewPass(model.NewView(1, nodes, allocs, nil), model.Overlay{})
	t.Cleanup(w.Release)
	load := gpuWork("high", "high", 1, structs.GPURequest{Count: gpus})
	load.Job.Priority = 80
	env := Env{W: w, Now: testNow, Rules: &Rules{Queues: queues, Config: &structs.SchedulerConfig{}}}
	p := NewPreemption(&env, nil).For(load)[0]
	s := search.New(match.CompileAsk(load.Job, load.Job.Groups[0], ""), w, flat{}, 0)
	row, vs := p.Cheapest(s, structs.AllocID{255})
	if row < 0 {
		return "", nil, nil
	}
	e = p.Evict()
	_, list := e.Add(vs, structs.AllocID{255})
	for _, st := range list {
		if id := string('0' + rune(st.ID[0])); !slices.Contains(stops, id) { // a plan names each once
			stops = append(stops, id)
		}
	}
	return nodes[row].Name, stops, e
}

// frozen suspends an allocation after it has run for a time.
func frozen(a *structs.Allocation, after time.Duration) *structs.Allocation {
	a.Suspension = &structs.Suspension{Since: a.CreateTime.Add(after)}
	return a
}

var byPriority = &QueueTable{Queues: []*structs.Queue{{Path: "high", Preempt: structs.PreemptPriority}}}

// TestVictimsLoseLeast: the node is chosen where the least work is lost, and no more work than necessary stops there.
func TestVictimsLoseLeast(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 4, 80_000), gpuNode(2, 4, 80_000)}
	old, young, small := lowJob("old", 1, 4), lowJob("young", 1, 3), lowJob("small", 1, 1)
	saves := lowJob("saves", 1, 4)
	saves.Preemptible = false
	saves.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: time.Minute}
	gang := lowJob("gang", 2, 2)
	gang.Groups[0].Gang = &structs.Gang{}
	firm := lowJob("firm", 1, 2)
	firm.Preemptible = false
	needsTwo, joint := lowJob("two", 3, 2), lowJob("joint", 2, 2)
	needsTwo.Groups[0].Gang = &structs.Gang{Min: 2}
	joint.Groups[0].Gang, joint.Groups[0].Elastic = &structs.Gang{Min: 1}, &structs.Elastic{Min: 1, Max: 4}
	second := *joint.Groups[0]
	second.Name, second.Count, second.Gang, second.Elastic = "h", 1, nil, nil
	joint.Groups, joint.AllAtOnce = append(joint.Groups, &second), true
	joint.Join()
	other := running(joint, 3, 0, nodes[1], 0, 2, 2*time.Hour)
	other.Group = "h"
	elastic := lowJob("elastic", 4, 1)
	elastic.Groups[0].Elastic = &structs.Elastic{Min: 2, Max: 4}
	for _, c := range []struct {
		name   string
		gpus   int64
		allocs []*structs.Allocation
		node   string
		stops  string
	}{
		{"the one that has run for less", 4, []*structs.Allocation{running(old, 1, 0, nodes[0], 0, 4, 10*time.Hour), running(young, 2, 0, nodes[1], 0, 3, 2*time.Hour)}, "c", "2"},
		{"the one that was frozen for most of its time", 4, []*structs.Allocation{frozen(running(old, 1, 0, nodes[0], 0, 4, 10*time.Hour), time.Hour), running(young, 2, 0, nodes[1], 0, 3, 2*time.Hour)}, "b", "1"},
		{"only as many as are needed", 3, []*structs.Allocation{running(old, 1, 0, nodes[0], 0, 4, 10*time.Hour), running(young, 2, 0, nodes[1], 0, 3, 2*time.Hour), running(small, 3, 0, nodes[1], 3, 1, time.Hour)}, "c", "2"},
		{"what can save its state loses less", 4, []*structs.Allocation{running(saves, 1, 0, nodes[0], 0, 4, 10*time.Hour), running(young, 2, 0, nodes[1], 0, 3, 2*time.Hour)}, "b", "1"},
		{"a gang stops as a whole", 4, []*structs.Allocation{running(gang, 1, 0, nodes[0], 0, 2, 2*time.Hour), running(gang, 2, 1, nodes[1], 0, 2, 2*time.Hour)}, "b", "12"},
		{"a gang that keeps its minimum without one member loses just that", 2, []*structs.Allocation{running(needsTwo, 1, 0, nodes[0], 0, 2, 2*time.Hour), running(needsTwo, 2, 1, nodes[0], 2, 2, 2*time.Hour), running(needsTwo, 3, 2, nodes[1], 0, 2, 2*time.Hour), running(firm, 4, 0, nodes[1], 2, 2, time.Hour)}, "b", "1"},
		{"without two members it would be below its minimum", 4, []*structs.Allocation{running(needsTwo, 1, 0, nodes[0], 0, 2, 2*time.Hour), running(needsTwo, 2, 1, nodes[0], 2, 2, 2*time.Hour), running(needsTwo, 3, 2, nodes[1], 0, 2, 2*time.Hour), running(firm, 4, 0, nodes[1], 2, 2, time.Hour)}, "b", "123"},
		{"with it stops the group that runs as one with it", 4, []*structs.Allocation{running(joint, 1, 0, nodes[0], 0, 2, 2*time.Hour), running(joint, 2, 1, nodes[0], 2, 2, 2*time.Hour), other, running(firm, 4, 0, nodes[1], 2, 2, time.Hour)}, "b", "213"},
		{"elastic work shrinks to its minimum", 2, []*structs.Allocation{running(elastic, 1, 0, nodes[0], 0, 1, 9*time.Hour), running(elastic, 2, 1, nodes[0], 1, 1, 9*time.Hour), running(elastic, 3, 2, nodes[0], 2, 1, 9*time.Hour), running(elastic, 4, 3, nodes[0], 3, 1, 9*time.Hour),
			running(old, 5, 0, nodes[1], 0, 4, time.Hour)}, "b", "43"},
		{"work that began less than a minute ago stays", 4, []*structs.Allocation{running(old, 1, 0, nodes[0], 0, 4, 30*time.Second), running(young, 2, 0, nodes[1], 0, 3, 10*time.Hour)}, "c", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, stops, _ := cheapest(t, nodes, c.allocs, c.gpus, byPriority)
			got := ""
			for _, s := range stops {
				got += s
			}
			if node != c.node || got != c.stops {
				t.Errorf("node %q, stops %q, want node %q, stops %q", node, got, c.node, c.stops)
			}
		})
	}
}

// TestNoVictims: work that is not preemptible, or has a higher priority, makes no room.
func TestNoVictims(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 4, 80_000)}
	firm, equal := lowJob("firm", 1, 4), lowJob("equal", 1, 4)
	firm.Preemptible, equal.Priority = false, 80
	for _, j := range []*structs.Job{firm, equal} {
		if node, stops, _ := cheapest(t, nodes, []*structs.Allocation{running(j, 1, 0, nodes[0], 0, 4, time.Hour)}, 2, byPriority); node != "" {
			t.Errorf("job %s: node %s, stops %v", j.ID, node, stops)
		}
	}
	j := lowJob("j", 1, 4)
	none := &QueueTable{Queues: []*structs.Queue{{Path: "high", Preempt: structs.PreemptNone}}}
	if node, _, _ := cheapest(t, nodes, []*structs.Allocation{running(j, 1, 0, nodes[0], 0, 4, time.Hour)}, 2, none); node != "" {
		t.Errorf(`a queue whose rule is none preempts: got %q, want ""`, node)
	}
}

// TestEvictionIsWeighed: an eviction that costs more than it gains is refused, and undoing one leaves no trace.
func TestEvictionIsWeighed(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 4, 80_000)}
	j := lowJob("j", 1, 4)
	_, _, e := cheapest(t, nodes, []*structs.Allocation{running(j, 1, 0, nodes[0], 0, 4, 1000*time.Hour)}, 1, byPriority)
	group := e.p.Load.Job.Groups[0]
	why := e.Weigh(MilliOf(group, 1))
	if why == nil || why.Dimension != structs.DimensionPreemptCost {
		t.Fatalf("1000 hours of 4 GPUs are lost for one of 1 GPU: %+v", why)
	}
	e.Undo()
	if e.p.taken[structs.AllocID{1}] || e.p.gone["low"] != (structs.Amount{}) {
		t.Errorf("it is still told to stop: %v, %v", e.p.taken, e.p.gone)
	}
	if why := e.Weigh(MilliOf(group, 1000)); why != nil {
		t.Errorf("a thousand members gain more than is lost: %s", why.Text())
	}
}

// TestResizeInFlight: an elastic gang that a plan in flight shrinks gives up no more, whenever it was last resized.
func TestResizeInFlight(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 4, 80_000)}
	j := lowJob("elastic", 4, 1)
	j.Groups[0].Gang, j.Groups[0].Elastic = &structs.Gang{}, &structs.Elastic{Min: 1, Max: 4}
	var as []*structs.Allocation
	for i := range 4 {
		as = append(as, running(j, byte(i+1), i, nodes[0], i, 1, 9*time.Hour))
	}
	w := search.NewPass(model.NewView(1, nodes, as, nil), model.Overlay{})
	t.Cleanup(w.Release)
	load := gpuWork("high", "high", 1, structs.GPURequest{Count: 1})
	load.Job.Priority = 80
	stops := &structs.PlanEntry{Namespace: j.Namespace, JobID: j.ID, Parts: []structs.PlanPart{{Stops: []structs.PlanStop{{ID: as[3].ID, Desired: structs.DesiredStop}}}}}
	for _, c := range []struct {
		flight model.Overlay
		row    int
	}{{model.Overlay{}, 0}, {model.Overlay{}.Add(1, stops, nil), -1}} {
		env := Env{W: w, Now: testNow, Flight: c.flight, Rules: &Rules{Queues: byPriority, Config: &structs.SchedulerConfig{}}}
		p := NewPreemption(&env, nil).For(load)[0]
		if row, vs := p.Cheapest(search.New(match.CompileAsk(load.Job, load.Job.Groups[0], ""), w, flat{}, 0), structs.AllocID{255}); row != c.row {
			t.Errorf("%d plans in flight: victims %v on row %d, want row %d", c.flight.Len(), vs, row, c.row)
		}
	}
}

// TestMinRuntimeCountsFromStart: preempt_min_runtime counts from the start of the tasks, before that from the placement, without
// suspensions: an image that takes long to pull does not keep others away for ever. What is lost counts from then, too.
func TestMinRuntimeCountsFromStart(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 4, 80_000)}
	j := lowJob("j", 1, 4)
	for _, c := range []struct {
		name            string
		placed, started time.Duration // ago; started 0: it has not
		frozen          time.Duration // in total
		victim          bool
		lost            int64
	}{
		{"started lately", time.Hour, 59 * time.Second, 0, false, 0},
		{"started a minute ago", time.Hour, time.Minute, 0, true, 4 * 60},
		{"ran for less than a minute, then stood still", time.Hour, 30 * time.Minute, 29*time.Minute + 30*time.Second, false, 0},
		{"placed lately", 59 * time.Second, 0, 0, false, 0},
		{"pulls its image", time.Minute, 0, 0, true, 4 * 60},
		{"the clock of its agent is late", 30 * time.Second, time.Hour, 0, false, 0},
	} {
		a := running(j, 1, 0, nodes[0], 0, 4, c.placed)
		if a.StartedAt = 0; c.started > 0 {
			a.StartedAt = testNow.Add(-c.started)
		}
		if c.frozen > 0 {
			a.Suspension = &structs.Suspension{Total: c.frozen}
		}
		node, _, e := cheapest(t, nodes, []*structs.Allocation{a}, 2, byPriority)
		if node != "" != c.victim {
			t.Errorf("%s: preempted: %v, want %v", c.name, node != "", c.victim)
			continue
		}
		if e != nil {
			if lost, _ := e.Loss(); lost != c.lost {
				t.Errorf("%s: %d GPU seconds are lost, want %d", c.name, lost, c.lost)
			}
		}
	}
}

// TestMinRuntimeOfGangs: no member of a gang is preempted while another one, which would stop with it, has run for less than
// preempt_min_runtime.
func TestMinRuntimeOfGangs(t *testing.T) {
	nodes := []*structs.Node{gpuNode(1, 2, 80_000), gpuNode(2, 2, 80_000)}
	for _, young := range []time.Duration{59 * time.Second, time.Minute} {
		gang := lowJob("gang", 2, 2)
		gang.Groups[0].Gang = &structs.Gang{}
		node, _, _ := cheapest(t, nodes, []*structs.Allocation{running(gang, 1, 0, nodes[0], 0, 2, time.Hour), running(gang, 2, 1, nodes[1], 0, 2, young)}, 2, byPriority)
		if want := young >= time.Minute; node != "" != want {
			t.Errorf("the newest member has run for %v: preempted: %v, want %v", young, node != "", want)
		}
	}
}
