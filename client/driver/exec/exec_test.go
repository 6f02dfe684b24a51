package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/rawexec"
	"github.com/muster-sched/muster/client/ranks"
	"github.com/muster-sched/muster/client/supervisor"
)

func TestMain(m *testing.M) {
	supervisor.MaybeRun()
	ranks.MaybeRun()
	if dir := os.Getenv("MUSTER_TEST_AGENT"); dir != "" {
		fmt.Fprintln(os.Stderr, agentMain(dir))
		os.Exit(1)
	}
	code := m.Run()
	if probeDir != "" {
		_ = os.RemoveAll(probeDir)
	}
	os.Exit(code)
}

// node is one agent's worth of directories with both process drivers.
type node struct {
	t    *testing.T
	dir  string
	sup  *supervisor.Client
	exec *Driver
	raw  *rawexec.Driver
	n    int
}

func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeBelow(t, "/var/tmp")
}

func newNodeBelow(t *testing.T, parent string) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	// Not t.TempDir, whose parents only root can enter: a task runs as nobody.
	dir, err := os.MkdirTemp(parent, "muster-exec-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, sup: sup, exec: New(Options{Supervisor: sup}), raw: rawexec.New(rawexec.Options{Supervisor: sup, Enabled: true})}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := sup.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	if f := n.exec.Fingerprint(t.Context()); !f.Detected {
		t.Skip("not run: " + f.Detail)
	}
	return n
}

// config makes a task that runs a shell script.
func (n *node) config(script string) *driver.TaskConfig {
	n.t.Helper()
	n.n++
	id := fmt.Sprintf("t%d", n.n)
	alloc := filepath.Join(n.dir, "alloc", id)
	task := filepath.Join(alloc, "main")
	for _, d := range []string{filepath.Join(alloc, "logs"), filepath.Join(task, "local"), filepath.Join(task, "secrets"), filepath.Join(task, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	os.Chmod(filepath.Join(task, "local"), 0o777)
	os.Chmod(filepath.Join(task, "tmp"), 0o777|os.ModeSticky)
	return &driver.TaskConfig{
		TaskID: id, AllocID: id, Name: "main",
		Env:    driver.Vars(map[string]string{"NOMAD_TASK_NAME": "main"}),
		Config: map[string]any{"command": "/bin/sh", "args": []any{"-c", script}},
		Dirs:   driver.Dirs{AllocDir: alloc, TaskDir: task, HideDir: n.dir, AllocRoot: alloc},
		Logs:   driver.LogConfig{StdoutBase: filepath.Join(alloc, "logs", "main.stdout"), StderrBase: filepath.Join(alloc, "logs", "main.stderr")},
	}
}

func (n *node) run(d driver.Driver, cfg *driver.TaskConfig) driver.Task {
	n.t.Helper()
	task, err := d.Start(n.t.Context(), cfg)
	if err != nil {
		n.t.Fatalf("start: %v", err)
	}
	return task
}

func (n *node) wait(task driver.Task) driver.ExitResult {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	r, err := task.Wait(ctx)
	if err != nil {
		n.t.Fatalf("wait: %v", err)
	}
	return r
}

func stdout(cfg *driver.TaskConfig) string {
	b, _ := os.ReadFile(cfg.Logs.StdoutBase + ".0")
	return string(b)
}

func stderr(cfg *driver.TaskConfig) string {
	b, _ := os.ReadFile(cfg.Logs.StderrBase + ".0")
	return string(b)
}

func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func TestIsolation(t *testing.T) {
	n := newNode(t)
	cfg := n.config(`
		echo user $(id -un)
		echo pid $$
		echo pids $(ls /proc | grep -c '^[0-9]')
		echo cwd $(pwd)
		echo nnp $(grep NoNewPrivs /proc/self/status | tr -dc 0-9)
		echo caps $(grep CapEff /proc/self/status | cut -f2)
		echo bnd $(grep CapBnd /proc/self/status | cut -f2)
		echo tmp $(ls -A /tmp | wc -l)
		echo x > /tmp/muster-exec-mark
		echo hidden $(ls ` + n.dir + ` | tr '\n' ' ')
		echo siblings $(ls ` + n.dir + `/alloc | tr '\n' ' ')
		echo data > written
		hostname changed 2>/dev/null || echo hostname refused
		ls /proc/self/fd | tr '\n' ' '
	`)
	n.config("true") // another allocation, which must not be seen
	task := n.run(n.exec, cfg)
	if r := n.wait(task); !r.Successful() {
		t.Fatalf("exit %+v, stderr %s", r, stderr(cfg))
	}
	out := stdout(cfg)
	for _, want := range []string{
		"user nobody\n", "pid 2\n", "cwd " + cfg.Dirs.TaskDir + "/local\n", "nnp 1\n", "caps 0000000000000000\n",
		"tmp 0\n", "hidden alloc\n", "siblings t1\n", "hostname refused\n", "0 1 2 3 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out, stderr(cfg))
	}
	if _, err := os.Stat(filepath.Join(cfg.Dirs.TaskDir, "tmp", "muster-exec-mark")); err != nil {
		t.Errorf("/tmp of the task is not its own directory: %v", err)
	}
	if _, err := os.Stat("/tmp/muster-exec-mark"); err == nil {
		t.Error("the task wrote to the host's /tmp")
	}
}

// A data directory below /tmp lies under the task's private /tmp: the allocation must be there all the same, the rest
// must not.
func TestDataDirectoryBelowTmp(t *testing.T) {
	n := newNodeBelow(t, "/tmp")
	cfg := n.config("pwd; ls " + n.dir + " | tr '\\n' ' '; echo x > mark; echo y > /tmp/muster-exec-mark; cat /tmp/muster-exec-mark")
	task := n.run(n.exec, cfg)
	if r := n.wait(task); !r.Successful() {
		t.Fatalf("exit %+v, stderr %s", r, stderr(cfg))
	}
	if out, want := stdout(cfg), cfg.Dirs.TaskDir+"/local\nalloc y\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if _, err := os.Stat(filepath.Join(cfg.Dirs.TaskDir, "local", "mark")); err != nil {
		t.Errorf("what the task wrote is not in its directory: %v", err)
	}
	if _, err := os.Stat("/tmp/muster-exec-mark"); err == nil {
		t.Error("the task wrote to the host's /tmp")
	}
}

func TestRootTaskHasFewCapabilities(t *testing.T) {
	n := newNode(t)
	cfg := n.config("grep -E 'Cap(Eff|Bnd)' /proc/self/status | cut -f2; mount -t tmpfs x /mnt 2>/dev/null || echo mount refused; kill -9 1; echo alive")
	cfg.User = "root"
	n.wait(n.run(n.exec, cfg))
	lines := strings.Fields(stdout(cfg))
	if len(lines) < 2 {
		t.Fatalf("output %q, errors %q", stdout(cfg), stderr(cfg))
	}
	want, err := ParseCaps(DefaultCaps)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines[:2] {
		if got, _ := strconv.ParseUint(l, 16, 64); got != want {
			t.Errorf("capabilities %s, want %x", l, want)
		}
	}
	if !strings.Contains(stdout(cfg), "mount refused\nalive\n") {
		t.Errorf("output %q", stdout(cfg))
	}
}

func TestDeniedUsers(t *testing.T) {
	n := newNode(t)
	d := New(Options{Supervisor: n.sup, DeniedUsers: []string{"root"}})
	for _, user := range []string{"root", "0"} {
		cfg := n.config("true")
		cfg.User = user
		if _, err := d.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "denied_users") {
			t.Errorf("user %q: %v", user, err)
		}
	}
	n.wait(n.run(d, n.config("true")))
}

// Where root is allowed, it still cannot change the machine's settings or make control groups.
func TestRootTaskCannotSetTheMachine(t *testing.T) {
	n := newNode(t)
	script := "p=$(cat /proc/sys/kernel/core_pattern); echo \"$p\" > /proc/sys/kernel/core_pattern && echo wrote; echo h > /proc/sysrq-trigger && echo wrote; " +
		"for d in $(find /sys/fs/cgroup -maxdepth 1 -type d); do rmdir $d/muster-escape 2>/dev/null; mkdir $d/muster-escape && echo wrote && rmdir $d/muster-escape; done; " +
		"mount -o remount,rw /proc/sys && echo wrote; umount /proc/sys && echo wrote; cat /sys/kernel/mm/transparent_hugepage/enabled > /dev/null; echo done"
	cfg := n.config(script)
	cfg.User = "root"
	n.wait(n.run(n.exec, cfg))
	out := stdout(cfg)
	if strings.Contains(out, "wrote") || !strings.Contains(out, "done") {
		t.Errorf("the task printed %q", out)
	}
}

func TestMemoryLimitIsAttributed(t *testing.T) {
	n := newNode(t)
	cfg := n.config(`x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`)
	cfg.Resources.MemoryMiB = 32
	r := n.wait(n.run(n.exec, cfg))
	if !r.OOMKilled || r.Signal != 9 || r.LostStatus || !strings.Contains(r.Err, "memory") {
		t.Fatalf("exit %+v, want OOM", r)
	}
}

func TestForkBombIsBounded(t *testing.T) {
	n := newNode(t)
	cfg := n.config(`i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; wait`)
	cfg.Config["pids_limit"] = 20
	task := n.run(n.exec, cfg)
	within(t, 10*time.Second, "the limit bites", func() bool { return strings.Contains(stderr(cfg), "ork") })
	s, err := task.Stats(t.Context())
	if errors.Is(err, driver.ErrNotRunning) {
		return // the shell gave up
	}
	if err != nil || s.PidsCount > 20 {
		t.Fatalf("%d processes, %v", s.PidsCount, err)
	}
	if err := task.Stop(t.Context(), "", -1); err != nil {
		t.Fatal(err)
	}
}

func TestLimitsAreInTheKernel(t *testing.T) {
	n := newNode(t)
	cfg := n.config("exec sleep 300")
	cfg.Resources = driver.Resources{CPUMHz: 750, CPUQuota: 500, MemoryMiB: 64, MemoryMaxMiB: 128, PidsMax: 50}
	l, err := n.sup.Groups()
	if err != nil {
		t.Fatal(err)
	}
	if l.Has("cpuset") {
		cfg.Resources.Cores = []int{0}
	}
	cfg.NoFile = 777
	task := n.run(n.exec, cfg)
	st, err := n.sup.Inspect(t.Context(), cfg.TaskID)
	if err != nil {
		t.Fatal(err)
	}
	read := func(controller, v1, v2 string) string {
		p := filepath.Join(st.Group.Main, v2)
		if d := st.Group.V1[controller]; d != "" {
			p = filepath.Join(d, v1)
		}
		b, err := os.ReadFile(p)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(b))
	}
	if got := read("cpu", "cpu.shares", "cpu.weight"); got != "750" && got != "29" {
		t.Errorf("cpu share %s", got)
	}
	if got := read("cpu", "cpu.cfs_quota_us", "cpu.max"); got != "50000" && got != "50000 100000" {
		t.Errorf("cpu quota %s", got)
	}
	if got := read("memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(128<<20) {
		t.Errorf("memory %s", got)
	}
	if got := read("pids", "pids.max", "pids.max"); got != "50" {
		t.Errorf("pids %s", got)
	}
	if l.Has("cpuset") {
		if got := read("cpuset", "cpuset.cpus", "cpuset.cpus"); got != "0" {
			t.Errorf("cores %s", got)
		}
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", task.Status().PID))
	if !strings.Contains(strings.Join(strings.Fields(string(b)), " "), "Max open files 777 777") {
		t.Errorf("limits %s", b)
	}
	within(t, 5*time.Second, "sleep runs", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", task.Status().PID))
		return string(b) == "sleep\n"
	})
	s, err := task.Stats(t.Context())
	if err != nil || s.PidsCount != 1 || s.RSSBytes == 0 || s.MemoryLimit != 128<<20 {
		t.Errorf("stats %+v, %v", s, err)
	}
	task.Stop(t.Context(), "", -1)
	if r := n.wait(task); r.Signal != 9 {
		t.Errorf("exit %+v", r)
	}
	for _, d := range append([]string{st.Group.Main}, st.Group.V1["memory"], st.Group.V1["cpu"], st.Group.V1["pids"]) {
		if _, err := os.Stat(d); d != "" && err == nil {
			t.Errorf("control group %s is left", d)
		}
	}
}

func TestRecoverKeepsIdentity(t *testing.T) {
	n := newNode(t)
	for _, d := range []driver.Driver{n.exec, n.raw} {
		cfg := n.config("trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done")
		task := n.run(d, cfg)
		before := task.Status()
		h, err := n.sup.Hello(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Second, "up", func() bool { return stdout(cfg) == "up\n" })
		syscall.Kill(h.PID, syscall.SIGKILL)
		again, err := d.Recover(t.Context(), before.State)
		if err != nil {
			t.Fatal(err)
		}
		if after := again.Status(); after.PID != before.PID || !after.StartedAt.Equal(before.StartedAt) || !after.Running {
			t.Fatalf("%s: recovered as %+v, was %+v", d.Name(), after, before)
		}
		if err := again.Stop(t.Context(), "", 0); err != nil {
			t.Fatal(err)
		}
		if r := n.wait(again); r.ExitCode != 3 {
			t.Fatalf("%s: exit %+v, want 3", d.Name(), r)
		}
		if err := again.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Recover(t.Context(), before.State); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("%s: recovered what was destroyed: %v", d.Name(), err)
		}
	}
}

func TestSignal(t *testing.T) {
	n := newNode(t)
	cfg := n.config("trap 'echo hup' HUP; echo up; while :; do sleep 0.01; done")
	task := n.run(n.exec, cfg)
	within(t, 5*time.Second, "up", func() bool { return stdout(cfg) == "up\n" })
	if err := task.Signal(t.Context(), "hup"); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "signal arrives", func() bool { return stdout(cfg) == "up\nhup\n" })
	if err := task.Signal(t.Context(), "SIGNONE"); err == nil || !strings.Contains(err.Error(), "SIGNONE") {
		t.Fatalf("bad signal: %v", err)
	}
}

func TestExecInsideTask(t *testing.T) {
	n := newNode(t)
	for _, d := range []driver.Driver{n.exec, n.raw} {
		t.Run(d.Name(), func(t *testing.T) {
			cfg := n.config("echo secret > /tmp/mark-" + d.Name() + "; sleep 300")
			cfg.Env()["COLOUR"] = "red"
			task := n.run(d, cfg)
			t.Cleanup(func() { os.Remove("/tmp/mark-raw_exec") })
			var out, errs bytes.Buffer
			sh := func(script string) int {
				t.Helper()
				out.Reset()
				errs.Reset()
				code, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"/bin/sh", "-c", script}, Stdin: strings.NewReader("typed"), Stdout: &out, Stderr: &errs})
				if err != nil {
					t.Fatal(err)
				}
				return code
			}
			within(t, 5*time.Second, "task is up", func() bool { return sh("test -f /tmp/mark-"+d.Name()) == 0 })
			if code := sh("cat /tmp/mark-" + d.Name() + "; echo $COLOUR; cat; echo >&2 oops; exit 12"); code != 12 || out.String() != "secret\nred\ntyped" || errs.String() != "oops\n" {
				t.Fatalf("code %d, out %q, err %q", code, out.String(), errs.String())
			}
			if d == n.exec {
				sh("id -un; grep CapEff /proc/self/status; ls " + n.dir + "/supervisor")
				if !strings.HasPrefix(out.String(), "nobody\nCapEff:\t0000000000000000\n") || !strings.Contains(errs.String(), "No such file") {
					t.Fatalf("out %q, err %q", out.String(), errs.String())
				}
			}
			if code := sh("kill -TERM $$"); code != 143 {
				t.Fatalf("code %d, want 143", code)
			}
			if _, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"no-such-command"}}); err == nil || !strings.Contains(err.Error(), "PATH") {
				t.Fatalf("missing command: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := task.Exec(ctx, driver.ExecRequest{Command: []string{"sleep", "300"}}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("cancelled exec: %v", err)
			}
			// A check that hangs in a command of its script must not leave that behind each time.
			long := "3" + strconv.Itoa(os.Getpid())
			count := func() int {
				return sh("n=0; for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^sleep " + long + " ' && n=$((n+1)); done; exit $n")
			}
			{
				begun, end := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := task.Exec(begun, driver.ExecRequest{Command: []string{"/bin/sh", "-c", "sleep " + long + "; true"}, Whole: true})
					ended <- err
				}()
				within(t, time.Minute, "it has begun", func() bool { return count() == 1 })
				end()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				within(t, time.Minute, "nothing is left", func() bool { return count() == 0 })
			}
		})
	}
}

func TestExecTerminal(t *testing.T) {
	n := newNode(t)
	task := n.run(n.exec, n.config("sleep 300"))
	in, typed := io.Pipe()
	var out syncBuffer
	resize := make(chan driver.TermSize, 1)
	resize <- driver.TermSize{Height: 30, Width: 100}
	type end struct {
		code int
		err  error
	}
	done := make(chan end, 1)
	go func() {
		code, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"/bin/sh"}, TTY: true, Stdin: in, Stdout: &out, Resize: resize})
		done <- end{code, err}
	}()
	io.WriteString(typed, "stty size; tty\n")
	within(t, 5*time.Second, "size", func() bool {
		return strings.Contains(out.String(), "30 100") && strings.Contains(out.String(), "/dev/pts/")
	})
	resize <- driver.TermSize{Height: 50, Width: 132}
	within(t, 5*time.Second, "new size", func() bool {
		io.WriteString(typed, "stty size\n")
		return strings.Contains(out.String(), "50 132")
	})
	io.WriteString(typed, "exit 21\n")
	select {
	case e := <-done:
		if e.code != 21 || e.err != nil {
			t.Fatalf("code %d, %v", e.code, e.err)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("does not end; output %q", out.String())
	}
	typed.Close()
}

func TestStartErrors(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		edit func(*driver.TaskConfig)
		want string
	}{
		"missing": {func(c *driver.TaskConfig) {
			c.Config = map[string]any{"command": "foo"}
			c.Env()["PATH"] = "/usr/bin:/bin"
		}, `command "foo" not found in the task's directory or in PATH (/usr/bin:/bin)`},
		"unknown key":  {func(c *driver.TaskConfig) { c.Config["comand"] = "x" }, `unknown config key "comand"; did you mean "command"? (valid keys: args, cap_add`},
		"wrong type":   {func(c *driver.TaskConfig) { c.Config["args"] = "x" }, `config key "args": want a list of strings, got the string "x"`},
		"no command":   {func(c *driver.TaskConfig) { delete(c.Config, "command") }, `config key "command" (string) is required`},
		"unknown user": {func(c *driver.TaskConfig) { c.User = "no-such-user" }, `user "no-such-user" does not exist`},
		"capability":   {func(c *driver.TaskConfig) { c.Config["cap_add"] = []any{"sys_admin"} }, `does not allow sys_admin (plugin "exec", allow_caps)`},
		"pid mode":     {func(c *driver.TaskConfig) { c.Config["pid_mode"] = "host" }, `want "private"`},
		"escape":       {func(c *driver.TaskConfig) { c.Config["command"] = "../../x" }, "leads out of"},
		"kill signal":  {func(c *driver.TaskConfig) { c.KillSignal = "SIGX" }, `unknown signal "SIGX"`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := n.config("true")
			c.edit(cfg)
			_, err := n.exec.Start(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if !errors.Is(err, driver.ErrPermanent) {
				t.Errorf("%v should be permanent", err)
			}
		})
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
