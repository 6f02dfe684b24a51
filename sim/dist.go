package sim

import (
	"math"
	"slices"
)

// distExact is the largest number of values that a Dist keeps individually.
const distExact = 1 << 19

// distStep is the ratio of the widths of neighbouring buckets: quantiles are accurate to 0.1 %.
const distStep = 1.002

var distLog = math.Log(distStep)

// Dist is a set of numbers >= 0 with mean, extremes and quantiles. Up to 524,288 values are kept, so quantiles are
// exact; beyond that they are counted in buckets that are 0.2 % wide, so memory does not grow.
type Dist struct {
	N        int64
	Sum, Max float64
	vals     []float64
	sorted   bool
	zero     int64
	buckets  map[int32]int64
}

// Add adds a value.
func (d *Dist) Add(x float64) {
	d.N++
	d.Sum += x
	d.Max = max(d.Max, x)
	if d.buckets == nil {
		d.vals = append(d.vals, x)
		d.sorted = false
		if len(d.vals) > distExact {
			d.buckets = map[int32]int64{}
			for _, v := range d.vals {
				d.count(v)
			}
			d.vals = nil
		}
		return
	}
	d.count(x)
}

func (d *Dist) count(x float64) {
	if x < 1e-6 {
		d.zero++
		return
	}
	d.buckets[int32(math.Floor(math.Log(x)/distLog))]++
}

// Mean returns the mean, 0 of an empty set.
func (d *Dist) Mean() float64 {
	if d.N == 0 {
		return 0
	}
	return d.Sum / float64(d.N)
}

// Quantile returns the value at index floor(q n) in ascending order, as the published results do.
func (d *Dist) Quantile(q float64) float64 {
	if d.N == 0 {
		return 0
	}
	at := min(int64(q*float64(d.N)), d.N-1)
	if d.buckets == nil {
		if !d.sorted {
			slices.Sort(d.vals)
			d.sorted = true
		}
		return d.vals[at]
	}
	if at < d.zero {
		return 0
	}
	at -= d.zero
	keys := make([]int32, 0, len(d.buckets))
	for k := range d.buckets {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if at < d.buckets[k] {
			return min(math.Exp((float64(k)+0.5)*distLog), d.Max)
		}
		at -= d.buckets[k]
	}
	return d.Max
}

// Points returns n+1 quantiles from the least to the greatest, for a curve.
func (d *Dist) Points(n int) []float64 {
	out := make([]float64, n+1)
	for i := range out {
		out[i] = d.Quantile(float64(i) / float64(n))
	}
	if d.N > 0 {
		out[n] = d.Max
	}
	return out
}

// seriesMax is how many points a Series keeps.
const seriesMax = 512

// Series is a metric over time: its mean in each of up to 512 equal spans, whose length doubles when there are more.
type Series struct {
	Span float64 // seconds of one point
	Vals []float64
	area float64 // of the current span
	done float64 // seconds of the current span so far
}

// Add adds a value that held for that many seconds.
func (s *Series) Add(v, seconds float64) {
	if s.Span == 0 {
		s.Span = 1
	}
	if seconds > s.Span*seriesMax*4 { // far ahead: widen the spans first
		for s.Span*seriesMax < seconds {
			s.fold()
		}
	}
	for seconds > 0 {
		if len(s.Vals) == seriesMax {
			s.fold()
		}
		step := min(seconds, s.Span-s.done)
		s.area += v * step
		s.done += step
		seconds -= step
		if s.done >= s.Span {
			s.Vals = append(s.Vals, s.area/s.Span)
			s.area, s.done = 0, 0
		}
	}
}

// fold doubles the span.
func (s *Series) fold() {
	n := len(s.Vals) / 2
	odd := len(s.Vals) % 2
	if odd == 1 {
		s.area += s.Vals[len(s.Vals)-1] * s.Span
		s.done += s.Span
	}
	for i := range n {
		s.Vals[i] = (s.Vals[2*i] + s.Vals[2*i+1]) / 2
	}
	s.Vals = s.Vals[:n]
	s.Span *= 2
}

// Points returns the series with the current, incomplete span.
func (s *Series) Points() []float64 {
	if s.done == 0 {
		return s.Vals
	}
	return append(slices.Clone(s.Vals), s.area/s.done)
}
