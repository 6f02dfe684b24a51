package server

import (
	"cmp"
	"maps"
	"slices"

	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// gpuGroup is the figures of some GPUs together.
type gpuGroup struct {
	model.GPUFigures
	freeMiB, sharedMiB int64 // free memory; of it, on GPUs in shared use
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

// gpuMeasures are the metrics of a group of GPUs, in the order in which they are documented.
var gpuMeasures = []struct {
	name, help string
	of         func(*gpuGroup) float64
}{
	{"gpus", "Healthy GPUs of ready nodes.", func(g *gpuGroup) float64 { return float64(g.GPUs) }},
	{"idle", "GPUs of which nobody has any part.", func(g *gpuGroup) float64 { return float64(g.Idle) }},
	{"allocated_ratio", "Share of the GPUs that is given out.", func(g *gpuGroup) float64 { return micro(g.Allocated()) }},
	{"shared_free_ratio", "Share of the free GPU memory that lies on GPUs in shared use, out of reach of whole ones: FRAGMENTED of muster gpu list.",
		func(g *gpuGroup) float64 { return float64(g.sharedMiB) / float64(max(g.freeMiB, 1)) }},
	{"fragmentation_ratio", "Share of what is free that the usual requests could not use.", func(g *gpuGroup) float64 { return micro(g.Fragmentation()) }},
	{"pressure_ratio", "Share of the GPUs that is given out, or free and of no use to the usual requests.", func(g *gpuGroup) float64 { return micro(g.Pressure()) }},
}

func micro(n int64) float64 { return float64(n) / model.Micro }

// Metrics are the measurements with labels that a server offers: how GPUs are used, by node, by pool and model, and over
// all. They are computed from the newest state when somebody asks; followers tell the same as the leader.
func (s *Server) Metrics() (out []telemetry.Figure) {
	p := s.Published()
	if p == nil || p.View == nil {
		return nil
	}
	type key struct{ pool, model string }
	var all gpuGroup
	models := map[key]*gpuGroup{}
	tell := func(prefix string, g *gpuGroup, labels ...string) {
		for _, m := range gpuMeasures {
			out = append(out, telemetry.Figure{Name: prefix + m.name, Help: m.help, Labels: labels, Value: m.of(g)})
		}
	}
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
		tell("muster_node_gpu_", &here, "node", n.Node.Name, "node_id", n.Node.ID.String())
		return true
	})
	for _, k := range slices.SortedFunc(maps.Keys(models), func(a, b key) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.model, b.model)) }) {
		tell("muster_model_gpu_", models[k], "pool", k.pool, "model", k.model)
	}
	tell("muster_cluster_gpu_", &all)
	return out
}

// reservationMetrics count what became of what blocked jobs were promised (D20), in this term of the leader.
type reservationMetrics struct {
	Made    int64
	Earlier int64 // moved to an earlier time
	Later   int64 // moved to a later time
	Kept    int64 // the job was placed by the time it was promised
	Late    int64 // it was placed later
	Dropped int64 // given up: the job ended, or needs no promise any more
}

// Feed counts what a batch of the log changed; waits tells whether a job still waits after it.
func (c *reservationMetrics) feed(d *structs.Delta, waits func(structs.JobKey) bool) {
	for i := range d.Reserved {
		a, b := d.Reserved[i].Before, d.Reserved[i].After
		switch {
		case a != nil && a.JobID == "" || b != nil && b.JobID == "":
		case a == nil:
			c.Made++
		case b != nil && b.Start < a.Start:
			c.Earlier++
		case b != nil && b.Start > a.Start:
			c.Later++
		case b != nil:
		case !placedIn(d, a) || waits(structs.JobKey{Namespace: a.Namespace, ID: a.JobID}):
			c.Dropped++
		case d.Time <= a.Start:
			c.Kept++
		default:
			c.Late++
		}
	}
}

// placedIn reports whether a batch placed something of the job that a reservation is for.
func placedIn(d *structs.Delta, r *structs.Reservation) bool {
	return slices.ContainsFunc(d.Allocs, func(c structs.Changed[structs.Allocation]) bool {
		return c.Before == nil && c.After != nil && c.After.Namespace == r.Namespace && c.After.JobID == r.JobID
	})
}
