package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// readBundle returns the files of a bundle by name below its directory, compressed profiles unpacked.
func readBundle(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		dir, file, ok := strings.Cut(h.Name, "/")
		if !ok || !strings.HasPrefix(dir, "muster-debug-") || h.Mode != 0o600 {
			t.Errorf("file %s of mode %o", h.Name, h.Mode)
		}
		var in io.Reader = r
		if strings.HasSuffix(file, ".pprof") {
			if in, err = gzip.NewReader(r); err != nil {
				in = strings.NewReader("") // a fake's
			}
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[file] = string(b)
	}
}

func readIndex(t *testing.T, files map[string]string) map[string]debugEntry {
	t.Helper()
	var index debugIndex
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatalf("index.json: %v\n%s", err, files["index.json"])
	}
	out := map[string]debugEntry{}
	for _, e := range index.Requests {
		path, _, _ := strings.Cut(strings.TrimPrefix(e.Request, "GET "), "?")
		out[path] = e
	}
	return out
}

// debugFake is an agent with something to hide in its answers.
func debugFake(t *testing.T) *agentFake {
	f := newAgentFake(t)
	f.answers["GET /v1/agent/health"] = map[string]any{"server": map[string]any{"ok": true}}
	f.answers["GET /v1/agent/self"] = map[string]any{"config": map[string]any{
		"Env": map[string]any{"HOME": "canary-environment"}, "Encrypt": "canary-gossip", "join_key": "canary-join", "Plugin": map[string]any{"docker": map[string]any{"Auth": map[string]any{"Password": "canary-registry"}}},
		"Telemetry": "https://bob:canary-login@metrics.example.org/x", "Args": []string{"--api-token=canary-argument", "-v"}, "Started": 1780000000000000001}}
	f.answers["GET /v1/nodes"] = func(r *http.Request) any {
		return []map[string]any{{"ID": nodeA, "Name": "gpu-01", "Taints": []map[string]any{{"Key": "dedicated", "Value": "research"}, {"Key": "HF_TOKEN", "Value": "canary-pair"}}}}
	}
	f.answers["GET /v1/operator/autopilot/health"] = failure{http.StatusTooManyRequests, `{"Healthy": false}`}
	f.answers["GET /v1/agent/pprof/goroutine"] = failure{http.StatusForbidden, "Permission denied"}
	f.answers["GET /v1/agent/pprof/heap"] = "profile"
	f.answers["GET /v1/agent/monitor"] = "[INFO] http: request: secret=\"canary log\" took=3ms\n[WARN] {\"password\":\"canary-json\",\"n\":1}\n[INFO] header Authorization: Bearer canary-bearer\n[DEBUG] sent 5e38b4ee-canary-own\n"
	return f
}

// TestDebugBundle checks what a bundle holds, what its index says about what is missing, and that no secret is in it.
func TestDebugBundle(t *testing.T) {
	f := debugFake(t)
	t.Chdir(t.TempDir())
	r := f.run(t, "", "operator", "debug", "-duration", "30ms", "-interval", "10ms", "-output", "b.tar.gz", "-token", "5e38b4ee-canary-own")
	if r.code != 0 || !strings.Contains(r.out, "Bundle written to b.tar.gz") || !strings.Contains(r.out, "4 samples") || !strings.Contains(r.out, "GET /v1/agent/pprof/goroutine?debug=1: Permission denied (403)") {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.errOut)
	}
	if st, err := os.Stat("b.tar.gz"); err != nil || st.Mode() != 0o600 {
		t.Errorf("the file: %v, %v; want mode 0600", st.Mode(), err)
	}
	files := readBundle(t, "b.tar.gz")
	for name, text := range files {
		if strings.Contains(text, "canary") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	index := readIndex(t, files)
	for _, s := range debugSources {
		if e, ok := index[s.path]; !ok || (e.File == "") == (e.Error == "") || e.File != "" && (e.File != s.file || files[s.file] == "" && !strings.HasSuffix(s.file, ".pprof")) {
			t.Errorf("the index says of %s: %+v; the file has %d bytes", s.path, e, len(files[s.file]))
		}
	}
	if e := index["/v1/agent/self"]; e.Redacted < 6 || e.Bytes != len(files["agent/self.json"]) {
		t.Errorf("the index says %+v; want 6 values left out or more", e)
	}
	for file, want := range map[string]string{ // what is no secret stays
		"agent/self.json": `"Started": 1780000000000000001`, "cluster/autopilot-health.json": `"Healthy": false`, "metrics/003.json": "Gauges", "log/agent.log": "took=3ms", "cluster/jobs.json": `"ID": "train"`,
		"cluster/nodes.json": `"Key": "dedicated",` + "\n" + `        "Value": "research"`, "cluster/queue.json": `"JobID": "train"`, "cluster/leader.json": "10.0.0.1:4647"} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s lacks %s:\n%s", file, want, files[file])
		}
	}
	before, err := os.ReadFile("b.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	if r := f.run(t, "", "operator", "debug", "-duration", "10ms", "-interval", "10ms", "-output", "b.tar.gz"); r.code != 1 || !strings.Contains(r.errOut, "exists already") {
		t.Errorf("a second time: exit %d\n%s%s", r.code, r.out, r.errOut)
	}
	if after, err := os.ReadFile("b.tar.gz"); err != nil || string(after) != string(before) {
		t.Errorf("the file was overwritten: %v", err)
	}
}

// TestDebugWithoutAgent checks that no file is left when nothing answers, and that the command ends at once.
func TestDebugWithoutAgent(t *testing.T) {
	f := newAgentFake(t)
	f.Close()
	t.Chdir(t.TempDir())
	for _, c := range [][]string{
		{"no agent answers", "-duration", "1h"}, {"no agent answers", "-duration", "2s"}, {"longer than", "-duration", "1s", "-interval", "2s"}, {"above 0", "-interval", "0s"}, {"more than 1000 samples", "-duration", "1h", "-interval", "1ms"}, {"no such file", "-output", "nowhere/b.tar.gz"},
	} {
		if r := f.run(t, "", append([]string{"operator", "debug"}, c[1:]...)...); r.code != 1 || !strings.Contains(r.errOut, c[0]) {
			t.Errorf("%v: exit %d\n%s%s", c, r.code, r.out, r.errOut)
		}
	}
	for _, pattern := range []string{"*", ".*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestDebugPages checks that all pages of a list are in one array, up to the limit, which the index names.
func TestDebugPages(t *testing.T) {
	f := debugFake(t)
	rows := 2*debugPageRows + 1
	f.answers["GET /v1/queue"] = func(r *http.Request) any { return []any{} }
	srv := f.Config.Handler
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/jobs" {
			srv.ServeHTTP(w, r)
			return
		}
		from, _ := strconv.Atoi(r.URL.Query().Get("next_token"))
		page := []map[string]int{}
		for i := from; i < min(rows, from+debugPageRows); i++ {
			page = append(page, map[string]int{"n": i})
		}
		if from+debugPageRows < rows {
			w.Header().Set("X-Nomad-NextToken", strconv.Itoa(from+debugPageRows))
		}
		_ = json.NewEncoder(w).Encode(page)
	})
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		rows, want int
		note       string
	}{{rows, rows, ""}, {debugRowsMax + 1, debugRowsMax, "only the first 10000 rows"}} {
		rows = c.rows
		name := strconv.Itoa(c.rows) + ".tar.gz"
		if r := f.run(t, "", "operator", "debug", "-duration", "10ms", "-interval", "10ms", "-output", name); r.code != 0 {
			t.Fatalf("exit %d\n%s%s", r.code, r.out, r.errOut)
		}
		files := readBundle(t, name)
		if got, note := strings.Count(files["cluster/jobs.json"], `"n":`), readIndex(t, files)["/v1/jobs"].Error; got != c.want || note != c.note {
			t.Errorf("%d rows of %d, noted as %q; want %d and %q", got, c.rows, note, c.want, c.note)
		}
	}
}

func TestRedactText(t *testing.T) {
	for _, c := range [][2]string{
		{"nothing to hide: 3 of 4 nodes", "nothing to hide: 3 of 4 nodes"},
		{"a token=abc b=c", "a token=<redacted> b=c"},
		{`db_password="two words" x=1`, "db_password=<redacted> x=1"},
		{"SECRET: abc, next", "SECRET: <redacted>, next"},
		{`{\"api_key\":\"abc\",\"x\":1}`, `{\"api_key\":<redacted>,\"x\":1}`},
		{"Authorization: Bearer abc.def", "Authorization: <redacted>"},
		{"sent Bearer abcdefgh.x", "sent Bearer <redacted>"},
		{"git clone https://me:pw@host/x", "git clone https://me:<redacted>@host/x"},
		{"jwt eyJhbGciOiJ.eyJzdWIi.c2ln end", "jwt <redacted> end"},
		{"-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx", "<redacted>\nx"},
		{"own own-secret-value end", "own <redacted> end"},
	} {
		if got := (&redactor{literal: "own-secret-value"}).text(c[0]); got != c[1] {
			t.Errorf("%q became %q; want %q", c[0], got, c[1])
		}
	}
	for _, broken := range []string{`{"token": "abc"`, `token abc`, `{"a":1}{"b":2}`} {
		if b, err := new(redactor).file("x.json", []byte(broken)); b != nil || err == nil {
			t.Errorf("%s became %s, %v; want nothing", broken, b, err)
		}
	}
}
