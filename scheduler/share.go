package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// share is what is taken of one device that is not given whole.
type share struct {
	pos     int   // of the device on its node
	mem     int64 // MiB
	compute int64 // percent
	whole   bool  // somebody has (or still has) the whole of it: nothing may be shared
}

// findShare finds the entry of a device in a list sorted by position.
func findShare(list []share, pos int) (int, bool) {
	return slices.BinarySearchFunc(list, pos, func(s share, pos int) int { return s.pos - pos })
}

// addShare adds to the entry of a device, or makes one.
func addShare(list []share, s share) []share {
	i, found := findShare(list, s.pos)
	if !found {
		return slices.Insert(list, i, s)
	}
	list[i].mem += s.mem
	list[i].compute += s.compute
	list[i].whole = list[i].whole || s.whole
	return list
}

// taken is what is taken of a device: nothing, a share, or all of it.
func (h *holding) taken(pos int) share {
	if h == nil || !h.devs.has(pos) {
		return share{pos: pos}
	}
	if i, found := findShare(h.shares, pos); found {
		return h.shares[i]
	}
	return share{pos: pos, whole: true}
}

// tallyDevices counts the devices in use, and how much of those that are shared. As with amounts, an allocation that
// waits on others owns what they free: of a device that both have it is charged only what it takes beyond theirs.
func (h *holding) tallyDevices(n *structs.Node) {
	shared := false
	for e := range h.held.all() {
		if e.rare == nil {
			continue
		}
		for i := range e.rare.grants {
			g := &e.rare.grants[i]
			if pos := instancePos(n, g.Device, g.Instance); pos >= 0 {
				h.devs.set(pos)
				shared = shared || g.MemoryMiB > 0
			}
		}
	}
	if !shared {
		return
	}
	for e := range h.held.all() {
		if e.rare == nil || len(e.rare.grants) == 0 {
			continue
		}
		mine := grantShares(n, e.rare.grants)
		for _, w := range e.rare.waits {
			of := h.get(w)
			if of == nil || of.rare == nil {
				continue
			}
			for _, old := range grantShares(n, of.rare.grants) {
				if k, both := findShare(mine, old.pos); both && !old.whole {
					mine[k].mem, mine[k].compute = max(0, mine[k].mem-old.mem), max(0, mine[k].compute-old.compute)
				}
			}
		}
		for _, s := range mine {
			h.shares = addShare(h.shares, s)
		}
	}
	// A device that is only given whole needs no entry.
	h.shares = slices.DeleteFunc(h.shares, func(s share) bool { return s.whole && s.mem == 0 && s.compute == 0 })
}

// grantShares sums grants by device. Devices that the node does not have are left out.
func grantShares(n *structs.Node, grants []structs.Grant) []share {
	var out []share
	for i := range grants {
		g := &grants[i]
		if pos := instancePos(n, g.Device, g.Instance); pos >= 0 {
			out = addShare(out, share{pos: pos, mem: g.MemoryMiB, compute: g.Compute, whole: g.MemoryMiB == 0})
		}
	}
	return out
}

// instanceAt is the device at a position, over all device groups of a node; nil beyond the last.
func instanceAt(n *structs.Node, pos int) *structs.DeviceInstance {
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if pos < len(g.Instances) {
			return &g.Instances[pos]
		}
		pos -= len(g.Instances)
	}
	return nil
}

// fitsGrants tells whether devices can be given as the grants say, beside what is taken in b (nil: nothing). A device
// is given whole or in shares, never both; the shares of one device are at most its memory less the reserve, and 100 %.
func fitsGrants(n *structs.Node, b *holding, grants []structs.Grant) shortage {
	shared := false
	for i := range grants {
		g := &grants[i]
		pos := instancePos(n, g.Device, g.Instance)
		if pos < 0 {
			return shortage{structs.DimensionDevices, 1}
		}
		if g.MemoryMiB > 0 || g.Compute > 0 {
			shared = true
			continue
		}
		if b != nil && b.devs.has(pos) {
			return shortage{structs.DimensionDevices, 1}
		}
	}
	if !shared {
		return shortage{}
	}
	reserve := n.GPUReserveMiB()
	for _, s := range grantShares(n, grants) {
		have := b.taken(s.pos)
		if have.whole || s.whole && s.mem+s.compute > 0 {
			return shortage{structs.DimensionDevices, 1}
		}
		if s.whole {
			continue
		}
		if over := have.mem + s.mem - (instanceAt(n, s.pos).MemoryMiB - reserve); over > 0 {
			return shortage{structs.DimensionGPUMemory, over}
		}
		if over := have.compute + s.compute - structs.GPUComputeMax; over > 0 {
			return shortage{structs.DimensionGPUCompute, over}
		}
	}
	return shortage{}
}
