package model

import "github.com/muster-sched/muster/structs"

// Fragments returns how much of the free share of a node's GPUs the usual shapes of a mix could not use, in thousandths
// of a GPU, times the total of the mix (Weng et al., ATC'23). For each shape that is all free GPU capacity if the shape
// needs no GPU, another model, more CPU or more GPUs than the node has free, else what is free on GPUs with too little
// room. Shapes are weighted by how often they are requested.
func Fragments(g *GPUState, mix *Mix) int64 {
	all := SumFree(g.Free)
	if all == 0 {
		return 0
	}
	sum := int64(0)
	for i := range mix.Core {
		m := &mix.Shapes[i]
		if m.GPUs == 0 || !g.Suits[i] || g.FreeCPU < m.CPU {
			sum += m.Count * all
			continue
		}
		room, small := int64(0), int64(0)
		for _, free := range g.Free {
			if free >= m.Milli {
				room++
			} else {
				small += free
			}
		}
		if room < m.GPUs {
			small = all
		}
		sum += m.Count * small
	}
	return sum
}

// GPUFigures measure how well GPUs are used, on one node, a group of nodes or all nodes.
type GPUFigures struct {
	GPUs       int64 // healthy ones
	Idle       int64 // of GPUs: not used at all
	Total      int64 // thousandths of GPUs
	Free       int64 // of Total
	Fragmented int64 // of Free: what the usual requests of the mix could not use, on average
	Blocked    int64 // of Free: what no request with GPUs could use, because the node has too little CPU left
}

// Allocated returns the share of all GPUs that is allocated, in millionths.
func (f *GPUFigures) Allocated() int64 { return (f.Total - f.Free) * Micro / max(f.Total, 1) }

// Fragmentation returns the share of the free GPU capacity that is fragmented, in millionths.
func (f *GPUFigures) Fragmentation() int64 { return f.Fragmented * Micro / max(f.Free, 1) }

// Pressure returns the share of all GPUs that is allocated or fragmented, in millionths: what the usual requests cannot
// use.
func (f *GPUFigures) Pressure() int64 {
	return (f.Total - f.Free + f.Fragmented) * Micro / max(f.Total, 1)
}

// Add sums figures.
func (f *GPUFigures) Add(o *GPUFigures) {
	f.GPUs, f.Idle, f.Total, f.Free = f.GPUs+o.GPUs, f.Idle+o.Idle, f.Total+o.Total, f.Free+o.Free
	f.Fragmented, f.Blocked = f.Fragmented+o.Fragmented, f.Blocked+o.Blocked
}

// NodeGPUs are the figures of one node and the free capacity of each of its GPUs.
type NodeGPUs struct {
	Node *structs.Node
	GPUFigures
	Each []GPUFree
}

// GPUFree is the free capacity of one GPU.
type GPUFree struct {
	Device, Instance string // as in a grant
	Healthy          bool   // unhealthy GPUs count in no figure
	Whole            bool   // allocated whole
	FreeMilli        int64  // thousandths: the scarcer one of memory and compute
	FreeMiB          int64
	FreeCompute      int64 // percent
	Fragmented       int64 // of FreeMilli
}

// GPUs calls f for every node with GPUs, in ID order, until f returns false. mix is what is usually requested; nil
// stands for the mix of everything held. f may keep its argument.
func (v *View) GPUs(mix *Mix, f func(*NodeGPUs) bool) {
	if mix == nil {
		mix = v.LiveMix()
	}
	suits := make(map[[16]byte][]bool)
	var g GPUState
	for _, c := range v.Chunks {
		for i, n := range c.Nodes {
			o := Occupancy{c.Used[i], c.Hold[i]}
			if GPUStateOf(c, i, &o, &g); len(g.Free) == 0 {
				continue
			}
			if suits[c.Hash[i]] == nil {
				suits[c.Hash[i]] = mix.Suits(n)
			}
			g.Suits = suits[c.Hash[i]]
			g.FreeCPU = c.Total[i].CPU - o.Used.CPU - o.Used.Cores*c.MHz[i]
			if !f(nodeGPUs(n, &o, &g, mix)) {
				return
			}
		}
	}
}

// GPUTotals are the figures of all ready nodes of a pool ("" for all pools).
func (v *View) GPUTotals(mix *Mix, pool structs.PoolName) GPUFigures {
	var sum GPUFigures
	v.GPUs(mix, func(n *NodeGPUs) bool {
		if n.Node.Ready() && (pool == "" || pool == structs.NodePoolAll || n.Node.Pool == pool) {
			sum.Add(&n.GPUFigures)
		}
		return true
	})
	return sum
}

func nodeGPUs(n *structs.Node, o *Occupancy, g *GPUState, mix *Mix) *NodeGPUs {
	out := &NodeGPUs{Node: n}
	out.GPUs, out.Idle, out.Free, out.Total = int64(len(g.Free)), IdleGPUs(g.Free), SumFree(g.Free), 1000*int64(len(g.Free))
	blocked := true
	each := make([]int64, len(g.Free)) // fragmented, times mix.Total
	for k := range mix.Shapes {
		m := &mix.Shapes[k]
		room := int64(0)
		for _, free := range g.Free {
			if free >= m.Milli {
				room++
			}
		}
		fits := m.GPUs > 0 && g.Suits[k] && g.FreeCPU >= m.CPU && room >= m.GPUs
		blocked = blocked && (m.GPUs == 0 || g.FreeCPU < m.CPU)
		if k >= mix.Core {
			continue
		}
		for x, free := range g.Free {
			if !fits || free < m.Milli {
				each[x] += m.Count * free
			}
		}
	}
	if blocked && mix.All > 0 {
		out.Blocked = out.Free
	}
	out.Fragmented = Fragments(g, mix) / max(mix.Total, 1)
	reserve := n.GPUReserveMiB()
	pos, at := 0, 0
	for i := range n.Resources.Devices {
		d := &n.Resources.Devices[i]
		for j := range d.Instances {
			in := &d.Instances[j]
			if IsGPU(d) {
				x := GPUFree{Device: d.ID(), Instance: in.ID, Healthy: in.Healthy}
				if t := o.Hold.Taken(pos); t.Whole {
					x.Whole = true
				} else {
					x.FreeMiB, x.FreeCompute = max(0, in.MemoryMiB-reserve-t.Mem), max(0, structs.GPUComputeMax-t.Compute)
				}
				if in.Healthy {
					x.FreeMilli, x.Fragmented = g.Free[at], each[at]/max(mix.Total, 1)
					at++
				}
				out.Each = append(out.Each, x)
			}
			pos++
		}
	}
	return out
}
