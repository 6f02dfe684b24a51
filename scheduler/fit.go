package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// unitOf is the unit in which shortages of a node's resource are told.
var unitOf = [structs.NodeDimensions]structs.Unit{structs.DimensionCPU: structs.UnitMHz, structs.DimensionCores: structs.UnitCores, structs.DimensionMemory: structs.UnitMiB,
	structs.DimensionDisk: structs.UnitMiB, structs.DimensionPorts: structs.UnitPorts, structs.DimensionDevices: structs.UnitDevices,
	structs.DimensionGPUMemory: structs.UnitMiB, structs.DimensionGPUCompute: structs.UnitPercent}

// shortage is what a node lacks: one of its resources, or structs.DimensionNone for nothing.
type shortage struct {
	dim   structs.Dimension
	short int64
}

// fitsAmounts compares the amounts of a node's use before and after a placement with what the node offers. A node that
// is over already may not get worse; in a dimension that the placement leaves alone it is not asked. Reserved cores
// take their MHz too.
func fitsAmounts(total, before, after structs.Vector, mhz int64) shortage {
	if cpu := after.CPU + after.Cores*mhz; cpu > total.CPU && cpu > before.CPU+before.Cores*mhz {
		return shortage{structs.DimensionCPU, cpu - total.CPU}
	}
	if after.MemoryMiB > total.MemoryMiB && after.MemoryMiB > before.MemoryMiB {
		return shortage{structs.DimensionMemory, after.MemoryMiB - total.MemoryMiB}
	}
	if after.DiskMiB > total.DiskMiB && after.DiskMiB > before.DiskMiB {
		return shortage{structs.DimensionDisk, after.DiskMiB - total.DiskMiB}
	}
	if after.Cores > total.Cores && after.Cores > before.Cores {
		return shortage{structs.DimensionCores, after.Cores - total.Cores}
	}
	return shortage{}
}

// fits is the fit function: it tells whether a placement with everything it was given (ports, cores, devices) fits on a
// node, and the node's occupancy after it. Decisions and Verify both use it.
func fits(n *structs.Node, total structs.Vector, mhz int64, o occupancy, h *held) (occupancy, shortage) {
	if h.rare == nil {
		if s := fitsAmounts(total, o.used, o.used.Add(h.need), mhz); s.dim != structs.DimensionNone {
			return o, s
		}
		return o.with(n, h), shortage{}
	}
	// What this one waits for does not stand in its way: it owns what they free. Nobody else may claim them, and they
	// must not wait themselves, or two claims on one place could come true together.
	blocking := o
	if len(h.rare.waits) > 0 {
		var rest []*held
		for e := range o.hold.all() {
			if !slices.Contains(h.rare.waits, e.ID) {
				rest = append(rest, e)
			}
		}
		for _, w := range h.rare.waits {
			if o.hold.claimed(w) || o.hold.waiting(w) {
				return o, shortage{structs.DimensionClaim, 1}
			}
		}
		blocking = occupied(n, rest)
	}
	if b := blocking.hold; b != nil {
		for _, p := range h.rare.ports {
			if portTaken(b, networkOf(n, p.HostIP), p.Value) {
				return o, shortage{structs.DimensionPorts, 1}
			}
		}
		for _, c := range h.rare.cores {
			if b.cores.has(int(c)) {
				return o, shortage{structs.DimensionCores, 1}
			}
		}
	}
	for _, p := range h.rare.ports {
		if slices.Contains(n.Reserved.Ports, p.Value) {
			return o, shortage{structs.DimensionPorts, 1}
		}
	}
	if s := fitsGrants(n, blocking.hold, h.rare.grants); s.dim != structs.DimensionNone {
		return o, s
	}
	if shared := sharesWithFellow(o.hold, h); shared > 0 {
		return o, shortage{structs.DimensionDevices, shared}
	}
	if s := astray(n, h); s.dim != structs.DimensionNone {
		return o, s
	}
	after := o.with(n, h)
	if s := fitsAmounts(total, o.used, after.used, mhz); s.dim != structs.DimensionNone {
		return o, s
	}
	return after, shortage{}
}

// sharesWithFellow counts the devices of which another member of the same gang has a share: a collective of two ranks on
// one GPU does not work.
func sharesWithFellow(o *holding, h *held) (n int64) {
	if h.work.job == nil || o == nil {
		return 0
	}
	tg := h.work.job.Group(h.work.group)
	if tg == nil || tg.Gang == nil {
		return 0
	}
	for e := range o.all() {
		if e.rare == nil || !e.work.of(h.work.job, h.work.group) || slices.Contains(h.rare.waits, e.ID) {
			continue
		}
		for i := range h.rare.grants {
			g := &h.rare.grants[i]
			if g.MemoryMiB > 0 && slices.ContainsFunc(e.rare.grants, func(x structs.Grant) bool { return x.Instance == g.Instance && x.Device == g.Device }) {
				n++
			}
		}
	}
	return n
}

func portTaken(h *holding, network, port int) bool {
	if h == nil {
		return false
	}
	_, found := slices.BinarySearch(h.ports, portKey(network, port))
	return found
}
