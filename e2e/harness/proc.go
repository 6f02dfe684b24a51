package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/procfile"
)

// Bin returns the binary under test: MUSTER_BIN, or bin/muster above the test's folder.
func Bin(t testing.TB) string {
	t.Helper()
	if b := os.Getenv("MUSTER_BIN"); b != "" {
		return b
	}
	dir, _ := os.Getwd()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		p := filepath.Join(dir, "bin", "muster")
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Fatal("no binary: run `make build`, or set MUSTER_BIN")
	return ""
}

// Proc is one running agent.
type Proc struct {
	Name string
	Log  *Log
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Log keeps what a process printed.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
	tee io.Writer
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tee != nil {
		_, _ = l.tee.Write(b)
	}
	return l.buf.Write(b)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	lines := strings.Split(strings.TrimRight(l.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Start runs the binary, on a host (nil: this machine's own network). The process is killed with -9 when the test ends.
func Start(t testing.TB, h *Host, name string, env []string, args ...string) *Proc {
	t.Helper()
	return StartProgram(t, h, Bin(t), name, env, args...)
}

// StartProgram is Start with another binary.
func StartProgram(t testing.TB, h *Host, bin, name string, env []string, args ...string) *Proc {
	t.Helper()
	full := append([]string{bin}, args...)
	if h != nil {
		// nsenter executes the program in its place, so the process id is the agent's own.
		full = append([]string{"nsenter", "--net=/var/run/netns/" + h.ns}, full...)
	}
	p := &Proc{Name: name, Log: &Log{}, done: make(chan struct{})}
	if dir := os.Getenv("MUSTER_E2E_LOGS"); dir != "" {
		if f, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
			p.Log.tee = f
			t.Cleanup(func() { f.Close() })
		}
	}
	p.cmd = exec.Command(full[0], full[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.Log, p.Log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 2 * time.Second // tasks may have inherited nothing of ours, but do not wait for ever
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill9()
		if t.Failed() {
			t.Logf("---- last lines of %s\n%s", name, p.Log.Tail(60))
		}
	})
	return p
}

// Pid returns the agent's process id.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Kill9 kills the process and waits for its end.
func (p *Proc) Kill9() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal.
func (p *Proc) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Exited reports whether the process has ended, and how.
func (p *Proc) Exited() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// WaitExit waits for the process to end by itself.
func (p *Proc) WaitExit(d time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(d):
		return fmt.Errorf("%s still runs after %s", p.Name, d)
	}
}

// Task is a process that belongs to an allocation, found by its environment.
type Task struct {
	Pid     int
	AllocID string
	Task    string
	Start   uint64 // in clock ticks since the boot
}

// Tasks lists the live processes whose NOMAD_ALLOC_DIR lies below dir, leaders of their allocation's task only (not
// their children).
func Tasks(dir string) []Task {
	var out []Task
	procs, _ := filepath.Glob("/proc/[0-9]*/environ")
	inside := map[int]Task{}
	for _, f := range procs {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(b, []byte("NOMAD_ALLOC_DIR="+dir)) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		st, live := statOf(pid)
		if !live {
			continue
		}
		tk := Task{Pid: pid, Start: st.Start}
		for _, kv := range strings.Split(string(b), "\x00") {
			if v, ok := strings.CutPrefix(kv, "NOMAD_ALLOC_ID="); ok {
				tk.AllocID = v
			}
			if v, ok := strings.CutPrefix(kv, "NOMAD_TASK_NAME="); ok {
				tk.Task = v
			}
		}
		inside[pid] = tk
	}
	for pid, tk := range inside {
		st, live := statOf(pid)
		if !live {
			continue
		}
		if parent, ok := inside[st.Parent]; ok && parent.AllocID == tk.AllocID && parent.Task == tk.Task {
			continue
		}
		out = append(out, tk)
	}
	return out
}

// statOf looks at a process, and says whether it is alive. One that is reaped during the read has parent 0, which would make
// it look like an orphan.
func statOf(pid int) (st procfile.Stat, live bool) {
	st, err := procfile.StatOf(pid)
	return st, err == nil && st.State != 'Z' && st.Parent != 0
}

// KillBelow ends every process that has dir in its environment or command line: supervisors and tasks of agents that
// were killed; and launchers, which have neither, but hold a file below it: without a supervisor they wait for a reader of
// their task's last words. It is registered as a cleanup by tests that run tasks.
func KillBelow(t testing.TB, dir string) {
	t.Helper()
	for range 50 {
		n := 0
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			pid, _ := strconv.Atoi(filepath.Base(p))
			if pid == os.Getpid() {
				continue
			}
			cmd, _ := os.ReadFile(p + "/cmdline")
			env, _ := os.ReadFile(p + "/environ")
			if len(cmd) > 0 && (bytes.Contains(cmd, []byte(dir)) || bytes.Contains(env, []byte(dir)) || bytes.HasPrefix(cmd, []byte("muster-launch\x00")) && holds(p, dir)) && !bytes.Contains(cmd, []byte(".test\x00")) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				n++
			}
		}
		if n == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	removeGroups(dir)
	// What tasks or secrets directories left behind, the newest first.
	for _, m := range Mounts(dir) {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
}

// holds reports whether the process with that directory of /proc has a file below dir open.
func holds(proc, dir string) bool {
	fds, _ := filepath.Glob(proc + "/fd/*")
	return slices.ContainsFunc(fds, func(fd string) bool {
		to, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(to, dir+"/")
	})
}

// Mounts returns the mount points below a directory, the newest first.
func Mounts(dir string) []string {
	var out []string
	b, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir) {
			out = append(out, f[1])
		}
	}
	slices.Reverse(out)
	return out
}

// removeGroups removes the control groups of supervisors that were killed.
func removeGroups(dir string) {
	leaves := Groups(dir)
	for _, g := range leaves {
		_ = os.Remove(g)
	}
	for _, s := range scopes(dir) {
		_ = os.Remove(s)
	}
}

// Groups returns the control groups of tasks whose supervisors work below a directory.
func Groups(dir string) []string {
	var out []string
	for _, scope := range scopes(dir) {
		leaves, _ := os.ReadDir(scope)
		for _, l := range leaves {
			if l.IsDir() {
				out = append(out, filepath.Join(scope, l.Name()))
			}
		}
	}
	return out
}

// scopes returns the parents of those groups: each supervisor has one in every hierarchy, named after its directory.
func scopes(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() != "supervisor" {
			return nil
		}
		if r, err := filepath.EvalSymlinks(p); err == nil {
			p = r
		}
		sum := sha256.Sum256([]byte(p))
		for _, root := range []string{"/sys/fs/cgroup/*/muster/", "/sys/fs/cgroup/muster/"} {
			found, _ := filepath.Glob(root + hex.EncodeToString(sum[:6]))
			out = append(out, found...)
		}
		return nil
	})
	return out
}
