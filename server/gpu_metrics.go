package server

import (
	"cmp"
	"maps"
	"slices"

	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// gpuGroup sums over some GPUs.
type gpuGroup struct {
	model.GPUFigures
	freeMiB, sharedMiB int64 // free memory; its part on GPUs in shared use
}

func (g *gpuGroup) add(x *model.GPUFree) {
	if !x.Healthy {
		return
	}
	g.GPUs++
	g.Total += 1000
	g.Free += x.FreeMilli
	g.Fragmented += x.Fragmented
	g.freeMiB += x.FreeMiB
	if !x.Whole && x.FreeMilli < 1000 {
		g.sharedMiB += x.FreeMiB
	} else if !x.Whole {
		g.Idle++
	}
}

// gpuTable declares the metrics of a group of GPUs. They cover only ready nodes and healthy GPUs.
func gpuTable(prefix, of string, labels ...string) telemetry.Table[*gpuGroup] {
	return telemetry.Table[*gpuGroup]{
		telemetry.Gauge(prefix+"gpus", "Healthy GPUs of "+of+".", func(g *gpuGroup) int64 { return g.GPUs }),
		telemetry.Gauge(prefix+"idle", "GPUs of "+of+" that are entirely free.", func(g *gpuGroup) int64 { return g.Idle }),
		telemetry.Gauge(prefix+"allocated_ratio", "Part of the GPUs of "+of+" that is given out; of a shared GPU the scarcer one of memory and compute counts.",
			func(g *gpuGroup) float64 { return micro(g.Allocated()) }),
		telemetry.Gauge(prefix+"shared_free_ratio", "Part of the free GPU memory of "+of+" that lies on shared GPUs, where no whole GPU can be had: FRAGMENTED of muster gpu list.",
			func(g *gpuGroup) float64 { return float64(g.sharedMiB) / float64(max(g.freeMiB, 1)) }),
		telemetry.Gauge(prefix+"fragmentation_ratio", "Part of what is free of "+of+" that requests like those that run could not use: too little on each GPU, too few GPUs together, another model, or no CPU to go with them.",
			func(g *gpuGroup) float64 { return micro(g.Fragmentation()) }),
		telemetry.Gauge(prefix+"pressure_ratio", "Part of the GPUs of "+of+" that is given out, or free and of no use to requests like those that run; at 1 nothing more fits.",
			func(g *gpuGroup) float64 { return micro(g.Pressure()) }),
	}.Labelled(labels...)
}

var (
	gpuOfNode    = gpuTable("muster_node_gpu_", "a node", "node", "node_id")
	gpuOfModel   = gpuTable("muster_model_gpu_", "one model in a node pool", "pool", "model")
	gpuOfCluster = gpuTable("muster_cluster_gpu_", "the cluster")
)

func micro(n int64) float64 { return float64(n) / model.Micro }

// gpuMetrics appends how GPUs are used: by node, by node pool and model, and in total. It reads the newest state on
// demand, so followers report the same as the leader.
func (s *Server) gpuMetrics(out *telemetry.Samples) {
	p := s.Published()
	if p == nil || p.View == nil {
		return
	}
	type key struct{ pool, model string }
	var all gpuGroup
	models := map[key]*gpuGroup{}
	p.View.GPUs(nil, func(n *model.NodeGPUs) bool {
		if !n.Node.Ready() {
			return true
		}
		var here gpuGroup
		for i := range n.Each {
			x := &n.Each[i]
			k := key{string(cmp.Or(n.Node.Pool, structs.NodePoolDefault)), x.Device}
			if models[k] == nil {
				models[k] = &gpuGroup{}
			}
			here.add(x)
			models[k].add(x)
			all.add(x)
		}
		gpuOfNode.Give(out, &here, n.Node.Name, n.Node.ID.String())
		return true
	})
	for _, k := range slices.SortedFunc(maps.Keys(models), func(a, b key) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.model, b.model)) }) {
		gpuOfModel.Give(out, models[k], k.pool, k.model)
	}
	gpuOfCluster.Give(out, &all)
}
