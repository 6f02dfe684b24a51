package telemetry

import (
	"strings"
	"unicode"

	metrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// unit is the unit in which a library reports a value. Prometheus gets base units.
type unit uint8

const (
	none   unit = iota
	millis      // served in seconds
	size        // bytes
	count       // number of things, in a histogram
	ratio       // fraction of 1
)

// reported is a metric that a library reports under a key of go-metrics. Its Prometheus name follows from key, unit and
// kind: see name.
type reported struct {
	key    string
	kind   Kind
	unit   unit
	help   string
	labels []string // rpcType becomes rpc_type
}

// libraryMetrics lists all metrics of raft, its log in BoltDB, and memberlist. TestLibraryMetricsAreComplete compares
// it with their sources. A metric that is not listed is sent to the operator's sinks but not served to Prometheus.
var libraryMetrics = []reported{
	{"raft.apply", KindCounter, none, "Commands given to raft on the leader.", nil},
	{"raft.barrier", KindCounter, none, "Barriers written to the raft log.", nil},
	{"raft.verify_leader", KindCounter, none, "Times the leader asked a majority whether it still leads.", nil},
	{"raft.restore", KindCounter, none, "Restores of a snapshot by an operator.", nil},
	{"raft.state.follower", KindCounter, none, "Times this server became a raft follower.", nil},
	{"raft.state.candidate", KindCounter, none, "Times this server became a raft candidate.", nil},
	{"raft.state.leader", KindCounter, none, "Times this server became the raft leader.", nil},
	{"raft.transition.heartbeat_timeout", KindCounter, none, "Elections begun because the leader was not heard.", nil},
	{"raft.transition.leader_lease_timeout", KindCounter, none, "Times the leader stepped down because it did not reach a majority.", nil},
	{"raft.peers", KindGauge, none, "Servers in raft's configuration, as the leader sees it.", nil},
	{"raft.commitTime", KindHistogram, millis, "Time from appending an entry on the leader to its commit.", nil},
	{"raft.commitNumLogs", KindGauge, none, "Entries that the last commit on the leader made ready.", nil},
	{"raft.leader.lastContact", KindHistogram, millis, "Time since a majority last answered the leader, at each check of the lease.", nil},
	{"raft.leader.dispatchLog", KindHistogram, millis, "Time for the leader to write entries to its log.", nil},
	{"raft.leader.dispatchNumLogs", KindGauge, none, "Entries that the leader last wrote to its log together.", nil},
	{"raft.leader.oldestLogAge", KindGauge, millis, "Age of the oldest entry in the leader's log.", nil},
	{"raft.candidate.electSelf", KindHistogram, millis, "Time for a candidate to ask for votes.", nil},
	{"raft.candidate.preElectSelf", KindHistogram, millis, "Time for a server to ask whether it would get votes.", nil},
	{"raft.replication.appendEntries.rpc", KindHistogram, millis, "Time of one call that sends entries to a follower.", []string{"peer_id"}},
	{"raft.replication.appendEntries.logs", KindCounter, none, "Entries sent to a follower.", []string{"peer_id"}},
	{"raft.replication.heartbeat", KindHistogram, millis, "Time of one heartbeat to a follower.", []string{"peer_id"}},
	{"raft.replication.installSnapshot", KindHistogram, millis, "Time to send a snapshot to a follower.", []string{"peer_id"}},
	{"raft.rpc.appendEntries", KindHistogram, millis, "Time for a follower to handle entries sent to it.", nil},
	{"raft.rpc.appendEntries.storeLogs", KindHistogram, millis, "Time for a follower to write entries to its log.", nil},
	{"raft.rpc.appendEntries.processLogs", KindHistogram, millis, "Time for a follower to pass on what has been committed.", nil},
	{"raft.rpc.processHeartbeat", KindHistogram, millis, "Time to handle a heartbeat.", nil},
	{"raft.rpc.requestVote", KindHistogram, millis, "Time to answer a request for a vote.", nil},
	{"raft.rpc.installSnapshot", KindHistogram, millis, "Time to take over a snapshot from the leader.", nil},
	{"raft.net.getRPCType", KindHistogram, millis, "Time to read the type of a raft message.", nil},
	{"raft.net.rpcDecode", KindHistogram, millis, "Time to decode a raft message.", []string{"rpc_type"}},
	{"raft.net.rpcEnqueue", KindHistogram, millis, "Time for a raft message to wait for the main thread.", []string{"rpc_type"}},
	{"raft.net.rpcRespond", KindHistogram, millis, "Time to answer a raft message.", []string{"rpc_type"}},
	{"raft.fsm.apply", KindHistogram, millis, "Time to apply a single entry.", nil},
	{"raft.fsm.applyBatch", KindHistogram, millis, "Time to apply a batch of entries.", nil},
	{"raft.fsm.applyBatchNum", KindHistogram, count, "Entries in a batch that was applied.", nil},
	{"raft.fsm.enqueue", KindHistogram, millis, "Time for committed entries to wait for the state machine.", nil},
	{"raft.fsm.store_config", KindHistogram, millis, "Time for the state machine to store raft's configuration.", nil},
	{"raft.fsm.snapshot", KindHistogram, millis, "Time for the state machine to begin a snapshot.", nil},
	{"raft.fsm.restore", KindHistogram, millis, "Time for the state machine to restore a snapshot.", nil},
	{"raft.fsm.lastRestoreDuration", KindGauge, millis, "Time that the last restore of a snapshot took.", nil},
	{"raft.thread.main.saturation", KindHistogram, ratio, "Part of the time in which raft's main thread was busy.", nil},
	{"raft.thread.fsm.saturation", KindHistogram, ratio, "Part of the time in which the state machine's thread was busy.", nil},
	{"raft.snapshot.takeSnapshot", KindHistogram, millis, "Time to take a snapshot.", nil},
	{"raft.snapshot.create", KindHistogram, millis, "Time to open the file of a snapshot.", nil},
	{"raft.snapshot.persist", KindHistogram, millis, "Time to write a snapshot.", nil},
	{"raft.compactLogs", KindHistogram, millis, "Time to remove entries that a snapshot holds.", nil},
	{"raft.removeOldLogs", KindHistogram, millis, "Time to remove the log after an operator's restore.", nil},
	{"raft.restoreUserSnapshot", KindHistogram, millis, "Time of an operator's restore of a snapshot.", nil},
	{"raft.boltdb.getLog", KindHistogram, millis, "Time to read an entry from the log in BoltDB.", nil},
	{"raft.boltdb.storeLogs", KindHistogram, millis, "Time to write entries to the log in BoltDB.", nil},
	{"raft.boltdb.logSize", KindHistogram, size, "Size of an entry written to the log in BoltDB.", nil},
	{"raft.boltdb.logBatchSize", KindHistogram, size, "Size of entries written together to the log in BoltDB.", nil},
	{"raft.boltdb.logsPerBatch", KindHistogram, count, "Entries written together to the log in BoltDB.", nil},
	{"raft.boltdb.writeCapacity", KindHistogram, count, "Entries that the log in BoltDB could write in a second, at the pace of one write.", nil},
	{"memberlist.health.score", KindGauge, none, "Gossip's doubt in this agent's own health; 0 is healthy.", nil},
	{"memberlist.node.instances", KindGauge, none, "Members of the gossip, by state.", []string{"node_state"}},
	{"memberlist.queue.broadcasts", KindHistogram, count, "Messages that wait to be gossiped.", nil},
	{"memberlist.probeNode", KindHistogram, millis, "Time to probe another member.", nil},
	{"memberlist.gossip", KindHistogram, millis, "Time of a round of gossip.", nil},
	{"memberlist.pushPullNode", KindHistogram, millis, "Time to exchange the full state with another member.", nil},
	{"memberlist.degraded.probe", KindCounter, none, "Probes sent while this agent doubted its own health.", nil},
	{"memberlist.degraded.timeout", KindCounter, none, "Members declared dead with fewer confirmations than wanted.", nil},
	{"memberlist.msg.alive", KindCounter, none, "Messages that say a member lives.", nil},
	{"memberlist.msg.suspect", KindCounter, none, "Messages that suspect a member.", nil},
	{"memberlist.msg.dead", KindCounter, none, "Messages that say a member is dead.", nil},
	{"memberlist.tcp.accept", KindCounter, none, "Gossip connections accepted.", nil},
	{"memberlist.tcp.connect", KindCounter, none, "Gossip connections opened.", nil},
	{"memberlist.tcp.sent", KindCounter, size, "Bytes of gossip sent over TCP.", nil},
	{"memberlist.udp.sent", KindCounter, size, "Bytes of gossip sent over UDP.", nil},
	{"memberlist.udp.received", KindCounter, size, "Bytes of gossip received over UDP.", nil},
	{"memberlist.size.local", KindGauge, size, "Size of this agent's state in a full exchange.", nil},
	{"memberlist.size.remote", KindHistogram, size, "Size of another member's state in a full exchange.", nil},
}

// name returns the Prometheus name: raft.replication.appendEntries.rpc, in milliseconds, becomes
// raft_replication_append_entries_rpc_seconds.
func (r *reported) name() string {
	name := snake(r.key)
	switch r.unit {
	case millis:
		name += "_seconds"
	case size:
		name += "_bytes"
	case ratio:
		name += "_ratio"
	}
	if r.kind == KindCounter {
		name += "_total"
	}
	return name
}

func snake(key string) string {
	var b strings.Builder
	lower := false // the previous letter was lower case
	for _, c := range key {
		if c == '.' {
			c = '_'
		}
		if unicode.IsUpper(c) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(c)
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

func (r *reported) desc() Desc {
	d := Desc{Name: r.name(), Kind: r.kind, Help: r.help, Labels: r.labels}
	if r.kind == KindHistogram {
		switch r.unit {
		case millis:
			d.Buckets = Latency
		case size:
			d.Buckets = prometheus.ExponentialBuckets(64, 4, 12) // 64 B to 256 MiB
		case ratio:
			d.Buckets = prometheus.LinearBuckets(0.1, 0.1, 10)
		default:
			d.Buckets = prometheus.ExponentialBuckets(1, 4, 10) // 1 to 262,144
		}
	}
	return d
}

// libraries is a sink of go-metrics that keeps the metrics of libraries for Prometheus.
type libraries struct {
	metrics.BlackholeSink
	registry *prometheus.Registry
	series   map[string]*series // by key; read only
}

// series is one of libraryMetrics with its values. One of the vectors is set.
type series struct {
	Desc
	factor    float64
	counter   *prometheus.CounterVec
	gauge     *prometheus.GaugeVec
	histogram *prometheus.HistogramVec
}

func newLibraries() *libraries {
	l := &libraries{registry: prometheus.NewRegistry(), series: map[string]*series{}}
	for i := range libraryMetrics {
		r := &libraryMetrics[i]
		s := &series{Desc: r.desc(), factor: 1}
		if r.unit == millis {
			s.factor = 0.001
		}
		switch r.kind {
		case KindCounter:
			s.counter = prometheus.NewCounterVec(prometheus.CounterOpts{Name: s.Name, Help: s.Help}, s.Labels)
			l.registry.MustRegister(s.counter)
		case KindGauge:
			s.gauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: s.Name, Help: s.Help}, s.Labels)
			l.registry.MustRegister(s.gauge)
		case KindHistogram:
			s.histogram = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: s.Name, Help: s.Help, Buckets: s.Buckets}, s.Labels)
			l.registry.MustRegister(s.histogram)
		}
		l.series[r.key] = s
	}
	return l
}

func (l *libraries) descs() (out []*Desc) {
	for i := range libraryMetrics {
		out = append(out, &l.series[libraryMetrics[i].key].Desc)
	}
	return out
}

// find returns the series of a key, which starts with the service's name, and the values of its labels. The series is
// nil if the key is not in libraryMetrics.
func (l *libraries) find(key []string, labels []metrics.Label) (*series, []string) {
	s := l.series[strings.Join(key[1:], ".")]
	if s == nil || len(s.Labels) == 0 {
		return s, nil
	}
	values := make([]string, len(s.Labels))
	for _, x := range labels {
		for i, name := range s.Labels {
			if snake(x.Name) == name {
				values[i] = strings.ToValidUTF8(x.Value, "?")
			}
		}
	}
	return s, values
}

// SetGaugeWithLabels implements metrics.MetricSink.
func (l *libraries) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	if s, values := l.find(key, labels); s != nil && s.gauge != nil {
		s.gauge.WithLabelValues(values...).Set(float64(v) * s.factor)
	}
}

// IncrCounterWithLabels implements metrics.MetricSink.
func (l *libraries) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	if s, values := l.find(key, labels); s != nil && s.counter != nil && v >= 0 {
		s.counter.WithLabelValues(values...).Add(float64(v) * s.factor)
	}
}

// AddSampleWithLabels implements metrics.MetricSink.
func (l *libraries) AddSampleWithLabels(key []string, v float32, labels []metrics.Label) {
	if s, values := l.find(key, labels); s != nil && s.histogram != nil {
		s.histogram.WithLabelValues(values...).Observe(float64(v) * s.factor)
	}
}
