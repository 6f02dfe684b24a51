package structs

import (
	"math/rand/v2"
	"testing"
)

// Runs against a map, over random ends.
func TestArrayRuns(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		var s *ArrayState
		want := map[int]bool{}
		for range 20 {
			var ends []ArrayEnd
			took := map[int]bool{}
			for range r.IntN(30) {
				e := ArrayEnd{r.IntN(120), r.IntN(3) == 0}
				if took[e.Index] {
					continue
				}
				took[e.Index] = true
				ends = append(ends, e)
				want[e.Index] = e.Failed
			}
			s = &ArrayState{Ended: s.With(ends)}
			complete, failed := s.Count()
			if complete+failed != len(want) {
				t.Fatalf("seed %d: %d ended, want %d: %v", seed, complete+failed, len(want), s.Ended)
			}
			last := ArrayRun{From: -2, To: -2}
			for _, run := range s.Ended {
				if run.From > run.To || run.From <= last.To || run.From == last.To+1 && run.Failed == last.Failed {
					t.Fatalf("seed %d: runs %v", seed, s.Ended)
				}
				last = run
				for i := run.From; i <= run.To; i++ {
					if f, ok := want[i]; !ok || f != run.Failed {
						t.Fatalf("seed %d: index %d: %v", seed, i, s.Ended)
					}
				}
			}
			for i := range 121 {
				if _, ok := want[i]; ok != s.Has(i) {
					t.Fatalf("seed %d: Has(%d) is %v", seed, i, s.Has(i))
				}
			}
		}
	}
}
