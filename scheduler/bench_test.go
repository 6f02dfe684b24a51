package scheduler_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// benchView is a view of n nodes over 3 datacenters and 20 racks, in different use.
func benchView(n int) *model.View {
	nodes := make([]*structs.Node, n)
	var allocs []*structs.Allocation
	for i := range nodes {
		x := node(i)
		x.ID = structs.NodeID(id("node", i))
		x.Datacenter = fmt.Sprintf("dc%d", i%3)
		x.Meta = map[string]string{"rack": fmt.Sprintf("r%d", i%20)}
		x.Attributes["unique.hostname"] = x.Name
		nodes[i] = x
		for k := range i % 4 {
			allocs = append(allocs, &structs.Allocation{ID: structs.AllocID(id("alloc", i*10+k)), NodeID: x.ID, JobID: "other", Group: "g",
				Resources: structs.Vector{CPU: int64(100 + i%7*50), MemoryMiB: int64(128 + i%5*100)}, Client: structs.ClientRunning, Desired: structs.DesiredRun})
		}
	}
	return model.NewView(10, nodes, allocs, nil)
}

func benchDecide(b *testing.B, nodes, count int, change func(*structs.Job)) {
	v := benchView(nodes)
	j := job("bench", count)
	j.Constraints = []structs.Constraint{{LTarget: "${attr.kernel.name}", RTarget: "linux", Operand: "="}}
	if change != nil {
		change(j)
	}
	in := scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(j, 1)}}
	b.ReportAllocs()
	took, cpu := make([]time.Duration, 0, 1024), make([]time.Duration, 0, 1024)
	defer onThread()()
	for b.Loop() {
		start, spent := time.Now(), threadTime()
		plan, _ := scheduler.Schedule(in, binpack)
		took, cpu = append(took, time.Since(start)), append(cpu, threadTime()-spent)
		placed := 0
		for _, e := range plan.Entries {
			placed += len(e.Parts)
		}
		if placed != count {
			b.Fatalf("placed %d of %d", placed, count)
		}
	}
	reportTimes(b, took, cpu)
}

// reportTimes reports quantiles of wall-clock time and of processor time, which does not depend on other load of the
// machine.
func reportTimes(b *testing.B, took, cpu []time.Duration) {
	for _, x := range []struct {
		unit string
		of   []time.Duration
	}{{"-us", took}, {"-cpu-us", cpu}} {
		if len(x.of) == 0 { // the first, short run
			continue
		}
		slices.Sort(x.of)
		b.ReportMetric(float64(x.of[len(x.of)*99/100].Microseconds()), "p99"+x.unit)
		b.ReportMetric(float64(x.of[len(x.of)/2].Microseconds()), "p50"+x.unit)
	}
}

// onThread keeps the caller on one thread, so that threadTime measures only the caller.
func onThread() func() {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// threadTime returns the processor time that the calling thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// Goal: 5 ms.
func BenchmarkDecide600of5000(b *testing.B) { benchDecide(b, 5000, 600, nil) }

// Goal: 15 ms.
func BenchmarkDecide600of5000Spread(b *testing.B) {
	benchDecide(b, 5000, 600, func(j *structs.Job) {
		j.Spreads = []structs.Spread{{Attribute: "${node.datacenter}", Weight: 50, Targets: []structs.SpreadTarget{{Value: "dc0", Percent: 50}, {Value: "dc1", Percent: 30}}},
			{Attribute: "${meta.rack}", Weight: 100}}
	})
}

// Goal: 15 ms too; every node is a separate value.
func BenchmarkDecide600of5000SpreadHosts(b *testing.B) {
	benchDecide(b, 5000, 600, func(j *structs.Job) {
		j.Spreads = []structs.Spread{{Attribute: "${attr.unique.hostname}", Weight: 50}}
	})
}

// Goal: p99 1 ms.
func BenchmarkDecideOne10000(b *testing.B) { benchDecide(b, 10000, 1, nil) }

// GPUs: 8 a node on 2,000 nodes, 200 allocations of 4.
func BenchmarkDecideGPU200of2000(b *testing.B) {
	nodes := make([]*structs.Node, 2000)
	for i := range nodes {
		n := node(i)
		n.ID = structs.NodeID(id("node", i))
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]structs.Attribute{"memory": {Kind: "int", Int: 80, Unit: "GiB"}}}
		for k := range 8 {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, Island: "a"})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		nodes[i] = n
	}
	j := job("gpu", 200)
	j.Groups[0].Tasks[0].Resources.Devices = []structs.DeviceRequest{{Name: "nvidia/gpu", Count: 4, Constraints: []structs.Constraint{{LTarget: "${device.attr.memory}", Operand: ">=", RTarget: "40 GiB"}}}}
	in := scheduler.Input{View: model.NewView(10, nodes, nil, nil), Now: 1, Pending: []contend.Workload{load(j, 1)}}
	b.ReportAllocs()
	for b.Loop() {
		if plan, _ := scheduler.Schedule(in, binpack); len(plan.Entries[0].Parts) != 200 {
			b.Fatalf("not all placed: got %v, want 200", len(plan.Entries[0].Parts))
		}
	}
}

// What keeping the view costs: a batch of 30 placements on 5,000 nodes.
func BenchmarkAdvance30of5000(b *testing.B) {
	v := benchView(5000)
	var d structs.Delta
	d.Index = 11
	for i := range 30 {
		d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: &structs.Allocation{ID: structs.AllocID(id("new", i)), NodeID: structs.NodeID(id("node", i*37)),
			Resources: structs.Vector{CPU: 1}, Client: structs.ClientPending}})
	}
	b.ReportAllocs()
	for b.Loop() {
		v.Advance(d)
	}
}

// Many small jobs in one pass: 500 jobs of one on 200 nodes.
func BenchmarkPass500JobsOf1(b *testing.B) {
	v := benchView(200)
	in := scheduler.Input{View: v, Now: 1}
	for i := range 500 {
		j := job(fmt.Sprintf("j%d", i), 1)
		j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 10, MemoryMiB: 10}
		in.Pending = append(in.Pending, load(j, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if plan, _ := scheduler.Schedule(in, binpack); len(plan.Entries) != 500 {
			b.Fatalf("not all decided: got %v, want 500", len(plan.Entries))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/job")
}

// Shares: 200 halves of GPUs on 2,000 nodes with 8 each, by best fit and by fgd, which rates every GPU.
func BenchmarkDecideShares200of2000(b *testing.B) {
	for _, name := range []string{"binpack", "fgd", "strand"} {
		b.Run(name, func(b *testing.B) {
			nodes := make([]*structs.Node, 2000)
			var allocs []*structs.Allocation
			for i := range nodes {
				n := node(i)
				n.ID = structs.NodeID(id("node", i))
				g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
				for k := range 8 {
					g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 80000})
				}
				n.Resources.Devices = []structs.DeviceGroup{g}
				nodes[i] = n
				for k := range i % 8 {
					allocs = append(allocs, &structs.Allocation{ID: structs.AllocID(id("alloc", i*10+k)), NodeID: n.ID, JobID: "other", Group: "g",
						Resources: structs.Vector{CPU: 100, MemoryMiB: 128}, Client: structs.ClientRunning, Desired: structs.DesiredRun,
						Grants: []structs.Grant{{Task: "t", Device: g.ID(), Instance: g.Instances[k].ID, MemoryMiB: int64(10000 * (1 + i%5))}}})
				}
			}
			j := job("gpu", 200)
			j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 40000}}
			in := scheduler.Input{View: model.NewView(10, nodes, allocs, nil), Now: 1, Pending: []contend.Workload{load(j, 1)}}
			b.ReportAllocs()
			for b.Loop() {
				if plan, _ := scheduler.Schedule(in, policy.Builtin[name]); len(plan.Entries[0].Parts) != 200 {
					b.Fatalf("not all placed: got %v, want 200", len(plan.Entries[0].Parts))
				}
			}
		})
	}
}
