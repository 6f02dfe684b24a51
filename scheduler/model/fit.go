package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// UnitOf is the unit in which a shortage of each resource is reported.
var UnitOf = [structs.NodeDimensions]structs.Unit{structs.DimensionCPU: structs.UnitMHz, structs.DimensionCores: structs.UnitCores, structs.DimensionMemory: structs.UnitMiB,
	structs.DimensionDisk: structs.UnitMiB, structs.DimensionPorts: structs.UnitPorts, structs.DimensionDevices: structs.UnitDevices,
	structs.DimensionGPUMemory: structs.UnitMiB, structs.DimensionGPUCompute: structs.UnitPercent}

// Shortage is the resource that a node lacks and how much of it; structs.DimensionNone for nothing.
type Shortage struct {
	Dim   structs.Dimension
	Short int64
}

// FitsAmounts compares the use of a node before and after a placement with what the node offers. A node that is
// overcommitted already may not get worse; a dimension that the placement does not use is not checked. Reserved cores
// also take their MHz.
func FitsAmounts(total, before, after structs.Vector, mhz int64) Shortage {
	if cpu := after.CPU + after.Cores*mhz; cpu > total.CPU && cpu > before.CPU+before.Cores*mhz {
		return Shortage{structs.DimensionCPU, cpu - total.CPU}
	}
	if after.MemoryMiB > total.MemoryMiB && after.MemoryMiB > before.MemoryMiB {
		return Shortage{structs.DimensionMemory, after.MemoryMiB - total.MemoryMiB}
	}
	if after.DiskMiB > total.DiskMiB && after.DiskMiB > before.DiskMiB {
		return Shortage{structs.DimensionDisk, after.DiskMiB - total.DiskMiB}
	}
	if after.Cores > total.Cores && after.Cores > before.Cores {
		return Shortage{structs.DimensionCores, after.Cores - total.Cores}
	}
	return Shortage{}
}

// Fits reports whether a placement with its ports, cores and devices fits on a node, and returns the node's occupancy
// after it. Decisions and Verify both use it.
func Fits(n *structs.Node, total structs.Vector, mhz int64, o Occupancy, h *Held) (Occupancy, Shortage) {
	if h.Rare == nil {
		if s := FitsAmounts(total, o.Used, o.Used.Add(h.Need), mhz); s.Dim != structs.DimensionNone {
			return o, s
		}
		return o.with(n, h), Shortage{}
	}
	// The allocations that this one waits for do not block it: it takes over what they free. No other placement may
	// claim them, and they must not wait themselves, or two claims on one place could both be met.
	blocking := o
	if len(h.Rare.Waits) > 0 {
		var rest []*Held
		for e := range o.Hold.All() {
			if !slices.Contains(h.Rare.Waits, e.ID) {
				rest = append(rest, e)
			}
		}
		for _, w := range h.Rare.Waits {
			if o.Hold.Claimed(w) || o.Hold.Waiting(w) {
				return o, Shortage{structs.DimensionClaim, 1}
			}
		}
		blocking = Occupied(n, rest)
	}
	if b := blocking.Hold; b != nil {
		for _, p := range h.Rare.Ports {
			if PortTaken(b, networkOf(n, p.HostIP), p.Value) {
				return o, Shortage{structs.DimensionPorts, 1}
			}
		}
		for _, c := range h.Rare.Cores {
			if b.Cores.Has(int(c)) {
				return o, Shortage{structs.DimensionCores, 1}
			}
		}
	}
	for _, p := range h.Rare.Ports {
		if slices.Contains(n.Reserved.Ports, p.Value) {
			return o, Shortage{structs.DimensionPorts, 1}
		}
	}
	if s := fitsGrants(n, blocking.Hold, h.Rare.Grants); s.Dim != structs.DimensionNone {
		return o, s
	}
	if shared := sharesWithFellow(o.Hold, h); shared > 0 {
		return o, Shortage{structs.DimensionDevices, shared}
	}
	if s := astray(n, h); s.Dim != structs.DimensionNone {
		return o, s
	}
	after := o.with(n, h)
	if s := FitsAmounts(total, o.Used, after.Used, mhz); s.Dim != structs.DimensionNone {
		return o, s
	}
	return after, Shortage{}
}

// sharesWithFellow counts the devices of which another member of the same gang has a share: a collective of two ranks
// on one GPU does not work.
func sharesWithFellow(o *Holding, h *Held) (n int64) {
	if h.Work.Job == nil || o == nil {
		return 0
	}
	tg := h.Work.Job.Group(h.Work.Group)
	if tg == nil || tg.Gang == nil {
		return 0
	}
	for e := range o.All() {
		if e.Rare == nil || !e.Work.Of(h.Work.Job, h.Work.Group) || slices.Contains(h.Rare.Waits, e.ID) {
			continue
		}
		for i := range h.Rare.Grants {
			g := &h.Rare.Grants[i]
			if g.MemoryMiB > 0 && slices.ContainsFunc(e.Rare.Grants, func(x structs.Grant) bool { return x.Instance == g.Instance && x.Device == g.Device }) {
				n++
			}
		}
	}
	return n
}

// PortTaken reports whether a port of one of the networks is in use.
func PortTaken(h *Holding, network, port int) bool {
	if h == nil {
		return false
	}
	_, found := slices.BinarySearch(h.ports, PortKey(network, port))
	return found
}
