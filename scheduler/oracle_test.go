package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// oracleItem is one task of a small instance: CPU, and GPUs whole or one share in percent.
type oracleItem struct {
	cpu, gpus, share int64
}

func (i oracleItem) milli() int64 {
	if i.share > 0 {
		return i.share * 10
	}
	return i.gpus * 1000
}

// best tries every way to place the items, each on any node or nowhere, and returns the most GPU thousandths that fit.
func best(items []oracleItem, cpu []int64, free [][]int64, rest int64) int64 {
	if len(items) == 0 || rest == 0 {
		return 0
	}
	it := items[0]
	rest -= it.milli()
	most := best(items[1:], cpu, free, rest)
	for n := range cpu {
		if most == rest+it.milli() {
			return most // everything fits
		}
		if cpu[n] < it.cpu {
			continue
		}
		cpu[n] -= it.cpu
		if it.share == 0 {
			var took []int
			for g := range free[n] {
				if free[n][g] == 1000 && len(took) < int(it.gpus) {
					took = append(took, g)
				}
			}
			if len(took) == int(it.gpus) {
				for _, g := range took {
					free[n][g] = 0
				}
				most = max(most, it.milli()+best(items[1:], cpu, free, rest))
				for _, g := range took {
					free[n][g] = 1000
				}
			}
		} else {
			seen := map[int64]bool{}
			for g := range free[n] {
				if was := free[n][g]; was >= it.milli() && !seen[was] {
					seen[was] = true
					free[n][g] -= it.milli()
					most = max(most, it.milli()+best(items[1:], cpu, free, rest))
					free[n][g] = was
				}
			}
		}
		cpu[n] += it.cpu
	}
	return most
}

// unmoved is a policy that does not move what a decision has placed.
type unmoved struct{ search.GPUPolicy }

func (p unmoved) Capabilities() search.Capabilities {
	c := p.GPUPolicy.Capabilities()
	c.Moves = 0
	return c
}

// On small random instances the pass is compared with exhaustive search. What policies lose is printed; no policy may
// place more than is possible, moves may not place less, and where everything has a place the default places 99 %.
func TestOracle(t *testing.T) {
	rounds := 150
	if s := os.Getenv("MUSTER_ORACLE_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	still := unmoved{policy.Builtin[structs.AlgorithmDefault].(search.GPUPolicy)}
	policies := map[string]search.Policy{"unmoved": still}
	names := []string{"binpack", "fgd", "unmoved", structs.AlgorithmDefault, "search"}
	for _, name := range names {
		if p, ok := policy.Builtin[name]; ok {
			policies[name] = p
		}
	}
	lost, optimal, better := map[string]int64{}, map[string]int{}, 0
	all := int64(0)
	feasible, served := 0, map[string]int{} // of instances in which everything can be placed: tasks, and those that were placed
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		var nodes []*structs.Node
		var cpu []int64
		var free [][]int64
		for i := range 2 + r.IntN(2) {
			n := node(i)
			g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
			var f []int64
			for k := range 1 + r.IntN(3) {
				g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 1000})
				f = append(f, 1000)
			}
			n.Resources.Devices = []structs.DeviceGroup{g}
			nodes, cpu, free = append(nodes, n), append(cpu, n.Resources.CPU), append(free, f)
		}
		j := job("oracle", 0)
		j.Type, j.Groups = structs.JobBatch, nil
		var items []oracleItem
		sum := int64(0)
		for i := range 4 + r.IntN(4) {
			it := oracleItem{cpu: 200 * (1 + r.Int64N(10)), gpus: 1}
			if r.IntN(2) == 0 {
				it.share = 10 * (2 + r.Int64N(7))
			} else {
				it.gpus = 1 + r.Int64N(2)
			}
			req := structs.GPURequest{Count: it.gpus, MemoryMiB: it.share * 10}
			items, sum = append(items, it), sum+it.milli()
			j.Groups = append(j.Groups, &structs.Group{Name: structs.GroupName(fmt.Sprintf("g%d", i)), Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: "exec",
				Resources: structs.Resources{CPU: it.cpu, MemoryMiB: 1, GPU: []structs.GPURequest{req}}}}})
		}
		can := best(items, cpu, free, sum)
		all += can
		if can == sum {
			feasible += len(items)
		}
		got := map[string]int64{}
		for _, name := range names {
			plan, _ := scheduler.Schedule(scheduler.Input{View: model.NewView(10, nodes, nil, nil), Now: 1, Pending: []contend.Workload{load(j, 1)}}, policies[name])
			for _, e := range plan.Entries {
				if v := verify.Verify(model.NewView(10, nodes, nil, nil), model.Overlay{}, e); !v.All() {
					t.Fatalf("seed %d, %s: Verify refuses %+v", seed, name, v.Refused)
				}
				for _, p := range e.Parts {
					for _, pl := range p.Places {
						var i int
						fmt.Sscanf(string(e.Groups[pl.Group]), "g%d", &i)
						got[name] += items[i].milli()
						if can == sum {
							served[name]++
						}
					}
				}
			}
			if got[name] > can {
				t.Fatalf("seed %d: %s places %d of %d possible thousandths", seed, name, got[name], can)
			}
			lost[name] += can - got[name]
			if got[name] == can {
				optimal[name]++
			}
		}
		for _, name := range []string{structs.AlgorithmDefault, "search"} {
			if got[name] < got["unmoved"] {
				t.Errorf("seed %d: %s places %d, without moves %d", seed, name, got[name], got["unmoved"])
			}
		}
		if got[structs.AlgorithmDefault] > got["unmoved"] {
			better++
		}
	}
	for _, name := range names {
		t.Logf("%-8s loses %.2f %% of what is possible, and is optimal in %d of %d instances; where everything can be placed it places %.2f %% of %d requests", name,
			100*float64(lost[name])/float64(all), optimal[name], rounds, 100*float64(served[name])/float64(max(feasible, 1)), feasible)
		if served[name] > feasible {
			t.Errorf("%s places %d of %d feasible requests", name, served[name], feasible)
		}
	}
	if better == 0 {
		t.Error("moves never placed more: the run proves nothing about them")
	}
	if 100*served[structs.AlgorithmDefault] < 99*feasible {
		t.Errorf("the default places %d of %d requests that all have a place together: less than 99 %%", served[structs.AlgorithmDefault], feasible)
	}
}
