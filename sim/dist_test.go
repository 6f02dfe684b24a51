package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestQuantiles compares quantiles of few and of many values with the sorted values: exact, then good to 0.1 %.
func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var d Dist
	var vals []float64
	for i := range distExact + 20_000 {
		x := math.Exp(rng.Float64() * 14)
		d.Add(x)
		vals = append(vals, x)
		within := -1.0
		switch i + 1 {
		case distExact:
			within = 0
		case distExact + 20_000:
			within = 0.001
		}
		if within < 0 {
			continue
		}
		slices.Sort(vals)
		for _, q := range []float64{0.01, 0.5, 0.95, 0.99} {
			want := vals[int(q*float64(len(vals)))]
			if got := d.Quantile(q); math.Abs(got-want) > within*want {
				t.Errorf("of %d values the quantile %g is %g, want %g within %g", len(vals), q, got, want, within)
			}
		}
	}
}
