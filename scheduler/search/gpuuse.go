package search

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// gpuUse returns how the last picks change the use of a node's GPUs.
func (s *Search) gpuUse(c *model.Chunk, i int, v *Verdict, o *model.Occupancy) GPUUse {
	n := c.Nodes[i]
	var u GPUUse
	u.Draw = s.drawn(n)
	if !v.gpus {
		return u
	}
	before := &s.gpus.state.before
	model.GPUStateOf(c, i, o, before)
	u.Count, u.Free = int64(len(before.Free)), model.SumFree(before.Free)
	if len(s.Ask.Devices) == 0 {
		return u
	}
	if s.Ask.PlainDevices { // rating did not pick
		s.Picker.PickDevices(s.Ask, n, model.HoldingOr(o.Hold), v.Choices)
	}
	class := int64(0) // 0: shared
	reserve := n.GPUReserveMiB()
	for k := range s.Picker.Picks {
		p := &s.Picker.Picks[k]
		at := gpuOrder(n, p.Pos)
		if at < 0 {
			continue
		}
		u.Taken++
		left := model.FreeMilli(n.Resources.Devices[p.Group].Instances[p.Index].MemoryMiB-reserve, s.Picker.Busy(model.HoldingOr(o.Hold), p.Pos))
		u.Milli += before.Free[at] - left
		if before.Free[at] == 1000 {
			u.TakenIdle++
		} else {
			u.TakenFree += before.Free[at]
		}
		if p.Mem == 0 {
			class++
		}
	}
	for h := range o.Hold.All() {
		if h.Rare == nil || len(h.Rare.Grants) == 0 {
			continue
		}
		if gpuClass(h.Rare.Grants) == class {
			u.Same = true
		} else {
			u.Other = true
		}
	}
	return u
}

// gpuClass returns how many whole GPUs an allocation has; 0 if it has shares.
func gpuClass(grants []structs.Grant) int64 {
	n := int64(0)
	for i := range grants {
		if grants[i].MemoryMiB > 0 {
			return 0
		}
		n++
	}
	return n
}

// drawn returns the random lot of a node in this decision.
func (s *Search) drawn(n *structs.Node) uint64 {
	x := s.lot
	for k := 0; k < len(n.ID); k += 8 {
		word := uint64(0)
		for _, b := range n.ID[k:min(k+8, len(n.ID))] {
			word = word<<8 | uint64(b)
		}
		x = draw(x ^ word)
	}
	return x
}

// lotOf returns the state from which the lots of a decision are drawn.
func lotOf(seed uint64, key structs.JobKey) uint64 {
	x := draw(seed)
	for _, s := range []string{key.Namespace, key.ID} {
		for k := range len(s) {
			x = (x ^ uint64(s[k])) * 0x100000001b3
		}
		x = draw(x)
	}
	return x
}

// draw scrambles the bits of a number (the finalizer of SplitMix64, Steele et al., OOPSLA'14).
func draw(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// wishesOf records what a policy needs beyond what every policy gets.
func (s *Search) wishesOf(p Policy) {
	c := p.Capabilities()
	s.offGPUs = c.AvoidsGPUNodes && len(s.Ask.Devices) == 0 && s.w.AnyGPUs()
	s.learns = c.UsesHistory && len(s.w.Past) > 0
	s.sees, s.lots, s.counts = c.SeesGPUs, c.DrawsLots, c.CountsAllocs
}

// gpuOrder returns the place of a device among the healthy GPUs of a node, or -1.
func gpuOrder(n *structs.Node, want int) int {
	pos, at := 0, 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			counts := model.IsGPU(g) && g.Instances[j].Healthy
			if pos == want {
				if !counts {
					return -1
				}
				return at
			}
			if counts {
				at++
			}
			pos++
		}
	}
	return -1
}
