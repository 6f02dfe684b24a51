// Package telemetry declares and exports metrics. Each metric is declared once, as a Row of a Table or as a Histogram,
// by the package that knows its value. From that declaration it is served to Prometheus, shown in the JSON of Nomad's
// API, and sent to the statsd, statsite and DogStatsd sinks of go-metrics. libraries.go declares the metrics of
// libraries (raft, memberlist, the log store). Only this package imports go-metrics.
package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	metrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Telemetry exports the metrics of one process. Metrics of libraries are global to the process: a second Telemetry in
// it, as in tests, shows the same ones.
type Telemetry struct {
	set      Set
	registry *prometheus.Registry
	handler  http.Handler
	interval time.Duration
	outlet   metrics.MetricSink // the operator's sinks, or nil
	grown    deltas
}

// New returns a Telemetry. Add metrics before Run.
func New(sinks Sinks) (*Telemetry, error) {
	t := &Telemetry{registry: prometheus.NewRegistry(), interval: sinks.Interval, grown: deltas{}}
	if t.interval <= 0 {
		t.interval = 10 * time.Second
	}
	if err := startProcess(t.interval); err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := t.registry.Register(c); err != nil {
			return nil, fmt.Errorf("set up metrics: %w", err)
		}
	}
	t.handler = promhttp.HandlerFor(prometheus.Gatherers{t.registry, process.libraries.registry}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	var err error
	if t.outlet, err = sinks.open(); err != nil {
		return nil, err
	}
	if t.outlet != nil {
		process.fan.add(t.outlet)
	}
	return t, nil
}

// Add adds the metrics of a part. It returns an error if one is declared twice.
func (t *Telemetry) Add(s *Set) error {
	for _, h := range s.histograms {
		if err := t.registry.Register(h.vec); err != nil {
			return fmt.Errorf("metric %s: %w", h.desc.Name, err)
		}
	}
	for i := range s.sources {
		if err := t.registry.Register(newCollector(&s.sources[i])); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	t.set.Add(s)
	return nil
}

// Descs returns the declarations of all metrics, with those of libraries last.
func (t *Telemetry) Descs() []*Desc { return append(t.set.Descs(), process.libraries.descs()...) }

// Run reads the counters, and sends counters and gauges, at each interval until ctx ends. Histograms are sent as they
// observe. It runs in the middle of the intervals of the in-memory sink, so that each of those gets one reading.
func (t *Telemetry) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		t.send()
		now := time.Now()
		timer.Reset(now.Truncate(t.interval).Add(t.interval * 3 / 2).Sub(now))
	}
}

// Close sends buffered metrics and closes the operator's sinks.
func (t *Telemetry) Close() {
	if t.outlet != nil {
		process.fan.remove(t.outlet)
		t.outlet.(metrics.ShutdownSink).Shutdown()
	}
}

// send sends the growth of counters to all sinks, and gauges to the operator's. Gauges are not kept in memory, because
// there may be some for each node; the JSON form reads them on demand.
func (t *Telemetry) send() {
	var now Samples
	for i := range t.set.sources {
		if src := &t.set.sources[i]; src.counters || t.outlet != nil {
			src.read(&now)
		}
	}
	for i := range now {
		x := &now[i]
		switch labels := labelsOf(x.Labels, x.Values); {
		case x.Kind == KindCounter:
			metrics.IncrCounterWithLabels(x.key(), float32(t.grown.of(x)), labels)
		case t.outlet != nil:
			t.outlet.SetGaugeWithLabels(append([]string{service}, x.key()...), float32(x.Value), labels)
		}
	}
}

// Metrics returns the metrics in a format: "prometheus" for the text exposition, "" for Nomad's JSON.
func (t *Telemetry) Metrics(format string) (contentType string, body []byte, err error) {
	if format == "prometheus" {
		rec := httptest.NewRecorder()
		t.handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Header().Get("Content-Type"), rec.Body.Bytes(), nil
	}
	sum, err := t.summary()
	if err != nil {
		return "", nil, fmt.Errorf("collect metrics: %w", err)
	}
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(sum); err != nil {
		return "", nil, err
	}
	return "application/json", buf.Bytes(), nil
}

// summary returns counters and samples of the last full interval, and the current gauges.
func (t *Telemetry) summary() (metrics.MetricsSummary, error) {
	shown, err := process.inmem.DisplayMetrics(nil, nil)
	if err != nil {
		return metrics.MetricsSummary{}, err
	}
	sum := shown.(metrics.MetricsSummary)
	for _, x := range t.set.Samples() {
		if x.Kind != KindGauge {
			continue
		}
		labels := map[string]string{}
		for i, name := range x.Labels {
			labels[name] = x.Values[i]
		}
		sum.Gauges = append(sum.Gauges, metrics.GaugeValue{Name: service + "." + strings.Join(x.key(), "."), Value: float32(x.Value), DisplayLabels: labels})
	}
	slices.SortStableFunc(sum.Gauges, func(a, b metrics.GaugeValue) int { return strings.Compare(a.Name, b.Name) })
	return sum, nil
}

// collector serves a source to Prometheus.
type collector struct {
	read  func(*Samples)
	descs map[*Desc]*prometheus.Desc
}

func newCollector(s *source) collector {
	c := collector{s.read, map[*Desc]*prometheus.Desc{}}
	for _, d := range s.descs {
		c.descs[d] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	var now Samples
	c.read(&now)
	for i := range now {
		x := &now[i]
		kind := prometheus.GaugeValue
		if x.Kind == KindCounter {
			kind = prometheus.CounterValue
		}
		values := make([]string, len(x.Values))
		for k, v := range x.Values {
			values[k] = strings.ToValidUTF8(v, "?") // may contain names of users' objects
		}
		m, err := prometheus.NewConstMetric(c.descs[x.Desc], kind, x.Value, values...)
		if err != nil {
			m = prometheus.NewInvalidMetric(c.descs[x.Desc], err)
		}
		ch <- m
	}
}
