//go:build e2e

package dev

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// shell is a dev agent and the command line of its user.
type shell struct {
	t    *testing.T
	dir  string
	addr string
	proc *harness.Proc
}

func startShell(t *testing.T, flags ...string) *shell {
	t.Helper()
	s := &shell{t: t, dir: t.TempDir()}
	port := harness.FreePort(t)
	s.addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	conf := s.file("ports.hcl", fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t)))
	s.proc = harness.Start(t, nil, "dev", nil, append([]string{"agent", "-dev", "-config", conf}, flags...)...)
	t.Cleanup(func() { // a killed agent's supervisor ends its tasks, but some time after the test
		s.proc.Signal(syscall.SIGINT)
		harness.Eventually(t, 20*time.Second, "the agent to end", func() (bool, string) {
			over, _ := s.proc.Exited()
			return over, ""
		})
	})
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
	s.want(143, "uses more than the 300 MiB of ephemeral_disk that its group asks for (-disk 100G asks for so much)",
		"run", "--", "sh", "-c", "head -c 400M /dev/zero >local/fill; sleep 60")
	s.want(0, "", "run", "-disk", "1G", "--", "sh", "-c", "head -c 400M /dev/zero >local/fill; sleep 4") // longer than the agent takes to look
	s.want(0, "", "run", "--", "sh", "-c", `test -w "$HOME"`)                                            // where programs keep their caches
	s.want(7, "", "job", "wait", "-q", "well", "ill")
	s.want(0, "complete", "job", "wait", "well")
	s.want(1, "no job has an id", "job", "wait", "nobody")

	long := s.job("long", "", "sleep 600", "")
	s.want(0, "", "job", "run", "-detach", long)
	s.want(0, "runs: 1 allocation", "job", "wait", "-for", "running", "-timeout", "20s", "long")
	s.want(124, "The time is up", "job", "wait", "-timeout", "300ms", "long")
	cmd := s.command("job", "status", "-watch", "long")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(pipe)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "running") {
		t.Errorf("job status -watch: %q %v", line, err)
	}
	s.want(0, "", "job", "stop", "long")
	s.want(3, "stopped", "job", "wait", "long")
	rest, _ := io.ReadAll(lines)
	if err := cmd.Wait(); err != nil || !strings.Contains(string(rest), "stopped") {
		t.Errorf("job status -watch ends with %v after %q", err, rest)
	}
	timer.Stop()

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

// TestRestartAndStop looks at what a task wrote, restarts it, moves it, and stops jobs by selection.
func TestRestartAndStop(t *testing.T) {
	s := startShell(t)
	web := s.file("web.hcl", `job "web" {
  group "g" {
    count = 3
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "echo out; echo Traceback >&2; exec sleep 600"]
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
`)
	s.want(1, "web.hcl", "fmt", "-check", web)
	s.want(0, "web.hcl", "fmt", web)
	s.want(0, "", "fmt", "-check", web)
	s.want(0, "", "job", "run", web)
	harness.Eventually(t, 20*time.Second, "both streams of the task", func() (bool, string) {
		out, errOut, _ := s.run("job", "logs", "web")
		return out == "out\n" && errOut == "Traceback\n", out + errOut
	})
	harness.Eventually(t, 20*time.Second, "output that is older than the 100 ms which a time in a log stands for", func() (bool, string) {
		out, errOut, _ := s.run("job", "logs", "-index", "2", "-stdout", "-timestamps", "web")
		stamp, _, _ := strings.Cut(out, " ")
		at, err := time.Parse(time.RFC3339, stamp)
		return err == nil && time.Since(at) > 200*time.Millisecond, out + errOut
	})
	restart := time.Now()
	s.want(0, "3 of 3 allocations restarted", "job", "restart", "-batch-size", "50%", "web")
	harness.Eventually(t, 20*time.Second, "the output of two runs", func() (bool, string) {
		out, errOut, _ := s.run("job", "logs", "-index", "2", "web")
		return out == "out\nout\n" && strings.Count(errOut, "Traceback") == 2, out + errOut
	})
	since := restart.UTC().Format(time.RFC3339Nano)
	if out := s.want(0, "", "job", "logs", "-index", "2", "-stdout", "-since", since, "web"); out != "out\n" {
		t.Errorf("-since the restart: %q", out)
	}
	lines := strings.Split(s.want(0, "", "job", "logs", "-index", "2", "-stdout", "-timestamps", "web"), "\n")
	for i, l := range lines[:len(lines)-1] {
		stamp, text, _ := strings.Cut(l, " ")
		at, err := time.Parse(time.RFC3339, stamp)
		if err != nil || text != "out" || at.Before(restart) != (i == 0) || time.Since(at) > time.Minute {
			t.Errorf("line %d with its time: %q %v; the restart was at %s", i, l, err, since)
		}
	}
	s.want(1, `since="noon" is no time: want`, "job", "logs", "-since", "noon", "web")
	before := s.want(0, "", "job", "allocs", "-q", "web")
	s.want(0, "1 of 1 allocations restarted", "job", "restart", "-reschedule", "-index", "0", "web")
	if after := s.want(0, "", "job", "allocs", "-q", "web"); strings.Count(after, "\n") != strings.Count(before, "\n")+1 {
		t.Errorf("-reschedule placed nothing anew: %s%s", before, after)
	}

	for _, name := range []string{"sweep-1", "sweep-2"} {
		s.want(0, "", "job", "run", "-detach", s.job(name, "", "sleep 600", ""))
		s.want(0, "", "job", "wait", "-for", "running", "-timeout", "20s", name)
	}
	s.want(1, "Stop 2 jobs of anonymous in namespace default, with 2 live allocations and 0 GPUs?", "job", "stop", "-name", "sweep-*")
	s.want(0, "2 jobs stopped", "job", "stop", "-name", "sweep-*", "-yes")
	s.want(3, "stopped", "job", "wait", "sweep-1", "sweep-2")
	s.want(0, "No job matches", "job", "stop", "-state", "pending", "-yes")
	s.want(0, "1 job stopped", "job", "stop", "-all", "-yes")
	end(t, s.proc)
}

// TestCopy copies out of an allocation and into it, and back: what arrives is what was sent, and names that lead elsewhere
// are left out.
func TestCopy(t *testing.T) {
	s := startShell(t)
	s.want(0, "", "job", "run", "-detach", s.job("work", "", "cd $NOMAD_ALLOC_DIR/data; mkdir -p d/e; echo inner > d/e/f; touch d/run; chmod 755 d/run; ln -s /etc/passwd d/link; echo done > ready; sleep 600", ""))
	s.want(0, "", "job", "wait", "-for", "running", "-timeout", "20s", "work")
	harness.Eventually(t, 20*time.Second, "the task has written its files", func() (bool, string) {
		out, errOut, code := s.run("alloc", "cp", "-job", "work:alloc/data/ready", s.dir+"/ready")
		return code == 0, out + errOut
	})
	alloc := strings.TrimSpace(s.want(0, "", "job", "allocs", "-q", "work"))
	local := func(p string) string { return filepath.Join(s.dir, p) }
	has := func(p, text string, mode os.FileMode) {
		t.Helper()
		b, err := os.ReadFile(local(p))
		st, err2 := os.Lstat(local(p))
		if err != nil || err2 != nil || string(b) != text || st.Mode() != mode {
			t.Errorf("%s: %.40q, %v, %v %v; want %.40q with mode %v", p, b, st, err, err2, text, mode)
		}
	}
	if _, errOut, code := s.run("alloc", "cp", alloc+":alloc/data/d", local("out")); code != 0 || !strings.Contains(errOut, "link is left out") || !strings.Contains(errOut, "2 files, 6 B") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	has("out/e/f", "inner\n", 0o644)
	has("out/run", "", 0o755)
	if _, err := os.Lstat(local("out/link")); err == nil {
		t.Error("a link of the allocation was copied")
	}
	big := strings.Repeat("0123456789abcdef", 3<<16)
	for p, text := range map[string]string{"src/sub/big": big, "src/a b": "x"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(local(p)), 0o755), os.WriteFile(local(p), []byte(text), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", local("src/l")); err != nil {
		t.Fatal(err)
	}
	s.want(0, "", "alloc", "cp", local("src"), alloc+":alloc/data")       // into it
	s.want(0, "", "alloc", "cp", local("src"), alloc+":alloc/data/other") // as it
	s.want(0, "", "alloc", "cp", local("src/sub/big"), alloc+":alloc/data/src/a b")
	s.want(0, "", "alloc", "cp", alloc+":alloc/data", local("back"))
	has("back/src/sub/big", big, 0o644)
	has("back/src/a b", big, 0o644) // replaced
	has("back/other/a b", "x", 0o644)
	for want, args := range map[string][]string{
		"cannot create":                {local("src/sub/big"), alloc + ":/proc/none/x"},
		"ended with 1":                 {local("src"), alloc + ":/proc/none"},
		"is no directory":              {local("ready"), alloc + ":alloc/data/no/"},
		"must be ALLOCATION:PATH":      {local("ready"), local("x")},
		"want a path below alloc/":     {local("ready"), alloc + ":elsewhere/x"},
		"no file \"/alloc/data/none\"": {alloc + ":alloc/data/none", local("x")},
		"no such file":                 {local("none"), alloc + ":alloc/data"},
		"leads out of its directory":   {alloc + ":alloc/data/d/link", local("x")},
	} {
		if out, errOut, code := s.run(append([]string{"alloc", "cp"}, args...)...); code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("%q: exit code %d: %s%s; want 1 and %q", args, code, out, errOut, want)
		}
	}
	s.want(0, "", "job", "stop", "-yes", "work")
	s.want(0, "", "alloc", "cp", alloc+":alloc/data/ready", local("after"))
	has("after", "done\n", 0o644)
	end(t, s.proc)
}
