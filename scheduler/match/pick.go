package match

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Picker chooses devices for one ask on one node. It is reused between nodes, so that rating many of them does not
// allocate.
type Picker struct {
	Picks []Pick
	mine  []model.Share // what this allocation takes so far
	Rank  int64         // distance from the preferred alternatives: 0 when each task got its first one
	Full  int64         // how full the shared devices are after the placement, millionths, averaged
	By    GPUChooser    // chooses the GPUs of shares; nil: Ask.GPUFit does
	Parts int64         // how many shared devices were picked
	Liked int64         // how well the IDs of the devices are liked, millionths, averaged
	taken model.Bitset  // devices that another member of the gang shares: not available to this one
	Split bool          // some request got devices of several islands
	numa  []int64       // by request, the NUMA node that its devices must be on, or AnyNUMA; nil: no limits. See Ask.pickCores
}

// GPUChooser rates the GPUs of a node, given what is picked already. The highest is taken; of equals, the first.
type GPUChooser interface{ Rate(p Pick) int64 }

// Pick is one device chosen.
type Pick struct {
	ask          int // into Ask.Devices
	alt          int // into DeviceAsk.Alts
	Group, Index int // into NodeResources.Devices and Instances
	Pos          int
	Mem, Compute int64 // 0, 0: the whole device
}

// PickDevices gives every request devices of one group: of the first alternative that the node can provide, in order of
// preference. It takes instances that share a fast link together if an island has enough: the smallest such island, so
// that larger ones stay whole.
func (k *Picker) PickDevices(a *Ask, n *structs.Node, free *model.Holding, choices [][]DeviceChoice) ShortageOf {
	k.Picks, k.mine, k.Rank, k.Full, k.Parts, k.Liked, k.Split = k.Picks[:0], k.mine[:0], 0, 0, 0, 0, false
	if k.taken = k.taken[:0]; a.Tg.Gang != nil && a.Shares {
		k.taken = a.fellows(n, free, k.taken)
	}
	for i := range a.Devices {
		d := &a.Devices[i]
		list := choices[i]
		if d.PerNode {
			list = d.on(n, list)
		}
		var why ShortageOf
		done, curable := false, false
		for at := range list {
			c := &list[at]
			alt := &d.Alts[c.alt]
			var x ShortageOf
			if alt.Shared() {
				x = k.shared(a, i, c, n, free)
			} else {
				x = k.whole(a, i, c, n, free)
			}
			if x.Dim == structs.DimensionNone {
				k.Rank += int64(c.alt)
				done = true
				break
			}
			curable = curable || !x.TooSmall
			if c.alt == list[0].alt { // the shortage of the preferred alternative is reported
				why = nearer(why, x)
			}
		}
		if !done {
			if why.Dim == structs.DimensionNone {
				why = ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: d.Alts[0].Count}, By: &d.Alts[0].Obstacle}
			}
			why.TooSmall = why.TooSmall && !curable
			return why
		}
	}
	if k.Parts > 0 {
		k.Full /= k.Parts
	}
	if k.Liked > 0 {
		k.Liked /= int64(len(k.Picks))
	}
	return ShortageOf{}
}

// Worn reports whether a degraded device was picked.
func (k *Picker) Worn(n *structs.Node) bool {
	return slices.ContainsFunc(k.Picks, func(p Pick) bool { return n.Resources.Devices[p.Group].Instances[p.Index].Degraded() })
}

// nearer returns the smaller shortage of two groups of a node.
func nearer(a, b ShortageOf) ShortageOf {
	if a.Dim == structs.DimensionNone || b.Dim == a.Dim && b.Short < a.Short {
		b.Unhealthy = b.Unhealthy || a.Unhealthy
		a, b = b, a
	}
	a.Unhealthy = a.Unhealthy || b.Unhealthy
	a.TooSmall = a.TooSmall && (b.Dim == structs.DimensionNone || b.TooSmall)
	a.Largest, a.Free = max(a.Largest, b.Largest), a.Free+b.Free
	return a
}

// Busy returns what others and this allocation itself take of a device.
func (k *Picker) Busy(free *model.Holding, pos int) model.Share {
	s := free.Taken(pos)
	if i, found := model.FindShare(k.mine, pos); found {
		m := &k.mine[i]
		s.Mem, s.Compute, s.Whole = s.Mem+m.Mem, s.Compute+m.Compute, s.Whole || m.Whole
	}
	return s
}

// whole picks devices that are not used at all.
func (k *Picker) whole(a *Ask, i int, c *DeviceChoice, n *structs.Node, free *model.Holding) ShortageOf {
	g := &n.Resources.Devices[c.Group]
	alt := &a.Devices[i].Alts[c.alt]
	var open []int
	var sick int64
	for j := range g.Instances {
		pos := c.First + j
		if free.Devs.Has(pos) {
			continue
		}
		if _, found := model.FindShare(k.mine, pos); found {
			continue
		}
		if k.afar(i, &g.Instances[j]) || !alt.Admits(&g.Instances[j]) {
			continue
		}
		if !g.Instances[j].Healthy {
			sick++
			continue
		}
		open = append(open, j)
	}
	if have := int64(len(open)); have < alt.Count {
		return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - have}, By: alt.inUse(g, n, c.First, free), Unhealthy: have+sick >= alt.Count}
	}
	must, rest := alt.best(g, open, int(alt.Count))
	picked, most := pickSound(g, rest, int(alt.Count)-len(must), a.Inside)
	if len(must) > 0 {
		if picked = append(must, picked...); a.insideOnly { // the island is required, the devices are only preferred
			picked, most = pickSound(g, open, int(alt.Count), a.Inside)
		} else {
			_, most = pickIsland(g, picked, int(alt.Count), a.Inside)
		}
	}
	if most < alt.Count {
		if a.insideOnly {
			by := alt.Obstacle
			by.Detail = a.Inside
			return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - most}, By: &by, Apart: true}
		}
		k.Split = true
	}
	for _, j := range picked {
		k.take(Pick{ask: i, alt: c.alt, Group: c.Group, Index: j, Pos: c.First + j})
		k.like(alt, g, j)
	}
	return ShortageOf{}
}

// like counts how well the ID of a picked device is liked.
func (k *Picker) like(alt *DeviceAlt, g *structs.DeviceGroup, j int) {
	if len(alt.idWishes) > 0 {
		k.Liked += alt.likes(&g.Instances[j]) * model.Micro / alt.WishTotal
	}
}

// afar reports whether a device is not on the NUMA node that the devices of a request must be on.
func (k *Picker) afar(i int, in *structs.DeviceInstance) bool {
	return k.numa != nil && k.numa[i] != model.AnyNUMA && k.numa[i] != in.NUMANode
}

func (k *Picker) take(p Pick) {
	k.Picks = append(k.Picks, p)
	k.mine = model.AddShare(k.mine, model.Share{Pos: p.Pos, Mem: p.Mem, Compute: p.Compute, Whole: p.Mem == 0})
}

// The obstacles of nodes whose GPUs are too full or too small for shares.
var (
	memoryShort      = &structs.Obstacle{Dimension: structs.DimensionGPUMemory}
	computeShort     = &structs.Obstacle{Dimension: structs.DimensionGPUCompute}
	emptyMemoryShort = &structs.Obstacle{Dimension: structs.DimensionEmptyGPUMemory}
	membersShort     = &structs.Obstacle{Dimension: structs.DimensionMembersGPU}
)

// shared picks shares of Count different devices, by the chooser or by the rule for fitting within a node.
func (k *Picker) shared(a *Ask, i int, c *DeviceChoice, n *structs.Node, free *model.Holding) ShortageOf {
	g := &n.Resources.Devices[c.Group]
	alt := &a.Devices[i].Alts[c.alt]
	reserve := n.GPUReserveMiB()
	var have, sick, members, largest, leastShort, total, mostCompute int64
	from := 0
	if a.GPUFit == structs.GPUFitNext && free != nil {
		for _, s := range free.Shares {
			if j := s.Pos - c.First; j >= 0 && j < len(g.Instances) {
				from = j
			}
		}
	}
	room := func(j int) (Pick, int64, bool) {
		in := &g.Instances[j]
		capacity := in.MemoryMiB - reserve
		p := Pick{ask: i, alt: c.alt, Group: c.Group, Index: j, Pos: c.First + j, Mem: alt.MemoryOn(capacity), Compute: alt.Compute}
		s := k.Busy(free, p.Pos)
		if s.Whole || p.Mem <= 0 || k.afar(i, in) || !alt.Admits(in) {
			return p, 0, false
		}
		left := capacity - s.Mem - p.Mem
		return p, left, left >= 0 && s.Compute+p.Compute <= structs.GPUComputeMax
	}
	asked := false // leastShort is set
	for j := range g.Instances {
		in := &g.Instances[j]
		if k.afar(i, in) || !alt.Admits(in) {
			continue
		}
		p, _, fits := room(j)
		capacity := in.MemoryMiB - reserve
		switch s := k.Busy(free, p.Pos); {
		case k.taken.Has(p.Pos):
			if fits && in.Healthy {
				members++
			}
		case fits && in.Healthy:
			have++
		case fits:
			sick++
		case in.Healthy:
			left := int64(0)
			if !s.Whole {
				left = max(0, capacity-s.Mem)
			}
			largest, total = max(largest, left), total+left
			if short := p.Mem - left; !asked || short < leastShort {
				leastShort, asked = short, true
			}
			if left >= p.Mem {
				mostCompute = max(mostCompute, structs.GPUComputeMax-s.Compute)
			}
		}
	}
	if have < alt.Count {
		x := ShortageOf{By: memoryShort, Unhealthy: have+sick >= alt.Count, Largest: largest, Free: total, Asked: alt.Count * (largest + leastShort)}
		switch {
		case have+members >= alt.Count:
			x.Shortage, x.By = model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - have}, membersShort
			x.Largest, x.Free, x.Asked = 0, 0, 0
		case have > 0 || !asked: // some GPUs have room, but too few
			x.Shortage, x.By = model.Shortage{Dim: structs.DimensionDevices, Short: alt.Count - have}, &alt.Obstacle
			x.Largest, x.Free, x.Asked = 0, 0, 0
		case leastShort <= 0:
			x.Shortage, x.By = model.Shortage{Dim: structs.DimensionGPUCompute, Short: max(1, alt.Compute-mostCompute)}, computeShort
			x.Largest, x.Free, x.Asked = mostCompute, 0, 0
		default:
			x.Shortage = model.Shortage{Dim: structs.DimensionGPUMemory, Short: leastShort}
		}
		if size := largestGPU(g, reserve); x.Dim == structs.DimensionGPUMemory && alt.MemoryOn(size) > size {
			x.By, x.TooSmall, x.Short = emptyMemoryShort, true, alt.MemoryOn(size)-size
			x.Largest = size
		}
		return x
	}
	start := len(k.Picks)
	for int64(len(k.Picks)-start) < alt.Count {
		best, bestKey, bestLiked, bestSound, found := Pick{}, int64(0), int64(0), false, false
		for step := range g.Instances {
			j := (from + step) % len(g.Instances)
			p, left, fits := room(j)
			if !fits || !g.Instances[j].Healthy || k.taken.Has(p.Pos) || contains(k.Picks[start:], p.Pos) {
				continue
			}
			key := int64(0)
			switch {
			case k.By != nil:
				key = k.By.Rate(p)
			case a.GPUFit == structs.GPUFitFirst || a.GPUFit == structs.GPUFitNext:
			case a.GPUFit == structs.GPUFitWorst:
				key = left
			default:
				key = -left
			}
			liked, sound := alt.likes(&g.Instances[j]), !g.Instances[j].Degraded()
			if !found || liked > bestLiked || liked == bestLiked && (sound && !bestSound || sound == bestSound && key > bestKey) {
				best, bestKey, bestLiked, bestSound, found = p, key, liked, sound, true
			}
		}
		capacity := g.Instances[best.Index].MemoryMiB - reserve
		k.Full += (k.Busy(free, best.Pos).Mem + best.Mem) * model.Micro / max(capacity, 1)
		k.Parts++
		k.take(best)
		k.like(alt, g, best.Index)
	}
	return ShortageOf{}
}

func contains(ps []Pick, pos int) bool {
	for i := range ps {
		if ps[i].Pos == pos {
			return true
		}
	}
	return false
}

// grants returns the picks as grants of an allocation.
func (k *Picker) grants(a *Ask, n *structs.Node) []structs.Grant {
	out := make([]structs.Grant, len(k.Picks))
	for i, p := range k.Picks {
		g := &n.Resources.Devices[p.Group]
		d := &a.Devices[p.ask]
		out[i] = structs.Grant{Task: d.task, Device: g.ID(), Instance: g.Instances[p.Index].ID, MemoryMiB: p.Mem, Compute: p.Compute, SizeMiB: g.Instances[p.Index].MemoryMiB}
		if p.Mem > 0 {
			out[i].Backend, _ = structs.GPUBackend(d.Alts[p.alt].enforce, g.Attributes[structs.GPUEnforceAttribute].Str)
		} else if g.Attributes[structs.GPUEnforceAttribute].Str == structs.BackendMIG {
			out[i].Backend = structs.BackendMIG
		}
	}
	return out
}
