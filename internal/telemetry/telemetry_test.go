package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

type reading struct{ calls, depth float64 }

// testSet returns one metric of each kind, with and without labels.
func testSet(read func() reading) (*Set, *Histogram) {
	table := Table[reading]{
		Counter("muster_server_calls_total", "Calls answered.", func(r reading) float64 { return r.calls }),
		Gauge("muster_server_depth", "Depth.", func(r reading) float64 { return r.depth }),
		Gauge("muster_server_unknown", "Nobody knows.", func(r reading) float64 { return math.NaN() }),
	}
	nodes := Table[float64]{Gauge("muster_node_gpus", "GPUs of a node.", func(v float64) float64 { return v })}.Labelled("node")
	s := &Set{}
	s.Read(func(out *Samples) {
		table.Give(out, read())
		nodes.Give(out, 4, "a")
		nodes.Give(out, 8, "b\xff")
	}, table, nodes)
	return s, s.Histogram("muster_rpc_request_seconds", "Time to answer.", Latency, "method")
}

func newTelemetry(t *testing.T, sinks Sinks, s *Set) *Telemetry {
	t.Helper()
	tel, err := New(sinks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tel.Close)
	if err := tel.Add(s); err != nil {
		t.Fatal(err)
	}
	return tel
}

func lint(t *testing.T, page []byte) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(string(page))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Metrics of libraries and our own are in one scrape, with the right types, and promtool accepts it.
func TestOneScrapeHasEverything(t *testing.T) {
	set, calls := testSet(func() reading { return reading{7, 3} })
	tel := newTelemetry(t, Sinks{}, set)
	metrics.IncrCounter([]string{"raft", "apply"}, 3)
	metrics.SetGauge([]string{"raft", "leader", "oldestLogAge"}, 1500)
	metrics.AddSampleWithLabels([]string{"raft", "net", "rpcDecode"}, 2, []metrics.Label{{Name: "rpcType", Value: "Heartbeat"}})
	metrics.IncrCounter([]string{"raft", "not", "declared"}, 3)
	calls.Observe(0.001, "Job.List")
	_, page, err := tel.Metrics("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# HELP muster_server_calls_total Calls answered.", "# TYPE muster_server_calls_total counter", "muster_server_calls_total 7",
		"# TYPE muster_server_depth gauge", "muster_server_depth 3", `muster_node_gpus{node="a"} 4`, `muster_node_gpus{node="b?"} 8`,
		"# TYPE muster_rpc_request_seconds histogram", `muster_rpc_request_seconds_count{method="Job.List"} 1`, "go_goroutines", "process_open_fds",
		"# TYPE raft_apply_total counter", "raft_apply_total 3", "raft_leader_oldest_log_age_seconds 1.5", `raft_net_rpc_decode_seconds_sum{rpc_type="Heartbeat"} 0.002`,
	} {
		if !strings.Contains(string(page), want+"\n") && !strings.Contains(string(page), want+" ") {
			t.Errorf("the scrape lacks %q", want)
		}
	}
	for _, not := range []string{"muster_server_unknown ", "declared"} {
		if strings.Contains(string(page), not) {
			t.Errorf("the scrape has %q", not)
		}
	}
	lint(t, page)
}

// Each declared metric of a library has a name, unit and help that promtool accepts.
func TestLibraryMetrics(t *testing.T) {
	tel := newTelemetry(t, Sinks{}, &Set{})
	for i := range libraryMetrics {
		r := &libraryMetrics[i]
		key := strings.Split(r.key, ".")
		switch r.kind {
		case KindCounter:
			metrics.IncrCounter(key, 1)
		case KindGauge:
			metrics.SetGauge(key, 1)
		case KindHistogram:
			metrics.AddSample(key, 1)
		}
	}
	_, page, err := tel.Metrics("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range process.libraries.descs() {
		if !strings.Contains(string(page), fmt.Sprintf("# TYPE %s %s\n", d.Name, d.Kind)) {
			t.Errorf("the scrape lacks %s %s", d.Kind, d.Name)
		}
	}
	lint(t, page)
}

// TestLibraryMetricsAreComplete reads the sources of the libraries. A reported key that is not declared, or has another
// kind, would be missing in a scrape.
func TestLibraryMetricsAreComplete(t *testing.T) {
	declared := map[string]Kind{}
	for i := range libraryMetrics {
		declared[libraryMetrics[i].key] = libraryMetrics[i].kind
	}
	kinds := map[string]Kind{"SetGauge": KindGauge, "IncrCounter": KindCounter, "AddSample": KindHistogram, "MeasureSince": KindHistogram}
	found := 0
	for _, module := range []string{"github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "github.com/hashicorp/memberlist"} {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatalf("find %s: %v", module, err)
		}
		files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
		for _, name := range files {
			// RunMetrics, which is not used
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(module, "v2") && filepath.Base(name) == "metrics.go" {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) < 2 {
					return true
				}
				if fun, ok := call.Fun.(*ast.SelectorExpr); ok {
					if kind, key := kinds[strings.TrimSuffix(fun.Sel.Name, "WithLabels")], keyOf(call.Args[0]); kind != "" && key != "" {
						if found++; declared[key] != kind {
							t.Errorf("%s reports a %s under %s, declared is %q (libraryMetrics)", filepath.Base(name), kind, key, declared[key])
						}
					}
				}
				return true
			})
		}
	}
	if found < 60 {
		t.Errorf("only %d reports found", found)
	}
}

// keyOf returns a key that is spelled out, or "".
func keyOf(e ast.Expr) string {
	list, ok := e.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	var parts []string
	for _, x := range list.Elts {
		lit, ok := x.(*ast.BasicLit)
		if !ok {
			return "" // by the name of a peer: off (NoLegacyTelemetry)
		}
		part, _ := strconv.Unquote(lit.Value)
		parts = append(parts, part)
	}
	return strings.Join(parts, ".")
}

// Nomad's JSON has our gauges, counters and samples together with those of libraries.
func TestJSON(t *testing.T) {
	var n atomic.Int64
	set, calls := testSet(func() reading { return reading{float64(n.Load()), 3} })
	tel := newTelemetry(t, Sinks{}, set)
	tel.send()
	var missing []string
	for range 2 { // an interval may end between two of these lines
		n.Add(5)
		tel.send()
		calls.Observe(0.002, "Job.List")
		metrics.SetGauge([]string{"memberlist", "health", "score"}, 1)
		// The JSON has the last interval that is over, or the first one.
		for end := time.Now().Add(tel.interval + time.Second); ; time.Sleep(100 * time.Millisecond) {
			if missing = missingJSON(t, tel); len(missing) == 0 || time.Now().After(end) {
				break
			}
		}
		if len(missing) == 0 {
			break
		}
	}
	if len(missing) > 0 {
		t.Errorf("the JSON lacks %q", missing)
	}
	if _, body, err := tel.Metrics(""); err != nil || !json.Valid(body) {
		t.Errorf("%v: %s", err, body)
	}
}

// missingJSON returns what TestJSON wants and the JSON does not have.
func missingJSON(t *testing.T, tel *Telemetry) (missing []string) {
	t.Helper()
	sum, err := tel.summary()
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(sum)
	for _, want := range []string{
		`"Timestamp":`, `{"Name":"muster.server.depth","Value":3,"Labels":{}}`, `{"Name":"muster.node.gpus","Value":4,"Labels":{"node":"a"}}`,
		`"Name":"muster.server.calls"`, `"Name":"muster.rpc.request"`, `"Labels":{"method":"Job.List"}`, `"Points":`, "muster.memberlist.health.score",
	} {
		if !strings.Contains(string(raw), want) {
			missing = append(missing, want)
		}
	}
	if !slices.ContainsFunc(sum.Counters, func(c metrics.SampledValue) bool { return c.Name == "muster.server.calls" && c.Sum == 5 }) {
		missing = append(missing, "5 calls")
	}
	return missing
}

// listen returns the address of a UDP port, and a function that returns what has arrived there.
func listen(t *testing.T) (addr string, arrived func() string) {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var text strings.Builder
	return l.LocalAddr().String(), func() string {
		buf := make([]byte, 64<<10)
		for {
			_ = l.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			n, _, err := l.ReadFrom(buf)
			if err != nil {
				return text.String()
			}
			text.Write(buf[:n])
			text.WriteByte('\n')
		}
	}
}

// The operator's sinks get the same metrics: gauges as values, counters as growth, times in milliseconds.
func TestSinks(t *testing.T) {
	statsd, plain := listen(t)
	dog, tagged := listen(t)
	var n atomic.Int64
	n.Store(100) // before the first reading
	set, calls := testSet(func() reading { return reading{float64(n.Load()), 3} })
	tel := newTelemetry(t, Sinks{
		Statsd: statsd, DogStatsd: dog, Tags: []string{"team:ml"}, Host: "host1", Interval: 20 * time.Millisecond,
		Filter: []string{"-muster.raft", "+muster.raft.apply"},
	}, set)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); tel.Run(ctx) }()
	defer func() { stop(); <-done }()
	until := func(what string, text func() string, lines ...string) {
		t.Helper()
		for over := time.Now().Add(20 * time.Second); ; {
			got, missing := text(), ""
			for _, l := range lines {
				if !strings.Contains(got, l) {
					missing = l
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(over) {
				t.Fatalf("%s: no %q in\n%s", what, missing, got)
			}
		}
	}
	until("first look", plain, "muster.host1.server.depth:3.000000|g\n", "muster.server.calls:0.000000|c\n")
	n.Add(5)
	calls.Observe(0.25, "Job.List")
	calls.Observe(0.5, "")
	calls.Observe(0.125, "/v1/var/{path}")
	metrics.IncrCounter([]string{"raft", "apply"}, 2)
	metrics.IncrCounter([]string{"raft", "barrier"}, 2)
	until("statsd", plain, "muster.server.calls:5.000000|c\n", "muster.host1.node.gpus.a:4.000000|g\n", "muster.rpc.request.Job.List:250.000000|ms\n",
		"muster.rpc.request:500.000000|ms\n", "muster.rpc.request.v1_var_path:125.000000|ms\n", "muster.raft.apply:2.000000|c\n")
	until("dogstatsd", tagged, "muster.server.depth:3|g|#team:ml\n", "muster.server.calls:5|c|#team:ml\n", "muster.node.gpus:4|g|#team:ml,node:a\n", "muster.rpc.request:250.000000|ms|#team:ml,method:Job.List\n")
	if got := plain() + tagged(); strings.Contains(got, "raft.barrier") {
		t.Error("a blocked prefix was sent")
	}
	if _, err := New(Sinks{DogStatsd: "no port"}); err == nil || !strings.Contains(err.Error(), "telemetry.datadog_address") {
		t.Errorf("a wrong address: %v", err)
	}
}

// A counter that was reset counts from zero. Counting starts at the first reading.
func TestGrowth(t *testing.T) {
	d := deltas{}
	desc := &Desc{Name: "x_total"}
	for i, c := range []struct{ value, want float64 }{{1000, 0}, {1005, 5}, {1005, 0}, {3, 3}, {4, 1}} {
		if got := d.of(&Sample{desc, nil, c.value}); got != c.want {
			t.Errorf("look %d: grew by %v, want %v", i, got, c.want)
		}
	}
}

// Names for sinks follow from the declared name.
func TestKeys(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		want string
	}{
		{"muster_server_rpc_calls_total", KindCounter, "server.rpc_calls"}, {"muster_http_request_seconds", KindHistogram, "http.request"},
		{"muster_server_queue_oldest_wait_seconds", KindGauge, "server.queue_oldest_wait_seconds"}, {"DCGM_FI_DEV_FB_USED", KindGauge, "DCGM_FI_DEV_FB_USED"},
	} {
		if got := strings.Join((&Desc{Name: c.name, Kind: c.kind}).key(), "."); got != c.want {
			t.Errorf("%s is sent as %s, want %s", c.name, got, c.want)
		}
	}
}

// Stats are the values without labels, by name.
func TestStats(t *testing.T) {
	set, _ := testSet(func() reading { return reading{7, 3} })
	h := set.Histogram("muster_server_pass_seconds", "Time of a pass.", Latency)
	h.Observe(0.5)
	h.Observe(1)
	got := set.Stats()
	for name, want := range map[string]string{"calls": "7", "depth": "3", "pass_seconds_count": "2", "pass_seconds_sum": "1.5"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%v; want len(got) = 4", got)
	}
	if v, ok := set.Samples().Find("muster_node_gpus", "a"); !ok || v != 4 {
		t.Errorf("GPUs of a node: %v, %v", v, ok)
	}
}
