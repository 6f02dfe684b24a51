package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	metrics "github.com/armon/go-metrics"
	"github.com/armon/go-metrics/datadog"
)

// service is the prefix of every name that is sent.
const service = "muster"

// Sinks are an operator's destinations for metrics. The zero value sends none.
type Sinks struct {
	Statsd, Statsite, DogStatsd string        // addresses
	Tags                        []string      // added to everything that DogStatsd gets
	Interval                    time.Duration // time between reports of counters and gauges; 0: 10 s
	Host                        string        // added to the names of gauges for statsd and statsite; "": nothing
	Filter                      []string      // "+PREFIX" sends, "-PREFIX" drops; the longest matching prefix counts
	DropOthers                  bool          // drop metrics that match no prefix
}

// open returns the sink that an operator has configured, or nil if none is.
func (s *Sinks) open() (metrics.MetricSink, error) {
	var all metrics.FanoutSink
	opened := false
	defer func() {
		if !opened {
			all.Shutdown()
		}
	}()
	if s.Statsd != "" {
		sink, err := metrics.NewStatsdSink(s.Statsd)
		if err != nil {
			return nil, fmt.Errorf("telemetry.statsd_address: %w", err)
		}
		all = append(all, named{sink, s.Host})
	}
	if s.Statsite != "" {
		sink, err := metrics.NewStatsiteSink(s.Statsite)
		if err != nil {
			return nil, fmt.Errorf("telemetry.statsite_address: %w", err)
		}
		all = append(all, named{sink, s.Host})
	}
	if s.DogStatsd != "" {
		sink, err := datadog.NewDogStatsdSink(s.DogStatsd, s.Host)
		if err != nil {
			return nil, fmt.Errorf("telemetry.datadog_address: %w", err)
		}
		sink.SetTags(s.Tags)
		all = append(all, sink)
	}
	if len(all) == 0 {
		return nil, nil
	}
	conf := &metrics.Config{FilterDefault: !s.DropOthers}
	for _, rule := range s.Filter {
		if prefix, ok := strings.CutPrefix(rule, "+"); ok {
			conf.AllowedPrefixes = append(conf.AllowedPrefixes, prefix)
		} else {
			conf.BlockedPrefixes = append(conf.BlockedPrefixes, strings.TrimPrefix(rule, "-"))
		}
	}
	filtered, err := metrics.New(conf, all)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	opened = true
	return &outlet{filtered, all}, nil
}

// outlet is a filter with the sinks behind it.
type outlet struct {
	*metrics.Metrics
	behind metrics.FanoutSink
}

// Shutdown sends buffered metrics and closes the sinks.
func (o *outlet) Shutdown() { o.behind.Shutdown() }

// named adds the host to the names of gauges, after the service, and makes labels fit for a name. Each host has its own
// gauge; counters and samples of all hosts add up.
type named struct {
	metrics.ShutdownSink
	host string
}

func (n named) SetGauge(key []string, v float32) { n.SetGaugeWithLabels(key, v, nil) }

func (n named) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	if n.host != "" {
		key = slices.Insert(slices.Clone(key), 1, n.host)
	}
	n.ShutdownSink.SetGaugeWithLabels(key, v, nameParts(labels))
}

func (n named) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	n.ShutdownSink.IncrCounterWithLabels(key, v, nameParts(labels))
}

func (n named) AddSampleWithLabels(key []string, v float32, labels []metrics.Label) {
	n.ShutdownSink.AddSampleWithLabels(key, v, nameParts(labels))
}

// nameParts makes labels fit for a name, such as v1_var_path of /v1/var/{path}. The sink adds each as a part of the name,
// so empty ones are left out.
func nameParts(labels []metrics.Label) []metrics.Label {
	var out []metrics.Label
	for _, l := range labels {
		words := strings.FieldsFunc(l.Value, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.", r)
		})
		if len(words) > 0 {
			out = append(out, metrics.Label{Name: l.Name, Value: strings.Join(words, "_")})
		}
	}
	return out
}

// process is global to the process: the sink that libraries and histograms report to through the global of go-metrics.
var process struct {
	once      sync.Once
	inmem     *metrics.InmemSink // for the JSON of Nomad's API
	libraries *libraries         // for Prometheus
	fan       fan
}

// fan passes metrics to a changing list of sinks. The global of go-metrics calls only the methods with labels.
type fan struct {
	metrics.BlackholeSink
	mu    sync.Mutex // guards changes of sinks
	sinks atomic.Pointer[[]metrics.MetricSink]
}

func (f *fan) add(s metrics.MetricSink) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := append(slices.Clone(f.list()), s)
	f.sinks.Store(&list)
}

func (f *fan) remove(s metrics.MetricSink) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(f.list()), func(x metrics.MetricSink) bool { return x == s })
	f.sinks.Store(&list)
}

func (f *fan) list() []metrics.MetricSink {
	if p := f.sinks.Load(); p != nil {
		return *p
	}
	return nil
}

func (f *fan) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	for _, s := range f.list() {
		s.SetGaugeWithLabels(key, v, labels)
	}
}

func (f *fan) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	for _, s := range f.list() {
		s.IncrCounterWithLabels(key, v, labels)
	}
}

func (f *fan) AddSampleWithLabels(key []string, v float32, labels []metrics.Label) {
	for _, s := range f.list() {
		s.AddSampleWithLabels(key, v, labels)
	}
}

// startProcess installs the sinks of the process, once.
func startProcess(interval time.Duration) error {
	var err error
	process.once.Do(func() {
		process.inmem = metrics.NewInmemSink(interval, 6*interval)
		process.libraries = newLibraries()
		process.fan.add(process.inmem)
		process.fan.add(process.libraries)
		conf := &metrics.Config{ServiceName: service, TimerGranularity: time.Millisecond, FilterDefault: true}
		_, err = metrics.NewGlobal(conf, &process.fan)
	})
	return err
}

// deltas turns values of counters into their growth.
type deltas map[string]float64

// of returns the growth of a counter since the previous call, or 0 at the first.
func (d deltas) of(x *Sample) float64 {
	id := x.Name + "\x00" + strings.Join(x.Values, "\x00")
	old, known := d[id]
	d[id] = x.Value
	if !known {
		return 0
	}
	if x.Value < old { // the counter was reset
		return x.Value
	}
	return x.Value - old
}
