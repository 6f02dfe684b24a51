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
			for range 1 + r.IntN(8) {
				g.Free = append(g.Free, int64(250*r.IntN(5)))
			}
			for range mix.Shapes {
				g.Suits = append(g.Suits, r.IntN(5) > 0)
			}
			before := len(s.known)
			got := s.Value(g)
			valued++
			if len(s.known) == before {
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
			r.Shuffle(len(g.Free), func(i, j int) { g.Free[i], g.Free[j] = g.Free[j], g.Free[i] })
			if again := newStranded(mix).Value(g); again != got {
				t.Fatalf("seed %d: %d, and in another order %d of %+v", seed, got, again, g)
			}
		}
	}
	t.Logf("%d values, %d of them known or plain", valued, hits)
}
