package scheduler

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// mixCover is how much of all allocations the shapes of a mix cover, in percent: rare ones at the end are left out.
const mixCover = 95

// mixMax is how many shapes a mix has at most.
const mixMax = 256

// NewMix orders shapes by how often they occur (ties: the larger shape first), adds up equal ones, and keeps the shortest
// prefix that covers 95 % of all allocations, 256 shapes at most.
func NewMix(shapes []Shape) *Mix {
	shapes = slices.Clone(shapes)
	what := func(a, b Shape) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Milli, a.Milli), cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Model, a.Model))
	}
	slices.SortFunc(shapes, what)
	sum := shapes[:0]
	all := int64(0)
	for _, s := range shapes {
		all += s.Count
		if n := len(sum); n > 0 && what(sum[n-1], s) == 0 {
			sum[n-1].Count += s.Count
			continue
		}
		sum = append(sum, s)
	}
	slices.SortStableFunc(sum, func(a, b Shape) int { return cmp.Compare(b.Count, a.Count) })
	m := &Mix{}
	for _, s := range sum {
		if m.Total*100 >= all*mixCover || len(m.Shapes) == mixMax {
			break
		}
		m.Shapes, m.Total = append(m.Shapes, s), m.Total+s.Count
	}
	return m
}

// shapes lists what is held on the nodes of a chunk. Chunks are immutable once published, so the list is made once;
// whoever makes it twice at the same time makes the same.
func (c *chunk) shapes() []Shape {
	if p := c.mix.Load(); p != nil {
		return *p
	}
	var out []Shape
	for i, h := range c.hold {
		for _, e := range h.list() {
			s := Shape{CPU: e.need.CPU + e.need.Cores*c.mhz[i], Count: 1}
			if e.rare != nil {
				for _, g := range grantShares(c.nodes[i], e.rare.grants) {
					in := instanceAt(c.nodes[i], g.pos)
					if in.MemoryMiB == 0 && g.mem > 0 {
						continue
					}
					s.GPUs++
					s.Milli = max(s.Milli, 1000)
					if g.mem > 0 {
						s.Milli = max(g.mem*1000/in.MemoryMiB, g.compute*10)
					}
				}
			}
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Shape) int {
		return cmp.Or(cmp.Compare(a.CPU, b.CPU), cmp.Compare(a.Milli, b.Milli), cmp.Compare(a.GPUs, b.GPUs))
	})
	sum := out[:0]
	for _, s := range out {
		if n := len(sum); n > 0 && sum[n-1].CPU == s.CPU && sum[n-1].Milli == s.Milli && sum[n-1].GPUs == s.GPUs {
			sum[n-1].Count++
			continue
		}
		sum = append(sum, s)
	}
	sum = slices.Clip(sum)
	c.mix.Store(&sum)
	return sum
}

// mixFor is the mix that a pass rates by: the one it was given, else that of everything held, else the ask itself. What
// waits does not enter, so that a workload is decided alike whoever waits beside it.
func (w *whatIf) mixFor(a *ask) *Mix {
	if w.mix == nil {
		var all []Shape
		for _, c := range w.v.chunks {
			all = append(all, c.shapes()...)
		}
		w.mix = NewMix(all)
	}
	if w.mix.Total > 0 {
		return w.mix
	}
	s := Shape{CPU: a.need.CPU, Count: 1}
	for i := range a.devices {
		alt := &a.devices[i].alts[0]
		s.GPUs += alt.count
		s.Milli = 1000
		if alt.share > 0 {
			s.Milli = alt.share * 10
		}
	}
	return NewMix([]Shape{s})
}

// gpuStates is room to work in for a rater.
type gpuStates struct{ before, after GPUState }

// state fills in the GPUs of a node: what is free in thousandths.
func (s *scan) stateOf(n *structs.Node, o *occupancy, to *GPUState) {
	reserve := n.GPUReserveMiB()
	to.Free = to.Free[:0]
	pos := 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			if g.Type == "gpu" && g.Instances[j].Healthy {
				to.Free = append(to.Free, freeMilli(g.Instances[j].MemoryMiB-reserve, o.hold.taken(pos)))
			}
			pos++
		}
	}
}

func freeMilli(capacity int64, t share) int64 {
	switch {
	case t.whole:
		return 0
	case t.mem == 0 && t.compute == 0:
		return 1000
	case capacity <= 0:
		return 0
	}
	return max(0, min(1000-(t.mem*1000+capacity-1)/capacity, 1000-10*t.compute))
}

// suits tells for each shape of the mix whether nodes of the class have the model that it asks for.
func (s *scan) suits(v *verdict, n *structs.Node) []bool {
	if v.suits == nil {
		v.suits = make([]bool, len(s.mix.Shapes))
		for k := range s.mix.Shapes {
			model := s.mix.Shapes[k].Model
			v.suits[k] = model == "" || slices.ContainsFunc(n.Resources.Devices, func(g structs.DeviceGroup) bool {
				return g.Type == "gpu" && structs.IsModel(g.Name, model)
			})
		}
	}
	return v.suits
}

// rateGPUs asks the policy about a node with the devices that were picked last, and used as it is after the placement.
func (s *scan) rateGPUs(c *chunk, i int, v *verdict, o *occupancy, used *structs.Vector) int64 {
	n := c.nodes[i]
	b, a := &s.gpus.before, &s.gpus.after
	if len(n.Resources.Devices) == 0 {
		b.Free, a.Free = b.Free[:0], a.Free[:0]
	} else {
		s.stateOf(n, o, b)
		if s.ask.plainDevices { // rating did not pick: the first ones free are as good as any
			s.picker.pickDevices(s.ask, n, holdingOr(o.hold), v.choices)
		}
		a.Free = append(a.Free[:0], b.Free...)
		if len(s.ask.devices) > 0 {
			s.applyPicks(n, o, a)
		}
	}
	b.Suits = s.suits(v, n)
	a.Suits = b.Suits
	a.FreeCPU = c.total[i].CPU - used.CPU
	b.FreeCPU = c.total[i].CPU - o.used.CPU - o.used.Cores*c.mhz[i]
	return s.rater.RateGPUs(b, a, s.mix)
}

// applyPicks takes what the picker chose from a state.
func (s *scan) applyPicks(n *structs.Node, o *occupancy, to *GPUState) {
	reserve := n.GPUReserveMiB()
	for _, p := range s.picker.picks {
		at := gpuOrder(n, p.pos)
		if at < 0 || at >= len(to.Free) {
			continue
		}
		t := s.picker.busy(holdingOr(o.hold), p.pos)
		to.Free[at] = freeMilli(n.Resources.Devices[p.group].Instances[p.index].MemoryMiB-reserve, t)
	}
}

// gpuOrder is the place of a device among the healthy GPUs of a node, or -1.
func gpuOrder(n *structs.Node, want int) int {
	pos, at := 0, 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			counts := g.Type == "gpu" && g.Instances[j].Healthy
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

func holdingOr(h *holding) *holding {
	if h == nil {
		return &emptyHolding
	}
	return h
}

// choosing is the node on which a policy that looks into GPUs chooses; s is nil where the ask's own rule does.
type choosing struct {
	s *scan
	c *chunk
	i int
	v *verdict
	o occupancy
}

// choose sets who chooses the GPUs of shares on a node.
func (s *scan) choose(c *chunk, i int, v *verdict, o *occupancy) {
	if s.rater != nil && s.ask.shares {
		s.picker.by = choosing{s, c, i, v, *o}
	}
}

// rate is the policy's opinion of giving p, beside what is picked already.
func (by *choosing) rate(p pick) int64 {
	s, n, o := by.s, by.c.nodes[by.i], &by.o
	b, a := &s.gpus.before, &s.gpus.after
	s.stateOf(n, o, b)
	a.Free = append(a.Free[:0], b.Free...)
	s.applyPicks(n, o, a)
	if at := gpuOrder(n, p.pos); at >= 0 {
		t := s.picker.busy(holdingOr(o.hold), p.pos)
		t.mem, t.compute = t.mem+p.mem, t.compute+p.compute
		a.Free[at] = freeMilli(n.Resources.Devices[p.group].Instances[p.index].MemoryMiB-n.GPUReserveMiB(), t)
	}
	b.Suits = s.suits(by.v, n)
	a.Suits = b.Suits
	mhz := by.c.mhz[by.i]
	b.FreeCPU = by.c.total[by.i].CPU - o.used.CPU - o.used.Cores*mhz
	a.FreeCPU = b.FreeCPU - s.ask.need.CPU - s.ask.need.Cores*mhz
	return s.rater.RateGPUs(b, a, s.mix)
}
