package policy

import (
	"math"
	"math/bits"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// strand is the policy of a cluster without a configured one. Work that asks for no GPUs is placed as by binpack, on
// nodes without GPUs where there are any. On nodes with GPUs, a placement pays for three things, in thousandths of a
// GPU:
//
//   - what will be stranded: how much of a node's free GPU share is left when the node is full. Fixed streams of requests,
//     drawn from the mix of requests, are packed onto the node until nothing more fits; what is still free then, on
//     average, is lost. A placement pays the difference between before and after. Fragmentation gradient descent charges
//     what is unusable now, so it notices too late when the CPU runs out before the GPUs.
//   - a rent on scarce models: the demand bound to models divided by what is free of them, at most 1. Tasks that could
//     run elsewhere go there; for bound ones it is the same everywhere.
//   - whole blocks of GPUs: a small placement on an idle node of 8 takes a place from a request for 8. It is charged
//     by the probability that demand, until everything is full, exceeds the blocks that are left: nothing while there are many.
//     This is the newsvendor's rule, by which airlines protect seats (Littlewood, 1972).
//
// Naive: rate by utilisation, or by fragmentation now. Both use up the CPU of a node that still has idle GPUs. When the
// mix is unknown (an empty cluster) all placements are equal, and the first node is taken.
type strand struct{ binpack }

// fewMoves is how many of its placements a decision may move by default: milliseconds. Only jobs of several groups
// have any that are worth moving.
const fewMoves = 256

// Capabilities sets the name under which reports show the term of nodes without GPUs.
func (strand) Capabilities() search.Capabilities {
	return search.Capabilities{AvoidsGPUNodes: true, FitName: "binpack", Moves: fewMoves}
}

func (strand) Name() string                         { return "strand" }
func (strand) Rater(mix *model.Mix) search.GPURater { return newStranded(mix) }

const (
	// streams and streamLength: a node of 8 GPUs is full after 10 to 20 requests; 64 are several times that, and the
	// later ones fill gaps. 16 streams make the average accurate to a few thousandths.
	streams      = 16
	streamLength = 64 // one bit each: see stranded.places
	// gpusMax is how many GPUs of a node are counted.
	gpusMax = 32
	// gpusFew is how many GPUs most nodes have at the most: their standings are short.
	gpusFew = 8
	// milliScore is the weight of a thousandth of a GPU in a score: 62 GPUs span its range.
	milliScore = 8
)

// stranded values a node by what will be left of its GPUs, for one mix.
type stranded struct {
	mix    *model.Mix
	stream [streams][streamLength]request
	minCPU int64 // the least that any request with GPUs asks for
	least  int64 // thousandths of one GPU: the least that any such request asks for
	// For each shape: its share of the demand for GPUs in millionths.
	share     []int64
	demand    int64             // thousandths of GPUs of all shapes
	cpuMax    int64             // no stream can use up more than that
	places    [streams][]uint64 // by shape: where the stream has it, as bits
	drawn     []int32           // the shapes that some stream has
	fits      []int32           // see fitting
	known     map[standing]int64
	knownLong map[longStanding]int64
	suits     suitNumbers
}

// standing is all that a node's value depends on. A large cluster has few different ones; computing each once makes a
// new mix affordable.
type standing struct {
	cpu   int64
	suits uint32          // the number of GPUState.Suits
	n     uint32          // of GPUs
	free  [gpusFew]uint16 // in rising order: which GPU is which does not matter
}

// longStanding is the standing of a node with more than gpusFew GPUs.
type longStanding struct {
	standing
	rest [gpusMax - gpusFew]uint16
}

// suitNumbers numbers the different values of GPUState.Suits.
type suitNumbers struct {
	of     map[string]uint32
	list   map[*bool]uint32 // by the first element of slices that were met before, which do not change
	last   *bool
	number uint32 // of last
	text   []byte
}

func (s *suitNumbers) numberOf(suits []bool) uint32 {
	if len(suits) == 0 {
		return 0
	}
	if s.last == &suits[0] {
		return s.number
	}
	n, ok := s.list[&suits[0]]
	if !ok {
		s.text = s.text[:0]
		for _, suit := range suits {
			if suit {
				s.text = append(s.text, 1)
			} else {
				s.text = append(s.text, 0)
			}
		}
		if n, ok = s.of[string(s.text)]; !ok {
			n = uint32(len(s.of))
			s.of[string(s.text)] = n
		}
		if len(s.list) >= knownMax {
			clear(s.list)
		}
		s.list[&suits[0]] = n
	}
	s.last, s.number = &suits[0], n
	return n
}

// knownMax is how many values are cached; when there are more, the cache is cleared.
const knownMax = 1 << 15

// standingOf returns false for a node that does not fit into a standing: its value is computed each time.
func (s *stranded) standingOf(g *model.GPUState, n int) (st longStanding, ok bool) {
	st.cpu, st.n, st.suits = min(g.FreeCPU, s.cpuMax), uint32(n), s.suits.numberOf(g.Suits)
	var sorted [gpusMax]uint16
	for i, free := range g.Free[:n] {
		if free < 0 || free > math.MaxUint16 {
			return st, false
		}
		at := i
		for ; at > 0 && sorted[at-1] > uint16(free); at-- {
			sorted[at] = sorted[at-1]
		}
		sorted[at] = uint16(free)
	}
	copy(st.free[:], sorted[:gpusFew])
	copy(st.rest[:], sorted[gpusFew:])
	return st, true
}

type request struct {
	shape int32
	gpus  int32
	cpu   int64
	milli int64
}

func newStranded(mix *model.Mix) *stranded {
	s := &stranded{mix: mix, minCPU: math.MaxInt64, least: math.MaxInt64, share: make([]int64, len(mix.Shapes)), known: map[standing]int64{}, knownLong: map[longStanding]int64{},
		suits: suitNumbers{of: map[string]uint32{}, list: map[*bool]uint32{}}}
	for i := range mix.Shapes {
		m := &mix.Shapes[i]
		if m.GPUs > 0 {
			s.minCPU, s.least = min(s.minCPU, m.CPU), min(s.least, m.Milli)
		}
		s.demand += m.Count * m.GPUs * m.Milli
	}
	for i := range mix.Shapes {
		m := &mix.Shapes[i]
		s.share[i] = ratio(m.Count*m.GPUs*m.Milli, s.demand)
	}
	if mix.All <= 0 {
		return s
	}
	// Requests are drawn by the golden ratio's sequence, so that each stream has the mix's proportions.
	at := uint64(0)
	for k := range s.stream {
		for j := range s.stream[k] {
			at += 0x9e3779b97f4a7c15
			r := int64((at >> 33) * uint64(mix.All) >> 31)
			i := 0
			for i < len(mix.Shapes)-1 && r >= mix.Shapes[i].Count {
				r -= mix.Shapes[i].Count
				i++
			}
			m := &mix.Shapes[i]
			s.stream[k][j] = request{int32(i), int32(m.GPUs), m.CPU, m.Milli}
			if s.places[k] == nil {
				s.places[k] = make([]uint64, len(mix.Shapes))
			}
			s.places[k][i] |= 1 << j
			if !slices.Contains(s.drawn, int32(i)) {
				s.drawn = append(s.drawn, int32(i))
			}
		}
	}
	for k := range s.stream {
		sum := s.minCPU
		for j := range s.stream[k] {
			sum += min(s.stream[k][j].cpu, math.MaxInt32) // a request for more fits on no node
		}
		s.cpuMax = max(s.cpuMax, sum)
	}
	return s
}

// ratio returns a/b in millionths; 0 for b = 0.
func ratio(a, b int64) int64 {
	if b <= 0 {
		return 0
	}
	for a > math.MaxInt64/model.Micro {
		a, b = a>>1, max(b>>1, 1)
	}
	return a * model.Micro / b
}

func (s *stranded) Score(before, after int64) int64 {
	return min(max(model.Micro/2-milliScore*(after-before), 0), model.Micro)
}

// Value returns how many thousandths of GPUs are left, on average, when a node is full.
func (s *stranded) Value(g *model.GPUState) int64 {
	n := min(len(g.Free), gpusMax)
	all, most, idle := int64(0), int64(0), int32(0)
	for _, free := range g.Free[:n] {
		all, most = all+free, max(most, free)
		if free == 1000 {
			idle++
		}
	}
	if most < s.least || g.FreeCPU < s.minCPU {
		return all
	}
	st, ok := s.standingOf(g, n)
	if !ok {
		return s.pack(g, n, all, idle)
	}
	if len(s.known)+len(s.knownLong) >= knownMax {
		clear(s.known)
		clear(s.knownLong)
	}
	if n <= gpusFew {
		v, known := s.known[st.standing]
		if !known {
			v = s.pack(g, n, all, idle)
			s.known[st.standing] = v
		}
		return v
	}
	v, known := s.knownLong[st]
	if !known {
		v = s.pack(g, n, all, idle)
		s.knownLong[st] = v
	}
	return v
}

// pack packs every stream onto a node with n GPUs, of which all thousandths are free in total and idle GPUs are unused.
// What is free only shrinks: a shape that does not fit is not looked at again in the same stream, and neither is a GPU
// that has less free than any shape asks for. GPUs are in rising order of what is free, so the first one with room is the
// fullest with room, and idle ones are at the end.
func (s *stranded) pack(g *model.GPUState, n int, all int64, idle int32) int64 {
	fits := s.fitting(g, n, idle)
	if len(fits) == 0 {
		return all
	}
	var open, free [gpusMax]int64
	count := 0
	for _, f := range g.Free[:n] {
		if f < s.least {
			continue
		}
		at := count
		for ; at > 0 && open[at-1] > f; at-- {
			open[at] = open[at-1]
		}
		open[at] = f
		count++
	}
	total := int64(0)
	for k := range s.stream {
		copy(free[:count], open[:count])
		list := free[:count]
		cpu, left, idle := g.FreeCPU, all, idle
		at := s.places[k]
		ahead := uint64(0) // the requests still to come that may fit
		for _, shape := range fits {
			ahead |= at[shape]
		}
		for ahead != 0 {
			r := &s.stream[k][bits.TrailingZeros64(ahead)]
			if r.cpu > cpu {
				ahead &^= at[r.shape]
				continue
			}
			switch {
			case r.gpus == 0:
			case r.gpus == 1:
				i := 0
				for i < len(list) && list[i] < r.milli {
					i++
				}
				if i == len(list) {
					ahead &^= at[r.shape]
					continue
				}
				room := list[i]
				if room == 1000 {
					idle--
				}
				left -= r.milli
				if room -= r.milli; room >= s.least {
					for ; i > 0 && list[i-1] > room; i-- {
						list[i] = list[i-1]
					}
					list[i] = room
				} else {
					copy(list[i:], list[i+1:])
					list = list[:len(list)-1]
				}
			default:
				if idle < r.gpus {
					ahead &^= at[r.shape]
					continue
				}
				idle -= r.gpus
				left -= 1000 * int64(r.gpus)
				list = list[:len(list)-int(r.gpus)]
			}
			cpu -= r.cpu
			if left < s.least || cpu < s.minCPU {
				break
			}
			ahead &= ahead - 1
		}
		total += left
	}
	return total / streams
}

// fitting returns the shapes that fit on a node as it is.
func (s *stranded) fitting(g *model.GPUState, n int, idle int32) []int32 {
	most := int64(0)
	for _, free := range g.Free[:n] {
		most = max(most, free)
	}
	fits := s.fits[:0]
	for _, shape := range s.drawn {
		m := &s.mix.Shapes[shape]
		if m.CPU > g.FreeCPU || !g.Suits[shape] || m.GPUs == 1 && m.Milli > most || m.GPUs > 1 && m.GPUs > int64(idle) {
			continue
		}
		fits = append(fits, shape)
	}
	s.fits = fits
	return fits
}

// Prices returns the rent on models, and the value of blocks of idle GPUs.
func (s *stranded) Prices(m *search.Market) search.Prices {
	var p search.Prices
	for i := range s.mix.Shapes {
		shape := &s.mix.Shapes[i]
		if shape.GPUs != 1 || shape.Model == "" {
			continue
		}
		supply := int64(0)
		for k := range m.Classes {
			if m.Classes[k].Suits[i] {
				supply += m.Classes[k].Free
			}
		}
		if supply == 0 {
			continue
		}
		if p.Rent == nil {
			p.Rent = make([]int64, len(m.Classes))
		}
		rent := min(model.Micro, s.share[i]*m.Free/supply)
		for k := range m.Classes {
			if m.Classes[k].Suits[i] {
				p.Rent[k] += rent
			}
		}
	}
	if len(m.Wide) > 0 {
		p.Wide = make([]int64, len(m.Wide))
	}
	for k, i := range m.Wide {
		shape := &s.mix.Shapes[i]
		share := int64(0) // of requests for such blocks or larger ones
		for _, j := range m.Wide {
			if other := &s.mix.Shapes[j]; other.GPUs == shape.GPUs && other.CPU >= shape.CPU && narrower(m, j, i) {
				share += s.share[j]
			}
		}
		wanted := share * m.Free / (1000 * shape.GPUs) // millionths of blocks, until everything is full
		p.Wide[k] = exceeds(wanted, m.Blocks[k]) * shape.GPUs / 1000
	}
	return p
}

// narrower reports whether every class that suits shape j suits shape i.
func narrower(m *search.Market, j, i int) bool {
	for k := range m.Classes {
		if m.Classes[k].Suits[j] && !m.Classes[k].Suits[i] {
			return false
		}
	}
	return true
}

// exceeds returns the probability, in millionths, that a demand with the given mean in millionths exceeds a supply. The
// demand is approximately normal, with a variance of its mean plus one.
func exceeds(mean, supply int64) int64 {
	if supply > math.MaxInt32 || mean > math.MaxInt32*model.Micro {
		return 0
	}
	deviation := isqrt(mean + model.Micro)             // in thousandths
	z := (supply*model.Micro - mean) / 100 / deviation // in tenths
	switch {
	case z <= -int64(len(tail)):
		return model.Micro
	case z < 0:
		return model.Micro - tail[-z]
	case z < int64(len(tail)):
		return tail[z]
	}
	return 0
}

// tail is the probability that a normal variable exceeds its mean by more than i tenths of its deviation, in
// millionths.
var tail = [32]int64{500000, 460172, 420740, 382089, 344578, 308538, 274253, 241964, 211855, 184060, 158655, 135666, 115070, 96800, 80757,
	66807, 54799, 44565, 35930, 28717, 22750, 17864, 13903, 10724, 8198, 6210, 4661, 3467, 2555, 1866, 1350, 968}

// isqrt returns the integer square root of a number.
func isqrt(n int64) int64 {
	if n < 2 {
		return max(n, 0)
	}
	x := int64(1) << 32
	for {
		y := (x + n/x) / 2
		if y >= x {
			return x
		}
		x = y
	}
}
