package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Results of rate that are not scores.
const (
	rateShort   = -1 // something is short: see Search.why
	rateRefused = -2 // a condition unique to the node refused it, and was counted
)

// rate checks whether the group fits on a node by amounts, static ports and devices, and returns the weighted sum of
// the terms other than spread.
func (s *Search) rate(c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy, count bool) int64 {
	a := s.Ask
	after := o.Used.Add(a.Need)
	total := &c.Total[i]
	mhz := c.MHz[i]
	if after.CPU+after.Cores*mhz > total.CPU || after.MemoryMiB > total.MemoryMiB || after.DiskMiB > total.DiskMiB || after.Cores > total.Cores {
		if x := model.FitsAmounts(*total, o.Used, after, mhz); x.Dim != structs.DimensionNone {
			s.why = match.ShortageOf{Shortage: x}
			if count && v.gpus && len(a.Devices) > 0 {
				s.nameGPUs(c, i, v, o)
			}
			return rateShort
		}
	}
	seen := o // with what is reserved; for ports, cores and devices, not for amounts
	if s.Reserved.Keeps() {
		merged, x := s.kept(c, i, row, o)
		if x.Dim != structs.DimensionNone {
			s.why = x
			return rateShort
		}
		if merged != nil {
			seen = &model.Occupancy{Used: o.Used, Hold: merged}
		}
	}
	if s.peers != nil {
		if why, bad := s.peersRefuse(row); bad {
			if count {
				v.filtered++
				s.refuse(why)
			}
			return rateRefused
		}
	}
	wishes := v.wishes
	if len(a.PerNode)+len(a.WishPerNode) > 0 {
		for k := range a.PerNode {
			if !a.PerNode[k].Holds(c.Nodes[i]) {
				if count {
					v.filtered++
					s.refuse(a.PerNode[k].Refusal(structs.EventNodeJoined))
				}
				return rateRefused
			}
		}
		for k := range a.WishPerNode {
			wishes += a.WishPerNode[k].Fulfilled(a.WishPerNode[k].Cond.Holds(c.Nodes[i]))
		}
	}
	if a.ByID {
		if why, bad := a.WithoutDevices(c.Nodes[i]); bad {
			if count {
				v.filtered++
				s.refuse(why)
			}
			return rateRefused
		}
	}
	for k := range a.Static {
		n := c.Nodes[i]
		p := &a.Static[k]
		if net := match.NetworkByAlias(n, p.HostNetwork); !p.IgnoreCollision && (model.PortTaken(seen.Hold, net, p.Value) || slices.Contains(n.Reserved.Ports, p.Value)) {
			s.why = match.ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionPorts, Short: 1}, By: match.PortTakenBy(p.Value)}
			if !model.PortTaken(o.Hold, net, p.Value) && !slices.Contains(n.Reserved.Ports, p.Value) {
				s.why.ReservedFor(s.Reserved.reservedFor(row))
			}
			return rateShort
		}
	}
	var devices, inUse int64
	base := int64(-1)
	if s.gpus.policy != nil && v.gpus && a.IsSimple {
		score, ok := s.rateSimple(c, i, row, v, seen)
		if !ok {
			s.blame(c, i, row, v, o, seen)
			return rateShort
		}
		base = s.weights.Fit * score
	} else if len(a.Devices) > 0 {
		var x match.ShortageOf
		if devices, inUse, x = s.devices(c, i, seen, v); x.Dim != structs.DimensionNone {
			s.why = x
			s.blame(c, i, row, v, o, seen)
			return rateShort
		}
	}
	after.CPU += after.Cores * mhz
	switch {
	case base >= 0:
	case s.gpus.policy != nil && v.gpus:
		base = s.weights.Fit * s.rateGPUs(c, i, v, seen)
	default:
		if s.sees {
			s.use.GPU, s.use.Ask, s.useKnown = s.gpuUse(c, i, v, seen), a.Need, false
		}
		base = s.weights.Fit * s.fit(total, &after, devices, inUse, c.Nodes[i], o)
	}
	if !v.shunned {
		base += shunStep // nodes with a taint come after all others, except for alternatives
	}
	if len(a.Devices) == 0 || len(c.Worn[i]) == 0 || !s.takesWorn(c.Nodes[i], seen, v) {
		base += wornStep
	}
	if s.offGPUs && !v.gpus {
		base += s.weights.GPU * model.Micro
	}
	if s.weights.Load > 0 {
		base += s.weights.Load * s.load(row)
	}
	if a.WishTotal > 0 {
		base += s.weights.Affinity * (wishes * model.Micro / a.WishTotal)
	}
	if s.peers != nil && s.peers.weight > 0 {
		base += s.weights.Affinity * s.peers.micro(row)
	}
	if s.extra.locality+s.extra.cost > 0 {
		base += s.extra.locality*v.local + s.extra.cost*v.cheap
	}
	if s.extra.reliability > 0 {
		base += s.extra.reliability * s.sound(row)
	}
	if v.liked > 0 {
		base += s.weights.Affinity * v.liked
	}
	if a.ByID {
		base += s.weights.Affinity * s.Picker.Liked
	}
	if len(a.Devices) > 0 && !a.PlainDevices && (s.weights.GPU > 0 || a.AltsMax > 0) {
		base += s.weights.GPU*s.gpuFull() + (a.AltsMax-s.Picker.Rank)*altStep
		if a.Inside != "" {
			base += s.weights.Affinity * s.close()
		}
	}
	if a.NUMAWish {
		base += s.weights.Affinity * a.Together(c.Nodes[i], seen.Hold)
	}
	return base
}

// close returns 1,000,000 if the devices chosen last are as close to each other as the group prefers, else 0.
func (s *Search) close() int64 {
	if s.Picker.Split {
		return 0
	}
	return model.Micro
}

// shunStep is the advantage of a node without a taint that the job prefers to avoid: more than all terms, so that a
// tainted node is taken only when there is no other.
const shunStep = 1_000 * model.Micro

// wornStep is the advantage of a node that gives the ask no degraded device: more than all terms, so that degraded
// devices are taken last.
const wornStep = 2 * shunStep

// takesWorn reports whether a node with degraded devices would give the ask one of them.
func (s *Search) takesWorn(n *structs.Node, o *model.Occupancy, v *Verdict) bool {
	x := s.second.PickDevices(s.Ask, n, model.HoldingOr(o.Hold), v.Choices)
	return x.Dim == structs.DimensionNone && s.second.Worn(n)
}

// altStep is the value of one step towards the preferred alternatives: more than all terms together, so that a later
// alternative is taken only where no node can provide an earlier one.
const altStep = 10_000 * model.Micro

// gpuFull returns how well the shares chosen last fit into their GPUs: full GPUs are best, or empty ones with worst
// fit.
func (s *Search) gpuFull() int64 {
	switch {
	case s.Picker.Parts == 0 || s.Ask.GPUFit == structs.GPUFitFirst || s.Ask.GPUFit == structs.GPUFitNext:
		return 0
	case s.Ask.GPUFit == structs.GPUFitWorst:
		return model.Micro - min(s.Picker.Full, model.Micro)
	}
	return min(s.Picker.Full, model.Micro)
}

// fit returns the policy's rating and caches the last one: neighbouring nodes are often in equal use.
func (s *Search) fit(total, used *structs.Vector, devices, inUse int64, n *structs.Node, o *model.Occupancy) int64 {
	u := &s.use
	var allocs, gpus int64
	if s.counts {
		allocs, gpus = int64(o.Hold.Size()), CountGPUs(n)
	}
	past := Past{}
	if s.learns {
		past = s.w.Past[n.ID]
	}
	if s.useKnown && u.Past == past && u.Used.MemoryMiB == used.MemoryMiB && u.Used.CPU == used.CPU && u.Total == *total && u.Used == *used &&
		u.Devices == devices && u.DevicesInUse == inUse && u.Allocs == allocs && u.GPUs == gpus {
		return s.useScore
	}
	u.Total, u.Used, u.Devices, u.DevicesInUse, u.Allocs, u.GPUs = *total, *used, devices, inUse, allocs, gpus
	u.Past = past
	s.useScore, s.useKnown = s.p.Fit(u), true
	return s.useScore
}

// CountGPUs returns how many GPUs a node has, healthy or not.
func CountGPUs(n *structs.Node) int64 {
	total := 0
	for i := range n.Resources.Devices {
		if n.Resources.Devices[i].Type == "gpu" {
			total += len(n.Resources.Devices[i].Instances)
		}
	}
	return int64(total)
}

// load returns 1 less the share of the group's allocations that the node has already.
func (s *Search) load(row int) int64 {
	if s.onRow == nil || s.onRow[row] == 0 {
		return model.Micro
	}
	return model.Micro - min(model.Micro, int64(s.onRow[row])*model.Micro/int64(max(s.Ask.Tg.Count, 1)))
}
