package scheduler

import (
	"strings"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// picker chooses devices for one ask on one node. It is kept between nodes so that rating many of them does not
// allocate.
type picker struct {
	picks []pick
	mine  []model.Share // what this allocation takes so far
	rank  int64         // how far from the alternatives liked best: 0 when each task got its first one
	full  int64         // how full the shared devices are after the placement, millionths, averaged
	by    GPUChooser    // who chooses the GPUs of shares; nil: ask.gpuFit
	parts int64         // how many shared devices were picked
	taken model.Bitset  // devices that a member of the same gang shares: nobody of it may have them too
	split bool          // some request got devices of several islands
	numa  []int64       // by request, the NUMA node that its devices must lie on, or AnyNUMA; nil: none must. See ask.pickCores
}

// GPUChooser rates the GPUs of a node, each beside what is picked already: the highest is taken, of equals the first.
type GPUChooser interface{ Rate(p pick) int64 }

// pick is one device chosen.
type pick struct {
	ask          int // into ask.devices
	alt          int // into deviceAsk.alts
	group, index int // into NodeResources.Devices and Instances
	pos          int
	mem, compute int64 // 0, 0: the whole device
}

// pickDevices gives every request devices of one group: the first alternative that can be had, of the group liked best.
// Instances that share a fast link are taken together when an island has enough: the smallest such island, so that
// larger ones stay whole.
func (k *picker) pickDevices(a *ask, n *structs.Node, free *model.Holding, choices [][]deviceChoice) shortageOf {
	k.picks, k.mine, k.rank, k.full, k.parts, k.split = k.picks[:0], k.mine[:0], 0, 0, 0, false
	if k.taken = k.taken[:0]; a.tg.Gang != nil && a.shares {
		k.taken = a.fellows(n, free, k.taken)
	}
	for i := range a.devices {
		d := &a.devices[i]
		list := choices[i]
		if d.perNode {
			list = d.choices(n)
		}
		var why shortageOf
		done, curable := false, false
		for at := range list {
			c := &list[at]
			alt := &d.alts[c.alt]
			var x shortageOf
			if alt.shared() {
				x = k.shared(a, i, c, n, free)
			} else {
				x = k.whole(a, i, c, n, free)
			}
			if x.Dim == structs.DimensionNone {
				k.rank += int64(c.alt)
				done = true
				break
			}
			curable = curable || !x.tooSmall
			if c.alt == list[0].alt { // what is missing is told of the alternative liked best
				why = nearer(why, x)
			}
		}
		if !done {
			if why.Dim == structs.DimensionNone {
				why = shortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: d.alts[0].count}, by: d.alts[0].obstacle()}
			}
			why.tooSmall = why.tooSmall && !curable
			return why
		}
	}
	if k.parts > 0 {
		k.full /= k.parts
	}
	return shortageOf{}
}

// nearer keeps the smaller shortage of two groups of a node.
func nearer(a, b shortageOf) shortageOf {
	if a.Dim == structs.DimensionNone || b.Dim == a.Dim && b.Short < a.Short {
		b.unhealthy = b.unhealthy || a.unhealthy
		a, b = b, a
	}
	a.unhealthy = a.unhealthy || b.unhealthy
	a.tooSmall = a.tooSmall && (b.Dim == structs.DimensionNone || b.tooSmall)
	a.largest, a.free = max(a.largest, b.largest), a.free+b.free
	return a
}

// busy is what others and this allocation itself take of a device.
func (k *picker) busy(free *model.Holding, pos int) model.Share {
	s := free.Taken(pos)
	if i, found := model.FindShare(k.mine, pos); found {
		m := &k.mine[i]
		s.Mem, s.Compute, s.Whole = s.Mem+m.Mem, s.Compute+m.Compute, s.Whole || m.Whole
	}
	return s
}

// Whole picks devices that nobody else may have.
func (k *picker) whole(a *ask, i int, c *deviceChoice, n *structs.Node, free *model.Holding) shortageOf {
	g := &n.Resources.Devices[c.group]
	alt := &a.devices[i].alts[c.alt]
	var open []int
	var sick int64
	for j := range g.Instances {
		pos := c.first + j
		if free.Devs.Has(pos) {
			continue
		}
		if _, found := model.FindShare(k.mine, pos); found {
			continue
		}
		if k.afar(i, &g.Instances[j]) {
			continue
		}
		if !g.Instances[j].Healthy {
			sick++
			continue
		}
		open = append(open, j)
	}
	if have := int64(len(open)); have < alt.count {
		return shortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.count - have}, by: alt.obstacle(), unhealthy: have+sick >= alt.count}
	}
	picked, most := pickIsland(g, open, int(alt.count), a.inside)
	if most < alt.count {
		if a.insideOnly {
			by := alt.obstacle()
			by.Detail = a.inside
			return shortageOf{Shortage: model.Shortage{Dim: structs.DimensionDevices, Short: alt.count - most}, by: by, apart: true}
		}
		k.split = true
	}
	for _, j := range picked {
		k.take(pick{ask: i, alt: c.alt, group: c.group, index: j, pos: c.first + j})
	}
	return shortageOf{}
}

// afar reports whether a device does not lie on the NUMA node that those of a request must be of.
func (k *picker) afar(i int, in *structs.DeviceInstance) bool {
	return k.numa != nil && k.numa[i] != model.AnyNUMA && k.numa[i] != in.NUMANode
}

func (k *picker) take(p pick) {
	k.picks = append(k.picks, p)
	k.mine = model.AddShare(k.mine, model.Share{Pos: p.pos, Mem: p.mem, Compute: p.compute, Whole: p.mem == 0})
}

// shared picks shares of devices: of count different ones, by the chooser or the rule for fitting within a node.
func (k *picker) shared(a *ask, i int, c *deviceChoice, n *structs.Node, free *model.Holding) shortageOf {
	g := &n.Resources.Devices[c.group]
	alt := &a.devices[i].alts[c.alt]
	reserve := n.GPUReserveMiB()
	var have, sick, largest, leastShort, total, mostCompute int64
	from := 0
	if a.gpuFit == structs.GPUFitNext && free != nil {
		for _, s := range free.Shares {
			if j := s.Pos - c.first; j >= 0 && j < len(g.Instances) {
				from = j
			}
		}
	}
	room := func(j int) (pick, int64, bool) {
		in := &g.Instances[j]
		capacity := in.MemoryMiB - reserve
		p := pick{ask: i, alt: c.alt, group: c.group, index: j, pos: c.first + j, mem: alt.memoryOn(capacity), compute: alt.compute}
		s := k.busy(free, p.pos)
		if s.Whole || p.mem <= 0 || k.taken.Has(p.pos) || k.afar(i, in) {
			return p, 0, false
		}
		left := capacity - s.Mem - p.mem
		return p, left, left >= 0 && s.Compute+p.compute <= structs.GPUComputeMax
	}
	asked := false // leastShort says something
	for j := range g.Instances {
		in := &g.Instances[j]
		if k.afar(i, in) {
			continue
		}
		p, _, fits := room(j)
		capacity := in.MemoryMiB - reserve
		switch s := k.busy(free, p.pos); {
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
			if short := p.mem - left; !asked || short < leastShort {
				leastShort, asked = short, true
			}
			if left >= p.mem {
				mostCompute = max(mostCompute, structs.GPUComputeMax-s.Compute)
			}
		}
	}
	if have < alt.count {
		x := shortageOf{by: structs.Obstacle{Dimension: structs.DimensionGPUMemory}, unhealthy: have+sick >= alt.count, largest: largest, free: total, asked: alt.count * (largest + leastShort)}
		switch {
		case have > 0 || !asked: // some GPUs have room, too few do
			x.Shortage, x.by = model.Shortage{Dim: structs.DimensionDevices, Short: alt.count - have}, alt.obstacle()
			x.largest, x.free, x.asked = 0, 0, 0
		case leastShort <= 0:
			x.Shortage, x.by.Dimension = model.Shortage{Dim: structs.DimensionGPUCompute, Short: max(1, alt.compute-mostCompute)}, structs.DimensionGPUCompute
			x.largest, x.free, x.asked = mostCompute, 0, 0
		default:
			x.Shortage = model.Shortage{Dim: structs.DimensionGPUMemory, Short: leastShort}
		}
		if size := largestGPU(g, reserve); x.Dim == structs.DimensionGPUMemory && alt.memoryOn(size) > size {
			x.by.Dimension, x.tooSmall, x.Short = structs.DimensionEmptyGPUMemory, true, alt.memoryOn(size)-size
			x.largest = size
		}
		return x
	}
	start := len(k.picks)
	for int64(len(k.picks)-start) < alt.count {
		best, bestKey, found := pick{}, int64(0), false
		for step := range g.Instances {
			j := (from + step) % len(g.Instances)
			p, left, fits := room(j)
			if !fits || !g.Instances[j].Healthy || contains(k.picks[start:], p.pos) {
				continue
			}
			key := int64(0)
			switch {
			case k.by != nil:
				key = k.by.Rate(p)
			case a.gpuFit == structs.GPUFitFirst || a.gpuFit == structs.GPUFitNext:
			case a.gpuFit == structs.GPUFitWorst:
				key = left
			default:
				key = -left
			}
			if !found || key > bestKey {
				best, bestKey, found = p, key, true
			}
		}
		capacity := g.Instances[best.index].MemoryMiB - reserve
		k.full += (k.busy(free, best.pos).Mem + best.mem) * model.Micro / max(capacity, 1)
		k.parts++
		k.take(best)
	}
	return shortageOf{}
}

// largestGPU is the most that a GPU of a group could give if nobody used it.
func largestGPU(g *structs.DeviceGroup, reserve int64) int64 {
	size := int64(0)
	for j := range g.Instances {
		size = max(size, g.Instances[j].MemoryMiB-reserve)
	}
	return size
}

func contains(ps []pick, pos int) bool {
	for i := range ps {
		if ps[i].pos == pos {
			return true
		}
	}
	return false
}

// Grants are the picks as they are given to an allocation.
func (k *picker) grants(a *ask, n *structs.Node) []structs.Grant {
	out := make([]structs.Grant, len(k.picks))
	for i, p := range k.picks {
		g := &n.Resources.Devices[p.group]
		d := &a.devices[p.ask]
		out[i] = structs.Grant{Task: d.task, Device: g.ID(), Instance: g.Instances[p.index].ID, MemoryMiB: p.mem, Compute: p.compute, SizeMiB: g.Instances[p.index].MemoryMiB}
		if p.mem > 0 {
			out[i].Backend, _ = structs.GPUBackend(d.alts[p.alt].enforce, g.Attributes[structs.GPUEnforceAttribute].Str)
		} else if g.Attributes[structs.GPUEnforceAttribute].Str == structs.BackendMIG {
			out[i].Backend = structs.BackendMIG
		}
	}
	return out
}

// Obstacle is that too few of what an alternative asks for are free.
func (d *deviceAlt) obstacle() structs.Obstacle {
	out := structs.Obstacle{Dimension: structs.DimensionDevices, Subject: d.label()}
	if d.mig == "" && structs.IsGPUDevice(d.name) {
		out.Dimension = structs.DimensionGPU
	}
	return out
}

// missing is the obstacle on nodes that have nothing of what an alternative asks for.
func (d *deviceAlt) missing() structs.Obstacle {
	if d.mig != "" {
		return structs.Obstacle{Dimension: structs.DimensionMissingMIG, Subject: d.mig}
	}
	return structs.Obstacle{Dimension: structs.DimensionMissingDevice, Subject: d.label()}
}

// label names what an alternative asks for.
func (d *deviceAlt) label() string {
	name := d.kind()
	if d.shared() && d.enforce != "" && d.enforce != "auto" && d.enforce != structs.BackendNone {
		name += ", shares enforced: " + d.enforce
	}
	return name
}

func (d *deviceAlt) kind() string {
	if d.mig != "" {
		return "MIG " + d.mig
	}
	if d.model != "" && !strings.HasSuffix(d.name, "/"+d.model) {
		return d.name + " " + d.model
	}
	if d.words != "" {
		return d.name + " " + d.words
	}
	return d.name
}

func (d *deviceAlt) shared() bool { return d.mem > 0 || d.share > 0 }

func (d *deviceAlt) memoryOn(capacity int64) int64 {
	r := structs.GPURequest{MemoryMiB: d.mem, Share: d.share}
	return r.MemoryOn(max(capacity, 0))
}
