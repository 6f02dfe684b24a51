package model

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Mix is what the cluster is asked for: shapes of allocations and how often they occur.
type Mix struct {
	Shapes []Shape // most frequent first, the usual ones before the rest
	Core   int     // how many of Shapes are usual: the shortest prefix that covers 95 % of all allocations
	Total  int64   // sum of the counts of the usual ones
	All    int64   // sum of all counts
}

// Shape is what one allocation asks for.
type Shape struct {
	CPU   int64  // MHz
	GPUs  int64  // 0: none
	Milli int64  // of each GPU, thousandths; 1000 for whole ones
	Model string // accepted models, divided by |; "" for any
	Count int64  // how many allocations ask for this
}

// mixCover is the percentage of all allocations that the usual shapes of a mix cover.
const mixCover = 95

// mixMax is the highest number of shapes in a mix.
const mixMax = 512

// NewMix adds up equal shapes and orders them by how often they occur (ties: the larger shape first). It keeps the 512
// most frequent ones.
func NewMix(shapes []Shape) *Mix {
	shapes = slices.Clone(shapes)
	slices.SortFunc(shapes, compareShapes)
	sum := shapes[:0]
	all := int64(0)
	for _, s := range shapes {
		all += s.Count
		if n := len(sum); n > 0 && compareShapes(sum[n-1], s) == 0 {
			sum[n-1].Count += s.Count
			continue
		}
		sum = append(sum, s)
	}
	slices.SortStableFunc(sum, func(a, b Shape) int { return cmp.Compare(b.Count, a.Count) })
	m := &Mix{Shapes: slices.Clip(sum[:min(len(sum), mixMax)])}
	for _, s := range m.Shapes {
		if m.All*100 < all*mixCover {
			m.Core, m.Total = m.Core+1, m.Total+s.Count
		}
		m.All += s.Count
	}
	return m
}

// compareShapes puts the larger shape first. Counts do not matter.
func compareShapes(a, b Shape) int {
	return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Milli, a.Milli), cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Model, a.Model))
}

// shapeOf returns the shape of a request for what is held.
func shapeOf(n *structs.Node, mhz int64, e *Held) Shape {
	s := Shape{CPU: coarse(e.Need.CPU + e.Need.Cores*mhz)}
	if e.Rare == nil {
		return s
	}
	grants := e.Rare.Grants
	for k := range grants {
		pos := InstancePos(n, grants[k].Device, grants[k].Instance)
		if pos < 0 || slices.ContainsFunc(grants[:k], func(g structs.Grant) bool { return g.Device == grants[k].Device && g.Instance == grants[k].Instance }) {
			continue // counted with the first grant of the device
		}
		var mem, compute int64
		for _, g := range grants[k:] {
			if g.Device == grants[k].Device && g.Instance == grants[k].Instance {
				mem, compute = mem+g.MemoryMiB, compute+g.Compute
			}
		}
		in := instanceAt(n, pos)
		if in.MemoryMiB == 0 && mem > 0 {
			continue
		}
		s.GPUs++
		s.Milli = max(s.Milli, 1000)
		if mem > 0 {
			s.Milli = min(1000, (max(mem*1000/in.MemoryMiB, compute*10)+49)/50*50)
		}
	}
	if s.GPUs > 0 {
		s.Model = e.Work.model()
	}
	return s
}

// model returns the GPU model that an allocation's tasks ask for; "" for any, or when they differ.
func (h *HeldWork) model() string {
	if h.Job == nil {
		return ""
	}
	g := h.Job.Group(h.Group)
	if g == nil {
		return ""
	}
	model := ""
	for _, t := range g.Tasks {
		for i := range t.Resources.GPU {
			if m := t.Resources.GPU[i].Model; m == "" || model != "" && m != model {
				return ""
			} else {
				model = m
			}
		}
	}
	return model
}

// coarse rounds up to three significant bits, so that small changes do not change a live mix.
func coarse(n int64) int64 {
	if n <= 8 {
		return n
	}
	step := int64(1)
	for n/step >= 8 {
		step *= 2
	}
	return (n + step - 1) / step * step
}

// roundShare returns the share of count in all in millionths, rounded down to a power of the square root of two.
func roundShare(count, all int64) int64 {
	ppm := max(1, count*Micro/max(all, 1))
	x := int64(1)
	for x*2 <= ppm {
		x *= 2
	}
	if ppm*1000 >= x*1414 {
		return x * 1414 / 1000
	}
	return x
}

// Suits reports for each shape of a mix whether a node has the model that it asks for.
func (m *Mix) Suits(n *structs.Node) []bool {
	out := make([]bool, len(m.Shapes))
	known := make(map[string]bool)
	for k := range m.Shapes {
		model := m.Shapes[k].Model
		fits, ok := known[model]
		if !ok {
			fits = model == "" || slices.ContainsFunc(n.Resources.Devices, func(g structs.DeviceGroup) bool {
				return IsGPU(&g) && structs.IsModel(g.Name, model)
			})
			known[model] = fits
		}
		out[k] = fits
	}
	return out
}

// Same reports whether two mixes are equal.
func (m *Mix) Same(o *Mix) bool {
	return m == o || m.Core == o.Core && slices.Equal(m.Shapes, o.Shapes)
}

// Blocks returns how many allocations of a shape with several GPUs a node can take at once.
func (s *Shape) Blocks(idle, cpu int64) int64 {
	n := idle / s.GPUs
	if n > 0 && s.CPU > 0 {
		n = max(0, min(n, cpu/s.CPU))
	}
	return n
}
