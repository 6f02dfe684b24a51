package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	stdlog "log"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/agentconfig"
)

// lockedBuffer is written by an agent and read by a test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func agentEnv() (*env, *lockedBuffer, *lockedBuffer) {
	out, errw := &lockedBuffer{}, &lockedBuffer{}
	return &env{in: strings.NewReader(""), out: out, err: errw, now: time.Now, noColor: true}, out, errw
}

// runningAgent is an agent that runs in the test's process.
type runningAgent struct {
	t         *testing.T
	ctx       context.Context
	ended     chan error // of each command that was started
	out, errw *lockedBuffer
	addr      string // of its HTTP API
	leader    string
}

// startAgent starts an agent with a server part, and waits until there is a leader.
func startAgent(ctx context.Context, t *testing.T, args ...string) *runningAgent {
	t.Helper()
	a := &runningAgent{t: t, ctx: ctx, ended: make(chan error, 2)}
	a.out, a.errw = a.start(append([]string{"agent"}, args...)...)
	a.poll("HTTP address", func() bool {
		if m := regexp.MustCompile(`HTTP: (\S+)`).FindStringSubmatch(a.out.String()); m != nil {
			a.addr = "http://" + m[1]
		}
		return a.addr != ""
	})
	a.poll("leader", func() bool { return a.get("/v1/status/leader", &a.leader) && a.leader != "" })
	return a
}

// start runs a command until its context ends.
func (a *runningAgent) start(args ...string) (out, errw *lockedBuffer) {
	e, out, errw := agentEnv()
	root := newRoot(e)
	root.SetArgs(normalize(root, args))
	go func() { a.ended <- root.ExecuteContext(a.ctx) }()
	return out, errw
}

func (a *runningAgent) poll(what string, ok func() bool) {
	a.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case err := <-a.ended:
			a.t.Fatalf("no %s, a command ended: %v\n%s%s", what, err, a.out, a.errw)
		case <-a.ctx.Done():
			a.t.Fatalf("no %s\n%s%s", what, a.out, a.errw)
		case <-tick.C:
		}
	}
}

// get reads an answer of the API; false if there is none.
func (a *runningAgent) get(path string, v any) bool {
	resp, err := http.Get(a.addr + path)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(v) == nil
}

// TestAgentServes starts a server from a file in JSON, as Nomad's client tests write it, asks it who it is, and ends it.
func TestAgentServes(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "nomad123")
	text := fmt.Sprintf(`{"name":"node-1","data_dir":%q,"log_level":"INFO","disable_update_check":true,"ports":{"http":0,"rpc":0,"serf":0},
		"server":{"enabled":true,"bootstrap_expect":1},"client":{"enabled":false},"vault":{"enabled":false},"acl":{"enabled":false}}`, filepath.Join(dir, "data"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := startAgent(ctx, t, "-config", conf, "-dc=dc9", "-meta", "a=b", "-retry-join", "127.0.0.1:1")
	var self struct {
		Config map[string]any `json:"config"`
	}
	if !a.get("/v1/agent/self", &self) || self.Config["Name"] != "node-1" || self.Config["Datacenter"] != "dc9" {
		t.Errorf("%v", self.Config)
	}
	cancel()
	select {
	case err := <-a.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second):
		t.Fatal("the agent does not end")
	}
	if !strings.Contains(a.errw.String(), "ending") {
		t.Errorf("log: %s", a.errw)
	}
}

func TestAgentRefuses(t *testing.T) {
	hooked := filepath.Join(t.TempDir(), "hooked.hcl")
	if err := os.WriteFile(hooked, []byte("client {\n  hooks {\n    prolog {\n      command = [\"/nowhere/prolog\"]\n    }\n  }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"", "neither server nor client is enabled"},
		{"-server -bootstrap-expect=1", "data_dir: is required"},
		{"-dev -bind=0.0.0.0", "flag -bind: this agent would listen beyond this machine"},
		{"-dev -meta=x", "want KEY=VALUE"},
		{"-dev -dev-gpus=8xFOO", "want a count and a model"},
		{"-client -data-dir=/nowhere -servers=127.0.0.1 -bind=10.0.0.1", "without TLS and ACLs"},
		{"-config=/nowhere/x.hcl", "/nowhere/x.hcl: no such file"},
		{"-server -data-dir=/nowhere -bootstrap-expect=12", "flag -bootstrap-expect: server.bootstrap_expect: 12: want 1 to 9"},
		{"-dev -confg=x", "no flag -confg; did you mean -config?"},
		{"extra", "extra"},
		{"-dev -config=" + hooked, hooked + `:4:7: client.hooks.prolog.command: "/nowhere/prolog" cannot be run on this machine: no such file or directory`},
	} {
		t.Run(fmt.Sprintf("%q", c.args), func(t *testing.T) {
			e, _, _ := agentEnv()
			root := newRoot(e)
			root.SetArgs(normalize(root, append([]string{"agent"}, strings.Fields(c.args)...)))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("agent %s: error %v does not say %q", c.args, err, c.want)
			}
		})
	}
}

func TestAgentJoinFlags(t *testing.T) {
	for _, c := range []struct{ args, key string }{
		{"-server -join=a -retry-join=b", "server.server_join."},
		{"-client -join=a -retry-join=b", "client.server_join."},
		{"-dev -join=a -retry-join=b", "server.server_join."},
		{"-join=a -retry-join=b", "server.server_join."},
		{"-join=a -retry-join=b", "client.server_join."},
	} {
		t.Run(fmt.Sprintf("args=%q key=%q", c.args, c.key), func(t *testing.T) {
			o := &agentOptions{}
			e, _, _ := agentEnv()
			cmd := newAgent(e)
			var args []string
			for _, a := range strings.Fields(c.args) {
				args = append(args, "-"+a)
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			o.dev = cmd.Flags().Changed("dev")
			if err := o.prepare(cmd); err != nil {
				t.Fatal(err)
			}
			var keys []string
			for _, f := range o.load.Flags {
				keys = append(keys, f.Key)
			}
			if !slices.Contains(keys, c.key+"start_join") || !slices.Contains(keys, c.key+"retry_join") {
				t.Errorf("%s: %v", c.args, keys)
			}
		})
	}
	// Every flag sets a key that exists.
	known := agentconfig.Keys()
	for _, f := range agentFlags {
		if f.name != "join" && f.name != "retry-join" && !slices.Contains(known, f.key) {
			t.Errorf("-%s sets %s, which is no setting", f.name, f.key)
		}
	}
}

func TestNodesimRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-count=0", "want 1 to"},
		{"-gpus=8xFOO", "want a count and a model"},
		{"-cpu=0", "must be above 0"},
		{"-ca-file=x", "TLS needs"},
		{"-log-level=LOUD", "want TRACE"},
	} {
		t.Run(c.args, func(t *testing.T) {
			e, _, _ := agentEnv()
			root := newRoot(e)
			root.SetArgs(normalize(root, append([]string{"nodesim"}, strings.Fields(c.args)...)))
			if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("nodesim %s: error %v does not say %q", c.args, err, c.want)
			}
		})
	}
}

// TestConfigValidate checks files without an agent: it prints the first error and the warnings, and writes nothing.
func TestConfigValidate(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := fmt.Sprintf("data_dir = %q\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\n", filepath.Join(dir, "data"))
	for _, c := range []struct {
		name, text string
		code       int
		says       []string
	}{
		{"good.hcl", base + "bind_addr = \"127.0.0.1\"\n", 0, []string{"The configuration is valid."}},
		{"warns.hcl", base + "vault {\n  enabled = true\n}\n", 0, []string{"Warning: ", "Vault is not spoken to", "The configuration is valid."}},
		{"typo.hcl", base + "servr {\n}\n", 1, []string{"typo.hcl:6:1", "server"}},
		{"elsewhere.hcl", base + "bind_addr = \"127.0.0.1\"\nclient {\n  enabled = true\n  hooks {\n    prolog {\n      command = [\"/nowhere/prolog\"]\n    }\n  }\n}\n", 0, []string{"The configuration is valid."}},
		{"open.hcl", base + "bind_addr = \"0.0.0.0\"\n", 1, []string{"open.hcl:6:", "insecure = true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out, errw := agentEnv()
			root := newRoot(e)
			root.SetArgs(normalize(root, []string{"config", "validate", file(c.name, c.text)}))
			err := root.ExecuteContext(t.Context())
			said := out.String() + errw.String()
			if err != nil {
				said += err.Error()
			}
			if (err != nil) != (c.code != 0) {
				t.Errorf("%s: %v", c.name, err)
			}
			for _, s := range c.says {
				if !strings.Contains(said, s) {
					t.Errorf("%s: no %q in %q", c.name, s, said)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("the data directory was made")
	}
}

// Lines of libraries that use the standard logger have the form of all others.
func TestStandardLoggerIsTheAgents(t *testing.T) {
	flags := stdlog.Flags()
	t.Cleanup(func() { stdlog.SetFlags(flags); stdlog.SetOutput(os.Stderr) })
	var out strings.Builder
	if _, _, err := agentLogger(&out, &agentconfig.Config{LogLevel: "INFO", LogJSON: true}); err != nil {
		t.Fatal(err)
	}
	stdlog.Printf("[ERR] Error writing to statsd! Err: %s", "refused")
	if got := out.String(); !strings.Contains(got, `{"@level":"error","@message":"Error writing to statsd! Err: refused","@module":"muster.library"`) {
		t.Errorf("got %q", got)
	}
}

// TestLogSettings is the witness of the settings of the log: what an agent writes, and to which files, depends on each.
func TestLogSettings(t *testing.T) {
	flags := stdlog.Flags()
	t.Cleanup(func() { stdlog.SetFlags(flags); stdlog.SetOutput(os.Stderr) })
	written := func(set func(c *agentconfig.Config)) string {
		t.Helper()
		dir := t.TempDir()
		c := &agentconfig.Config{LogLevel: "INFO", LogFile: dir + "/a.log", LogRotateDuration: time.Hour}
		set(c)
		c.LogFile = strings.Replace(c.LogFile, "DIR", dir, 1)
		var out strings.Builder
		log, end, err := agentLogger(&out, c)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			log.Info("a line")
			log.Debug("another")
		}
		end()
		_, line, _ := strings.Cut(out.String(), "[") // after the time
		if strings.HasPrefix(out.String(), "{") {
			line = "JSON"
		}
		line, _, _ = strings.Cut(line, "\n")
		files, _ := filepath.Glob(dir + "/*")
		for i, f := range files {
			files[i] = filepath.Base(f)[:1]
		}
		return fmt.Sprint(line, strings.Count(out.String(), "\n"), files)
	}
	small := func(c *agentconfig.Config) { c.LogRotateBytes = 50 }
	old := func(c *agentconfig.Config) { c.LogRotateDuration = 1 }
	none := func(*agentconfig.Config) {}
	for name, c := range map[string]struct{ before, set func(c *agentconfig.Config) }{
		"log_level":            {none, func(c *agentconfig.Config) { c.LogLevel = "DEBUG" }},
		"log_json":             {none, func(c *agentconfig.Config) { c.LogJSON = true }},
		"log_include_location": {none, func(c *agentconfig.Config) { c.LogIncludeLocation = true }},
		"log_file":             {none, func(c *agentconfig.Config) { c.LogFile = "DIR/b.log" }},
		"log_rotate_bytes":     {none, small},
		"log_rotate_duration":  {none, old},
		"log_rotate_max_files": {small, func(c *agentconfig.Config) { small(c); c.LogRotateMaxFiles = 1 }},
	} {
		if a, b := written(c.before), written(c.set); a == b {
			t.Errorf("%s changes nothing: %s", name, a)
		}
	}
}

// TestLeaveOnSignals is the witness of leave_on_interrupt and leave_on_terminate.
func TestLeaveOnSignals(t *testing.T) {
	for _, c := range []struct {
		cfg             agentconfig.Config
		interrupt, term bool
	}{{agentconfig.Config{}, false, false}, {agentconfig.Config{LeaveOnInterrupt: true}, true, false}, {agentconfig.Config{LeaveOnTerminate: true}, false, true}} {
		if i, term := leavesOn(&c.cfg, os.Interrupt), leavesOn(&c.cfg, syscall.SIGTERM); i != c.interrupt || term != c.term {
			t.Errorf("leaves on SIGINT: %v, SIGTERM: %v; want %v and %v", i, term, c.interrupt, c.term)
		}
	}
}

// TestAgentFlags: each flag that sets a key changes the configuration that an agent reads.
func TestAgentFlags(t *testing.T) {
	load := func(args ...string) agentconfig.Config {
		t.Helper()
		o := &agentOptions{}
		e, _, _ := agentEnv()
		cmd := newAgent(e)
		if err := cmd.ParseFlags(append([]string{"--data-dir=/var/lib/x", "--server", "--bootstrap-expect=1", "--client"}, args...)); err != nil {
			t.Fatal(err)
		}
		o.meta, _ = cmd.Flags().GetStringArray("meta")
		if err := o.prepare(cmd); err != nil {
			t.Fatal(err)
		}
		c, err := agentconfig.Load(o.load)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return *c
	}
	plain := load()
	for _, a := range []string{"--acl-enabled", "--data-dir=/var/lib/y", "--encrypt=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "--insecure", "--log-include-location", "--log-json", "--log-level=DEBUG",
		"--name=n", "--node=n", "--network-interface=lo", "--node-class=big", "--node-pool=h100", "--region=eu", "--meta=a=b", "--dc=dc9", "--bind=127.0.0.2"} {
		if c := load(a); reflect.DeepEqual(c, plain) {
			t.Errorf("-%s changes nothing", strings.TrimPrefix(a, "--"))
		}
	}
}
