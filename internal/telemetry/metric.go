package telemetry

import (
	"math"
	"strconv"
	"strings"

	metrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the kind of a metric.
type Kind string

// A counter never decreases during the life of the process. A gauge goes up and down. A histogram counts observations
// in buckets.
const (
	KindCounter   Kind = "counter"
	KindGauge     Kind = "gauge"
	KindHistogram Kind = "histogram"
)

// Desc declares one metric. Its name is for Prometheus: muster_PART_WHAT, then the unit (_seconds, _bytes, _ratio),
// then _total for a counter. Method key returns the name for the sinks of go-metrics.
type Desc struct {
	Name    string
	Kind    Kind
	Help    string // what is measured, in one sentence
	Labels  []string
	Buckets []float64 // for a histogram: upper bounds, ascending
}

// Common buckets of histograms.
var (
	Latency = prometheus.ExponentialBuckets(0.0001, 2, 18) // 100 us to 13 s
	Counts  = prometheus.ExponentialBuckets(1, 2, 11)      // 1 to 1,024
)

// key returns the metric's name for go-metrics, without the service's name. Histograms of times are sent in
// milliseconds, as every sink expects, so their names have no unit.
func (d *Desc) key() []string {
	name, own := strings.CutPrefix(d.Name, "muster_")
	switch d.Kind {
	case KindCounter:
		name = strings.TrimSuffix(name, "_total")
	case KindHistogram:
		name = strings.TrimSuffix(name, "_seconds")
	}
	if part, what, ok := strings.Cut(name, "_"); own && ok {
		return []string{part, what}
	}
	return []string{name}
}

// Row is a metric whose value is read from an S on demand.
type Row[S any] struct {
	Desc
	Read func(S) float64 // NaN leaves the metric out
}

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// Counter declares a counter.
func Counter[S any, N number](name, help string, read func(S) N) Row[S] {
	return Row[S]{Desc{Name: name, Kind: KindCounter, Help: help}, func(s S) float64 { return float64(read(s)) }}
}

// Gauge declares a gauge.
func Gauge[S any, N number](name, help string, read func(S) N) Row[S] {
	return Row[S]{Desc{Name: name, Kind: KindGauge, Help: help}, func(s S) float64 { return float64(read(s)) }}
}

// Bool returns 1 for true and 0 for false.
func Bool(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Known returns v, or NaN if it is not known.
func Known(v float64, known bool) float64 {
	if known {
		return v
	}
	return math.NaN()
}

// Table is a list of metrics that are read from the same S.
type Table[S any] []Row[S]

// Labelled sets the labels of all metrics of the table, and returns the table.
func (t Table[S]) Labelled(labels ...string) Table[S] {
	for i := range t {
		t[i].Labels = labels
	}
	return t
}

func (t Table[S]) descs() []*Desc {
	out := make([]*Desc, len(t))
	for i := range t {
		out[i] = &t[i].Desc
	}
	return out
}

// Give appends the table's values for s. labels are the values of the table's labels.
func (t Table[S]) Give(out *Samples, s S, labels ...string) {
	for i := range t {
		if v := t[i].Read(s); !math.IsNaN(v) {
			*out = append(*out, Sample{&t[i].Desc, labels, v})
		}
	}
}

// Sample is the value of a metric at one time.
type Sample struct {
	*Desc
	Values []string // values of the labels
	Value  float64
}

// Samples are values of many metrics.
type Samples []Sample

// Find returns the value of a metric with the given label values.
func (s Samples) Find(name string, labels ...string) (value float64, ok bool) {
	for i := range s {
		if s[i].Name == name && strings.Join(s[i].Values, "\x00") == strings.Join(labels, "\x00") {
			return s[i].Value, true
		}
	}
	return 0, false
}

// Declared is implemented by tables.
type Declared interface{ descs() []*Desc }

// source is a group of metrics that are read together.
type source struct {
	descs    []*Desc
	counters bool // some of them are counters
	read     func(*Samples)
}

// Set is the metrics of one part of the program. It must be complete before the first read.
type Set struct {
	sources    []source
	histograms []*Histogram
}

// Read adds tables whose values read appends.
func (s *Set) Read(read func(*Samples), tables ...Declared) {
	src := source{read: read}
	for _, t := range tables {
		for _, d := range t.descs() {
			src.descs = append(src.descs, d)
			src.counters = src.counters || d.Kind == KindCounter
		}
	}
	s.sources = append(s.sources, src)
}

// Histogram adds a histogram.
func (s *Set) Histogram(name, help string, buckets []float64, labels ...string) *Histogram {
	h := newHistogram(Desc{Name: name, Kind: KindHistogram, Help: help, Labels: labels, Buckets: buckets})
	s.histograms = append(s.histograms, h)
	return h
}

// Add adds the metrics of another set.
func (s *Set) Add(o *Set) {
	s.sources = append(s.sources, o.sources...)
	s.histograms = append(s.histograms, o.histograms...)
}

// Descs returns the declarations of all metrics, in the order in which they were added.
func (s *Set) Descs() (out []*Desc) {
	for _, h := range s.histograms {
		out = append(out, &h.desc)
	}
	for i := range s.sources {
		out = append(out, s.sources[i].descs...)
	}
	return out
}

// Samples returns the current values, without histograms.
func (s *Set) Samples() (out Samples) {
	for i := range s.sources {
		s.sources[i].read(&out)
	}
	return out
}

// Stats returns the values of metrics without labels, by name without muster_PART_ and _total. A histogram has _count
// and _sum.
func (s *Set) Stats() map[string]string {
	out := map[string]string{}
	put := func(d *Desc, suffix string, v float64) {
		_, name, _ := strings.Cut(strings.TrimPrefix(d.Name, "muster_"), "_")
		if d.Kind == KindCounter {
			name = strings.TrimSuffix(name, "_total")
		}
		out[name+suffix] = strconv.FormatFloat(v, 'f', -1, 64)
	}
	for _, h := range s.histograms {
		if len(h.desc.Labels) == 0 {
			count, sum := h.Count()
			put(&h.desc, "_count", float64(count))
			put(&h.desc, "_sum", sum)
		}
	}
	for _, x := range s.Samples() {
		if len(x.Labels) == 0 {
			put(x.Desc, "", x.Value)
		}
	}
	return out
}

// Histogram counts observations. It is safe for concurrent use.
type Histogram struct {
	desc  Desc
	vec   *prometheus.HistogramVec
	key   []string
	scale float64 // factor for values sent to sinks
}

func newHistogram(d Desc) *Histogram {
	h := &Histogram{desc: d, key: d.key(), scale: 1}
	if strings.HasSuffix(d.Name, "_seconds") {
		h.scale = 1000
	}
	h.vec = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.Buckets}, d.Labels)
	if len(d.Labels) == 0 {
		h.vec.WithLabelValues() // so that the histogram is served before its first observation
	}
	return h
}

// Observe counts a value. labels are the values of the histogram's labels.
func (h *Histogram) Observe(v float64, labels ...string) {
	h.vec.WithLabelValues(labels...).Observe(v)
	metrics.AddSampleWithLabels(h.key, float32(v*h.scale), labelsOf(h.desc.Labels, labels))
}

// Count returns the number of observations over all labels, and their sum.
func (h *Histogram) Count() (n uint64, sum float64) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(h.vec)
	families, err := reg.Gather()
	if err != nil {
		return 0, 0
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n, sum = n+m.GetHistogram().GetSampleCount(), sum+m.GetHistogram().GetSampleSum()
		}
	}
	return n, sum
}

func labelsOf(names, values []string) []metrics.Label {
	if len(names) == 0 {
		return nil
	}
	out := make([]metrics.Label, len(names))
	for i := range names {
		out[i] = metrics.Label{Name: names[i], Value: values[i]}
	}
	return out
}
