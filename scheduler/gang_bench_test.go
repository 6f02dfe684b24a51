package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// gpuNodes makes nodes with 8 GPUs each, and allocations of one GPU that fill all but free of them on every node.
func gpuNodes(n, free int) (nodes []*structs.Node, allocs []*structs.Allocation) {
	for i := range n {
		x := node(i + 1)
		x.Resources.CPU, x.Resources.MemoryMiB = 128_000, 1_000_000
		x.Meta = map[string]string{"rack": fmt.Sprintf("r%d", i/32)}
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for k := range 8 {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 81920, Island: "nvlink0"})
		}
		x.Resources.Devices = []structs.DeviceGroup{g}
		nodes = append(nodes, x)
		for k := range 8 - free {
			allocs = append(allocs, &structs.Allocation{ID: structs.AllocID(id("alloc", i*8+k)), NodeID: x.ID, JobID: "held", Namespace: "default",
				Resources: structs.Vector{CPU: 1000, MemoryMiB: 1000}, Client: structs.ClientRunning, Desired: structs.DesiredRun,
				Grants: []structs.Grant{{Task: "t", Device: "nvidia/gpu/H100", Instance: g.Instances[k].ID}}})
		}
	}
	return nodes, allocs
}

// pendingGangs makes gangs of 2 to 32 members with 1 to 8 GPUs each, some with a topology.
func pendingGangs(n int) []contend.Workload {
	out := make([]contend.Workload, n)
	for i := range out {
		j := job(fmt.Sprintf("gang-%05d", i), 2<<(i%5))
		j.Type = structs.JobBatch
		g := j.Groups[0]
		g.Gang = &structs.Gang{}
		g.Tasks[0].Resources = structs.Resources{CPU: 1000, MemoryMiB: 1000, GPU: []structs.GPURequest{{Count: int64(1 << (i / 5 % 4))}}}
		if i%7 == 0 {
			g.Topology = &structs.Topology{Across: "rack", Mode: structs.TopologyRequired}
		}
		out[i] = load(j, i)
	}
	return out
}

// BenchmarkPendingGangs is a pass over 10,000 pending gangs on 2,000 nodes with 8 GPUs; the goal is 200 ms.
func BenchmarkPendingGangs(b *testing.B) {
	for _, c := range []struct {
		name string
		free int
	}{{"full", 0}, {"one_free_each", 1}, {"empty", 8}} {
		b.Run(c.name, func(b *testing.B) {
			nodes, allocs := gpuNodes(2000, c.free)
			in := scheduler.Input{View: model.NewView(10, nodes, allocs, nil), Now: structs.LogTime(time.Hour), Pending: pendingGangs(10_000)}
			placed := 0
			defer onThread()()
			began := threadTime()
			b.ResetTimer()
			for range b.N {
				placed = 0
				plan, rep := scheduler.Schedule(in, binpack)
				if len(rep.Workloads) == 0 {
					b.Fatal("nothing was decided")
				}
				for _, e := range plan.Entries {
					for i := range e.Parts {
						placed += len(e.Parts[i].Places)
					}
				}
			}
			b.ReportMetric(float64((threadTime()-began).Milliseconds())/float64(b.N), "cpu-ms/pass")
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/pass")
			b.ReportMetric(float64(placed), "placed")
		})
	}
}
