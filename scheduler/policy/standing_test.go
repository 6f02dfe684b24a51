package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
)

// TestStandingIsAllThatCounts: the cached value of a node equals the result of packing the streams onto it, in any
// order of its GPUs, and with any surplus of CPU.
func TestStandingIsAllThatCounts(t *testing.T) {
	const seed = 20261122
	r := rand.New(rand.NewPCG(seed, 1))
	valued, hits := 0, 0
	for range 200 {
		mix := &model.Mix{}
		for range 1 + r.IntN(12) {
			m := model.Shape{GPUs: int64(r.IntN(4)), CPU: int64(1000 * (1 + r.IntN(16))), Milli: 1000, Count: int64(1 + r.IntN(50))}
			switch m.GPUs {
			case 0:
				m.Milli = 0
			case 1:
				m.Milli = int64(100 * (1 + r.IntN(10)))
			case 3:
				m.GPUs = 8
			}
			mix.Shapes, mix.All = append(mix.Shapes, m), mix.All+m.Count
		}
		s := newStranded(mix)
		for range 50 {
			g := &model.GPUState{FreeCPU: int64(1000 * r.IntN(200))}
			if r.IntN(8) == 0 {
				g.FreeCPU = 1 << 40
			}
			for range 1 + r.IntN(8+r.IntN(2)*24) {
				g.Free = append(g.Free, int64(250*r.IntN(5)))
			}
			for range mix.Shapes {
				g.Suits = append(g.Suits, r.IntN(5) > 0)
			}
			before := len(s.known) + len(s.knownLong)
			got := s.Value(g)
			valued++
			if len(s.known)+len(s.knownLong) == before {
				hits++
			}
			all, idle := int64(0), int32(0)
			for _, f := range g.Free {
				if all += f; f == 1000 {
					idle++
				}
			}
			if got != s.pack(g, len(g.Free), all, idle) {
				t.Fatalf("seed %d: remembered %d of %+v", seed, got, g)
			}
			if plain := plainPack(s, g, len(g.Free), all, idle); got != plain {
				t.Fatalf("seed %d: %d, by looking at each request %d of %+v", seed, got, plain, g)
			}
			r.Shuffle(len(g.Free), func(i, j int) { g.Free[i], g.Free[j] = g.Free[j], g.Free[i] })
			if again := newStranded(mix).Value(g); again != got {
				t.Fatalf("seed %d: %d, and in another order %d of %+v", seed, got, again, g)
			}
		}
	}
	t.Logf("%d values, %d of them known or plain", valued, hits)
}

// plainPack is pack by looking at each request in turn.
func plainPack(s *stranded, g *model.GPUState, n int, all int64, idle int32) int64 {
	total := int64(0)
	var free [gpusMax]int64
	for k := range s.stream {
		copy(free[:n], g.Free)
		cpu, left, idle := g.FreeCPU, all, idle
		for j := range s.stream[k] {
			r := &s.stream[k][j]
			if r.cpu > cpu || !g.Suits[r.shape] {
				continue
			}
			switch {
			case r.gpus == 0:
			case r.gpus == 1:
				best := -1
				for i := range n {
					if free[i] >= r.milli && (best < 0 || free[i] < free[best]) {
						best = i
					}
				}
				if best < 0 {
					continue
				}
				if free[best] == 1000 {
					idle--
				}
				free[best] -= r.milli
				left -= r.milli
			default:
				if idle < r.gpus {
					continue
				}
				idle -= r.gpus
				left -= 1000 * int64(r.gpus)
				for i, want := 0, r.gpus; want > 0; i++ {
					if free[i] == 1000 {
						free[i] = 0
						want--
					}
				}
			}
			cpu -= r.cpu
			if left < s.least || cpu < s.minCPU {
				break
			}
		}
		total += left
	}
	return total / streams
}
