// Package telemetry collects figures and gives them out: what the libraries report (raft, memberlist, the log store)
// through go-metrics, our own through Prometheus collectors, all from one registry. It is the only package that imports
// go-metrics.
package telemetry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	metrics "github.com/armon/go-metrics"
	promsink "github.com/armon/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Telemetry is the figures of one process. The go-metrics sink is global to the process, so the first one made feeds
// all; a second Telemetry in one process (tests) only has its own collectors.
type Telemetry struct {
	registry *prometheus.Registry
	inmem    *metrics.InmemSink
	http     *prometheus.HistogramVec
	rpc      *prometheus.HistogramVec
	handler  http.Handler
}

var global struct {
	once  sync.Once
	inmem *metrics.InmemSink
	sink  *promsink.PrometheusSink
}

// New makes the figures of a process. stats gives the numbers of the agent's parts by part and name; what does not
// parse as a number is left out.
func New(stats func() map[string]map[string]string) (*Telemetry, error) {
	t := &Telemetry{registry: prometheus.NewRegistry()}
	var err error
	global.once.Do(func() {
		global.inmem = metrics.NewInmemSink(10*time.Second, time.Minute)
		// The sink registers itself with the registry it is given; it lives as long as the process.
		global.sink, err = promsink.NewPrometheusSinkFrom(promsink.PrometheusOpts{Expiration: time.Hour, Registerer: prometheus.NewRegistry(), Name: "libraries"})
		if err != nil {
			return
		}
		conf := metrics.DefaultConfig("")
		conf.EnableHostname = false
		conf.EnableRuntimeMetrics = false
		_, err = metrics.NewGlobal(conf, metrics.FanoutSink{global.inmem, global.sink})
	})
	if err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	t.inmem = global.inmem
	t.http = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "muster_http_request_seconds", Help: "Time to answer HTTP requests, by route and status class; blocking queries included.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
	}, []string{"route", "status"})
	t.rpc = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "muster_rpc_request_seconds", Help: "Time to answer remote procedure calls, by method and error code.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
	}, []string{"method", "code"})
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		t.http, t.rpc, global.sink, statsCollector{stats},
	} {
		if err := t.registry.Register(c); err != nil {
			return nil, fmt.Errorf("set up metrics: %w", err)
		}
	}
	t.handler = promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return t, nil
}

// ObserveHTTP notes one answered request.
func (t *Telemetry) ObserveHTTP(route string, status int, took time.Duration) {
	t.http.WithLabelValues(route, strconv.Itoa(status/100)+"xx").Observe(took.Seconds())
}

// ObserveRPC notes one answered call; code is "" for success.
func (t *Telemetry) ObserveRPC(method, code string, took time.Duration) {
	t.rpc.WithLabelValues(method, code).Observe(took.Seconds())
}

// Metrics is the figures in a format: "prometheus" for the text exposition, "" for Nomad's JSON.
func (t *Telemetry) Metrics(format string) (contentType string, body []byte, err error) {
	if format == "prometheus" {
		rec := httptest.NewRecorder()
		t.handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Header().Get("Content-Type"), rec.Body.Bytes(), nil
	}
	sum, err := t.inmem.DisplayMetrics(nil, nil)
	if err != nil {
		return "", nil, fmt.Errorf("collect metrics: %w", err)
	}
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(sum); err != nil {
		return "", nil, err
	}
	return "application/json", buf.Bytes(), nil
}

// statsCollector exposes the agent's statistics as gauges, muster_PART_NAME.
type statsCollector struct {
	stats func() map[string]map[string]string
}

func (statsCollector) Describe(chan<- *prometheus.Desc) {} // unchecked: the set of figures depends on the agent's parts

func (s statsCollector) Collect(ch chan<- prometheus.Metric) {
	if s.stats == nil {
		return
	}
	all := s.stats()
	parts := make([]string, 0, len(all))
	for p := range all {
		parts = append(parts, p)
	}
	sort.Strings(parts)
	for _, p := range parts {
		for name, v := range all[p] {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				continue
			}
			desc := prometheus.NewDesc("muster_"+clean(p)+"_"+clean(name), "The agent's statistic "+p+"."+name+".", nil, nil)
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, f)
		}
	}
}

// Figure is one measurement with labels.
type Figure struct {
	Name, Help string
	Labels     []string // names and values in turn
	Value      float64
}

// Collect adds figures that are asked for at each look.
func (t *Telemetry) Collect(figures func() []Figure) error {
	return t.registry.Register(figuresCollector{figures})
}

type figuresCollector struct{ figures func() []Figure }

func (figuresCollector) Describe(chan<- *prometheus.Desc) {} // unchecked: what is measured comes and goes

func (c figuresCollector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.figures() {
		var names, values []string
		for i := 0; i+1 < len(f.Labels); i += 2 {
			names, values = append(names, f.Labels[i]), append(values, f.Labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(f.Name, f.Help, names, nil), prometheus.GaugeValue, f.Value, values...)
	}
}

func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return '_'
	}, s)
}
