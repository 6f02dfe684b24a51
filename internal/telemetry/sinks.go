package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metrics "github.com/armon/go-metrics"
	"github.com/armon/go-metrics/datadog"
)

// service is in front of every name that is sent.
const service = "muster"

// Sinks are the places to which an operator has metrics sent. The zero value sends nothing.
type Sinks struct {
	Statsd, Statsite, DogStatsd string        // addresses
	Tags                        []string      // of all that DogStatsd gets
	Interval                    time.Duration // between two looks at counters and gauges; 0: 10 s
	Host                        string        // put into the names of gauges that statsd and statsite get; "": nothing
	Filter                      []string      // "+PREFIX" sends, "-PREFIX" does not; the longest prefix of a name counts
	DropOthers                  bool          // do not send what no prefix matches
}

// open makes the sink that an operator has configured, or nil.
func (s *Sinks) open() (metrics.MetricSink, error) {
	var all metrics.FanoutSink
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
	return &outlet{filtered, all}, nil
}

// outlet is a filter and what is behind it.
type outlet struct {
	*metrics.Metrics
	behind metrics.FanoutSink
}

// Shutdown sends what waits.
func (o *outlet) Shutdown() { o.behind.Shutdown() }

// named puts the host behind the service in the names of gauges: each host's is another value, while counters and samples add
// up over hosts.
type named struct {
	metrics.ShutdownSink
	host string
}

func (n named) SetGauge(key []string, v float32) { n.SetGaugeWithLabels(key, v, nil) }

func (n named) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	if n.host != "" {
		key = slices.Insert(slices.Clone(key), 1, n.host)
	}
	n.ShutdownSink.SetGaugeWithLabels(key, v, labels)
}

// process is what a process has one of: the sink that libraries and histograms report to, through go-metrics' global.
var process struct {
	once      sync.Once
	inmem     *metrics.InmemSink // for Nomad's JSON
	libraries *libraries         // for Prometheus
	fan       fan
}

// fan passes on to sinks that come and go. The global of go-metrics calls only the forms with labels.
type fan struct {
	metrics.BlackholeSink
	mu    sync.Mutex // of changes
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

// startProcess installs the sinks of the process.
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

// deltas turns the values of counters into what they grew by.
type deltas map[string]float64

// of returns what a counter grew by since the look before, nothing at the first one.
func (d deltas) of(x *Sample) float64 {
	id := x.Name + "\x00" + strings.Join(x.Values, "\x00")
	old, known := d[id]
	d[id] = x.Value
	if !known {
		return 0
	}
	if x.Value < old { // it began again
		return x.Value
	}
	return x.Value - old
}
