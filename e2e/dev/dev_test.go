//go:build e2e

// Package dev is a newcomer's first minute: agent -dev, job init, job run, logs.
package dev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestFirstMinute starts a cluster and the shipped example: a real process whose log follows, the first allocation
// running within 3 s of the agent's start, and nothing left behind at the end.
func TestFirstMinute(t *testing.T) {
	dir := t.TempDir()
	port := harness.FreePort(t)
	conf := filepath.Join(dir, "ports.hcl")
	text := fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("http://127.0.0.1:%d", port)
	muster := func(args ...string) (string, error) {
		cmd := exec.Command(harness.Bin(t), args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "MUSTER_ADDR="+addr)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	start := time.Now()
	agent := harness.Start(t, nil, "dev", nil, "agent", "-dev", "-config", conf)
	if out, err := muster("job", "init"); err != nil {
		t.Fatalf("job init: %v\n%s", err, out)
	}
	harness.Eventually(t, 5*time.Second, "job run", func() (bool, string) {
		out, err := muster("job", "run", "example.muster.hcl")
		return err == nil, out
	})
	// Where an earlier try was refused after the job was registered, the last one finds nothing left to wait for.
	api := harness.NewAPI(t, nil, "", addr)
	var as []harness.Alloc
	harness.Eventually(t, 20*time.Second, "a running allocation after job run", func() (bool, string) {
		var err error
		as, err = api.Allocs("example")
		return err == nil && harness.Count(as, "running") > 0, fmt.Sprint(as, err)
	})
	took := time.Since(start)
	t.Logf("from the agent's start to the first running allocation: %s (goal 3 s)", took.Round(time.Millisecond))
	if took > 30*time.Second {
		t.Errorf("it took %s", took)
	}

	// The log follows: more lines come while the command runs.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Bin(t), "alloc", "logs", "-f", "-job", "example")
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen, buf := "", make([]byte, 4096)
	for strings.Count(seen, "\n") < 3 {
		n, err := out.Read(buf)
		seen += string(buf[:n])
		if err != nil {
			t.Fatalf("logs ended after %q: %v", seen, err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()

	if out, err := muster("alloc", "exec", "-job", "example", "/bin/sh", "-c", "echo in $NOMAD_ALLOC_ID; exit 7"); err == nil || !strings.Contains(out, "in "+as[0].ID[:8]) {
		t.Errorf("exec: want exit 7 and the allocation's id, got %v\n%s", err, out)
	} else if ee, ok := err.(*exec.ExitError); !ok || ee.ExitCode() != 7 {
		t.Errorf("exec: exit %v, want 7", err)
	}
	if out, err := muster("job", "why", "example"); err != nil || !strings.Contains(out, "running") {
		t.Errorf("job why: %v\n%s", err, out)
	}
	if out, err := muster("job", "stop", "example"); err != nil {
		t.Errorf("job stop: %v\n%s", err, out)
	}

	var self struct{ Config struct{ DataDir string } }
	if err := api.Call("GET", "/v1/agent/self", nil, &self); err != nil {
		t.Fatal(err)
	}
	agent.Signal(syscall.SIGINT)
	if err := agent.WaitExit(20 * time.Second); err != nil {
		t.Errorf("the agent's end: %v", err)
	}
	if _, err := os.Stat(self.Config.DataDir); err == nil {
		t.Errorf("%s is left behind", self.Config.DataDir)
	}
	if left := harness.Tasks(self.Config.DataDir); len(left) > 0 {
		t.Errorf("tasks are left behind: %v", left)
	}
}
