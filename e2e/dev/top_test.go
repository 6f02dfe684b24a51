//go:build e2e

package dev

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/e2e/harness"
)

// terminal is a program on a pseudo terminal, with all that it has written.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File
	before unix.Termios
	mu     sync.Mutex
	out    strings.Builder
}

func onTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: master, slave: slave, cmd: exec.Command(harness.Bin(t), args...)}
	if err := pty.Setsize(slave, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	term.before = term.modes()
	term.cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=", "LANG=C.UTF-8", "LC_ALL="), env...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.out.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		_ = slave.Close()
		_ = master.Close()
	})
	return term
}

func (term *terminal) modes() unix.Termios {
	m, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *m
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.out.String()
}

// press sends keys and waits until the program writes all of want in answer.
func (term *terminal) press(keys string, want ...string) {
	term.t.Helper()
	from := len(term.text())
	if _, err := io.WriteString(term.master, keys); err != nil {
		term.t.Fatal(err)
	}
	harness.Eventually(term.t, 20*time.Second, fmt.Sprintf("%q after %q", want, keys), func() (bool, string) {
		got := term.text()[from:]
		for _, w := range want {
			if !strings.Contains(got, w) {
				return false, got
			}
		}
		return true, ""
	})
}

// left checks that the program has ended and that the terminal is as it was before.
func (term *terminal) left(what string) {
	term.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- term.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			term.t.Errorf("after %s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		term.t.Fatalf("after %s it goes on", what)
	}
	if now := term.modes(); now != term.before {
		term.t.Errorf("after %s the terminal has the modes %+v, before it had %+v", what, now, term.before)
	}
	harness.Eventually(term.t, 5*time.Second, "the end of the output", func() (bool, string) {
		out := term.text()
		return strings.LastIndex(out, "\x1b[?1049l") > strings.LastIndex(out, "\x1b[?1049h") && strings.LastIndex(out, "\x1b[?25h") > strings.LastIndex(out, "\x1b[?25l"), out
	})
}

// TestTopOnATerminal uses muster top as a person does, on a real agent: tabs, filter, details, logs and why, an agent that
// goes away, and each way to leave it.
func TestTopOnATerminal(t *testing.T) {
	dir, port := t.TempDir(), harness.FreePort(t)
	conf := filepath.Join(dir, "ports.hcl")
	text := fmt.Sprintf("name = \"gpu-01\"\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("http://127.0.0.1:%d", port)
	agent := harness.Start(t, nil, "dev", nil, "agent", "-dev", "-dev-gpus=8xH100", "-config", conf)
	api := harness.NewAPI(t, nil, "", addr)
	api.Ready(t, 1) // without a node, run would guess the disk of one
	for _, job := range [][]string{
		{"run", "-detach", "-name", "llama-sft", "-gpus", "H100:4", "-mem", "128", "--", "/bin/sh", "-c", "echo step one; exec sleep 1000"},
		{"run", "-detach", "-name", "too-wide", "-gpus", "H100:8", "-mem", "128", "--", "/bin/sleep", "1000"},
	} {
		harness.Eventually(t, 20*time.Second, "job "+job[3], func() (bool, string) {
			cmd := exec.Command(harness.Bin(t), job...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "MUSTER_ADDR="+addr)
			out, err := cmd.CombinedOutput()
			return err == nil, string(out)
		})
	}
	harness.Eventually(t, 20*time.Second, "a running allocation", func() (bool, string) {
		as, err := api.Allocs("llama-sft")
		return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
	})

	env := []string{"MUSTER_ADDR=" + addr}
	term := onTerminal(t, env, "top", "-every", "300ms")
	term.press("", "\x1b[?1049h", "of 8 GPUs held", "gpu-01", "H100", "llama-sft", "free")
	term.press("2", "STATUS", "running")
	term.press("4", "too-wide", "REASON")
	term.press("w", "muster job why -namespace default too-wide", "position 1 of 1")
	term.press("\x1b", "Queue")
	term.press("1/free\r", "/free", "4 of 8")
	term.press("\x1b[B", "> ") // down
	term.press("\x1b", "llama-sft")
	term.press("?", "any key goes back")
	term.press("x", "quit")
	term.press("2l", "muster job logs", "step one")
	term.press("q", "STATUS")
	if !strings.Contains(term.text(), "\x1b[36m") {
		t.Error("the bar is not cyan on a terminal with colours")
	}
	term.press("q")
	term.left("q")

	plain := onTerminal(t, append(env, "NO_COLOR=1"), "top", "-every", "300ms", "-namespace", "nothing")
	plain.press("", "namespace nothing", " of 8 GPUs held", "others", "free")
	plain.press("\x03")
	plain.left("Ctrl-C")
	if got := plain.text(); strings.Contains(got, "[36m") {
		t.Errorf("there are colours with NO_COLOR: %q", got)
	}

	dumb := onTerminal(t, append(env, "TERM=dumb"), "top")
	dumb.press("", "JOB", "llama-sft")
	if err := dumb.cmd.Wait(); err != nil || strings.Contains(dumb.text(), "\x1b") {
		t.Errorf("on a dumb terminal: %v, %q", err, dumb.text())
	}

	term = onTerminal(t, env, "top", "-every", "300ms")
	term.press("", "llama-sft")
	if err := term.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	term.left("SIGTERM")

	term = onTerminal(t, env, "top", "-every", "300ms")
	term.press("", "llama-sft")
	end(t, agent)
	term.press("", "next attempt in", "no agent answers")
	term.press("q")
	term.left("q without an agent")
}
