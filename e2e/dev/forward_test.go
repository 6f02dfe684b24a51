//go:build e2e

package dev

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestPortForward reaches a server inside a job from here, as a user does with a notebook.
func TestPortForward(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("does not apply here: no python3")
	}
	s := startShell(t)
	web := s.file("web.hcl", `job "web" {
  group "g" {
    network {
      port "http" {}
      port "quiet" {}
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "cd $NOMAD_TASK_DIR && echo hello > f && exec python3 -m http.server $NOMAD_PORT_http --bind 127.0.0.1"]
      }
      resources {
        cpu    = 20
        memory = 50
      }
    }
  }
}
`)
	s.want(0, "", "job", "run", web)
	id := strings.TrimSpace(s.want(0, "", "job", "allocs", "-q", "web"))
	first := forwardTo(s, id, "0:http")
	harness.Eventually(t, 20*time.Second, "the server in the job", func() (bool, string) {
		resp, err := http.Get("http://" + first.addrs[0] + "/f")
		if err != nil {
			return false, err.Error()
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	get(t, first.addrs[0], "hello\n")
	get(t, first.addrs[0], "hello\n")
	first.end(os.Interrupt, 0, "")
	if _, err := http.Get("http://" + first.addrs[0] + "/f"); err == nil {
		t.Error("the port here answers after Ctrl-C")
	}

	second := forwardTo(s, "-job", "web", ":http", ":quiet")
	get(t, second.addrs[0], "hello\n")
	if _, err := http.Get("http://" + second.addrs[1] + "/f"); err == nil {
		t.Error("a port at which nothing listens answers")
	}
	s.want(0, "", "job", "stop", "web")
	second.end(nil, 1, "has ended")
	if said := second.err.String(); !strings.Contains(said, "nothing listens on port") {
		t.Errorf("the refused connection was not explained:\n%s", said)
	}

	s.want(1, "has ended", "alloc", "port-forward", id, "0:http")
	s.want(0, "", "job", "run", web)
	s.want(1, `has no port "nope": it has http, quiet`, "alloc", "port-forward", "-job", "web", "0:nope")
	agent := strings.TrimPrefix(s.addr, "http://127.0.0.1:")
	s.want(1, "has not reserved port "+agent, "alloc", "port-forward", "-job", "web", "0:"+agent)
}

func get(t *testing.T, addr, want string) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != want || err != nil {
		t.Errorf("the forward answered %q (%v), want %q", b, err, want)
	}
}

// forwarding is a running muster alloc port-forward.
type forwarding struct {
	s     *shell
	cmd   *exec.Cmd
	out   *bufio.Scanner
	err   strings.Builder
	addrs []string
}

// forwardTo starts a forward, and waits until it listens for each argument with a colon.
func forwardTo(s *shell, args ...string) *forwarding {
	s.t.Helper()
	f := &forwarding{s: s, cmd: s.command(append([]string{"alloc", "port-forward"}, args...)...)}
	f.cmd.Stderr = &f.err
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	f.out = bufio.NewScanner(out)
	if err := f.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { f.cmd.Process.Kill() })
	for _, arg := range args {
		if !strings.Contains(arg, ":") {
			continue
		}
		var addr, port string
		if !f.out.Scan() {
			s.t.Fatalf("nothing listens for %s: %s", arg, f.err.String())
		}
		if _, err := fmt.Sscanf(f.out.Text(), "Forwarding %s to port %s of allocation", &addr, &port); err != nil || !strings.HasPrefix(addr, "127.0.0.1:") {
			s.t.Fatalf("port-forward said %q", f.out.Text())
		}
		f.addrs = append(f.addrs, addr)
	}
	return f
}

// end waits for the end of the forward, after a signal if there is one.
func (f *forwarding) end(sig os.Signal, code int, text string) {
	f.s.t.Helper()
	if sig != nil {
		f.cmd.Process.Signal(sig)
	}
	stop := time.AfterFunc(20*time.Second, func() { f.cmd.Process.Kill() })
	defer stop.Stop()
	for f.out.Scan() {
	}
	f.cmd.Wait()
	if got := f.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(f.err.String(), text) {
		f.s.t.Errorf("the forward ended with %d, want %d and %q:\n%s", got, code, text, f.err.String())
	}
}
