//go:build e2e

package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/e2e/harness"
)

// hides looks for the password of a registry, which a job has in its auth block, in what the agent says and leaves of a
// task: events, log, metrics, profiles, settings, streams, the task's directories, and what the engine knows of its
// containers. Only the job itself has it, as every other part of a job file, and hence the agent's and servers' state.
func (n *node) hides(t *testing.T, a harness.Alloc, password string) {
	t.Helper()
	// The engine gets it in base64 of JSON, where it begins at any of three places.
	forms := []string{password}
	for skip := range 3 {
		code := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", skip) + password))
		forms = append(forms, code[4:len(code)-4])
	}
	looked := 0
	look := func(where, text string) {
		t.Helper()
		if text != "" {
			looked++
		}
		for _, f := range forms {
			if strings.Contains(text, f) {
				t.Errorf("%s has the password of a registry", where)
				return
			}
		}
	}
	look("events", events(a))
	look("the log", n.agent.Log.String())
	for _, path := range []string{
		"/v1/metrics", "/v1/metrics?format=prometheus", "/v1/agent/self", "/v1/nodes", "/v1/allocations", "/v1/client/stats", "/v1/job/" + a.JobID + "/summary",
		"/v1/job/" + a.JobID + "/allocations", "/v1/job/" + a.JobID + "/why", "/v1/agent/pprof/goroutine?debug=2", "/v1/agent/pprof/heap?debug=1", "/v1/agent/pprof/cmdline",
		"/v1/event/stream?topic=Allocation&topic=Node&index=1", "/v1/agent/monitor?log_level=trace",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // streams do not end
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, resp.StatusCode, text)
		}
		look("GET "+path, string(text))
	}
	list, err := n.engine.api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		info, err := n.engine.api.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
		if err != nil {
			continue // removed meanwhile
		}
		text, err := json.Marshal(info.Container)
		if err != nil {
			t.Fatal(err)
		}
		look("a container", string(text))
	}
	for _, dir := range []string{"allocs", "docker"} {
		err := filepath.WalkDir(filepath.Join(n.dir, "data/client", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // what ends meanwhile is removed
			}
			text, err := os.ReadFile(path)
			if err == nil {
				look(path, string(text))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if looked < 15 {
		t.Errorf("%d outputs were looked at", looked)
	}
}
