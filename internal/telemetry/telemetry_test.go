package telemetry

import (
	"strings"
	"testing"
	"time"

	metrics "github.com/armon/go-metrics"
)

// What the libraries report, what we report and the agent's statistics all reach one scrape.
func TestOneScrapeHasEverything(t *testing.T) {
	tel, err := New(func() map[string]map[string]string {
		return map[string]map[string]string{"raft": {"applied_index": "17", "state": "Leader"}}
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics.IncrCounter([]string{"raft", "apply"}, 3)
	metrics.SetGauge([]string{"memberlist", "health", "score"}, 1)
	tel.ObserveHTTP("/v1/jobs", 200, time.Millisecond)
	tel.ObserveRPC("Job.List", "", time.Millisecond)
	_, body, err := tel.Metrics("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"raft_apply 3", "memberlist_health_score 1", "muster_raft_applied_index 17", `muster_http_request_seconds_count{route="/v1/jobs",status="2xx"} 1`, "go_goroutines", `muster_rpc_request_seconds_count{code="",method="Job.List"} 1`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the scrape lacks %q", want)
		}
	}
	if strings.Contains(string(body), "muster_raft_state") {
		t.Error("a statistic that is no number was exposed")
	}
	_, js, err := tel.Metrics("")
	if err != nil || !strings.Contains(string(js), `"Counters"`) {
		t.Errorf("JSON metrics: %v %s", err, js)
	}
}
