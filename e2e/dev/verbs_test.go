//go:build e2e

package dev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// shell is a dev agent and the command line that a user types beside it.
type shell struct {
	t    *testing.T
	dir  string
	addr string
	proc *harness.Proc
}

func startShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{t: t, dir: t.TempDir()}
	port := harness.FreePort(t)
	s.addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	conf := s.file("ports.hcl", fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t)))
	s.proc = harness.Start(t, nil, "dev", nil, "agent", "-dev", "-config", conf)
	harness.Eventually(t, 20*time.Second, "a ready node", func() (bool, string) {
		out, _, _ := s.run("node", "status")
		return strings.Contains(out, "ready"), out
	})
	return s
}

func (s *shell) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// job writes a batch job of one raw_exec task that runs a line of shell; more is HCL for the job, extra for the task.
func (s *shell) job(name, more, line, extra string) string {
	s.t.Helper()
	return s.file(name+".hcl", fmt.Sprintf(`job %q {
  type = "batch"
  %s
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      %s
    }
  }
}
`, name, more, line, extra))
}

func (s *shell) command(args ...string) *exec.Cmd {
	cmd := exec.Command(harness.Bin(s.t), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+s.addr, "NO_COLOR=1")
	return cmd
}

// run returns what a command writes to stdout and stderr, and its exit code.
func (s *shell) run(args ...string) (out, errOut string, code int) {
	s.t.Helper()
	var o, e bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// want runs a command and checks its exit code and that its output has a text.
func (s *shell) want(code int, text string, args ...string) string {
	s.t.Helper()
	out, errOut, got := s.run(args...)
	if got != code || !strings.Contains(out+errOut, text) {
		s.t.Errorf("muster %s: exit code %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, code, text, out, errOut)
	}
	return out
}

// TestWaiting submits jobs and waits for them, as a script in CI does.
func TestWaiting(t *testing.T) {
	s := startShell(t)
	s.want(0, "complete", "job", "run", "-wait-end", s.job("well", "", "sleep 1", ""))
	s.want(7, "failed (exit 7)", "job", "run", "-wait-end", s.job("ill", "", "sleep 1; exit 7", ""))
	s.want(7, "", "job", "wait", "-q", "well", "ill")
	s.want(0, "complete", "job", "wait", "well")
	s.want(1, "no job has an id", "job", "wait", "nobody")

	long := s.job("long", "", "sleep 600", "")
	s.want(0, "", "job", "run", "-detach", long)
	s.want(0, "runs: 1 allocation", "job", "wait", "-for", "running", "-timeout", "20s", "long")
	s.want(124, "The time is up", "job", "wait", "-timeout", "300ms", "long")
	watched := make(chan string)
	cmd := s.command("job", "status", "-watch", "long")
	go func() {
		out, _ := cmd.CombinedOutput()
		watched <- string(out)
	}()
	time.Sleep(time.Second)
	s.want(0, "", "job", "stop", "long")
	s.want(3, "stopped", "job", "wait", "long")
	select {
	case out := <-watched:
		if !strings.Contains(out, "running") || !strings.Contains(out, "stopped") {
			t.Errorf("job status -watch: %q", out)
		}
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("job status -watch does not end with its job")
	}

	s.want(1, "failed (exit 1)", "job", "run", "-wait-end", s.job("sweep", "array {\n    count = 6\n  }", "[ $NOMAD_ALLOC_INDEX != 4 ]", ""))
	out := s.want(0, "", "job", "status", "sweep")
	for _, line := range []string{"complete         5      0-3,5\n", "failed (exit 1)  1      4\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
	out = s.want(0, "Ended", "job", "status", "-o", "wide")
	for _, state := range []string{"failed (exit 7)", "complete", "stopped", "anonymous"} {
		if !strings.Contains(out, state) {
			t.Errorf("no %q in\n%s", state, out)
		}
	}
	end(t, s.proc)
}
