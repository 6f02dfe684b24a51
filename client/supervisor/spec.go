// Package supervisor runs tasks as processes that outlive the agent. One supervisor process serves one agent data
// directory. With each task runs a launcher (package launch) of a few KiB that holds its output pipes and writes its
// exit record. Any of these processes may be killed at any time: DESIGN.md says what happens then, and why it is built
// like this.
package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
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

// Spec is one process to run, fully resolved: paths are absolute, users are numbers.
type Spec struct {
	ID   string // unique on the node for every start
	Path string // file to execute
	Argv []string
	Env  []string
	// Early opens the file before the task gets its own view of the machine and its user: the launcher of ranks is the
	// agent's program, which tasks need not be able to see.
	Early   bool
	Dir     string // working directory
	Isolate *Isolation
	User    *Credential // nil: as the agent
	// NetNS is the file of a mounted network namespace that the task joins; "" is the supervisor's own.
	NetNS   string
	Limits  cgroup.Limits
	NoFile  uint64 // RLIMIT_NOFILE, 0: the agent's
	Posture Posture
	Lease   *Lease // ends the task when contact with the servers is lost; nil: it runs on
	Stdout  Log
	Stderr  Log
}

// Posture holds process attributes other than user and rights. The zero value is the default.
type Posture struct {
	// Umask is the umask if SetUmask; otherwise it is 022. A pointer cannot be used: gob sends one to 0 as nil.
	Umask    uint32   `json:",omitempty"`
	SetUmask bool     `json:",omitempty"`
	Rlimits  []Rlimit `json:",omitempty"` // override NoFile if they include open files
	// AsUser enters the working directory with the user's rights: for a directory of a network file system on which
	// root has none, and to refuse one that the user may not enter.
	AsUser bool `json:",omitempty"`
}

// Rlimit is a process limit of setrlimit.
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

// rlimits are the limits by name.
var rlimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS,
	"memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE, "nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// NewRlimit makes the limit of that name.
func NewRlimit(name string, soft, hard uint64) (Rlimit, error) {
	r, ok := rlimits[name]
	if !ok {
		return Rlimit{}, fmt.Errorf("there is no limit %q", name)
	}
	return Rlimit{r, soft, hard}, nil
}

// name returns the limit's name for a person.
func (r Rlimit) name() string {
	for n, k := range rlimits { // each number once
		if k == r.Resource {
			return n
		}
	}
	return fmt.Sprint(r.Resource)
}

// Credential is the user that a task runs as.
type Credential struct {
	UID, GID uint32
	Groups   []uint32
}

// Isolation is the task's view of the machine: separate mount, pid, ipc and uts namespaces, a private /tmp, /dev/shm
// and /proc, no new privileges, and no rights but the given ones.
type Isolation struct {
	TmpDir    string // host directory that becomes /tmp
	ShmMiB    int64
	HideDir   string // covered by an empty file system ...
	AllocRoot string // ... except for this directory below it
	Root      *Root  // nil: the host's
	ReadOnly  bool   // everything but AllocRoot, TmpDir, /dev/shm and /proc is read-only
	Rights    Rights
	Volumes   []Volume
	Hostname  string // of the task's uts namespace; "" is the host's
	Files     []File
	Program   File // of the host, wherever it is; Target is below AllocRoot. The zero value shows none
}

// File is a file that the task sees, read-only, at Target. Those of Isolation.Files are below AllocRoot.
type File struct{ Source, Target string }

// Volume is a directory of the host that the task sees at another path.
type Volume struct {
	Source   string
	Stage    string // where it is mounted first: below AllocRoot, where it remains visible
	Target   string // path in the task's root; "": only at Stage
	Make     bool   // the task's root may lack Target
	ReadOnly bool
}

// Root is a directory of the host that becomes the task's root. Base is trusted; Path is below it, and links in it
// cannot lead out.
type Root struct{ Base, Path string }

// Rights are the additional rights of an isolated task's programs.
type Rights struct {
	Caps    uint64 `json:",omitempty"` // bit mask: those of a task that is root; no task can gain others
	Ambient uint64 `json:",omitempty"` // those of a task that is not root; a subset of Caps
	Filter  bool   `json:",omitempty"` // system calls are restricted: see seccomp.go
	NoFile  uint64 `json:",omitempty"` // RLIMIT_NOFILE, 0: the agent's
}

// Log is the destination of one output stream.
type Log struct {
	Base     string // files are Base.0, Base.1, ...; "" discards
	MaxFiles int
	MaxSize  int64
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Check returns an error if the specification is invalid.
func (s *Spec) Check() error {
	if !validID.MatchString(s.ID) {
		return fmt.Errorf("task id %.140q: want 1 to 128 of A-Z a-z 0-9 . _ - and no leading dot or dash", s.ID)
	}
	for _, p := range [...]struct {
		what, path string
		optional   bool
	}{{"command", s.Path, false}, {"working directory", s.Dir, false}, {"stdout", s.Stdout.Base, true}, {"stderr", s.Stderr.Base, true}, {"network namespace", s.NetNS, true}} {
		if p.path == "" && p.optional {
			continue
		}
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s %q must be an absolute path", p.what, p.path)
		}
		if strings.ContainsRune(p.path, 0) {
			return fmt.Errorf("%s %q contains a zero byte", p.what, p.path)
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

// program builds the launcher program of the specification.
func (s *Spec) program(g cgroup.Group) *launch.Program {
	p := launch.New()
	pre := p.Pre()
	pre.Try(unix.SYS_PRCTL, launch.N(unix.PR_SET_NAME), p.S("muster-launch"))
	pre.Try(unix.SYS_PRCTL, launch.N(unix.PR_SET_TIMERSLACK), launch.N(taskTimerSlack))
	// The kernel must not choose the launcher when the task's memory runs out; the child takes the score back.
	pre.TryWriteFile("/proc/self/oom_score_adj", "-1000")
	c := p.Child()
	c.Try(unix.SYS_SETSID)
	c.TryWriteFile("/proc/self/oom_score_adj", "0")
	for _, f := range g.JoinFiles() {
		c.WriteFile("join control group "+filepath.Base(filepath.Dir(f)), f, "0")
	}
	if s.NetNS != "" { // while the host's files are visible
		const namespace = 0 // register; not used before
		c.Set(namespace, "open the network namespace "+s.NetNS, unix.SYS_OPENAT, launch.N(unix.AT_FDCWD), p.S(s.NetNS), launch.N(unix.O_RDONLY|unix.O_CLOEXEC))
		c.Do("enter the network namespace", unix.SYS_SETNS, launch.R(namespace), launch.N(unix.CLONE_NEWNET))
	}
	if s.Early {
		c.Set(regProgram, "open "+s.Path, unix.SYS_OPENAT, launch.N(unix.AT_FDCWD), p.S(s.Path), launch.N(unix.O_RDONLY|unix.O_CLOEXEC))
	}
	if s.Isolate != nil {
		p.Flags |= launch.NamespaceInit
		s.Isolate.program(p, c)
	}
	s.Posture.enter(p, c, s.Dir, false)
	finish(p, c, s.NoFile, s.User, s.rights(), s.Posture)
	s.Posture.enter(p, c, s.Dir, true)
	// If the launcher is killed, the task must end with it: no process would know of it any more.
	c.Do("tie the task to its launcher", unix.SYS_PRCTL, launch.N(unix.PR_SET_PDEATHSIG), launch.N(unix.SIGKILL))
	if s.Early {
		c.ExecFile(regProgram, s.Path, s.Argv, s.Env)
	} else {
		c.Exec(s.Path, s.Argv, s.Env)
	}
	return p
}

// enter changes to the working directory, before or after the process has become the task's user.
func (x Posture) enter(p *launch.Program, c launch.Section, dir string, user bool) {
	if x.AsUser == user {
		c.Do("enter the working directory "+dir, unix.SYS_CHDIR, p.S(dir))
	}
}

// rights returns the rights of the task, nil if it is not isolated.
func (s *Spec) rights() *Rights {
	if s.Isolate == nil {
		return nil
	}
	return &s.Isolate.Rights
}

// finish adds the last operations of every child: limits, user, capabilities, descriptors, and for an isolated task
// (rights not nil) that no privileges can be gained.
func finish(p *launch.Program, c launch.Section, nofile uint64, user *Credential, rights *Rights, posture Posture) {
	if rights != nil && nofile == 0 {
		nofile = rights.NoFile
	}
	limit := func(label string, r Rlimit) {
		lim := appendU64(appendU64(make([]byte, 0, 16), r.Soft), r.Hard)
		c.Do(label, unix.SYS_PRLIMIT64, launch.N(0), launch.N(r.Resource), p.B(lim), launch.N(0))
	}
	if nofile > 0 {
		limit("set the limit of open files", Rlimit{unix.RLIMIT_NOFILE, nofile, nofile})
	}
	for _, r := range posture.Rlimits {
		limit("set the limit "+r.name(), r)
	}
	mask := uint32(0o022)
	if posture.SetUmask {
		mask = posture.Umask
	}
	c.Try(unix.SYS_UMASK, launch.N(mask))
	// An agent that was started with nohup, or from a shell that ignores signals, must not pass that on.
	dfl, none := p.B(make([]byte, 32)), p.B(make([]byte, 8))
	for _, sig := range ignored() {
		c.Try(unix.SYS_RT_SIGACTION, launch.N(sig), dfl, launch.N(0), launch.N(8))
	}
	c.Do("unblock signals", unix.SYS_RT_SIGPROCMASK, launch.N(unix.SIG_SETMASK), none, launch.N(0), launch.N(8))
	root := user == nil || user.UID == 0
	if rights != nil {
		for i := range lastCap() + 1 {
			if rights.Caps&(1<<i) == 0 {
				c.Try(unix.SYS_PRCTL, launch.N(unix.PR_CAPBSET_DROP), launch.N(i))
			}
		}
		if !root && rights.Ambient != 0 {
			c.Do("keep capabilities", unix.SYS_PRCTL, launch.N(unix.PR_SET_KEEPCAPS), launch.N(1), launch.N(0), launch.N(0), launch.N(0))
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
	if rights != nil {
		switch {
		case root:
			setCaps(p, c, rights.Caps, 0)
		case rights.Ambient != 0:
			setCaps(p, c, rights.Ambient, rights.Ambient)
			for i := range 64 {
				if rights.Ambient&(1<<i) != 0 {
					c.Do("keep capabilities", unix.SYS_PRCTL, launch.N(unix.PR_CAP_AMBIENT), launch.N(unix.PR_CAP_AMBIENT_RAISE), launch.N(i), launch.N(0), launch.N(0))
				}
			}
		}
		c.Do("set no_new_privs", unix.SYS_PRCTL, launch.N(unix.PR_SET_NO_NEW_PRIVS), launch.N(1), launch.N(0), launch.N(0), launch.N(0))
	}
	c.Do("close descriptors", unix.SYS_CLOSE_RANGE, launch.N(3), launch.N(^uint32(0)), launch.N(unix.CLOSE_RANGE_CLOEXEC))
	if rights != nil && rights.Filter {
		if f := seccompFilter(rights.Caps); f != nil {
			c.Seccomp(f)
		}
	}
}

// ignored are the signals that this process ignores, which its children would inherit: handled signals are reset in
// executed programs. This process ignores no further ones later.
var ignored = sync.OnceValue(func() []int {
	all := make([]int, 64)
	for i := range all {
		all[i] = i + 1
	}
	b, err := procfile.Read("/proc/self/status")
	if err != nil {
		return all
	}
	_, after, ok := strings.Cut(string(b), "\nSigIgn:")
	line, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if !ok || err != nil {
		return all
	}
	return slices.DeleteFunc(all, func(sig int) bool { return mask&(1<<(sig-1)) == 0 })
})

// lastCap is the kernel's last capability: those beyond it cannot be dropped. If it cannot be read, all are tried.
var lastCap = sync.OnceValue(func() int { return parseLastCap(procfile.Read("/proc/sys/kernel/cap_last_cap")) })

func parseLastCap(b []byte, err error) int {
	const most = 63 // bits of a mask
	n, perr := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || perr != nil || n < unix.CAP_AUDIT_READ || n > most { // CAP_AUDIT_READ: the last one of kernels that are too old
		return most
	}
	return n
}

// setCaps makes caps the permitted and effective capabilities of the process.
func setCaps(p *launch.Program, c launch.Section, caps, inheritable uint64) {
	hdr := appendU32(appendU32(nil, unix.LINUX_CAPABILITY_VERSION_3), 0)
	var data []byte
	for _, v := range []uint64{caps, caps, inheritable, caps >> 32, caps >> 32, inheritable >> 32} {
		data = appendU32(data, uint32(v))
	}
	c.Do("drop capabilities", unix.SYS_CAPSET, p.B(hdr), p.B(data))
}

func appendU32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}
func appendU64(b []byte, v uint64) []byte { return appendU32(appendU32(b, uint32(v)), uint32(v>>32)) }

// Status is the supervisor's information about a task.
type Status struct {
	ID        string
	PID       int // main process on the host; 0 when unknown
	StartedAt time.Time
	Group     cgroup.Group
	Isolated  bool
	Ended     bool
	Exit      Exit
}

// Exit says how a task ended.
type Exit struct {
	Code      int // -1 when lost
	Signal    int
	OOMKilled bool
	Lost      bool
	Err       string
	EndedAt   time.Time
	LostLogs  int64 // bytes of output dropped because the log could not be written
}

func exitOf(r launch.Record) Exit {
	e := Exit{EndedAt: r.EndedAt, Code: r.Status.ExitStatus()}
	if r.Status.Signaled() {
		e.Signal = int(r.Status.Signal())
		e.Code = 128 + e.Signal
	}
	return e
}

// bootID identifies a run of the kernel: a pid is meaningless after a reboot.
var bootID = sync.OnceValue(func() string {
	b, err := procfile.Read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// openProcess returns a pidfd of the process that started at that tick, or an error if it is gone.
func openProcess(pid int, start uint64) (int, error) {
	if pid <= 1 {
		return -1, syscall.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	st, err := procfile.StatOf(pid)
	if err != nil || st.Start != start {
		unix.Close(fd)
		return -1, syscall.ESRCH
	}
	return fd, nil
}
