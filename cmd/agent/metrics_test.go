package agent

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/muster-sched/muster/internal/telemetry"
)

var update = flag.Bool("update", false, "write docs/reference/metrics.md")

const metricsPage = "../../docs/reference/metrics.md"

// TestMetricsPage keeps the reference of metrics equal to their declarations. `go generate ./cmd/agent` writes it.
func TestMetricsPage(t *testing.T) {
	cfg := devConfig(t, "")
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	head, err := os.ReadFile("testdata/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(head) + reference(t, a.tel.Descs())
	if *update {
		if err := os.WriteFile(metricsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(metricsPage); err != nil || string(got) != want {
		t.Errorf("%s is not what the declarations say (%v); write it with: go generate ./cmd/agent", metricsPage, err)
	}
}

// reference is a table for each part of the metrics.
func reference(t *testing.T, descs []*telemetry.Desc) string {
	var b strings.Builder
	left := len(descs)
	for _, part := range []struct{ title, about, prefixes string }{
		{"Requests", "Of every agent, and of the server part.", "muster_http_ muster_rpc_ muster_tls_"},
		{"Servers", "Of the server part. Every server has the state of the cluster; what is counted while leading does not grow on other servers.", "muster_server_ muster_raft_"},
		{"Use of GPUs", "Every server has them, from the same state, for each node, for each model in a node pool, and over all. Nodes that are not ready and GPUs that are not healthy are left out.", "muster_cluster_gpu_ muster_model_gpu_ muster_node_gpu_"},
		{"Queues", "Every server has them, from the same state, for each queue that holds or wants something, together with the queues below it; `root` is the cluster. Queues that no configuration names are only counted in those above. Submitters have no metrics, `muster queue status` has their figures. A cluster that never had a queue, a quota or an order by shares (`fair`, `weighted-fair`) counts no usage, so that only waits, preemptions and losses are told.", "muster_queue_"},
		{"Nodes", "Of the client part.", "muster_client_ muster_gpu_ muster_task_gpu_"},
		{"NVIDIA's exporter", "Of the client part, under the names and labels that NVIDIA's exporter has, so that dashboards made for it show them. What a driver or a GPU does not report is left out.", "DCGM_"},
		{"Raft", "What the raft library and its log in BoltDB report.", "raft_"},
		{"Gossip", "What the gossip library reports.", "memberlist_"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| name | kind | labels | meaning |\n|---|---|---|---|\n", part.title, part.about)
		for _, prefix := range strings.Fields(part.prefixes) {
			for _, d := range descs {
				if strings.HasPrefix(d.Name, prefix) {
					left--
					fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Kind, strings.Join(d.Labels, ", "), d.Help)
				}
			}
		}
	}
	if left != 0 {
		t.Errorf("%d metrics have no place on the page", left)
	}
	return b.String()
}

// get asks the agent's HTTP API.
func get(t *testing.T, addr, path string) []byte {
	t.Helper()
	resp, err := http.Get(addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, 0, 1<<20)
	for buf := make([]byte, 64<<10); ; {
		n, err := resp.Body.Read(buf)
		if body = append(body, buf[:n]...); err != nil {
			return body
		}
	}
}

// TestMetricsOfAnAgent runs an agent with both parts whose operator sends metrics to statsd and DogStatsd: promtool finds
// nothing in its scrape, Nomad's JSON has our metrics, and the sinks get them as configured.
func TestMetricsOfAnAgent(t *testing.T) {
	var sinks [2]net.PacketConn
	for i := range sinks {
		l, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		sinks[i] = l
	}
	cfg := devConfig(t, fmt.Sprintf(`"telemetry": {"statsd_address": %q, "datadog_address": %q, "datadog_tags": ["team:ml"], "use_node_name": true, "collection_interval": "100ms", "prefix_filter": ["-muster.server", "+muster.server.jobs"]}`,
		sinks[0].LocalAddr(), sinks[1].LocalAddr()))
	addr := startAgent(t, cfg)
	get(t, addr, "/v1/status/leader")
	for i, lines := range [][]string{{"muster.one.server.jobs:0.000000|g\n", "|ms\n"}, {"muster.server.jobs:0|g|#team:ml\n", "muster.http.request:"}} {
		got := ""
		for _, want := range lines {
			for buf := make([]byte, 64<<10); !strings.Contains(got, want); {
				_ = sinks[i].SetReadDeadline(time.Now().Add(20 * time.Second))
				n, _, err := sinks[i].ReadFrom(buf)
				if err != nil {
					t.Fatalf("sink %d: no %q in %s", i, want, got)
				}
				got += string(buf[:n]) + "\n"
			}
		}
		if strings.Contains(got, "server.nodes") {
			t.Errorf("sink %d got what the filter blocks", i)
		}
	}
	page := ""
	for over := time.Now().Add(20 * time.Second); !strings.Contains(page, "raft_state_leader_total 1") && time.Now().Before(over); {
		page = string(get(t, addr, "/v1/metrics?format=prometheus"))
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{"# TYPE muster_server_rpc_calls_total counter", "muster_client_allocations 0", `muster_http_request_seconds_count{route="`, `muster_rpc_request_seconds_count{code="",method="`, "raft_state_leader_total", "go_goroutines"} {
		if !strings.Contains(page, want) {
			t.Errorf("the scrape lacks %s", want)
		}
	}
	var sum struct{ Gauges, Counters, Samples []struct{ Name string } }
	if err := json.Unmarshal(get(t, addr, "/v1/metrics"), &sum); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, list := range [][]struct{ Name string }{sum.Gauges, sum.Counters, sum.Samples} {
		for _, x := range list {
			names[x.Name] = true
		}
	}
	for _, want := range []string{"muster.server.nodes", "muster.server.rpc_calls", "muster.http.request"} {
		if !names[want] {
			t.Errorf("the JSON lacks %s: %v", want, names)
		}
	}
	if bad := cfg; true {
		bad.Telemetry.DogStatsd = "nowhere"
		bad.HTTP, bad.RPC = "127.0.0.1:0", "127.0.0.1:0"
		if a, err := New(bad); err == nil {
			a.Close()
			t.Error("an address without a port is taken")
		}
	}
}
