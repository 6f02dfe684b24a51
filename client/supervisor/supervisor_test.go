package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
)

func TestMain(m *testing.M) {
	MaybeRun()
	goleak.VerifyTestMain(m)
}

// sup is a supervisor in a temporary directory, removed with the test.
type sup struct {
	*Client
	t    testing.TB
	dir  string
	logs string
}

func newSup(t testing.TB) *sup {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	dir := t.TempDir()
	c, err := Open(filepath.Join(dir, "s"), "")
	if err != nil {
		t.Fatal(err)
	}
	s := &sup{Client: c, t: t, dir: filepath.Join(dir, "s"), logs: filepath.Join(dir, "logs")}
	if err := os.Mkdir(s.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		h, _ := c.Hello(ctx)
		if err := c.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		within(t, 5*time.Second, "supervisor ends", func() bool { return syscall.Kill(h.PID, 0) != nil })
		if l, err := cgroup.Detect(); err == nil {
			if left, _ := filepath.Glob(filepath.Join(l.V2, "muster", scope(s.dir))); len(left) > 0 {
				t.Errorf("control groups left: %v", left)
			}
		}
	})
	return s
}

func within(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); ; time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func (s *sup) spec(id, script string) *Spec {
	return &Spec{
		ID: id, Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/",
		Stdout: Log{Base: filepath.Join(s.logs, id+".stdout")}, Stderr: Log{Base: filepath.Join(s.logs, id+".stderr")},
	}
}

func (s *sup) start(spec *Spec) Status {
	s.t.Helper()
	st, err := s.Start(s.t.Context(), spec)
	if err != nil {
		s.t.Fatalf("start %s: %v", spec.ID, err)
	}
	return st
}

func (s *sup) wait(id string) Exit {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	e, err := s.Wait(ctx, id)
	if err != nil {
		s.t.Fatalf("wait %s: %v", id, err)
	}
	return e
}

func (s *sup) killSupervisor() {
	s.t.Helper()
	h, err := s.Hello(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	within(s.t, 5*time.Second, "supervisor dies", func() bool {
		st, err := procfile.StatOf(h.PID)
		return err != nil || st.State == 'Z'
	})
}

// log returns the whole log of a stream, all files in order.
func (s *sup) log(name string) string {
	s.t.Helper()
	var b strings.Builder
	for i := range 1000 {
		data, err := os.ReadFile(filepath.Join(s.logs, fmt.Sprintf("%s.%d", name, i)))
		if err != nil {
			break
		}
		b.Write(data)
	}
	return b.String()
}

func TestRunsAndRecordsExit(t *testing.T) {
	s := newSup(t)
	s.start(s.spec("a", "echo out; echo err >&2; exit 7"))
	if e := s.wait("a"); e.Code != 7 || e.Lost || e.Signal != 0 {
		t.Fatalf("exit %+v, want code 7", e)
	}
	if got := s.log("a.stdout") + s.log("a.stderr"); got != "out\nerr\n" {
		t.Fatalf("logs %q", got)
	}
	s.start(s.spec("b", "kill -USR1 $$"))
	if e := s.wait("b"); e.Signal != int(syscall.SIGUSR1) || e.Code != 128+int(syscall.SIGUSR1) {
		t.Fatalf("exit %+v, want signal 10", e)
	}
	// A repeated start returns the task of the first one, even after its end.
	if st := s.start(s.spec("a", "echo again")); !st.Ended || st.Exit.Code != 7 {
		t.Fatalf("second start made %+v", st)
	}
	if err := s.Destroy(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Inspect(t.Context(), "a"); err != ErrUnknownTask {
		t.Fatalf("after destroy: %v", err)
	}
}

func TestDescriptorsAreThree(t *testing.T) {
	s := newSup(t)
	spec := s.spec("fds", "")
	ls, err := exec.LookPath("ls")
	if err != nil {
		t.Skip("not run: no ls")
	}
	spec.Path, spec.Argv = ls, []string{"ls", "/proc/self/fd"}
	s.start(spec)
	s.wait("fds")
	if got := strings.Fields(s.log("fds.stdout")); strings.Join(got, " ") != "0 1 2 3" { // 3 is ls reading the directory
		t.Fatalf("descriptors %v", got)
	}
}

func TestStartErrorsAreClear(t *testing.T) {
	s := newSup(t)
	for name, c := range map[string]struct {
		edit func(*Spec)
		want string
	}{
		"missing file":  {func(p *Spec) { p.Path = "/no/such" }, "does not exist"},
		"not a program": {func(p *Spec) { p.Path = "/etc/passwd" }, "permission denied"},
		"bad directory": {func(p *Spec) { p.Dir = "/no/such" }, "enter the working directory /no/such"},
		"bad id":        {func(p *Spec) { p.ID = "../x" }, "task id"},
		"relative":      {func(p *Spec) { p.Path = "sh" }, "absolute"},
		"no log dir":    {func(p *Spec) { p.Stdout.Base = "/no/such/log" }, "log directory"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := s.spec("e", "true")
			c.edit(spec)
			_, err := s.Start(t.Context(), spec)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if list, _ := s.List(t.Context()); len(list) != 0 {
				t.Fatalf("left behind: %+v", list)
			}
		})
	}
}

func TestSupervisorKilled(t *testing.T) {
	s := newSup(t)
	before := s.start(s.spec("long", "trap 'exit 42' TERM; echo ready; while :; do sleep 0.01; done"))
	s.start(s.spec("gap", "sleep 0.2; echo last words; exit 9"))
	within(t, 5*time.Second, "ready", func() bool { return s.log("long.stdout") == "ready\n" })
	s.killSupervisor()
	// The task ends while no client is connected; its exit code and output must be there all the same.
	after, err := s.Inspect(t.Context(), "long")
	if err != nil {
		t.Fatal(err)
	}
	if after.PID != before.PID || !after.StartedAt.Equal(before.StartedAt) || after.Ended {
		t.Fatalf("taken up as %+v, was %+v", after, before)
	}
	if e := s.wait("gap"); e.Code != 9 || e.Lost || s.log("gap.stdout") != "last words\n" {
		t.Fatalf("exit %+v, log %q", e, s.log("gap.stdout"))
	}
	if err := s.Stop(t.Context(), "long", syscall.SIGTERM, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := s.wait("long"); e.Code != 42 {
		t.Fatalf("exit %+v, want 42", e)
	}
}

// TestSupervisorThatDiesSlowly: a supervisor that was killed holds its lock until the kernel has ended it, which takes seconds
// on a busy machine. Those that are spawned meanwhile end at once, and another one follows.
func TestSupervisorThatDiesSlowly(t *testing.T) {
	s := newSup(t)
	before := s.start(s.spec("long", "sleep 300"))
	s.killSupervisor()
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	within(t, 5*time.Second, "the lock", func() bool { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil })
	time.AfterFunc(1500*time.Millisecond, func() { lock.Close() })
	began := time.Now()
	after, err := s.Inspect(t.Context(), "long")
	if err != nil {
		t.Fatal(err)
	}
	if after.PID != before.PID || after.Ended {
		t.Errorf("taken up as %+v, was %+v", after, before)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("a supervisor answered after %s, while another had the lock", took)
	}
}

func TestExitWhileSupervisorIsDead(t *testing.T) {
	s := newSup(t)
	s.start(s.spec("x", "sleep 0.1; seq 1 3000; exit 5"))
	s.killSupervisor()
	within(t, 5*time.Second, "the task ends with nobody there", func() bool {
		_, ok := (&task{path: filepath.Join(s.dir, "t", "x")}).readRecord()
		return ok
	})
	if e := s.wait("x"); e.Code != 5 || e.Lost {
		t.Fatalf("exit %+v", e)
	}
	if n := strings.Count(s.log("x.stdout"), "\n"); n != 3000 {
		t.Fatalf("%d lines, want 3000", n)
	}
}

// TestDirectoryDeleted: launcher and supervisor wait for an agent that reads and forgets what has ended. None comes once
// the directory is deleted by hand.
func TestDirectoryDeleted(t *testing.T) {
	s := newSup(t)
	launchers := func() (n int) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, l := range lines {
			if b, _ := os.ReadFile(l); string(b) == "muster-launch\x00deleted\x00task\x00" { // empty for one that has ended
				n++
			}
		}
		return n
	}
	st := s.start(s.spec("deleted", "while [ -e "+s.dir+" ]; do sleep 0.05; done; echo last words"))
	s.killSupervisor()
	if n := launchers(); n != 1 {
		t.Fatalf("%d launchers, want 1", n)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the launcher ends", func() bool { return launchers() == 0 })
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := st.Group.Remove(); err != nil {
		t.Error(err)
	}
}

func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	leases, err := openLeases(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, runs := &task{done: make(chan struct{})}, &task{done: make(chan struct{})}
	close(ended.done)
	s := &Service{leases: leases, tasks: map[string]*task{}}
	want := func(what string, busy bool) {
		t.Helper()
		if s.busy(dir) != busy {
			t.Errorf("%s: busy is %t", what, !busy)
		}
	}
	want("no task", false)
	s.tasks["ended"] = ended
	want("a task of which an agent will ask", true)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	want("a task of which no agent can ask", false)
	s.conns = 1
	want("an agent that has not noticed", false)
	s.tasks["runs"] = runs
	want("a task that runs", true)
}

func TestLogsWithoutGap(t *testing.T) {
	s := newSup(t)
	const lines = 60000
	spec := s.spec("w", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done", lines))
	spec.Stdout.MaxSize, spec.Stdout.MaxFiles = 50_000, 1000
	s.start(spec)
	kills := 0
	for {
		st, err := s.Inspect(t.Context(), "w")
		if err != nil {
			t.Fatal(err)
		}
		if st.Ended {
			break
		}
		if kills < 8 {
			time.Sleep(time.Duration(kills*3) * time.Millisecond) // another instant each time
			s.killSupervisor()
			kills++
		} else {
			s.wait("w")
		}
	}
	if e := s.wait("w"); e.Code != 0 {
		t.Fatalf("exit %+v", e)
	}
	got := strings.Split(strings.TrimSuffix(s.log("w.stdout"), "\n"), "\n")
	if len(got) != lines {
		t.Fatalf("%d lines after %d kills, want %d", len(got), kills, lines)
	}
	for i, l := range got {
		if l != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, l)
		}
	}
	if kills < 3 {
		t.Fatalf("only %d kills: the test did not test", kills)
	}
}

func TestLauncherKilledIsLostAndLeavesNothing(t *testing.T) {
	s := newSup(t)
	st := s.start(s.spec("l", "sleep 300 & sleep 300"))
	ps, err := procfile.StatOf(st.PID)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(ps.Parent, syscall.SIGKILL)
	if e := s.wait("l"); !e.Lost || e.Code != -1 || !strings.Contains(e.Err, "launcher") {
		t.Fatalf("exit %+v", e)
	}
	if pids, _ := st.Group.Procs(); len(pids) != 0 {
		t.Fatalf("left running: %v", pids)
	}
}

func TestStopEscalatesAndSweeps(t *testing.T) {
	s := newSup(t)
	st := s.start(s.spec("s", "trap '' TERM; (trap '' TERM; setsid sleep 300) & echo up; while :; do sleep 1; done"))
	within(t, 5*time.Second, "up", func() bool { return s.log("s.stdout") != "" })
	began := time.Now()
	if err := s.Stop(t.Context(), "s", syscall.SIGTERM, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 300*time.Millisecond || d > 30*time.Second {
		t.Fatalf("stop took %s", d)
	}
	if e := s.wait("s"); e.Signal != 9 || e.Lost || e.OOMKilled {
		t.Fatalf("exit %+v", e)
	}
	if pids, _ := st.Group.Procs(); len(pids) != 0 {
		t.Fatalf("left running: %v", pids)
	}
	if err := s.Signal(t.Context(), "s", syscall.SIGHUP); err != ErrEnded {
		t.Fatalf("signal after the end: %v", err)
	}
}

func TestLeftoversOfAnEndedTaskDie(t *testing.T) {
	s := newSup(t)
	st := s.start(s.spec("d", "setsid sh -c 'while :; do echo noise; done' & sleep 0.05; exit 3"))
	if e := s.wait("d"); e.Code != 3 {
		t.Fatalf("exit %+v", e)
	}
	if pids, _ := st.Group.Procs(); len(pids) != 0 {
		t.Fatalf("left running: %v", pids)
	}
}

// An agent without the right to make control groups still stops all that a task started, and takes tasks up again.
func TestWithoutControlGroups(t *testing.T) {
	dir := t.TempDir()
	s := &sup{t: t, logs: dir}
	run := func(id, script string) *task {
		t.Helper()
		tk, err := start(filepath.Join(dir, id), s.spec(id, script), nil, &spares{}, newCorePool(nil))
		if err != nil {
			t.Fatal(err)
		}
		return tk
	}
	ended := run("a", "echo hi; exit 4")
	<-ended.done
	if ended.exit.Code != 4 || s.log("a.stdout") != "hi\n" {
		t.Fatalf("exit %+v, log %q", ended.exit, s.log("a.stdout"))
	}
	tk := run("b", "trap '' TERM; (trap '' TERM; sleep 300) & echo $!; sleep 300")
	within(t, 5*time.Second, "child is up", func() bool { return s.log("b.stdout") != "" })
	var child int
	fmt.Sscan(s.log("b.stdout"), &child)
	st, err := procfile.StatOf(child)
	if err != nil {
		t.Fatal(err)
	}
	if err := tk.stop(syscall.SIGTERM, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "child is gone", func() bool {
		now, err := procfile.StatOf(child)
		return err != nil || now.Start != st.Start || now.State == 'Z'
	})
	if tk.exit.Signal != 9 || tk.exit.Lost {
		t.Fatalf("exit %+v", tk.exit)
	}
	// The result is what another supervisor finds.
	again, err := adopt(tk.path, newCorePool(nil))
	if err != nil || again.exit.Signal != 9 {
		t.Fatalf("%+v, %v; want again.exit.Signal = 9", again, err)
	}
}

// A pid that has been reused, and a record from before a reboot, are never taken for the task.
func TestForeignProcessIsNotAdopted(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command("sleep", "300")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	st, err := procfile.StatOf(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*memory){
		"same pid, other start":        func(m *memory) { m.LStart++ },
		"same process, not a launcher": func(*memory) {},
		"before a reboot":              func(m *memory) { m.BootID = "another" },
	} {
		m := memory{ID: "x", BootID: bootID(), Launcher: other.Process.Pid, LStart: st.Start, PID: other.Process.Pid, PStart: st.Start + 1}
		edit(&m)
		tk := &task{path: filepath.Join(dir, "x"), mem: m}
		if err := os.WriteFile(tk.path, make([]byte, 64), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := tk.save(); err != nil {
			t.Fatal(err)
		}
		got, err := adopt(tk.path, newCorePool(nil))
		if err != nil {
			t.Fatal(err)
		}
		<-got.done
		if !got.exit.Lost {
			t.Errorf("%s: %+v", name, got.exit)
		}
	}
	if now, err := procfile.StatOf(other.Process.Pid); err != nil || now.State == 'Z' {
		t.Fatal("a process that is not ours was killed")
	}
}

// TestKilledAgentsLeaveNoCalls lets more agents than there may be connections go while they wait for a task.
func TestKilledAgentsLeaveNoCalls(t *testing.T) {
	t.Parallel()
	s := newSup(t)
	s.start(s.spec("t", "sleep 100"))
	d, err := os.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 2 * connsMax {
		conn, err := net.Dial("unix", socketPath(d))
		if err != nil {
			t.Fatal(err)
		}
		c := rpc.NewClient(conn)
		if err := c.Call(serviceName+".Hello", Nothing{}, &Hello{}); err != nil {
			t.Fatalf("the calls of those that are gone hold their connections: %v", err)
		}
		c.Go(serviceName+".Wait", WaitArgs{ID: "t", Max: waitMax}, &Reply{}, nil)
		if err := c.Call(serviceName+".Hello", Nothing{}, &Hello{}); err != nil { // Wait has been read
			t.Fatal(err)
		}
		c.Close()
	}
}

// TestValidID: the ids that name files and control groups.
func TestValidID(t *testing.T) {
	want := map[string]bool{"": false, "a": true, "_": true, ".": false, "-": false, "a.b-c_d": true, ".hidden": false, "-flag": false, "a/b": false, "a\n": false, "a\x00": false,
		"ä": false, "aä": false, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false}
	const word = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	for c := range 256 {
		b := []byte{byte(c)}
		first := bytes.Contains([]byte(word), b)
		later := first || c == '.' || c == '-'
		want[string(b)], want["a"+string(b)], want["a"+string(b)+"z"] = first, later, later
	}
	for id, ok := range want {
		if got := validID.MatchString(id); got != ok {
			t.Errorf("%.20q of %d bytes is accepted: %t, want %t", id, len(id), got, ok)
		}
	}
}

// TestWaitTellsTheEnd looks at the answer of Wait: the agent has the rest of the status since the start.
func TestWaitTellsTheEnd(t *testing.T) {
	s := newSup(t)
	for _, spec := range []*Spec{s.spec("ends", "exit 3"), s.spec("runs", "sleep 60")} {
		s.start(spec)
		max := waitMax
		if spec.ID == "runs" {
			max = time.Millisecond
		}
		var got, want Reply
		if err := s.call(t.Context(), "Wait", WaitArgs{ID: spec.ID, Max: max}, &got); err != nil {
			t.Fatal(err)
		}
		if spec.ID == "ends" {
			want.Status.Ended, want.Status.Exit.Code, want.Status.Exit.EndedAt = true, 3, got.Status.Exit.EndedAt
		}
		if !reflect.DeepEqual(got, want) || got.Status.Ended && got.Status.Exit.EndedAt.IsZero() {
			t.Errorf("the answer about %s is %+v, want %+v", spec.ID, got, want)
		}
	}
}

// TestLastCap reads the kernel's last capability, and tries all where that is not possible.
func TestLastCap(t *testing.T) {
	for text, want := range map[string]int{"40\n": 40, "63\n": 63, "": 63, "x": 63, "-1": 63, "3": 63, "64": 63, "99999999999999999999": 63} {
		if got := parseLastCap([]byte(text), nil); got != want {
			t.Errorf("last capability of %q: %d, want %d", text, got, want)
		}
	}
	if got := parseLastCap([]byte("40"), os.ErrNotExist); got != 63 {
		t.Errorf("last capability of a file that cannot be read: %d, want 63", got)
	}
	// A capability beyond the last one does not exist: it is neither in the bounding set nor outside of it.
	if got, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(lastCap()), 0, 0, 0); err != nil {
		t.Errorf("the last capability %d: %d, %v", lastCap(), got, err)
	}
	if got, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(lastCap()+1), 0, 0, 0); lastCap() < 63 && err == nil {
		t.Errorf("there is a capability %d beyond the last one: %d", lastCap()+1, got)
	}
}
