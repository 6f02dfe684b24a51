package server

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// openbRows reads a file of the openb traces, without its header.
func openbRows(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open("../sim/testdata/traces/openb/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}

func milliOf(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }

// openbFleet is every so-manieth node of the openb cluster. A GPU has 1,000 MiB, one for each thousandth.
func openbFleet(t *testing.T, every int) []*structs.Node {
	t.Helper()
	var kinds []sim.Machine
	for i, r := range openbRows(t, "nodes.csv") {
		if i%every == 0 {
			kinds = append(kinds, sim.Machine{Count: 1, GPUs: int(milliOf(r[3])), Model: r[4], GPUMiB: 1000, CPU: milliOf(r[1]), MemoryMiB: milliOf(r[2])})
		}
	}
	return sim.BuildNodes(kinds)
}

// openbJobs draws jobs from a list of tasks on shared GPUs until they ask for 130 % of so many thousandths of GPUs.
func openbJobs(t *testing.T, list string, milliMax int64) (jobs []*structs.Job, milli map[string]int64) {
	t.Helper()
	rows := openbRows(t, list)
	lots := rand.New(rand.NewPCG(1, 2))
	milli = map[string]int64{}
	for asked := int64(0); asked < milliMax*130/100; {
		r := rows[lots.IntN(len(rows))]
		id := fmt.Sprint("pod-", len(jobs))
		res := structs.Resources{CPU: max(milliOf(r[1]), 1), MemoryMiB: max(milliOf(r[2]), 1)}
		if gpus, share := milliOf(r[3]), milliOf(r[4]); gpus > 0 {
			res.GPU = []structs.GPURequest{{Count: gpus, Model: r[5]}}
			if milli[id] = 1000 * gpus; share < 1000 {
				res.GPU[0].MemoryMiB, milli[id] = share, share
			}
		}
		asked += milli[id]
		jobs = append(jobs, &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: structs.JobBatch, Priority: structs.JobPriorityDefault,
			Region: structs.RegionDefault, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
			Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: sim.Driver, Resources: res}}}}})
	}
	return jobs, milli
}

// gpuMilli returns how many GPUs nodes have, in thousandths.
func gpuMilli(nodes []*structs.Node) (n int64) {
	for _, x := range nodes {
		for _, g := range x.Resources.Devices {
			n += 1000 * int64(len(g.Instances))
		}
	}
	return n
}

// submission is one job after the other, each decided before the next: what it is given, on a server and in the simulator.
type submission struct {
	nodes  func() []*structs.Node
	jobs   []*structs.Job
	milli  map[string]int64 // of GPUs, by job
	every  int              // the input of every so-manieth decision is dumped and replayed
	placed int64            // thousandths of GPUs that the server allocated
}

// simulated returns the node of each job that finds a place in `muster sim -policy default`, and what is allocated.
func (x *submission) simulated(t *testing.T, cfg sim.Config) (on map[string]structs.NodeID, placed int64) {
	src := &traceList{}
	for i, j := range x.jobs {
		copied := *j
		src.left = append(src.left, &sim.Job{Job: &copied, At: time.Duration(i) * time.Minute, Run: -1})
	}
	on = map[string]structs.NodeID{}
	cfg.Nodes, cfg.Source, cfg.Drop = x.nodes(), src, true
	cfg.Hooks.Placed = func(_ *sim.Engine, l *sim.Live, a *structs.Allocation) {
		on[l.Key.ID] = a.NodeID
		placed += x.milli[l.Key.ID]
	}
	if err := sim.NewEngine(cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return on, placed
}

// served submits the jobs to a server that is not configured, through its API. What finds no place is gone. It compares
// each decision with the simulator: the node, and of the dumped inputs, the plan that the simulator's policy makes of them, with
// that of the server byte for byte and with what was committed.
func (x *submission) served(t *testing.T) {
	cfg := defaultConfig(t)
	byDefault := cfg.Policy
	want, placedBySim := x.simulated(t, cfg)
	s := testServer(t, nil)
	nodes := x.nodes()
	total := gpuMilli(nodes)
	for _, n := range nodes {
		n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
		mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
		mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
	}
	passes, dumped := 0, 0
	for i, j := range x.jobs {
		if i%50 == 0 {
			for _, n := range nodes {
				s.nodes.Beats.Beat(n.ID)
			}
		}
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
		time.Sleep(20 * time.Millisecond)
		on := live(s, j.ID)
		if i%x.every == 0 {
			passes++
			if in := s.decide.Input(structs.NodePoolDefault); in != nil && len(in.Pending) == 1 && in.Pending[0].Key == j.Key() { // the newest pass may be a later one
				dumped++
				x.replay(t, in, byDefault, on)
			}
		}
		got := structs.NodeID{}
		for _, a := range on {
			got = a.NodeID
			x.placed += x.milli[j.ID]
		}
		if got != want[j.ID] {
			t.Errorf("%s of %d thousandths is on node %s, in the simulator on %s", j.ID, x.milli[j.ID], got.Short(), want[j.ID].Short())
		}
		if got.IsZero() {
			mustApply(t, s, &structs.JobDeregisterCommand{Namespace: j.Namespace, JobID: j.ID, Purge: true})
		}
	}
	if dumped < passes/2 {
		t.Errorf("%d of %d decisions were dumped", dumped, passes)
	}
	share, shareBySim := 100*float64(x.placed)/float64(total), 100*float64(placedBySim)/float64(total)
	if math.Abs(share-shareBySim) > 0.5 {
		t.Errorf("%.2f %% of the GPUs are allocated, in the simulator %.2f %%", share, shareBySim)
	}
	t.Logf("%d tasks on %d nodes: %.2f %% of %d GPUs are allocated, in the simulator %.2f %%; %d inputs gave the same plans", len(x.jobs), len(nodes), share, total/1000, shareBySim, dumped)
}

// replay decides again about the input of a pass, from its dump, as the simulator does.
func (x *submission) replay(t *testing.T, in *scheduler.Input, byDefault search.Policy, placed []*structs.Allocation) {
	t.Helper()
	job := in.Pending[0].Key.ID
	b, err := scheduler.Dump(*in, structs.AlgorithmDefault)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := queue.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	plan, _ := scheduler.Schedule(again, byDefault)
	direct := *in
	direct.Line = queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	mine, _ := scheduler.Schedule(direct, policy.For(in.View.Pool(structs.NodePoolDefault), in.Config))
	if !bytes.Equal(scheduler.AppendPlan(nil, plan), scheduler.AppendPlan(nil, mine)) {
		t.Errorf("%s: the simulator's policy makes another plan of the server's input", job)
	}
	planned := map[structs.AllocID]string{}
	for _, e := range plan.Entries {
		for _, part := range e.Parts {
			for _, p := range part.Places {
				planned[structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, e.Groups[p.Group], p.Index)] = fmt.Sprint(e.Nodes[p.Node].ID, p.Grants)
			}
		}
	}
	committed := map[structs.AllocID]string{}
	for _, a := range placed {
		committed[a.ID] = fmt.Sprint(a.NodeID, a.Grants)
	}
	if fmt.Sprint(planned) != fmt.Sprint(committed) {
		t.Errorf("%s: the simulator's policy plans %v of the server's input, and the server committed %v", job, planned, committed)
	}
}

// TestUnconfiguredServerDecidesAsTheSimulator: tasks of a public list on a small fleet, until they ask for 130 % of its
// GPUs.
func TestUnconfiguredServerDecidesAsTheSimulator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := submission{nodes: sharesFleet, every: 1}
		x.jobs, x.milli = openbJobs(t, "pods_default.csv", gpuMilli(sharesFleet()))
		x.served(t)
	})
}

// TestOpenBOnAServer: the same with nodes of openb, and with the list that asks for models. Every 40th node, or all of
// them with MUSTER_OPENB=1, where the share of GPUs that is allocated is compared with that of `muster sim -format openb`, too.
func TestOpenBOnAServer(t *testing.T) {
	part, all := 40, os.Getenv("MUSTER_OPENB") == "1"
	if all {
		part = 1
	}
	for _, list := range []string{"pods_default.csv", "pods_gpuspec10.csv"} {
		synctest.Test(t, func(t *testing.T) {
			x := submission{nodes: func() []*structs.Node { return openbFleet(t, part) }, every: 1}
			if all {
				x.every = 100
			}
			x.jobs, x.milli = openbJobs(t, list, gpuMilli(x.nodes()))
			x.served(t)
			if !all {
				return
			}
			b, err := sim.LoadOpenB("../sim/testdata/traces/openb/nodes.csv", "../sim/testdata/traces/openb/"+list)
			if err != nil {
				t.Fatal(err)
			}
			rs, err := b.Run(t.Context(), structs.SchedulerConfig{}, nil, []uint64{1})
			if err != nil {
				t.Fatal(err)
			}
			share := 100 * float64(x.placed) / float64(gpuMilli(x.nodes()))
			t.Logf("%s: %.2f %% of the GPUs are allocated, by muster sim -format openb -policy default %.2f %%", list, share, rs[0].Alloc130)
			if math.Abs(share-rs[0].Alloc130) > 0.5 {
				t.Errorf("%s: %.2f %% of the GPUs are allocated, by muster sim -format openb -policy default %.2f %%", list, share, rs[0].Alloc130)
			}
		})
	}
}
