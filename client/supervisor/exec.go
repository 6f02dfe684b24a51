package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/client/supervisor/launch"
)

// Entry is a command to run inside a running task: in its control groups, its network and, if it is isolated, its other
// namespaces. It belongs to the caller, not to the supervisor, and ends with the task.
type Entry struct {
	Task    Status
	Path    string
	Argv    []string
	Env     []string
	Dir     string
	User    *Credential
	Rights  Rights // of an isolated task
	Posture Posture
	TTY     bool // Files are a terminal, which becomes the controlling one
	Whole   bool // Kill also ends what the command has started, except processes that have left its session
	Streams [3]*os.File
}

// Running is an entered command.
type Running struct {
	PID     int
	pidfd   *os.File
	child   *os.File // pidfd of the command, nil if it ended at once
	process *os.Process
	whole   bool
	once    sync.Once
}

// Enter starts the command and returns when it has been executed.
func Enter(e Entry) (*Running, error) {
	bin, err := launch.Binary()
	if err != nil {
		return nil, err
	}
	st, err := procfile.StatOf(e.Task.PID)
	if err != nil || e.Task.PID == 0 || (!e.Task.Group.Zero() && !e.Task.Group.Has(e.Task.PID)) {
		return nil, ErrEnded
	}
	target, err := openProcess(e.Task.PID, st.Start)
	if err != nil {
		return nil, ErrEnded
	}
	defer unix.Close(target)

	p := launch.New()
	p.Flags = launch.ExitAsChild
	pre := p.Pre()
	// The version 1 limits are joined before the task's mounts hide them.
	for _, f := range e.Task.Group.JoinFiles() {
		pre.WriteFile("join the task's control groups", f, "0")
	}
	const targetFD = launch.FDStdoutRead // no output is pumped here
	if e.Task.Isolated {
		pre.Do("enter the task's namespaces", unix.SYS_SETNS, launch.N(targetFD), launch.N(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWPID))
	}
	if !sameNetwork(e.Task.PID) {
		pre.Do("enter the task's network", unix.SYS_SETNS, launch.N(targetFD), launch.N(unix.CLONE_NEWNET))
	}
	c := p.Child()
	c.Try(unix.SYS_SETSID)
	if e.TTY {
		c.Do("take the terminal", unix.SYS_IOCTL, launch.N(0), launch.N(unix.TIOCSCTTY), launch.N(0))
	}
	e.Posture.enter(p, c, e.Dir, false)
	var rights *Rights
	if e.Task.Isolated {
		rights = &e.Rights
	}
	finish(p, c, 0, e.User, rights, e.Posture)
	e.Posture.enter(p, c, e.Dir, true)
	c.Do("tie the command to its launcher", unix.SYS_PRCTL, launch.N(unix.PR_SET_PDEATHSIG), launch.N(unix.SIGKILL))
	c.Exec(e.Path, e.Argv, e.Env)

	prog, err := p.File()
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	ours, theirs, err := launch.StatusPair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	defer null.Close()
	files := []uintptr{0, 0, 0, uintptr(target), null.Fd(), theirs.Fd(), null.Fd(), prog.Fd()}
	for i, f := range e.Streams {
		files[i] = null.Fd()
		if f != nil {
			files[i] = f.Fd()
		}
	}
	sys := &syscall.SysProcAttr{Setsid: true}
	var lfd int
	sys.PidFD = &lfd
	if g := e.Task.Group; g.V2 {
		gfd, err := unix.Open(g.Main, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			theirs.Close()
			return nil, ErrEnded
		}
		defer unix.Close(gfd)
		sys.UseCgroupFD, sys.CgroupFD = true, gfd
	}
	pid, err := syscall.ForkExec(bin, []string{"muster-launch", e.Task.ID, "exec"}, &syscall.ProcAttr{Env: []string{}, Files: files, Dir: "/", Sys: sys})
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("start launcher: %w", err)
	}
	proc, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	unix.SetNonblock(lfd, true)
	r := &Running{pidfd: os.NewFile(uintptr(lfd), "launcher"), process: proc, whole: e.Whole}
	r.PID, err = p.Await(ours, func(child int) {
		fd, err := unix.PidfdOpen(child, unix.PIDFD_NONBLOCK)
		if err != nil {
			return
		}
		if st, err := procfile.StatOf(child); err != nil || st.Parent != pid {
			unix.Close(fd)
			return
		}
		r.child = os.NewFile(uintptr(fd), "command")
	})
	if err != nil {
		r.Kill()
		_, _ = r.Wait(context.Background()) // err says more
		return nil, explain(&Spec{Path: e.Path}, err)
	}
	return r, nil
}

// sameNetwork reports whether a process has this one's network. Without the permission to see that it returns true:
// entering another one would fail, too.
func sameNetwork(pid int) bool {
	var own, its unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &own) != nil || unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/net", &its) != nil {
		return true
	}
	return own.Ino == its.Ino && own.Dev == its.Dev
}

// Wait returns the command's exit code (128+n for signal n). When ctx ends first the command is killed.
func (r *Running) Wait(ctx context.Context) (int, error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		awaitPidfd(r.pidfd)
	}()
	var cerr error
	select {
	case <-done:
	case <-ctx.Done():
		cerr = ctx.Err()
		r.Kill()
		<-done
	}
	st, err := r.process.Wait()
	r.once.Do(func() {
		r.pidfd.Close()
		if r.child != nil {
			r.child.Close()
		}
	})
	if cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, err
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	if !ok {
		return -1, errors.New("exit status is unreadable")
	}
	if ws.Signaled() { // the task ended and took everything in its groups along
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// Kill ends the command. Its launcher then reaps it and ends. If the launcher were killed instead, the command would be
// left to the host's init, and the task's namespace could not end before init has reaped it.
func (r *Running) Kill() {
	if r.whole && r.child != nil {
		r.killSession()
	}
	f := r.child
	if f == nil {
		f = r.pidfd
	}
	if rc, err := f.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
}

// killSession ends all processes of the session that the command leads.
func (r *Running) killSession() {
	list, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		st, err := procfile.StatOf(pid)
		if err != nil || st.Session != r.PID {
			continue
		}
		if fd, err := openProcess(pid, st.Start); err == nil {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			unix.Close(fd)
		}
	}
}
