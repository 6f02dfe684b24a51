//go:build e2e

package gpu

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// TestPressure fills a share and a GPU beyond the operator's thresholds: events, a webhook that fails at first, one that
// never answers, and a command.
func TestPressure(t *testing.T) {
	var mu sync.Mutex
	var got []notify.Notice
	attempts := 0
	var wrong []string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		attempts++
		at, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get(notify.SignatureHeader), "t="), ",")
		unix, _ := strconv.ParseInt(at, 10, 64)
		if r.Header.Get(notify.SignatureHeader) != notify.Sign([]byte("key"), time.Unix(unix, 0), body) || r.Header.Get("X-Token") != "s3cret" {
			wrong = append(wrong, fmt.Sprint(r.Header))
		}
		if attempts == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		var n notify.Notice
		if err := json.Unmarshal(body, &n); err != nil {
			wrong = append(wrong, err.Error())
		}
		got = append(got, n)
	}))
	defer receiver.Close()
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer hang.Close()
	dir := t.TempDir()
	secret, said := filepath.Join(dir, "key"), filepath.Join(dir, "said")
	if err := os.WriteFile(secret, []byte("key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMachineWith(t, "1xH100", fmt.Sprintf(`
client {
  gpu_pressure {
    share  = [80, 95]
    device = [20]
    command {
      command = ["/bin/sh", "-c", "echo $MUSTER_SCOPE $MUSTER_STATE $MUSTER_THRESHOLD $MUSTER_TASK_NAME >> %s; sleep 600"]
      timeout = "2s"
    }
    webhook "hangs" {
      url = "%s/path-secret"
    }
    webhook "ops" {
      url         = %q
      secret_file = %q
      headers {
        X-Token = "s3cret"
      }
    }
  }
}
`, said, hang.URL, receiver.URL, secret))
	m.edit(func(s *fakegpu.State) { s.Context = 0 })
	find := func(scope, state string, threshold int) *notify.Notice {
		mu.Lock()
		defer mu.Unlock()
		for i := range got {
			if n := &got[i]; n.Scope == scope && n.State == state && n.Threshold == threshold {
				return n
			}
		}
		return nil
	}
	await := func(scope, state string, threshold int) notify.Notice {
		t.Helper()
		harness.Eventually(t, 30*time.Second, fmt.Sprint("a notice ", scope, " ", state, " ", threshold), func() (bool, string) {
			mu.Lock()
			text := fmt.Sprintf("%d attempts, %+v", attempts, got)
			mu.Unlock()
			return find(scope, state, threshold) != nil, text
		})
		return *find(scope, state, threshold)
	}

	m.run("full", share("20GiB"), holds(17*gib)) // 85 % of it, 21 % of the GPU
	g, _, a := m.gpuOf("full", "running")
	m.event("full", "GPU Memory Pressure", "17408 of 20480 MiB")
	n := await("share", "above", 80)
	if n.GPU != g || n.AllocID != a.ID || n.JobID != "full" || n.Task != "t" || n.Percent != 85 || n.UsedMiB != 17*gib || n.TotalMiB != 20*gib || n.NodeID == "" || n.ID == "" {
		t.Errorf("the notice of the share is %+v", n)
	}
	if n = await("device", "above", 20); n.GPU != g || n.AllocID != "" || n.UsedMiB < 17*gib {
		t.Errorf("the notice of the GPU is %+v", n)
	}
	harness.Eventually(t, 20*time.Second, "the node's event", func() (bool, string) {
		out, err := m.get("/v1/nodes")
		var nodes []struct{ ID string }
		if err != nil || json.Unmarshal([]byte(out), &nodes) != nil || len(nodes) != 1 {
			return false, out
		}
		out, err = m.get("/v1/node/" + nodes[0].ID)
		return err == nil && strings.Contains(out, "MiB of GPU "+g+" are in use"), "no such event"
	})
	harness.Eventually(t, 20*time.Second, "what the command was told", func() (bool, string) {
		b, _ := os.ReadFile(said)
		return strings.Contains(string(b), "share above 80 t\n") && strings.Contains(string(b), "device above 20\n"), string(b)
	})
	// With one webhook hanging and the command killed each time, the agent works as before.
	m.run("beside", share("5GiB"), command("true"))
	m.gpuOf("beside", "complete")
	m.stop("full")
	await("device", "below", 0)
	mu.Lock()
	defer mu.Unlock()
	for _, w := range wrong {
		t.Errorf("the webhook got %s", w)
	}
	above := 0
	for _, n := range got {
		if n.Scope == "share" && n.State == "above" {
			above++
		}
	}
	if above != 1 {
		t.Errorf("the share's threshold was told %d times: %+v", above, got)
	}
	if log := m.agent.Log.String(); strings.Contains(log, "path-secret") || strings.Contains(log, "s3cret") {
		t.Error("the agent's log tells secrets")
	}
}
