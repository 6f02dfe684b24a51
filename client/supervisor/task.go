package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/client/supervisor/launch"
)

// A task has one file, t/<id>: 64 bytes that the launcher fills with the exit record, then JSON lines of the form
// below; the last complete one counts. A write is complete even if a process is killed. A power cut may tear a line,
// but then no process is left to be taken over, and a result that was not fetched has been synced.
//
//	intent -> launcher started -> pids -> task ended: exit record -> result -> destroyed: file removed, or synced
//
// In the first gap the launcher is found by its name and the task's id in /proc; after the end, exit record and group
// are sufficient.
type line struct {
	Memory *memory `json:",omitempty"`
	Result *Exit   `json:",omitempty"`
}

// memory is what another supervisor needs to take over a task.
type memory struct {
	ID        string
	BootID    string
	Group     cgroup.Group
	Launcher  int    // pid, 0 while starting
	LStart    uint64 // start tick
	PID       int
	PStart    uint64
	StartedAt time.Time
	Isolated  bool
	Cores     []int  `json:",omitempty"` // cores that the task owns
	Lease     *Lease `json:",omitempty"`
	Stdout    Log
	Stderr    Log
}

// task is one task of this supervisor. done is closed when it has ended.
type task struct {
	path string
	mem  memory        // read-only once the task is in the table
	fd   int           // pidfd of the main process, -1 if it had ended before it could be opened; guarded by mu
	lfd  *os.File      // pidfd of the launcher
	ours bool          // the launcher is a child of this process and must be reaped
	done chan struct{} // closed when exit is known, written, and logs are complete
	exit Exit          // valid after done
	mu   sync.Mutex
	out  []*pumping

	groups *cgroup.Manager // nil without groups, and for a task that another supervisor started
	cores  *corePool
	synced *time.Timer // set before done is closed: see settle
}

// fileMax limits a task's file; a larger one was not written by a supervisor.
const fileMax = 1 << 20

// encode returns the written form of a line. It begins with a line break, so that a torn line before it does not
// corrupt it.
func (l line) encode() ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return append(append([]byte{'\n'}, b...), '\n'), nil
}

// append adds a line to the task's file.
func (t *task) append(l line) error {
	b, err := l.encode()
	if err != nil {
		return err
	}
	fd, err := unix.Open(t.path, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("write task state: %w", err)
	}
	n, err := unix.Write(fd, b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("write task state: %w", err)
	}
	return nil
}

func (t *task) save() error { return t.append(line{Memory: &t.mem}) }

// settleAfter is how long a result may be unsynced. A running agent has it on its own disk long before and destroys the
// task; only results that are not fetched are synced.
const settleAfter = time.Second

// settle makes the result survive a power cut, unless the task is destroyed before.
func (t *task) settle() {
	t.synced = time.AfterFunc(settleAfter, func() {
		fd, err := unix.Open(t.path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Fsync(fd), unix.Close(fd))
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: destroyed meanwhile
			fmt.Fprintf(os.Stderr, "supervisor: task %s: sync its result: %v\n", t.mem.ID, err)
		}
	})
}

// load reads a task's file. result is nil before the end.
func load(path string) (m memory, result *Exit, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return m, nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax))
	if err != nil {
		return m, nil, err
	}
	for text := range bytes.Lines(b[min(len(b), launch.RecordSize):]) {
		var l line
		if json.Unmarshal(text, &l) != nil {
			continue
		}
		if l.Memory != nil {
			m = *l.Memory
		}
		if l.Result != nil {
			result = l.Result
		}
	}
	if m.ID != filepath.Base(path) {
		return m, nil, errors.New("its state is unreadable")
	}
	return m, result, nil
}

func (t *task) status() Status {
	s := Status{ID: t.mem.ID, PID: t.mem.PID, StartedAt: t.mem.StartedAt, Group: t.mem.Group, Isolated: t.mem.Isolated}
	select {
	case <-t.done:
		s.Ended, s.Exit = true, t.exit
	default:
	}
	return s
}

// awaitLauncher returns when the launcher has ended, and reaps it if it is a child of this process.
func (t *task) awaitLauncher() {
	awaitPidfd(t.lfd)
	if t.ours {
		fd := -1
		if rc, err := t.lfd.SyscallConn(); err == nil {
			rc.Control(func(f uintptr) { fd = int(f) })
		}
		for {
			err := unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
			if err != unix.EINTR {
				return
			}
		}
	}
}

// awaitPidfd returns when the process behind f has ended. It occupies no thread: the runtime's poller waits.
func awaitPidfd(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	err = rc.Read(func(fd uintptr) bool {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(pfd, 0)
		return err == nil && n > 0
	})
	if err != nil { // the poller refuses pidfds: wait in a thread
		rc.Control(func(fd uintptr) {
			for {
				pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				if n, err := unix.Poll(pfd, -1); err != unix.EINTR || n > 0 {
					return
				}
			}
		})
	}
}

func (t *task) readRecord() (launch.Record, bool) {
	fd, err := unix.Open(t.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return launch.Record{}, false
	}
	defer unix.Close(fd)
	var b [launch.RecordSize]byte
	if n, err := unix.Pread(fd, b[:], 0); err != nil || n < len(b) {
		return launch.Record{}, false
	}
	return launch.ParseRecord(b[:])
}

// launcherEnds is how long a launcher may take to end after its task.
const launcherEnds = 20 * time.Millisecond

// watch waits for the end of a task and handles it.
func (t *task) watch() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.awaitLauncher()
	}()
	child := make(chan struct{})
	t.mu.Lock()
	cf := -1
	if t.fd >= 0 {
		cf, _ = unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	t.mu.Unlock()
	if cf >= 0 {
		f := os.NewFile(uintptr(cf), "task")
		go func() {
			defer close(child)
			awaitPidfd(f)
			f.Close()
		}()
	} else {
		close(child)
	}
	select {
	case <-ended:
	case <-child:
		// The launcher writes the record and ends once its pipes are empty, normally at once. Processes that the task
		// left behind could write for ever: they are no longer part of it and are killed.
		wait := launcherEnds
	poll:
		for {
			select {
			case <-ended:
				break poll
			case <-time.After(wait):
				wait = 10 * time.Millisecond
			}
			if _, ok := t.readRecord(); ok {
				t.killAll(5 * time.Second)
				<-ended
				break
			}
		}
	}
	t.finish()
}

// finish completes the end of a task: all processes killed, logs complete, the exit on disk, groups removed.
func (t *task) finish() {
	killErr := t.killAll(10 * time.Second)
	for _, p := range t.out {
		p.finish(5 * time.Second)
	}
	rec, ok := t.readRecord()
	if ok {
		t.exit = exitOf(rec)
	} else {
		t.exit = Exit{Code: -1, Lost: true, EndedAt: time.Now().UTC(), Err: "the exit status is lost: the task's launcher was killed"}
		if t.mem.BootID != bootID() {
			t.exit.Err = "the exit status is lost: the node was restarted"
		}
	}
	if t.mem.BootID == bootID() && (t.exit.Code != 0 || t.exit.Lost) && t.mem.Group.OOMKills() > 0 {
		// even if the main process handled it: 137 of a shell, 1 of a program whose worker is gone
		t.exit.OOMKilled = true
		switch {
		case t.exit.Lost:
		case t.exit.Signal == int(syscall.SIGKILL):
			t.exit.Err = "out of memory: the kernel killed the task because it reached its memory limit"
		default:
			t.exit.Err = "out of memory: the kernel killed a process of the task because the task reached its memory limit"
		}
	}
	for _, p := range t.out {
		t.exit.LostLogs += p.lost.Load()
	}
	if killErr != nil && t.exit.Err == "" {
		t.exit.Err = killErr.Error()
	}
	t.mu.Lock()
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	t.mu.Unlock()
	if t.lfd != nil {
		t.lfd.Close()
	}
	// Before the end is published. If the write fails, the launcher's record still has the outcome.
	if err := t.append(line{Result: &t.exit}); err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: task %s: %v\n", t.mem.ID, err)
	}
	t.settle()
	switch {
	case t.mem.BootID != bootID():
	case t.groups != nil && killErr == nil:
		t.groups.Remove(t.mem.Group)
	default:
		t.mem.Group.Remove()
	}
	t.cores.leave(t.mem.ID)
	close(t.done)
}

// killAll kills every process of the task, and only those.
func (t *task) killAll(timeout time.Duration) error {
	if !t.mem.Group.Zero() {
		return t.mem.Group.Kill(timeout)
	}
	t.signal(syscall.SIGKILL)
	if t.mem.PID > 1 {
		killSession(t.mem.PID, t.mem.PStart)
	}
	if t.lfd != nil {
		rc, err := t.lfd.SyscallConn()
		if err == nil {
			rc.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
		}
	}
	return nil
}

// killSession kills the processes of the session that a task without a control group led: those that are in it and
// started no earlier than the task.
func killSession(sid int, start uint64) {
	if start == 0 {
		return
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		st, err := procfile.StatOf(pid)
		if err != nil || st.Session != sid || st.Start < start {
			continue
		}
		if fd, err := openProcess(pid, st.Start); err == nil {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			unix.Close(fd)
		}
	}
}

// signal sends sig to the main process.
func (t *task) signal(sig syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fd < 0 {
		return syscall.ESRCH
	}
	return unix.PidfdSendSignal(t.fd, sig, nil, 0)
}

// stop ends the task: sig, after timeout SIGKILL, then everything.
func (t *task) stop(sig syscall.Signal, timeout time.Duration) error {
	wait := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-t.done:
			return true
		case <-timer.C:
			return false
		}
	}
	if timeout > 0 {
		if err := t.signal(sig); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("send %v: %w", sig, err)
		}
		if wait(timeout) {
			return nil
		}
	}
	// The main process first: its launcher then records how it ended. A launcher that is killed with it cannot.
	t.signal(syscall.SIGKILL)
	if wait(2 * time.Second) {
		return nil
	}
	err := t.killAll(5 * time.Second)
	if wait(5 * time.Second) {
		return nil
	}
	if err == nil {
		err = errors.New("its processes did not end after SIGKILL; they may hang in the kernel")
	}
	return fmt.Errorf("stop task %s: %w", t.mem.ID, err)
}

var errNeverStarted = errors.New("its supervisor was killed before it was started")

// adopt takes over a task that another supervisor started.
func adopt(path string, cores *corePool) (*task, error) {
	t := &task{path: path, fd: -1, done: make(chan struct{}), cores: cores}
	var result *Exit
	var err error
	if t.mem, result, err = load(path); err != nil {
		return nil, err
	}
	if result != nil {
		t.exit = *result
		t.settle()
		if t.mem.BootID == bootID() {
			t.mem.Group.Remove()
		}
		close(t.done)
		return t, nil
	}
	if t.mem.BootID != bootID() {
		t.mem.Group = cgroup.Group{}
		t.mem.PID = 0
		t.finish()
		return t, nil
	}
	cores.own(t.mem.ID, t.mem.Cores)
	cores.join(t.mem.ID, t.mem.Group)
	if t.mem.Launcher == 0 {
		t.findLauncher()
		if _, ended := t.readRecord(); t.mem.Launcher == 0 && !ended {
			// The supervisor was killed before there was a launcher. The start was not reported, so it can be repeated.
			err := t.killAll(5 * time.Second)
			cores.leave(t.mem.ID)
			return nil, errors.Join(errNeverStarted, err, t.mem.Group.Remove())
		}
	}
	lfd, err := openProcess(t.mem.Launcher, t.mem.LStart)
	if err != nil || !isLauncher(t.mem.Launcher, t.mem.ID) || (!t.mem.Group.Zero() && !t.mem.Group.Has(t.mem.Launcher)) {
		if err == nil {
			unix.Close(lfd)
		}
		t.finish()
		return t, nil
	}
	t.lfd = os.NewFile(uintptr(lfd), "launcher")
	if t.mem.PID != 0 {
		if fd, err := openProcess(t.mem.PID, t.mem.PStart); err == nil {
			t.fd = fd
		}
	}
	var dirs logDirs
	defer dirs.close()
	for i, log := range []Log{t.mem.Stdout, t.mem.Stderr} {
		if log.Base == "" {
			continue
		}
		// The launcher holds the pipe; opening its descriptor again yields the same pipe.
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", t.mem.Launcher, launch.FDStdoutRead+i), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // the launcher has just ended
		}
		dir, err := dirs.of(log)
		if err != nil {
			unix.Close(fd)
			fmt.Fprintf(os.Stderr, "supervisor: task %s: %v\n", t.mem.ID, err)
			continue
		}
		t.out = append(t.out, startPump(log, dir, os.NewFile(uintptr(fd), "pipe")))
	}
	if err := t.save(); err != nil {
		return nil, err
	}
	go t.watch()
	return t, nil
}

// isLauncher reports whether pid is the launcher of that task.
func isLauncher(pid int, id string) bool {
	b, err := procfile.Of(pid, "cmdline")
	if err != nil {
		return false
	}
	argv := strings.Split(string(b), "\x00")
	return len(argv) > 1 && argv[0] == "muster-launch" && argv[1] == id
}

// findLauncher looks for the launcher of a task whose supervisor was killed before it could record the pids.
func (t *task) findLauncher() {
	pids, _ := t.mem.Group.Procs()
	if t.mem.Group.Zero() {
		time.Sleep(50 * time.Millisecond) // a child of the dead supervisor may be about to become the launcher
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	for _, pid := range pids {
		if !isLauncher(pid, t.mem.ID) {
			continue
		}
		st, err := procfile.StatOf(pid)
		if err != nil {
			continue
		}
		// Before the child has executed the task's command it looks like its parent: use the outermost one.
		if isLauncher(st.Parent, t.mem.ID) {
			continue
		}
		t.mem.Launcher, t.mem.LStart = pid, st.Start
		break
	}
	if t.mem.Launcher == 0 {
		return
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		b, err := procfile.Of(t.mem.Launcher, fmt.Sprintf("task/%d/children", t.mem.Launcher))
		if err != nil {
			return
		}
		f := strings.Fields(string(b))
		if len(f) == 0 {
			if _, ok := t.readRecord(); ok {
				return
			}
			continue
		}
		if pid, err := strconv.Atoi(f[0]); err == nil {
			if st, err := procfile.StatOf(pid); err == nil && st.Parent == t.mem.Launcher && !isLauncher(pid, t.mem.ID) {
				t.mem.PID, t.mem.PStart, t.mem.StartedAt = pid, st.Start, time.Now().UTC()
				return
			}
		}
	}
}
