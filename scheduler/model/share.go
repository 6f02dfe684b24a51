package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Share is what is allocated of one device that is not allocated whole.
type Share struct {
	Pos     int   // of the device on its node
	Mem     int64 // MiB
	Compute int64 // percent
	Whole   bool  // allocated whole, now or until an allocation ends: it cannot be shared
}

// FindShare finds the entry of a device in a list sorted by position.
func FindShare(list []Share, pos int) (int, bool) {
	return slices.BinarySearchFunc(list, pos, func(s Share, pos int) int { return s.Pos - pos })
}

// AddShare adds to the entry of a device, or inserts one.
func AddShare(list []Share, s Share) []Share {
	i, found := FindShare(list, s.Pos)
	if !found {
		return slices.Insert(list, i, s)
	}
	list[i].Mem += s.Mem
	list[i].Compute += s.Compute
	list[i].Whole = list[i].Whole || s.Whole
	return list
}

// Taken returns what is allocated of a device: nothing, a share, or all of it.
func (h *Holding) Taken(pos int) Share {
	if h == nil || !h.Devs.Has(pos) {
		return Share{Pos: pos}
	}
	if i, found := FindShare(h.Shares, pos); found {
		return h.Shares[i]
	}
	return Share{Pos: pos, Whole: true}
}

// tallyDevices counts the devices in use and the allocated shares. An allocation that waits for others takes over what
// they free: of a device that both have, it is charged only what it takes beyond theirs.
func (h *Holding) tallyDevices(n *structs.Node) {
	shared := false
	for e := range h.held.all() {
		if e.Rare == nil {
			continue
		}
		for i := range e.Rare.Grants {
			g := &e.Rare.Grants[i]
			if pos := InstancePos(n, g.Device, g.Instance); pos >= 0 {
				h.Devs.Set(pos)
				shared = shared || g.MemoryMiB > 0
			}
		}
	}
	if !shared {
		return
	}
	for e := range h.held.all() {
		if e.Rare == nil || len(e.Rare.Grants) == 0 {
			continue
		}
		mine := grantShares(n, e.Rare.Grants)
		for _, w := range e.Rare.Waits {
			of := h.Get(w)
			if of == nil || of.Rare == nil {
				continue
			}
			for _, old := range grantShares(n, of.Rare.Grants) {
				if k, both := FindShare(mine, old.Pos); both && !old.Whole {
					mine[k].Mem, mine[k].Compute = max(0, mine[k].Mem-old.Mem), max(0, mine[k].Compute-old.Compute)
				}
			}
		}
		for _, s := range mine {
			h.Shares = AddShare(h.Shares, s)
		}
	}
	// A device that is only allocated whole needs no entry.
	h.Shares = slices.DeleteFunc(h.Shares, func(s Share) bool { return s.Whole && s.Mem == 0 && s.Compute == 0 })
}

// grantShares sums grants by device. It ignores devices that the node does not have.
func grantShares(n *structs.Node, grants []structs.Grant) []Share {
	var out []Share
	for i := range grants {
		g := &grants[i]
		if pos := InstancePos(n, g.Device, g.Instance); pos >= 0 {
			out = AddShare(out, Share{Pos: pos, Mem: g.MemoryMiB, Compute: g.Compute, Whole: g.MemoryMiB == 0})
		}
	}
	return out
}

// instanceAt returns the device at a position over all device groups of a node, or nil beyond the last.
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

// fitsGrants returns what is missing to grant devices to one allocation, given what b holds (nil: nothing). A device is
// granted whole, once, or in shares, never both. The shares of one device add up to at most 100 %, and to at most its
// memory less the reserve.
func fitsGrants(n *structs.Node, b *Holding, grants []structs.Grant) Shortage {
	shared := false
	for i := range grants {
		g := &grants[i]
		pos := InstancePos(n, g.Device, g.Instance)
		if pos < 0 {
			return Shortage{structs.DimensionDevices, 1}
		}
		if g.MemoryMiB > 0 || g.Compute > 0 {
			shared = true
			continue
		}
		if b != nil && b.Devs.Has(pos) {
			return Shortage{structs.DimensionDevices, 1}
		}
		for k := range grants[:i] {
			if h := &grants[k]; h.Instance == g.Instance && h.Device == g.Device {
				return Shortage{structs.DimensionDevices, 1} // the decision granted it twice
			}
		}
	}
	if !shared {
		return Shortage{}
	}
	reserve := n.GPUReserveMiB()
	for _, s := range grantShares(n, grants) {
		have := b.Taken(s.Pos)
		if have.Whole || s.Whole && s.Mem+s.Compute > 0 {
			return Shortage{structs.DimensionDevices, 1}
		}
		if s.Whole {
			continue
		}
		if over := have.Mem + s.Mem - (instanceAt(n, s.Pos).MemoryMiB - reserve); over > 0 {
			return Shortage{structs.DimensionGPUMemory, over}
		}
		if over := have.Compute + s.Compute - structs.GPUComputeMax; over > 0 {
			return Shortage{structs.DimensionGPUCompute, over}
		}
	}
	return Shortage{}
}
