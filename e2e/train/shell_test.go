//go:build e2e

package train

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/muster-sched/muster/e2e/harness"
)

// guarded is an agent of one machine that demands tokens.
type guarded struct {
	t         *testing.T
	dir, addr string
	token     string
	api       *harness.API
}

func newGuarded(t *testing.T) *guarded {
	dir, err := os.MkdirTemp("/var/tmp", "muster-shell-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var ports [3]int
	var held [3]net.Listener
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // a second time when all went well
		held[i], ports[i] = l, l.Addr().(*net.TCPAddr).Port
	}
	for _, l := range held {
		l.Close()
	}
	conf := filepath.Join(dir, "agent.hcl")
	text := fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\nacl {\n  enabled = true\n}\n", ports[0], ports[1], ports[2])
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := &guarded{t: t, dir: dir, addr: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}
	agent := harness.Start(t, nil, "guarded", nil, "agent", "-dev", "-config", conf)
	t.Cleanup(func() { // an agent of -dev ends its tasks and their supervisor when it is asked to stop
		agent.Signal(syscall.SIGTERM)
		if err := agent.WaitExit(30 * time.Second); err != nil {
			t.Error(err)
		}
	})
	g.api = harness.NewAPI(t, nil, "", g.addr)
	g.api.Bootstrap(t, 60*time.Second)
	g.token = g.api.Token
	harness.Eventually(t, 60*time.Second, "a node", func() (bool, string) {
		var ns []struct{ Status string }
		err := g.api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(err, ns)
	})
	return g
}

func (g *guarded) command(args ...string) *exec.Cmd {
	cmd := exec.Command(harness.Bin(g.t), args...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+g.addr, "MUSTER_TOKEN="+g.token, "TERM=xterm", "PS1=> ")
	return cmd
}

// TestTasksNeedNoToken lets a gang enter its own members while access control is on, through the socket of its agent, and
// tries to do more than that.
func TestTasksNeedNoToken(t *testing.T) {
	g := newGuarded(t)
	if out, err := g.command("run", "-detach", "-name", "other", "--", "/bin/sleep", "300").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var as []harness.Alloc
	harness.Eventually(t, 30*time.Second, "the other job runs", func() (bool, string) {
		var err error
		as, err = g.api.Allocs("other")
		return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(err, as)
	})
	bin := filepath.Join(g.dir, "muster") // tasks have a /tmp of their own, where the program may be
	if out, err := exec.Command("cp", harness.Bin(t), bin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := `[ $MUSTER_NODE_RANK = 0 ] || exec BIN rsh -wait
echo token=[$MUSTER_TOKEN$NOMAD_TOKEN]
BIN rsh 1 'echo entered $MUSTER_NODE_RANK; exit 5'; echo code=$?
export MUSTER_ADDR=$MUSTER_UNIX_ADDR
BIN job exec -rank 1 gang echo own || true
for try in "job status" "job stop other" "node status" "alloc exec OTHER echo stolen" "acl token list" "operator raft list-peers"; do
  BIN $try >out 2>&1 && echo "ALLOWED $try" || { grep -qi "denied" out && echo "denied $try" || { echo "OTHERWISE $try"; cat out; }; }
done
true`
	script = strings.NewReplacer("BIN", bin, "OTHER", as[0].ID).Replace(script)
	text := fmt.Sprintf(`
job "gang" {
  type = "batch"
  group "g" {
    count  = 2
    gang   = { timeout = "1m" }
    launch = { mode = "node", ranks = 1 }
    task "main" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 20
        memory = 100
      }
    }
  }
}
`, strings.ReplaceAll(script, "${", "$${"))
	if err := os.WriteFile(filepath.Join(g.dir, "gang.hcl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := g.command("job", "run", "-detach", "gang.hcl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, text)
	}
	harness.Eventually(t, 90*time.Second, "the gang ends well", func() (bool, string) {
		as, err := g.api.Allocs("gang")
		out, _ := g.command("job", "logs", "-all", "-stdout", "gang").CombinedOutput()
		errs, _ := g.command("job", "logs", "-all", "-stderr", "gang").CombinedOutput()
		return err == nil && harness.Count(as, "complete") == 2, fmt.Sprint(err, as, string(out), string(errs))
	})
	b, err := g.command("job", "logs", "-all", "-stdout", "gang").CombinedOutput()
	out := string(b)
	if err != nil || !strings.Contains(out, "token=[]") || !strings.Contains(out, "entered 1\n") || !strings.Contains(out, "code=5") {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(out, "ALLOWED") || strings.Contains(out, "| stolen") || strings.Count(out, "denied ") != 6 {
		t.Errorf("a task may do more than enter its own gang:\n%s", out)
	}
}

// TestRunIsWatched runs commands and does to muster run what happens to commands that people start: signals, once and twice, a
// terminal that goes, nohup, and a place that does not exist.
func TestRunIsWatched(t *testing.T) {
	g := newGuarded(t)
	ends := func(name string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "the end of job "+name, func() (bool, string) {
			as, err := g.api.Allocs(name)
			return err == nil && harness.Count(as, "running")+harness.Count(as, "pending") == 0, fmt.Sprint(err, as)
		})
	}
	// Where these tests run under nohup, children would ignore SIGHUP too; what is caught here has its default there.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	const polite = `trap "echo told; exit 3" TERM; echo begun; while :; do sleep 0.1; done`
	const stubborn = `trap "" TERM; echo begun; while :; do sleep 0.1; done`
	for _, c := range []struct {
		name, script string
		nohup        bool
		signals      []syscall.Signal
		code         int
		want         string
	}{
		{"interrupted", polite, false, []syscall.Signal{syscall.SIGINT}, 130, "told"},
		{"terminated", stubborn, false, []syscall.Signal{syscall.SIGTERM}, 143, "Canceling job terminated"},
		{"quit", polite, false, []syscall.Signal{syscall.SIGQUIT}, 131, "told"},
		{"hung-up", polite, false, []syscall.Signal{syscall.SIGHUP}, 129, "begun"},
		{"twice", stubborn, false, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130, "press Ctrl-C again"},
		{"nohup", `echo begun; sleep 3; echo done; exit 4`, true, []syscall.Signal{syscall.SIGHUP}, 4, "done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := g.command("run", "-name", c.name, "--", "/bin/sh", "-c", c.script)
			if c.nohup {
				cmd.Path, cmd.Args = "/usr/bin/nohup", append([]string{"nohup"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
			}
			var out lockedText
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() })
			harness.Eventually(t, 30*time.Second, "its output", func() (bool, string) { return strings.Contains(out.text(), "begun"), out.text() })
			for i, s := range c.signals {
				if i > 0 {
					harness.Eventually(t, 10*time.Second, "what it says of the first", func() (bool, string) { return strings.Contains(out.text(), "Canceling"), out.text() })
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			sent := time.Now()
			err := cmd.Wait()
			if last := c.signals[len(c.signals)-1]; last == syscall.SIGTERM && time.Since(sent) > 4*time.Second { // the task takes its 5 s
				t.Errorf("the command took %s to end", time.Since(sent))
			}
			var ee *exec.ExitError
			if !errors.As(err, &ee) || ee.ExitCode() != c.code || !strings.Contains(out.text(), c.want) || strings.Contains(out.text(), "goroutine") {
				t.Errorf("%v, want exit code %d and %q:\n%s", err, c.code, c.want, out.text())
			}
			ends(c.name)
		})
	}
	t.Run("waits", func(t *testing.T) {
		cmd := g.command("run", "-wait", "-name", "waits", "-gpus", "B200:1", "--", "/bin/true")
		var out lockedText
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		harness.Eventually(t, 30*time.Second, "why it waits", func() (bool, string) {
			return strings.Contains(out.text(), "Waiting for a place [CONSTRAINT]") && strings.Contains(out.text(), "never    "), out.text()
		})
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 143 {
			t.Errorf("%v\n%s", err, out.text())
		}
		ends("waits")
		if out, err := g.command("job", "status", "waits").CombinedOutput(); err != nil || !strings.Contains(string(out), "= stopped") {
			t.Errorf("a job that was canceled while it waited: %v\n%s", err, out)
		}
	})
	t.Run("several nodes are different ones", func(t *testing.T) {
		out, err := g.command("run", "-name", "places", "-nodes", "2", "-output", "--", "true").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "distinct_hosts") {
			t.Errorf("two nodes may be one: %v\n%s", err, out)
		}
	})
}

// lockedText keeps what a process writes.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestShell opens a shell with a real terminal: its size, Ctrl-C, its exit code, and its end when the caller is killed.
func TestShell(t *testing.T) {
	g := newGuarded(t)
	start := func(name string) (*exec.Cmd, *os.File, func(want string)) {
		cmd := g.command("shell", "-name", name, "--", "/bin/sh", "-i")
		tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 101})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tty.Close(); cmd.Process.Kill() })
		got := make(chan string, 1024)
		go func() {
			buf := make([]byte, 4096)
			for {
				n, err := tty.Read(buf)
				if n > 0 {
					got <- string(buf[:n])
				}
				if err != nil {
					close(got)
					return
				}
			}
		}()
		seen := ""
		return cmd, tty, func(want string) {
			t.Helper()
			for deadline := time.After(30 * time.Second); !strings.Contains(seen, want); {
				select {
				case s, ok := <-got:
					if !ok {
						t.Fatalf("the terminal ended before %q:\n%s", want, seen)
					}
					seen += s
				case <-deadline:
					t.Fatalf("no %q within 30 s:\n%s", want, seen)
				}
			}
			seen = seen[strings.Index(seen, want)+len(want):]
		}
	}
	say := func(tty *os.File, s string) {
		if _, err := tty.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	cmd, tty, want := start("one")
	say(tty, "echo begun-$((40+2)); stty size\r")
	want("begun-42")
	want("33 101")
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 90}); err != nil {
		t.Fatal(err)
	}
	say(tty, "until stty size | grep '4[0] 90'; do sleep 0.05; done; echo job $MUSTER_JOB_ID\r")
	want("40 90")
	want("job one")
	say(tty, "sh -c 'echo asleep-$((1+1)); exec sleep 1000'\r")
	want("asleep-2")
	say(tty, "\x03")
	say(tty, "echo alive-$((1+1))\r")
	want("alive-2")
	say(tty, "exit 7\r")
	var ee *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ee) || ee.ExitCode() != 7 {
		t.Errorf("the shell's end: %v, want exit code 7", err)
	}

	cmd, tty, want = start("two")
	say(tty, "echo begun-$((40+3)); sleep 1000\r")
	want("begun-43")
	if err := cmd.Process.Kill(); err != nil { // it cannot say that it goes
		t.Fatal(err)
	}
	took := harness.Eventually(t, 20*time.Second, "the job ends after its caller was killed", func() (bool, string) {
		as, err := g.api.Allocs("two")
		return err == nil && harness.Count(as, "running") == 0 && len(as) > 0, fmt.Sprint(err, as)
	})
	t.Logf("the job of a killed shell ended after %s", took.Round(100*time.Millisecond))
}
