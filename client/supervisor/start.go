package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/client/supervisor/launch"
)

// starting is the start of one task. close closes the files that it opens, after success and failure; task.abort undoes
// its other effects after a failure.
type starting struct {
	*task
	spec    *Spec
	file    taskFile
	closers []func()
	child   []int // the task's ends of the output pipes
}

// start runs a task. If it fails, it leaves nothing behind.
func start(path string, spec *Spec, groups *cgroup.Manager, kept *spares, cores *corePool) (_ *task, err error) {
	bin, err := launch.Binary()
	if err != nil {
		return nil, err
	}
	t := &task{path: path, fd: -1, done: make(chan struct{}), ours: true, groups: groups, cores: cores}
	t.mem = memory{ID: spec.ID, BootID: bootID(), Isolated: spec.Isolate != nil, Cores: spec.Limits.Cores, Lease: spec.Lease, Stdout: spec.Stdout, Stderr: spec.Stderr}
	fd, err := kept.open(path)
	if err != nil {
		return nil, err
	}
	s := &starting{task: t, spec: spec, file: taskFile{fd: fd}}
	s.closer(func() { unix.Close(fd) })
	defer func() {
		s.close()
		if err != nil {
			t.abort()
		}
	}()
	if err := s.confine(); err != nil {
		return nil, err
	}
	// Write the intent before anything runs: after a kill from here on, the next supervisor knows what to look for.
	if err := s.file.save(&t.mem); err != nil {
		return nil, err
	}
	if err := s.launch(bin); err != nil {
		return nil, err
	}
	if err := s.file.save(&t.mem); err != nil {
		return nil, err
	}
	go t.watch()
	return t, nil
}

func (s *starting) closer(fn func()) { s.closers = append(s.closers, fn) }

func (s *starting) close() {
	s.closeChild()
	for _, fn := range s.closers {
		fn()
	}
}

// closeChild closes the task's ends of the output pipes: the pumps see the end of the output only when no other process
// holds them.
func (s *starting) closeChild() {
	for _, fd := range s.child {
		unix.Close(fd)
	}
	s.child = nil
}

// confine creates the task's control group and assigns its cores.
func (s *starting) confine() (err error) {
	if s.groups != nil {
		if s.mem.Group, err = s.groups.Create(s.spec.ID, s.spec.Limits); err != nil {
			return err
		}
	}
	s.cores.own(s.spec.ID, s.spec.Limits.Cores)
	s.cores.join(s.spec.ID, s.mem.Group)
	return nil
}

// launch starts the launcher and returns once it has executed the task's command.
func (s *starting) launch(bin string) (err error) {
	lfd := -1
	attr, err := s.attributes(&lfd)
	if err != nil {
		return err
	}
	prog := s.spec.program(s.mem.Group)
	progFile, err := prog.File()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			progFile.Close()
		} else {
			prog.Release(progFile)
		}
	}()
	ours, theirs, err := launch.StatusPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	defer theirs.Close() // a second time, unless the launcher did not start
	files, err := s.files()
	if err != nil {
		return err
	}
	files[launch.FDStatus], files[launch.FDRecord], files[launch.FDProgram] = theirs.Fd(), uintptr(s.file.fd), progFile.Fd()
	pid, err := syscall.ForkExec(bin, []string{"muster-launch", s.spec.ID, "task"}, &syscall.ProcAttr{Env: []string{}, Files: files, Dir: "/", Sys: attr})
	if err != nil {
		return fmt.Errorf("start launcher: %w", err)
	}
	s.closeChild()
	theirs.Close()
	s.setLauncher(pid, lfd)
	_, err = prog.Await(ours, func(child int) {
		s.mem.StartedAt = time.Now().UTC()
		s.setChild(child)
	})
	if err != nil {
		return explain(s.spec, err)
	}
	return nil
}

// attributes returns those of the launcher's process. pidfd is set when it starts.
func (s *starting) attributes(pidfd *int) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setsid: true, PidFD: pidfd}
	if s.spec.Isolate != nil {
		attr.Cloneflags = unix.CLONE_NEWPID
	}
	if s.mem.Group.V2 {
		fd, err := unix.Open(s.mem.Group.Main, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open control group: %w", err)
		}
		s.closer(func() { unix.Close(fd) })
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	return attr, nil
}

// files creates the standard descriptors of the launcher and its task, and starts a pump for each log. The launcher
// also holds the read ends: they must outlive this process.
func (s *starting) files() ([]uintptr, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	s.closer(func() { unix.Close(null) })
	files := make([]uintptr, 8)
	files[0] = uintptr(null)
	var dirs logDirs
	defer dirs.close()
	for i, log := range []Log{s.spec.Stdout, s.spec.Stderr} {
		if log.Base == "" {
			files[1+i], files[launch.FDStdoutRead+i] = uintptr(null), uintptr(null)
			continue
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("make output pipe: %w", err)
		}
		s.child = append(s.child, fds[1])
		unix.SetNonblock(fds[0], true)
		dir, err := dirs.of(log)
		if err != nil {
			unix.Close(fds[0])
			return nil, err
		}
		s.out = append(s.out, startPump(log, dir, os.NewFile(uintptr(fds[0]), "pipe")))
		files[1+i], files[launch.FDStdoutRead+i] = uintptr(fds[1]), uintptr(fds[0])
	}
	return files, nil
}

// taskFile is the file of a task during its start, when only this process writes to it.
type taskFile struct {
	fd   int
	size int // bytes written; 0: none, and the space of the exit record comes with the first line
}

// save appends a line with what another supervisor needs to take over the task. The first line and the zeros before it
// are one write: a task whose file has less than a line was never started.
func (f *taskFile) save(m *memory) error {
	b, err := line{Memory: m}.encode()
	if err != nil {
		return err
	}
	if f.size == 0 {
		b = append(make([]byte, launch.RecordSize), b...)
	}
	n, err := unix.Pwrite(f.fd, b, int64(f.size))
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write task state: %w", err)
	}
	f.size += len(b)
	return nil
}

func (t *task) setLauncher(pid, pidfd int) {
	t.mem.Launcher = pid
	if st, err := procfile.StatOf(pid); err == nil {
		t.mem.LStart = st.Start
	}
	unix.SetNonblock(pidfd, true)
	t.lfd = os.NewFile(uintptr(pidfd), "launcher")
}

func (t *task) setChild(pid int) {
	t.mem.PID = pid
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return // it has ended already
	}
	st, err := procfile.StatOf(pid)
	if err != nil || st.Parent != t.mem.Launcher {
		unix.Close(fd)
		return
	}
	t.mem.PStart, t.fd = st.Start, fd
}

// explain adds a human-readable reason to a failed operation of the launcher.
func explain(spec *Spec, err error) error {
	var f *launch.Failure
	if errors.As(err, &f) && f.Err == unix.EPERM && strings.HasPrefix(f.What, "set the limit ") {
		return fmt.Errorf("%s: the agent has a lower limit itself and may not raise it (it wants CAP_SYS_RESOURCE, or the limit in its unit, such as LimitMEMLOCK=infinity)", f.What)
	}
	if errors.As(err, &f) && strings.HasPrefix(f.What, "execute ") {
		switch f.Err {
		case unix.ENOENT:
			return fmt.Errorf("command %q cannot be executed: the file or the interpreter in its first line does not exist", spec.Path)
		case unix.ENOEXEC:
			return fmt.Errorf("command %q cannot be executed: neither a program of this architecture nor a script with a #! line", spec.Path)
		case unix.EACCES:
			return fmt.Errorf("command %q cannot be executed: permission denied for the task's user", spec.Path)
		case unix.E2BIG:
			return fmt.Errorf("command %q cannot be executed: arguments and environment are too large", spec.Path)
		}
	}
	return err
}

// abort undoes a failed start.
func (t *task) abort() {
	if t.lfd != nil {
		t.killAll(5 * time.Second)
		t.awaitLauncher()
		t.lfd.Close()
	}
	for _, p := range t.out {
		p.finish(time.Second)
	}
	t.mu.Lock()
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	t.mu.Unlock()
	t.mem.Group.Remove()
	t.cores.leave(t.mem.ID)
	os.Remove(t.path)
}
