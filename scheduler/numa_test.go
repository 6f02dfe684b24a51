package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// TestNUMAProperties fills machines of random NUMA layouts with tasks that own cores and GPUs, and removes some again.
// No core is given twice; tasks that require one NUMA node get it, with the devices that they name, whenever a search
// over all NUMA nodes finds one; tasks that prefer it or set nothing get it when possible; and Verify agrees.
func TestNUMAProperties(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		n := node(1)
		nodes, size := 1+rng.IntN(4), 2+rng.IntN(7)
		n.Resources.Cores = int64(nodes * size)
		n.Resources.CPU, n.Resources.MemoryMiB = 1000*n.Resources.Cores, 1<<20
		where := func(core int64) int { return int(core) / size }
		n.Attributes[structs.NUMACountAttribute] = fmt.Sprint(nodes)
		for i := range nodes {
			n.Attributes[structs.NUMACoresAttribute(i)] = fmt.Sprintf("%d-%d", i*size, (i+1)*size-1)
		}
		gpus := map[string]int{} // NUMA node by id
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for i := range nodes * 2 {
			id := fmt.Sprintf("GPU-%d", i)
			gpus[id] = rng.IntN(nodes)
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: id, Healthy: true, NUMANode: int64(gpus[id]), MemoryMiB: 80_000})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		var live []*structs.Allocation
		for step := range 40 {
			if len(live) > 0 && rng.IntN(3) == 0 {
				live = slices.Delete(live, 0, 1+rng.IntN(len(live)))
			}
			j := job(fmt.Sprintf("j%d", step), 1)
			r := &j.Groups[0].Tasks[0].Resources
			r.CPU, r.Cores = 0, int64(1+rng.IntN(size))
			want := rng.IntN(3)
			if want > 0 {
				r.Devices = []structs.DeviceRequest{{Name: "nvidia/gpu", Count: int64(want)}}
			}
			affinity := []string{structs.NUMANone, structs.NUMAPrefer, structs.NUMARequire}[rng.IntN(3)]
			r.NUMA = &structs.NUMA{Affinity: affinity}
			if want > 0 && rng.IntN(2) == 0 {
				r.NUMA.Devices = []string{"nvidia/gpu"}
			}
			tied := len(r.NUMA.Devices) > 0 && affinity != structs.NUMANone
			freeCores, freeGPUs, cores, devs := make([]int, nodes), make([]int, nodes), 0, 0
			taken, busy := map[int64]bool{}, map[string]bool{}
			for _, a := range live {
				for _, c := range a.Cores {
					taken[c] = true
				}
				for _, x := range a.Grants {
					busy[x.Instance] = true
				}
			}
			for c := range n.Resources.Cores {
				if !taken[c] {
					freeCores[where(c)]++
					cores++
				}
			}
			for id, at := range gpus { // sums: the order does not matter
				if !busy[id] {
					freeGPUs[at]++
					devs++
				}
			}
			one, both := false, false // is there a NUMA node for the cores, and for the devices too
			for i := range nodes {
				fits := freeCores[i] >= int(r.Cores)
				one, both = one || fits, both || fits && freeGPUs[i] >= want
			}
			may := cores >= int(r.Cores) && devs >= want
			if affinity == structs.NUMARequire {
				may = may && one && (both || !tied)
			}
			v := model.NewView(10, []*structs.Node{n}, live, nil)
			plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(j, step)}}, binpack)
			var got *structs.PlanPlace
			for _, e := range plan.Entries {
				for i := range e.Parts {
					for k := range e.Parts[i].Places {
						got = &e.Parts[i].Places[k]
					}
				}
				if v := verify.Verify(v, model.Overlay{}, e); !v.All() {
					t.Fatalf("seed %d, step %d: Verify refuses %+v", seed, step, v.Refused)
				}
			}
			if (got != nil) != may {
				t.Fatalf("seed %d, step %d: %d cores and %d GPUs, %+v, of %v and %v free: placed %v, want %v\n%s", seed, step, r.Cores, want, r.NUMA, freeCores, freeGPUs, got != nil, may,
					groupText(rep.Workloads[0].Groups))
			}
			if got == nil {
				code := rep.Workloads[0].Groups[0].Code
				if counts["refused "+string(code)]++; code == structs.ReasonTopology && affinity != structs.NUMARequire {
					t.Fatalf("seed %d, step %d: a wish is refused", seed, step)
				}
				continue
			}
			counts["placed "+affinity]++
			at := map[int]bool{}
			for _, c := range got.Cores {
				if taken[c] {
					t.Fatalf("seed %d, step %d: core %d given twice", seed, step, c)
				}
				taken[c] = true
				at[where(c)] = true
			}
			if len(got.Cores) != int(r.Cores) || (len(at) == 1) != one {
				t.Fatalf("seed %d, step %d: %d cores of %v: given %v", seed, step, r.Cores, freeCores, got.Cores)
			}
			for _, x := range got.Grants {
				if busy[x.Instance] {
					t.Fatalf("seed %d, step %d: %s given twice", seed, step, x.Instance)
				}
				if tied && both && !at[gpus[x.Instance]] {
					t.Fatalf("seed %d, step %d: %s is on NUMA node %d, the cores are %v", seed, step, x.Instance, gpus[x.Instance], got.Cores)
				}
				if tied && both {
					counts["devices beside cores"]++
				}
			}
			if affinity == structs.NUMARequire && nodes > 1 { // Verify checks it too
				e := *plan.Entries[0]
				e.Parts = slices.Clone(e.Parts)
				e.Parts[0].Places = slices.Clone(e.Parts[0].Places)
				bad := slices.Clone(got.Cores)
				for c := range n.Resources.Cores {
					if !taken[c] && !at[where(c)] && len(bad) > 1 {
						bad[0] = c
						e.Parts[0].Places[0].Cores = bad
						counts["torn apart"]++
						if verify.Verify(v, model.Overlay{}, &e).All() {
							t.Fatalf("seed %d, step %d: Verify accepts cores %v", seed, step, bad)
						}
						break
					}
				}
			}
			live = append(live, &structs.Allocation{ID: structs.AllocID(id("alloc", int(seed)*100+step)), Namespace: "default", JobID: j.ID, Job: j, Group: "g", NodeID: n.ID,
				Resources: structs.GroupVector(j.Groups[0]), Cores: got.Cores, Grants: got.Grants, Desired: structs.DesiredRun, Client: structs.ClientRunning})
		}
	}
	t.Log(counts)
	for _, k := range []string{"placed none", "placed prefer", "placed require", "refused TOPOLOGY", "refused RESOURCES", "devices beside cores", "torn apart"} {
		if counts[k] == 0 {
			t.Errorf("%q never happened", k)
		}
	}
}

// TestNUMATasks: each task of an allocation gets cores of one NUMA node, and tasks that run one after the other the
// same.
func TestNUMATasks(t *testing.T) {
	n := node(1)
	n.Resources.Cores, n.Resources.CPU = 8, 8000
	n.Attributes[structs.NUMACountAttribute], n.Attributes[structs.NUMACoresAttribute(0)], n.Attributes[structs.NUMACoresAttribute(4)] = "2", "0,2,4,6", "1,3,5,7"
	j := job("j", 1)
	g := j.Groups[0]
	task := func(name string, cores int64, hook string) {
		x := *g.Tasks[0]
		x.Name, x.Resources.CPU, x.Resources.Cores = name, 0, cores
		x.Resources.NUMA = &structs.NUMA{Affinity: structs.NUMARequire}
		if hook != "" {
			x.Lifecycle = &structs.Lifecycle{Hook: hook}
		}
		g.Tasks = append(g.Tasks, &x)
	}
	task("a", 3, "")
	task("b", 2, "")
	task("before", 4, "prestart")
	g.Tasks = g.Tasks[1:]
	v := model.NewView(10, []*structs.Node{n}, nil, nil)
	decide := func() ([]int64, string) {
		plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(j, 1)}}, binpack)
		for _, e := range plan.Entries {
			for _, p := range e.Parts {
				return p.Places[0].Cores, ""
			}
		}
		return nil, groupText(rep.Workloads[0].Groups)
	}
	if got, why := decide(); got != nil || why != "g: 0 of 1 placed, TOPOLOGY\n  TOPOLOGY cores in one NUMA node: 1 nodes, short by 1 cores, cured by node-joined\n" {
		t.Errorf("a and before share cores, and before and b: five cores of one NUMA node are needed, got %v\n%s", got, why)
	}
	g.Tasks = g.Tasks[:2]
	got, why := decide()
	a := &structs.Allocation{Job: j, Group: "g", Cores: got}
	for _, x := range g.Tasks {
		cores := a.TaskCores(x.Name)
		if int64(len(cores)) != x.Resources.Cores || slices.ContainsFunc(cores, func(c int64) bool { return c%2 != cores[0]%2 }) {
			t.Errorf("%s got %v\n%s", x.Name, cores, why)
		}
	}
}
