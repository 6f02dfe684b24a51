package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// realServer runs a server that demands tokens, in this process, and returns what runs commands against it
// and a management token.
func realServer(t *testing.T) (f *agentFake, root string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "server.json")
	text := fmt.Sprintf(`{"name":"one","data_dir":%q,"log_level":"DEBUG","ports":{"http":0,"rpc":0,"serf":0},
		"server":{"enabled":true,"encrypt":"Y2FuYXJ5LWdvc3NpcC1rZXktb2YtMzItYnl0ZXMuLi4=","bootstrap_expect":1},"client":{"enabled":false},"acl":{"enabled":true}}`, filepath.Join(dir, "data"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, out, errw := agentEnv()
	c := newRoot(e)
	c.SetArgs(normalize(c, []string{"agent", "-config", conf}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.ExecuteContext(ctx) }()
	ended := false
	t.Cleanup(func() {
		cancel()
		if ended {
			return
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the agent does not end")
		}
	})
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		select {
		case err := <-done:
			ended = true
			t.Fatalf("the agent ended: %v\n%s%s", err, out, errw)
		default:
		}
		m := regexp.MustCompile(`HTTP: (\S+)`).FindStringSubmatch(out.String())
		if m == nil {
			continue
		}
		f = &agentFake{Server: &httptest.Server{URL: "http://" + m[1]}}
		var v struct{ SecretID string }
		if r := f.run(t, "", "acl", "bootstrap", "-json"); r.code == 0 && json.Unmarshal([]byte(r.out), &v) == nil && v.SecretID != "" {
			return f, v.SecretID
		}
	}
	t.Fatalf("no leader\n%s%s", out, errw)
	return nil, ""
}

const debugJob = `job "canary" {
  type = "batch"
  meta {
    password = "canary-meta"
  }
  group "g" {
    task "t" {
      driver = "docker"
      config {
        image = "busybox"
        auth {
          username = "bob"
          password = "canary-registry"
        }
      }
      env {
        API_TOKEN = "canary-environment"
        PLAIN     = "canary-plain"
      }
      template {
        data        = "canary-template"
        destination = "local/x"
      }
    }
  }
}
`

// TestDebugHoldsNoSecrets gives a cluster secrets in all the places for them, and looks for them in what an operator and
// a stranger can collect.
func TestDebugHoldsNoSecrets(t *testing.T) {
	f, root := realServer(t)
	t.Chdir(t.TempDir())
	var second struct{ SecretID string }
	if r := f.run(t, "", "acl", "token", "create", "-json", "-type", "management", "-name", "second", "-token", root); r.code != 0 || json.Unmarshal([]byte(r.out), &second) != nil || second.SecretID == "" {
		t.Fatalf("acl token create: exit %d\n%s%s", r.code, r.out, r.errOut)
	}
	secrets := []string{"canary-", root, second.SecretID, "Y2FuYXJ5"}
	if r := f.run(t, debugJob, "job", "run", "-detach", "-token", root, "-"); r.code != 0 {
		t.Fatalf("job run: exit %d\n%s%s", r.code, r.out, r.errOut)
	}
	if r := f.run(t, "", "var", "put", "-token", root, "nomad/jobs/canary", "password=canary-variable"); r.code != 0 {
		t.Fatalf("var put: exit %d\n%s%s", r.code, r.out, r.errOut)
	}
	for _, c := range []struct {
		name, token string
		holds       []string // files
	}{
		{"operator", root, []string{"agent/self.json", "cluster/jobs.json", "cluster/queue.json", "cluster/raft-configuration.json", "cluster/autopilot-health.json", "profiles/goroutine.txt", "profiles/heap.pprof", "metrics/001.json", "log/agent.log"}},
		{"stranger", "", []string{"agent/health.json"}},
	} {
		name := c.name + ".tar.gz"
		if r := f.run(t, "", "operator", "debug", "-duration", "1s", "-interval", "500ms", "-output", name, "-token", c.token); r.code != 0 {
			t.Fatalf("%s: exit %d\n%s%s", c.name, r.code, r.out, r.errOut)
		}
		files := readBundle(t, name)
		index := readIndex(t, files)
		for _, h := range c.holds {
			if files[h] == "" {
				t.Errorf("%s: no %s\n%s", c.name, h, files["index.json"])
			}
		}
		for file, text := range files {
			for _, s := range secrets {
				if strings.Contains(text, s) {
					t.Errorf("%s: %s has %q", c.name, file, s)
				}
			}
		}
		if refused := index["/v1/agent/pprof/heap"].Error != ""; refused != (c.token == "") {
			t.Errorf("%s: the index says of the heap profile: %+v", c.name, index["/v1/agent/pprof/heap"])
		}
		if c.token == "" {
			continue
		}
		for path, e := range index {
			if e.Error != "" {
				t.Errorf("%s: %s: %s", c.name, path, e.Error)
			}
		}
		if !strings.Contains(files["cluster/jobs.json"], `"ID": "canary"`) || !strings.Contains(files["log/agent.log"], "path=/v1/metrics") {
			t.Errorf("%s\n%s", files["cluster/jobs.json"], files["log/agent.log"])
		}
	}
}
