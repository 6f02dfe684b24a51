// Package supervisor runs tasks as processes that outlive the agent. One supervisor process serves one agent data
// directory; beside each task stays a launcher (package launch) of a few KiB that holds its output pipes and writes its
// exit record. Any of them may be killed at any time: DESIGN.md says what happens then, and why it is built like this.
package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/supervisor/launch"
	"golang.org/x/sys/unix"
)

// Spec is one process to run, with every decision made: paths are absolute, users are numbers.
type Spec struct {
	ID      string // unique on the node for every start
	Path    string // file to execute
	Argv    []string
	Env     []string
	Dir     string // working directory
	Isolate *Isolation
	User    *Credential // nil: as the agent
	Limits  cgroup.Limits
	NoFile  uint64 // RLIMIT_NOFILE, 0: the agent's
	Stdout  Log
	Stderr  Log
}

// Credential is whom a task runs as.
type Credential struct {
	UID, GID uint32
	Groups   []uint32
}

// Isolation is the task's view of the machine: mount, pid, ipc and uts namespaces of its own, a private /tmp, /dev/shm
// and /proc, no new privileges, and no capability outside Caps.
type Isolation struct {
	TmpDir    string // host directory that becomes /tmp
	ShmMiB    int64
	HideDir   string // covered by an empty file system ...
	AllocRoot string // ... except for this directory below it
	Caps      uint64 // bit mask; a task that is not root has none, and can gain none outside it
}

// Log is where one output stream goes.
type Log struct {
	Base     string // files are Base.0, Base.1, ...; "" discards
	MaxFiles int
	MaxSize  int64
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Check tells what is wrong with the specification.
func (s *Spec) Check() error {
	if !validID.MatchString(s.ID) {
		return fmt.Errorf("task id %.140q: want 1 to 128 of A-Z a-z 0-9 . _ - and no leading dot or dash", s.ID)
	}
	for what, p := range map[string]string{"command": s.Path, "working directory": s.Dir, "stdout": s.Stdout.Base, "stderr": s.Stderr.Base} {
		if p == "" && (what == "stdout" || what == "stderr") {
			continue
		}
		if !filepath.IsAbs(p) {
			return fmt.Errorf("%s %q must be an absolute path", what, p)
		}
		if strings.ContainsRune(p, 0) {
			return fmt.Errorf("%s %q contains a zero byte", what, p)
		}
	}
	for _, list := range [][]string{s.Argv, s.Env} {
		for _, a := range list {
			if strings.ContainsRune(a, 0) {
				return fmt.Errorf("argument or variable %.60q contains a zero byte", a)
			}
		}
	}
	if len(s.Argv) == 0 {
		return errors.New("the argument list is empty")
	}
	return nil
}

// program writes what launcher and child do for the specification.
func (s *Spec) program(g cgroup.Group) *launch.Program {
	p := launch.New()
	pre := p.Pre()
	pre.Try(unix.SYS_PRCTL, launch.N(unix.PR_SET_NAME), p.S("muster-launch"))
	// The kernel must not choose the launcher when the task's memory runs out; the child takes the score back.
	pre.TryWriteFile("/proc/self/oom_score_adj", "-1000")
	c := p.Child()
	c.Try(unix.SYS_SETSID)
	c.TryWriteFile("/proc/self/oom_score_adj", "0")
	for _, f := range g.JoinFiles() {
		c.WriteFile("join control group "+filepath.Base(filepath.Dir(f)), f, "0")
	}
	if s.Isolate != nil {
		p.Flags |= launch.NamespaceInit
		s.Isolate.program(p, c)
	}
	c.Do("enter the working directory "+s.Dir, unix.SYS_CHDIR, p.S(s.Dir))
	finish(p, c, s.NoFile, s.User, s.Isolate)
	// Should the launcher be killed, the task goes with it: nobody would know of it any more.
	c.Do("tie the task to its launcher", unix.SYS_PRCTL, launch.N(unix.PR_SET_PDEATHSIG), launch.N(unix.SIGKILL))
	c.Exec(s.Path, s.Argv, s.Env)
	return p
}

// finish adds what every child does last: limits of its own, user, capabilities, descriptors.
func finish(p *launch.Program, c launch.Section, nofile uint64, user *Credential, iso *Isolation) {
	if nofile > 0 {
		lim := make([]byte, 0, 16)
		lim = appendU64(lim, nofile)
		lim = appendU64(lim, nofile)
		c.Do("set the limit of open files", unix.SYS_PRLIMIT64, launch.N(0), launch.N(unix.RLIMIT_NOFILE), p.B(lim), launch.N(0))
	}
	c.Try(unix.SYS_UMASK, launch.N(0o022))
	// An agent that was started with nohup, or from a shell that ignores signals, must not pass that on.
	dfl, none := p.B(make([]byte, 32)), p.B(make([]byte, 8))
	for sig := 1; sig <= 64; sig++ {
		c.Try(unix.SYS_RT_SIGACTION, launch.N(sig), dfl, launch.N(0), launch.N(8))
	}
	c.Do("unblock signals", unix.SYS_RT_SIGPROCMASK, launch.N(unix.SIG_SETMASK), none, launch.N(0), launch.N(8))
	if iso != nil {
		for i := range 64 {
			if iso.Caps&(1<<i) == 0 {
				c.Try(unix.SYS_PRCTL, launch.N(unix.PR_CAPBSET_DROP), launch.N(i)) // fails past the kernel's last one
			}
		}
	}
	if user != nil {
		groups := make([]byte, 0, 4*len(user.Groups))
		for _, g := range user.Groups {
			groups = appendU32(groups, g)
		}
		c.Do("set the task's groups", unix.SYS_SETGROUPS, launch.N(len(user.Groups)), p.B(groups))
		c.Do("set the task's group", unix.SYS_SETRESGID, launch.N(user.GID), launch.N(user.GID), launch.N(user.GID))
		c.Do("set the task's user", unix.SYS_SETRESUID, launch.N(user.UID), launch.N(user.UID), launch.N(user.UID))
	}
	if iso != nil {
		if user == nil || user.UID == 0 {
			lo, hi := uint32(iso.Caps), uint32(iso.Caps>>32)
			hdr := appendU32(appendU32(nil, unix.LINUX_CAPABILITY_VERSION_3), 0)
			var data []byte
			for _, v := range []uint32{lo, lo, 0, hi, hi, 0} {
				data = appendU32(data, v)
			}
			c.Do("drop capabilities", unix.SYS_CAPSET, p.B(hdr), p.B(data))
		}
		c.Do("set no_new_privs", unix.SYS_PRCTL, launch.N(unix.PR_SET_NO_NEW_PRIVS), launch.N(1), launch.N(0), launch.N(0), launch.N(0))
	}
	c.Do("close descriptors", unix.SYS_CLOSE_RANGE, launch.N(3), launch.N(^uint32(0)), launch.N(unix.CLOSE_RANGE_CLOEXEC))
}

func (i *Isolation) program(p *launch.Program, c launch.Section) {
	n := launch.N[int]
	mount := func(label, source, target, fstype string, flags uintptr, data string) {
		d := launch.N(0)
		if data != "" {
			d = p.S(data)
		}
		c.Do(label, unix.SYS_MOUNT, p.S(source), p.S(target), p.S(fstype), launch.N(flags), d)
	}
	c.Do("make namespaces", unix.SYS_UNSHARE, n(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS))
	mount("make mounts private", "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	mount("mount /proc", "proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	// Settings of the whole machine and other tasks' control groups: a task that is root could write there.
	for _, f := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
		c.Try(unix.SYS_MOUNT, p.S(f), p.S(f), p.S(""), n(unix.MS_BIND|unix.MS_REC), n(0))
		c.Try(unix.SYS_MOUNT, p.S(""), p.S(f), p.S(""), n(unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), n(0))
	}
	readonly := appendU64(nil, unix.MOUNT_ATTR_RDONLY) // struct mount_attr: attr_set, attr_clr, propagation, userns_fd
	readonly = append(readonly, make([]byte, 24)...)
	c.Try(unix.SYS_MOUNT_SETATTR, n(unix.AT_FDCWD), p.S("/sys"), n(unix.AT_RECURSIVE), p.B(readonly), n(len(readonly)))
	shm := i.ShmMiB
	if shm <= 0 {
		shm = 64
	}
	mount("mount /dev/shm", "shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%dm", shm))
	if i.HideDir != "" && i.AllocRoot != "" {
		at := unix.AT_FDCWD
		c.Set(0, "hold "+i.AllocRoot, unix.SYS_OPEN_TREE, n(at), p.S(i.AllocRoot), n(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
		// /tmp's source may be below what is hidden: take hold of it, too.
		if i.TmpDir != "" {
			c.Set(1, "hold "+i.TmpDir, unix.SYS_OPEN_TREE, n(at), p.S(i.TmpDir), n(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
		}
		mountTmp := func() {
			if i.TmpDir != "" {
				c.Do("mount /tmp", unix.SYS_MOVE_MOUNT, launch.R(1), p.S(""), n(at), p.S("/tmp"), n(unix.MOVE_MOUNT_F_EMPTY_PATH))
			}
		}
		// A data directory below /tmp is hidden by the private /tmp itself; the allocation must be shown on top of that.
		below := i.TmpDir != "" && strings.HasPrefix(i.HideDir+"/", "/tmp/")
		if below {
			mountTmp()
		} else {
			mount("hide "+i.HideDir, "hidden", i.HideDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=1m")
		}
		base := i.HideDir
		if below {
			base = "/tmp"
		}
		rel, err := filepath.Rel(base, i.AllocRoot)
		if err == nil {
			dir := base
			for _, e := range strings.Split(rel, "/") {
				dir = filepath.Join(dir, e)
				c.Try(unix.SYS_MKDIRAT, n(at), p.S(dir), n(0o755))
			}
		}
		c.Do("show "+i.AllocRoot, unix.SYS_MOVE_MOUNT, launch.R(0), p.S(""), n(at), p.S(i.AllocRoot), n(unix.MOVE_MOUNT_F_EMPTY_PATH))
		if !below {
			mount("protect "+i.HideDir, "", i.HideDir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
			mountTmp()
		}
	} else if i.TmpDir != "" {
		mount("mount /tmp", i.TmpDir, "/tmp", "", unix.MS_BIND, "")
	}
	if i.TmpDir != "" {
		mount("protect /tmp", "", "/tmp", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, "")
	}
}

func appendU32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}
func appendU64(b []byte, v uint64) []byte { return appendU32(appendU32(b, uint32(v)), uint32(v>>32)) }

// Status is what the supervisor knows of a task.
type Status struct {
	ID        string
	PID       int // main process on the host; 0 when unknown
	StartedAt time.Time
	Group     cgroup.Group
	Isolated  bool
	Ended     bool
	Exit      Exit
}

// Exit is how a task ended.
type Exit struct {
	Code      int // -1 when lost
	Signal    int
	OOMKilled bool
	Lost      bool
	Err       string
	EndedAt   time.Time
	LostLogs  int64 // bytes of output thrown away because the log could not be written
}

func exitOf(r launch.Record) Exit {
	e := Exit{EndedAt: r.EndedAt, Code: r.Status.ExitStatus()}
	if r.Status.Signaled() {
		e.Signal = int(r.Status.Signal())
		e.Code = 128 + e.Signal
	}
	return e
}

// bootID tells one run of the kernel from another: a pid means nothing after a reboot.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// procStat is what identifies a process: a pid alone does not, because pids are reused.
type procStat struct {
	state   byte
	ppid    int
	session int
	start   uint64 // clock ticks since boot
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat is unreadable", pid)
	}
	var st procStat
	st.state = f[0][0]
	if _, err := fmt.Sscan(f[1]+" "+f[3]+" "+f[19], &st.ppid, &st.session, &st.start); err != nil {
		return procStat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return st, nil
}

// openProcess returns a pidfd of the process that started at that tick, or an error if there is none any more.
func openProcess(pid int, start uint64) (int, error) {
	if pid <= 1 {
		return -1, syscall.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	st, err := readStat(pid)
	if err != nil || st.start != start {
		unix.Close(fd)
		return -1, syscall.ESRCH
	}
	return fd, nil
}
