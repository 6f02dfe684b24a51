package search

import (
	"math/bits"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// devices counts the instances that can serve the ask and checks that enough are free. If the ask is for shares, it
// counts MiB of GPU memory instead.
func (s *Search) devices(c *model.Chunk, i int, o *model.Occupancy, v *Verdict) (total, used int64, _ match.ShortageOf) {
	a, hold := s.Ask, o.Hold
	if a.PlainDevices && len(c.Sick[i]) == 0 {
		if total, used, short, ok := s.plainDevices(hold, v); ok {
			return total, used, short
		}
	}
	n := c.Nodes[i]
	if !a.PlainDevices {
		s.Choose(c, i, v, o)
		free := hold
		if free == nil {
			free = &model.EmptyHolding
		}
		if x := s.Picker.PickDevices(a, n, free, v.Choices); x.Dim != structs.DimensionNone {
			return 0, 0, x
		}
		if a.Shares {
			total, used = s.gpuMemory(n, free, v)
			return total, min(used, total), match.ShortageOf{}
		}
	}
	var busy model.Bitset
	if hold != nil {
		busy = hold.Devs
	}
	var seen model.Bitset
	var open, sick, best, bestSick int64
	d := &a.Devices[0]
	for k := range a.Devices {
		for _, c := range v.Choices[k] {
			g := &n.Resources.Devices[c.Group]
			open, sick = 0, 0
			for j := range g.Instances {
				pos := c.First + j
				inUse := pos>>6 < len(busy) && busy[pos>>6]&(1<<(pos&63)) != 0
				if k == 0 {
					switch {
					case inUse:
					case g.Instances[j].Healthy:
						open++
					default:
						sick++
					}
				}
				if !a.PlainDevices {
					if seen.Has(pos) {
						continue
					}
					seen.Set(pos)
				}
				total++
				if inUse {
					used++
				}
			}
			if k == 0 {
				if open >= best {
					best, bestSick = open, sick
				}
			}
		}
		if a.PlainDevices {
			used += d.Alts[0].Count
		}
	}
	if !a.PlainDevices {
		used += int64(len(s.Picker.Picks))
	} else if alt := &d.Alts[0]; best < alt.Count {
		return 0, 0, match.ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - best}, By: &alt.Obstacle, Unhealthy: best+bestSick >= alt.Count}
	}
	return total, min(used, total), match.ShortageOf{}
}

// plainDevices is devices for one request for whole devices on a node where all are healthy. It counts in words of 64
// bits; ok is false for a node with more than 64 devices.
func (s *Search) plainDevices(hold *model.Holding, v *Verdict) (total, used int64, _ match.ShortageOf, ok bool) {
	var busy uint64
	if hold != nil && len(hold.Devs) > 0 {
		busy = hold.Devs[0]
	}
	best := int64(0)
	alt := &s.Ask.Devices[0].Alts[0]
	for _, c := range v.Choices[0] {
		k := c.Count
		if c.First+k > 64 {
			return 0, 0, match.ShortageOf{}, false
		}
		inUse := bits.OnesCount64(busy >> c.First & (1<<k - 1))
		best = max(best, int64(k-inUse))
		total, used = total+int64(k), used+int64(inUse)
	}
	if best < alt.Count {
		return 0, 0, match.ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - best}, By: &alt.Obstacle}, true
	}
	return total, min(used+alt.Count, total), match.ShortageOf{}, true
}

// gpuMemory returns how much memory the GPUs that can serve the ask have, and how much of it is in use after the picks.
func (s *Search) gpuMemory(n *structs.Node, free *model.Holding, v *Verdict) (total, used int64) {
	var seen model.Bitset
	reserve := n.GPUReserveMiB()
	for k := range s.Ask.Devices {
		list := v.Choices[k]
		for _, c := range list {
			g := &n.Resources.Devices[c.Group]
			for j := range g.Instances {
				pos := c.First + j
				capacity := g.Instances[j].MemoryMiB - reserve
				if capacity <= 0 || seen.Has(pos) {
					continue
				}
				seen.Set(pos)
				total += capacity
				if x := s.Picker.Busy(free, pos); x.Whole { // what was picked counts as in use
					used += capacity
				} else {
					used += x.Mem
				}
			}
		}
	}
	return total, used
}

// PowerShort returns how many watts the pool's budget lacks for what would be held on a row; 0 or less: none.
func (s *Search) PowerShort(row int, n *structs.Node, after model.Occupancy) int64 {
	if s.w.Power == nil || n.PowerBudgetW == 0 {
		return 0
	}
	more := model.PowerOf(n, after) - model.PowerOf(n, s.w.Get(row))
	if more <= 0 {
		return 0
	}
	return s.w.Power.Used[n.Pool] + more - n.PowerBudgetW
}

// unpowered records that a row cannot be used because of its pool's power budget.
func (s *Search) unpowered(v *Verdict, n *structs.Node, short int64) {
	v.exhausted++
	s.NoPower = true
	r := match.Refused(structs.ReasonPower, structs.Obstacle{Dimension: structs.DimensionPower, Subject: string(n.Pool)}, structs.EventAllocStopped)
	r.Short, r.Unit = short, structs.UnitWatt
	if short >= model.PowerUnknown/2 {
		r = match.Refused(structs.ReasonPower, structs.Obstacle{Dimension: structs.DimensionPowerUnknown, Subject: string(n.Pool)}, structs.EventConfigChanged)
	}
	s.refuse(r)
}
