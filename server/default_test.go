package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
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
