//go:build e2e

// Package hostile sends the real binary what it should never be sent: broken job files, bodies, flags, configurations,
// packets and tasks. Each must end in one clear error, and the agent must stay as it was: same process, no more memory,
// no more goroutines.
package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/e2e/harness"
)

const (
	httpPort = 27646
	rpcPort  = 27647
	serfPort = 27648
	rssSlack = 64 << 20
	cpuMax   = time.Second // of processor time for a case
)

var base = fmt.Sprintf("http://127.0.0.1:%d", httpPort)

// victim is the one agent that everything is thrown at.
type victim struct {
	t    *testing.T
	dir  string
	proc *harness.Proc
	api  *harness.API
	n    int // cases so far

	cpu     time.Duration // the agent's processor time at the end of the last case
	dearest time.Duration // what a case took of it at most
	which   string        // that case
}

func startVictim(t *testing.T) *victim {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	v := &victim{t: t, dir: dir, api: harness.NewAPI(t, nil, "", base)}
	conf := v.file("agent.hcl", fmt.Sprintf(`
name      = "victim"
data_dir  = %q
log_level = "WARN"
enable_debug = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
client {
  run_as {
    allow = ["*"]
  }
}
plugin "exec" {
  config {
    denied_users = []
  }
}
`, filepath.Join(dir, "data"), httpPort, rpcPort, serfPort))
	v.proc = harness.Start(t, nil, "victim", nil, "agent", "-dev", "-config", conf)
	harness.Eventually(t, 30*time.Second, "the agent to answer", func() (bool, string) {
		if dead, err := v.proc.Exited(); dead {
			t.Fatalf("agent ended: %v\n%s", err, v.proc.Log.Tail(30))
		}
		var ns []struct{ Status string }
		err := v.api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(ns, err)
	})
	v.spent(t)
	return v
}

// file writes a file below the test's folder and returns its path.
func (v *victim) file(name, text string) string {
	v.t.Helper()
	p := filepath.Join(v.dir, name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		v.t.Fatal(err)
	}
	return p
}

// alive ends a case: it fails the test when the agent is another process than it was, does not answer, or spent more
// processor time on the case than cpuMax.
func (v *victim) alive(t *testing.T) {
	t.Helper()
	v.n++
	if dead, err := v.proc.Exited(); dead {
		t.Fatalf("the agent is dead: %v\n%s", err, v.proc.Log.Tail(60))
	}
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get(base + "/v1/status/leader")
	if err != nil {
		t.Fatalf("the agent does not answer: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("the agent answers %s", resp.Status)
	}
	spent := v.spent(t)
	if spent > cpuMax {
		t.Errorf("the agent spent %s of processor time on this, more than %s", spent, cpuMax)
	}
	if spent > v.dearest {
		v.dearest, v.which = spent, t.Name()
	}
}

// spent returns the processor time that the agent has used since the last call.
func (v *victim) spent(t *testing.T) time.Duration {
	t.Helper()
	now := v.stat(t).CPU
	d := now - v.cpu
	v.cpu = now
	return d
}

func (v *victim) stat(t *testing.T) procfile.Stat {
	t.Helper()
	st, err := procfile.StatOf(v.proc.Pid())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

var goroutinesRE = regexp.MustCompile(`goroutine profile: total (\d+)`)

// use collects garbage in the agent and returns its resident memory and goroutines.
func (v *victim) use(t *testing.T) (rss uint64, goroutines int) {
	t.Helper()
	get := func(q string) string {
		resp, err := http.Get(base + "/v1/agent/pprof/" + q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 {
			t.Fatalf("pprof: %s: %s", resp.Status, b)
		}
		return string(b)
	}
	get("heap?gc=1")
	m := goroutinesRE.FindStringSubmatch(get("goroutine?debug=1"))
	if m == nil {
		t.Fatal("no goroutine profile")
	}
	goroutines, _ = strconv.Atoi(m[1])
	return v.stat(t).RSS, goroutines
}

// muster runs the command line against the agent: exit code and everything printed.
func (v *victim) muster(stdin io.Reader, args ...string) (int, string) {
	return runBin(v.t, stdin, 30*time.Second, args...)
}

func runBin(t *testing.T, stdin io.Reader, limit time.Duration, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Bin(t), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+base, "MUSTER_ADDR="+base)
	cmd.Stdin = stdin
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return -1, "not ended within " + limit.String() + ": " + out.String()
	}
	if err != nil && cmd.ProcessState == nil {
		return -2, err.Error()
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// clear fails the test for an error text that is not one clear message: a Go stack, a panic, an address of a Go value,
// a page of text.
func clear(t *testing.T, out string) {
	t.Helper()
	for _, bad := range []string{"panic", "goroutine ", "fatal error", "runtime error", "%!", "0xc000", "nil pointer", "Internal error"} {
		if strings.Contains(out, bad) {
			t.Errorf("not a clear error, it contains %q:\n%s", bad, head(out))
		}
	}
	if len(out) > 4<<10 {
		t.Errorf("an error of %d bytes:\n%s", len(out), head(out))
	}
}

func head(s string) string {
	if len(s) > 1500 {
		return fmt.Sprintf("%s ... (%d bytes)", s[:1500], len(s))
	}
	return s
}

// expect checks one answer: the code and what the text must say.
func expect(t *testing.T, code int, out string, want int, has string) {
	t.Helper()
	if os.Getenv("MUSTER_E2E_SHOW") != "" {
		t.Logf("code %d: %s", code, head(out))
	}
	if code != want {
		t.Errorf("code %d, want %d:\n%s", code, want, head(out))
	}
	if !strings.Contains(out, has) {
		t.Errorf("want %q in:\n%s", has, head(out))
	}
	if want != 0 && want != 200 {
		clear(t, out)
	}
}
