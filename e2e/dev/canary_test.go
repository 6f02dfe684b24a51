//go:build e2e

package dev

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/e2e/harness"
)

// canaryJob has a secret in each place where a job file or a task may have one.
const canaryJob = `job "canary" {
  type = "service"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "test -n \"$VARIABLE\" && test -s secrets/nomad_token && echo ready; exec sleep 600"]
      }
      env {
        PASSWORD = "CANARY-task-env"
      }
      identity {
        env  = true
        file = true
      }
      template {
        data        = "VARIABLE={{ with nomadVar \"nomad/jobs/canary\" }}{{ .v }}{{ end }}\nTEXT=CANARY-template-text"
        destination = "secrets/env"
        env         = true
      }
      artifact {
        source = "%s/artifact"
        headers {
          Authorization = "CANARY-artifact-header"
        }
      }
    }
  }
}
`

// getRoute is a row of the page of the HTTP API.
var getRoute = regexp.MustCompile("(?m)^\\| GET[^|]*\\| `(/[^`]*)` \\|")

// noCore is the line of a process's limits without core files.
var noCore = regexp.MustCompile(`(?m)^Max core file size +0 `)

// TestCanaries plants secrets in a real agent with access control, whose data is on disk and whose log has everything, and
// looks for them in each output: the log, the command lines and environments of its processes, the answers of all GET
// routes to a reader, the profiles, files on disk, and a saved snapshot.
//
// Where a secret must be, it is not looked for: what a job file says is in the job (its readers see it, and so do log and
// snapshots); secrets of tokens and nodes are in the state, hence in log and snapshots, since servers compare them; keys
// are in the keystore; gossip keys that a command has installed are in their file; rendered templates and tokens are in
// the task's directory and environment. The memory of the agent has all of them, so at its end it crashes: there must be
// no core. Go's profiles show no contents of memory. Passwords of registries are looked for by e2e/docker.
func TestCanaries(t *testing.T) {
	dir, port := t.TempDir(), harness.FreePort(t)
	addr, data := fmt.Sprintf("https://127.0.0.1:%d", port), filepath.Join(dir, "data")
	key := func() string { b := make([]byte, 32); rand.Read(b); return base64.StdEncoding.EncodeToString(b) }
	gossip, join, installed := key(), key(), key()
	files := http.FileServer(http.Dir(t.TempDir()))
	web := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t)), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/artifact" && r.Header.Get("Authorization") == "CANARY-artifact-header" {
			_, _ = io.WriteString(w, "content")
			return
		}
		files.ServeHTTP(w, r)
	})}
	go web.ListenAndServe()
	t.Cleanup(func() { web.Close() })
	conf, job := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "canary.hcl")
	ca, tlsKey := filepath.Join(dir, "muster-agent-ca.pem"), filepath.Join(dir, "global-server-muster-key.pem")
	for file, text := range map[string]string{job: fmt.Sprintf(canaryJob, "http://"+web.Addr),
		conf: fmt.Sprintf("data_dir = %q\nlog_level = \"TRACE\"\nenable_debug = true\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\nacl {\n  enabled = true\n}\n"+
			"server {\n  enabled = true\n  bootstrap_expect = 1\n  encrypt = %q\n  join_key = %q\n}\nclient {\n  enabled = true\n  egress {\n    allow = [\"127.0.0.0/8\"]\n  }\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n"+
			"tls {\n  http = true\n  rpc = true\n  ca_file = %q\n  cert_file = %q\n  key_file = %q\n}\n",
			data, port, harness.FreePort(t), harness.FreePort(t), gossip, join, ca, filepath.Join(dir, "global-server-muster.pem"), tlsKey)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	token := ""
	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command(harness.Bin(t), args...)
		cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), "MUSTER_ADDR="+addr, "MUSTER_CACERT="+ca, "MUSTER_TOKEN="+token), strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, err := run(stdin, args...)
		if err != nil {
			t.Fatalf("muster %v: %v\n%s", args, err, out)
		}
		return out
	}
	must("", "tls", "ca", "create")
	must("", "tls", "cert", "create", "-server", "-region", "global")
	trusted := x509.NewCertPool()
	if pem, err := os.ReadFile(ca); err != nil || !trusted.AppendCertsFromPEM(pem) {
		t.Fatalf("the certificate of the CA: %v", err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	t.Cleanup(client.CloseIdleConnections)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		t.Logf("cores are not looked for: %v", err)
	}
	agent := harness.Start(t, nil, "canary", []string{"GOTRACEBACK=crash"}, "agent", "-config", conf)
	t.Cleanup(func() { harness.KillBelow(t, data) })
	var boss, reader struct{ SecretID string }
	harness.Eventually(t, 30*time.Second, "bootstrap of access control", func() (bool, string) {
		out, err := run("", "acl", "bootstrap", "-json")
		return err == nil && json.Unmarshal([]byte(out), &boss) == nil, out
	})
	token = boss.SecretID
	must("namespace \"default\" {\n  policy = \"read\"\n}\nnode {\n  policy = \"read\"\n}\nagent {\n  policy = \"read\"\n}\noperator {\n  policy = \"read\"\n}\n", "acl", "policy", "apply", "reader", "-")
	if err := json.Unmarshal([]byte(must("", "acl", "token", "create", "-name", "reader", "-policy", "reader", "-json")), &reader); err != nil {
		t.Fatal(err)
	}
	must("", "operator", "gossip", "keyring", "install", installed)
	must("CANARY-variable-value", "var", "put", "nomad/jobs/canary", "v=@-")
	harness.Eventually(t, 30*time.Second, "job run", func() (bool, string) {
		out, err := run("", "job", "run", "-detach", job)
		return err == nil, out
	})
	harness.Eventually(t, 60*time.Second, "the task", func() (bool, string) {
		out, err := run("", "alloc", "logs", "-stdout", "-job", "canary")
		return err == nil && strings.Contains(out, "ready"), out
	})

	read := func(path, as string) ([]byte, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond) // streams do not end
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Nomad-Token", as)
		resp, err := client.Do(req)
		if err != nil {
			return nil, 0
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return b, resp.StatusCode
	}
	var allocs []struct{ ID, EvalID, NodeID string }
	b, _ := read("/v1/job/canary/allocations", boss.SecretID)
	if err := json.Unmarshal(b, &allocs); err != nil || len(allocs) != 1 {
		t.Fatalf("%v: %s", err, b)
	}
	task := filepath.Join(data, "client", "allocs", allocs[0].ID)
	one := func(glob string) string {
		t.Helper()
		list, err := filepath.Glob(glob)
		if err != nil || len(list) == 0 {
			t.Fatalf("no file %s: %v", glob, err)
		}
		b, err := os.ReadFile(list[0])
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	identity := one(filepath.Join(task, "t", "secrets", "nomad_token"))
	node := one(filepath.Join(data, "client", "secret-id"))

	// A secret is looked for as text and in bytes, whether the place has it in text, base64, hex or raw.
	secrets := map[string][]string{"the value of a variable": {"CANARY-variable-value"}, "an identity": {identity}}
	for _, k := range []struct{ what, text string }{{"the gossip key", gossip}, {"the installed gossip key", installed}, {"the join key", join}} {
		raw, _ := base64.StdEncoding.DecodeString(k.text)
		secrets[k.what] = append(secrets[k.what], k.text, string(raw), hex.EncodeToString(raw))
	}
	keys, err := filepath.Glob(filepath.Join(data, "server", "keystore", "*.key"))
	if err != nil || len(keys) != 2 {
		t.Fatalf("the keystore has %v, %v; want the keys of variables and of identities", keys, err)
	}
	for _, k := range keys {
		text := one(k)
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		secrets["a key of the keystore"] = append(secrets["a key of the keystore"], text, string(raw), base64.StdEncoding.EncodeToString(raw))
	}
	for _, file := range []string{tlsKey, filepath.Join(dir, "muster-agent-ca-key.pem")} {
		block, _ := pem.Decode([]byte(one(file)))
		if block == nil {
			t.Fatalf("%s has no key", file)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		k, ok := parsed.(*ecdsa.PrivateKey)
		if !ok {
			t.Fatalf("%s has a %T", file, parsed)
		}
		d, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(one(file), "\n")
		secrets["a TLS key"] = append(secrets["a TLS key"], lines[1], string(d), hex.EncodeToString(d), base64.StdEncoding.EncodeToString(d))
	}
	uuids := func(id string) []string {
		raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
		if err != nil || len(raw) != 16 {
			t.Fatalf("%q is not an id", id)
		}
		return []string{id, string(raw)}
	}
	of := map[string][]string{"the management token": uuids(boss.SecretID), "the node's secret": uuids(node)}
	fromJob := map[string][]string{"the environment in a job": {"CANARY-task-env"}, "the text of a template": {"CANARY-template-text"}, "the header of an artifact": {"CANARY-artifact-header"}}
	looked := 0
	look := func(where string, text []byte, sets ...map[string][]string) {
		t.Helper()
		looked++
		for _, set := range sets {
			for what, forms := range set {
				for _, s := range forms {
					if strings.Contains(string(text), s) {
						t.Errorf("%s has %s", where, what)
					}
				}
			}
		}
	}

	page, err := os.ReadFile("../../docs/reference/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	answered := 0
	for _, m := range getRoute.FindAllStringSubmatch(string(page), -1) {
		path := m[1]
		id := "canary"
		switch {
		case strings.Contains(path, "/allocation/") || strings.Contains(path, "/fs/"):
			id = allocs[0].ID
		case strings.Contains(path, "/node/:id"):
			id = allocs[0].NodeID
		case strings.Contains(path, "/evaluation/"):
			id = allocs[0].EvalID
		}
		query := "?path=/&task=t&type=stdout&prefix=&full=true&index=0&log_level=trace"
		path = strings.NewReplacer(":id", id, ":path", "nomad/jobs/canary", ":op", "list").Replace(path)
		for _, name := range []string{"default", "reader", "heap", "goroutine"} {
			p := strings.Replace(path, ":name", name, 1)
			text, status := read(p+query, reader.SecretID)
			if status == http.StatusOK {
				answered++
			}
			look("GET "+p, text, secrets, of)
			if p == path {
				break
			}
		}
	}
	if answered < 50 {
		t.Errorf("%d routes answered the reader, so little was looked at", answered)
	}
	for _, p := range []string{"/v1/agent/pprof/goroutine?debug=2", "/v1/agent/pprof/heap?debug=1", "/v1/agent/pprof/cmdline"} {
		text, status := read(p, boss.SecretID)
		if status != http.StatusOK {
			t.Errorf("%s: status %d", p, status)
		}
		look(p, text, secrets, of, fromJob)
	}

	// The agent's processes: itself, its supervisor, and what they start, except the task.
	for _, pid := range below(t, agent.Pid(), data) {
		for _, name := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil || strings.Contains(string(text), "NOMAD_ALLOC_ID=") || strings.Contains(string(text), "sleep\x00600") {
				continue
			}
			look(fmt.Sprintf("%s of process %d", name, pid), text, secrets, of, fromJob)
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if err == nil && !noCore.Match(limits) {
			t.Errorf("process %d, or what it starts, may write core files:\n%s", pid, limits)
		}
	}

	archive := filepath.Join(dir, "backup.snap")
	must("", "operator", "snapshot", "save", archive)
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	control := false // a secret of the job file is in the snapshot, so it would be found
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, rerr := io.ReadAll(r)
		if err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		look("a snapshot's "+h.Name, text, secrets)
		control = control || strings.Contains(string(text), "CANARY-task-env")
	}
	if !control {
		t.Error("the snapshot does not show what is in it")
	}

	agent.Signal(syscall.SIGABRT) // Go aborts with a core, by GOTRACEBACK
	err = agent.WaitExit(30 * time.Second)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT {
		t.Errorf("the agent ended with %v, want the signal of a crash", err)
	} else if exit.Sys().(syscall.WaitStatus).CoreDump() {
		t.Error("the agent's memory was written to a core")
	}
	look("the log", []byte(agent.Log.String()), secrets, of, fromJob)
	walked := 0
	err = filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(data, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && (rel == "server/keystore" || path == filepath.Join(task, "t")):
			return fs.SkipDir
		case !d.Type().IsRegular() || rel == "client/secret-id" || rel == "server/gossip.keyring":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		walked++
		look(rel, text, secrets)
		return nil
	})
	if err != nil || walked < 5 {
		t.Errorf("%d files were looked at: %v", walked, err)
	}
	t.Logf("%d outputs: %d answers to a reader, %d files", looked, answered, walked)
}

// below returns a process, its descendants, and those whose command line names the data directory.
func below(t *testing.T, top int, data string) []int {
	t.Helper()
	list, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent, out := map[int]int{}, []int{}
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := procfile.StatOf(pid); err == nil {
			parent[pid] = st.Parent
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if pid == top || strings.Contains(string(line), data) {
			out = append(out, pid)
		}
	}
	for i := 0; i < len(out); i++ {
		for pid, p := range parent {
			if p == out[i] {
				out = append(out, pid)
			}
		}
	}
	return out
}
