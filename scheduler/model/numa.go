package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Cores are chosen by NUMA node.
//
// Naive: take the lowest free IDs. That works on a machine with one NUMA node. On others a task soon gets cores of two
// nodes, far from half of its memory and from its GPUs.
//
// Instead cores are chosen in runs. The cores of one task come from one NUMA node where they fit: the node of its GPUs
// if possible, else the fullest one, so that larger holes stay whole. A task may require this (numa in its resources),
// and may also require that some of its devices are there.

// NUMANode is one NUMA node of a machine with the cores that may be reserved, ascending.
type NUMANode struct {
	ID    int64 // AnyNUMA: the machine has only one; NoNUMA: the location of these cores is unknown
	Cores []int64
	Pull  int64 // devices that the allocation has there
}

const (
	AnyNUMA = -1
	NoNUMA  = -2
)

// numaIDMax limits the NUMA node numbers that are searched.
const numaIDMax = 1024

// NUMANodes lists a machine's NUMA nodes by number, with the cores of each that tasks may reserve, from the node's
// attributes.
func NUMANodes(n *structs.Node) []NUMANode {
	cores := reservableCores(n)
	count, _ := strconv.Atoi(n.Attributes[structs.NUMACountAttribute])
	if count < 2 {
		return []NUMANode{{ID: AnyNUMA, Cores: cores}}
	}
	out := make([]NUMANode, 0, count+1)
	var known Bitset
	for id := 0; id < numaIDMax && len(out) < count; id++ {
		list, ok := n.Attributes[structs.NUMACoresAttribute(id)]
		if !ok {
			continue
		}
		x := NUMANode{ID: int64(id)}
		for part := range strings.SplitSeq(list, ",") {
			lo, hi, two := strings.Cut(part, "-")
			if !two {
				hi = lo
			}
			first, err1 := strconv.ParseInt(lo, 10, 64)
			last, err2 := strconv.ParseInt(hi, 10, 64)
			if err1 != nil || err2 != nil {
				continue
			}
			at, _ := slices.BinarySearch(cores, first)
			for ; at < len(cores) && cores[at] <= last; at++ {
				if !known.Has(int(cores[at])) {
					known.Set(int(cores[at]))
					x.Cores = append(x.Cores, cores[at])
				}
			}
		}
		slices.Sort(x.Cores)
		out = append(out, x)
	}
	stray := NUMANode{ID: NoNUMA}
	for _, c := range cores {
		if !known.Has(int(c)) {
			stray.Cores = append(stray.Cores, c)
		}
	}
	if len(stray.Cores) > 0 {
		out = append(out, stray)
	}
	return out
}

// LargestNUMA returns the number of cores of the largest NUMA node.
func LargestNUMA(nodes []NUMANode) int {
	most := 0
	for i := range nodes {
		if nodes[i].ID != NoNUMA {
			most = max(most, len(nodes[i].Cores))
		}
	}
	return most
}

// astray counts the cores and devices of a placement that are not on the NUMA node that its tasks require.
func astray(n *structs.Node, h *Held) Shortage {
	if h.Work.Job == nil || len(h.Rare.Cores) == 0 {
		return Shortage{}
	}
	tg := h.Work.Job.Group(h.Work.Group)
	if tg == nil {
		return Shortage{}
	}
	var nodes []NUMANode
	for _, t := range tg.Tasks {
		if t.Resources.Cores == 0 || t.Resources.NUMA.Wants() != structs.NUMARequire {
			continue
		}
		if nodes == nil {
			nodes = NUMANodes(n)
		}
		from, to := tg.CoreSpan(t.Name)
		if to > int64(len(h.Rare.Cores)) {
			return Shortage{structs.DimensionCores, to - int64(len(h.Rare.Cores))}
		}
		mine := h.Rare.Cores[from:to]
		best, at := int64(-1), 0
		for i := range nodes {
			here := int64(0)
			for _, c := range mine {
				if _, found := slices.BinarySearch(nodes[i].Cores, c); found && nodes[i].ID != NoNUMA {
					here++
				}
			}
			if here > best {
				best, at = here, i
			}
		}
		if d := int64(len(mine)) - best; d > 0 {
			return Shortage{structs.DimensionCores, d}
		}
		if nodes[at].ID == AnyNUMA {
			continue
		}
		for i := range h.Rare.Grants {
			g := &h.Rare.Grants[i]
			if g.Task != t.Name || !t.Resources.NUMA.Ties(g.Device) {
				continue
			}
			if pos := InstancePos(n, g.Device, g.Instance); pos < 0 || instanceAt(n, pos).NUMANode != nodes[at].ID {
				return Shortage{structs.DimensionDevices, 1}
			}
		}
	}
	return Shortage{}
}
