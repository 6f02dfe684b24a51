package server

import (
	"bytes"
	"encoding/csv"
	"fmt"
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
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// sharesFleet is a small cluster of two kinds of node whose CPU runs out before or after the GPUs, as work is placed.
func sharesFleet() []*structs.Node {
	return sim.BuildNodes([]sim.Machine{
		{Count: 5, GPUs: 8, Model: "G2", GPUMiB: 1000, CPU: 96_000, MemoryMiB: 384 << 10},
		{Count: 4, GPUs: 2, Model: "T4", GPUMiB: 1000, CPU: 104_000, MemoryMiB: 512 << 10},
		{Count: 2, CPU: 64_000, MemoryMiB: 256 << 10},
	})
}

// sharesJobs draws jobs from a public list of tasks on shared GPUs until they ask for 130 % of the fleet's GPUs, in
// thousandths.
func sharesJobs(t *testing.T, milliMax int64) (jobs []*structs.Job, milli map[string]int64) {
	t.Helper()
	f, err := os.Open("../sim/testdata/traces/openb/pods_default.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	num := func(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }
	lots := rand.New(rand.NewPCG(1, 2))
	milli = map[string]int64{}
	for asked := int64(0); asked < milliMax*130/100; {
		r := rows[1+lots.IntN(len(rows)-1)]
		id := fmt.Sprint("pod-", len(jobs))
		res := structs.Resources{CPU: max(num(r[1]), 1), MemoryMiB: max(num(r[2]), 1)}
		if gpus, share := num(r[3]), num(r[4]); gpus > 0 {
			res.GPU = []structs.GPURequest{{Count: gpus}}
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

// defaultConfig is a simulation of a cluster with the defaults, as `muster sim -policy default` sets it up.
func defaultConfig(t *testing.T) sim.Config {
	t.Helper()
	rules, err := sim.RulesFor("default")
	if err != nil {
		t.Fatal(err)
	}
	var cfg sim.Config
	if err := rules.Apply(&cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestUnconfiguredServerDecidesAsTheSimulator gives the tasks of a public list, one after the other, to a server that
// is not configured and to `muster sim -policy default`. What finds no place is gone. The simulator's policy makes the
// same bytes of the input of every pass of the server, and both place every task on the same node.
func TestUnconfiguredServerDecidesAsTheSimulator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig(t)
		total := int64(0)
		cfg.Nodes = sharesFleet()
		for _, n := range cfg.Nodes {
			for _, g := range n.Resources.Devices {
				total += 1000 * int64(len(g.Instances))
			}
		}
		jobs, milli := sharesJobs(t, total)
		src := &traceList{}
		for i, j := range jobs {
			copied := *j
			src.left = append(src.left, &sim.Job{Job: &copied, At: time.Duration(i) * time.Minute, Run: -1})
		}
		cfg.Source, cfg.Drop = src, true
		want := map[string]structs.NodeID{}
		cfg.Hooks.Placed = func(_ *sim.Engine, l *sim.Live, a *structs.Allocation) { want[l.Key.ID] = a.NodeID }
		byDefault := cfg.Policy
		if err := sim.NewEngine(cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}

		s := testServer(t, nil)
		f := newFleet(t, one(s), 0)
		f.set(func() {
			for _, n := range sharesFleet() {
				n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
				mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
				mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
				f.nodes = append(f.nodes, n)
			}
		})
		placed, placedBySim, passes := int64(0), int64(0), 0
		for _, j := range jobs {
			register(t, s, j)
			time.Sleep(time.Second)
			if in := s.decide.Input(structs.NodePoolDefault); in != nil && len(in.Pending) == 1 && in.Pending[0].Key == j.Key() {
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
					t.Errorf("%s: the simulator's policy makes another plan of the server's input", j.ID)
				}
				passes++
			}
			got := structs.NodeID{}
			for _, a := range live(s, j.ID) {
				got = a.NodeID
				placed += milli[j.ID]
			}
			if _, ok := want[j.ID]; ok {
				placedBySim += milli[j.ID]
			}
			if got != want[j.ID] {
				t.Errorf("%s of %d thousandths is on node %s, in the simulator on %s", j.ID, milli[j.ID], got.Short(), want[j.ID].Short())
			}
			if got.IsZero() {
				mustApply(t, s, &structs.JobDeregisterCommand{Namespace: j.Namespace, JobID: j.ID, Purge: true})
			}
		}
		if passes < len(jobs)/2 { // the newest input is not always the one of this job
			t.Errorf("%d of %d decisions were compared", passes, len(jobs))
		}
		if placed != placedBySim {
			t.Errorf("%.1f %% of the GPUs are allocated, in the simulator %.1f %%", 100*float64(placed)/float64(total), 100*float64(placedBySim)/float64(total))
		}
		t.Logf("%d tasks: %.1f %% of %d GPUs are allocated", len(jobs), 100*float64(placed)/float64(total), total/1000)
	})
}

// TestDefaultConfiguration: a fresh server answers the default and decides by it; changes of other settings leave the
// choice of a policy open, and an operator may give it back to the release.
func TestDefaultConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		stored := func() string { return s.Published().Snapshot.SchedulerConfig().Algorithm }
		get := func() *methods.SchedulerConfigResponse {
			return call(t, s, methods.SchedulerConfigGet, rpc.Header{}, &methods.EmptyRequest{})
		}
		set := func(r *methods.SchedulerConfigResponse, algorithm string, follows bool) {
			t.Helper()
			cfg := *r.Config
			cfg.Algorithm, cfg.PreemptBatch = algorithm, !cfg.PreemptBatch
			call(t, s, methods.SchedulerConfigSet, rpc.Header{}, &methods.SchedulerConfigRequest{Config: &cfg, FollowsDefault: follows})
		}
		for i, c := range []struct {
			algorithm        string
			follows          bool
			stored, answered string
			followed         bool
		}{
			{structs.AlgorithmDefault, true, "", structs.AlgorithmDefault, true}, // another setting was changed
			{"spread", true, "spread", "spread", false},                          // a user edited the answer
			{"", false, "", structs.AlgorithmDefault, true},
			{structs.AlgorithmDefault, false, structs.AlgorithmDefault, structs.AlgorithmDefault, false}, // chosen by name
			{"default", false, "", structs.AlgorithmDefault, true},
		} {
			r := get()
			if i == 0 && (r.Config.Algorithm != structs.AlgorithmDefault || !r.FollowsDefault || !r.Config.PreemptSystem) {
				t.Errorf("a fresh server answers %+v", r)
			}
			set(r, c.algorithm, c.follows)
			if r = get(); stored() != c.stored || r.Config.Algorithm != c.answered || r.FollowsDefault != c.followed {
				t.Errorf("after %q, %v: stored is %q, the answer %q, %v", c.algorithm, c.follows, stored(), r.Config.Algorithm, r.FollowsDefault)
			}
		}
	})
}

// TestSharesOfABatchJobStayTogether: on an unconfigured server, as in the simulator, the shares of one batch
// job fill a GPU, and work without GPUs leaves nodes with GPUs alone. Those of a service are spread.
func TestSharesOfABatchJobStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := func(id string, kind structs.JobType, gpu bool) *structs.Job {
			return passJob(id, 4, func(j *structs.Job) {
				j.Type, j.Groups[0].Tasks[0].Driver = kind, sim.Driver
				if kind == structs.JobBatch {
					j.Groups[0].Reschedule = structs.Reschedule{}
				}
				if gpu {
					j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 250}}
				}
			})
		}
		jobs := []*structs.Job{job("shares", structs.JobBatch, true), job("plain", structs.JobBatch, false), job("service", structs.JobService, true)}
		cfg := defaultConfig(t)
		cfg.Nodes = sharesFleet()
		simulated := map[string]map[string]bool{} // GPUs or nodes by job
		add := func(to map[string]map[string]bool, a *structs.Allocation) {
			if to[a.JobID] == nil {
				to[a.JobID] = map[string]bool{}
			}
			if len(a.Grants) == 0 {
				to[a.JobID][a.NodeID.String()] = true
			}
			for _, g := range a.Grants {
				to[a.JobID][a.NodeID.String()+g.Instance] = true
			}
		}
		src := &traceList{}
		for _, j := range jobs {
			copied := *j
			src.left = append(src.left, &sim.Job{Job: &copied, Run: -1})
		}
		cfg.Source = src
		cfg.Hooks.Placed = func(_ *sim.Engine, _ *sim.Live, a *structs.Allocation) { add(simulated, a) }
		if err := sim.NewEngine(cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := testServer(t, nil)
		f := newFleet(t, one(s), 0)
		cpuOnly := map[string]bool{}
		f.set(func() {
			for _, n := range sharesFleet() {
				n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
				mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
				mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
				f.nodes = append(f.nodes, n)
				cpuOnly[n.ID.String()] = len(n.Resources.Devices) == 0
			}
		})
		served := map[string]map[string]bool{}
		for _, j := range jobs {
			register(t, s, j)
			waitFor(t, time.Minute, j.ID, func() bool { return running(s, j.ID) == 4 })
			for _, a := range live(s, j.ID) {
				add(served, a)
			}
		}
		for _, got := range []map[string]map[string]bool{served, simulated} {
			if len(got["shares"]) != 1 || len(got["service"]) != 4 {
				t.Errorf("four shares of a batch job are on %d GPUs, those of a service on %d", len(got["shares"]), len(got["service"]))
			}
			for n := range got["plain"] {
				if !cpuOnly[n] {
					t.Errorf("work without GPUs is on a node with GPUs")
				}
			}
		}
	})
}
