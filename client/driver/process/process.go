// Package process has the common parts of drivers that run host processes through the node's supervisor: finding the
// command and the user, and the running task itself.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/client/users"
	"github.com/muster-sched/muster/structs"
)

// DefaultPath is the PATH of a task that sets none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ returns the environment of a task as a sorted list, with PATH.
func Environ(env map[string]string) []string {
	out := make([]string, 0, len(env)+1)
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	if _, ok := env["PATH"]; !ok {
		out = append(out, "PATH="+DefaultPath)
	}
	sort.Strings(out)
	return out
}

// Place returns a task's working directory: that of its config block, else the task's own work_dir. asUser means that
// it must be entered with the user's rights, with which it is looked up, too.
func Place(cfg *driver.TaskConfig, asked string, user *supervisor.Credential) (dir string, asUser bool, err error) {
	if asked != "" || cfg.WorkDir == "" {
		dir, err = WorkDir(cfg.Dirs, asked, user)
		return dir, false, err
	}
	st, err := look{user: user}.stat(cfg.WorkDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", false, driver.Permanent(fmt.Errorf("the working directory %q does not exist on this node", cfg.WorkDir))
	case err == nil && !st.IsDir():
		return "", false, driver.Permanent(fmt.Errorf("the working directory %q is not a directory", cfg.WorkDir))
	}
	return cfg.WorkDir, true, nil // the user may see what root may not on a network file system
}

// Posture returns a task's umask and limits.
func Posture(cfg *driver.TaskConfig, asUser bool) (supervisor.Posture, error) {
	p := supervisor.Posture{AsUser: asUser}
	if cfg.Umask != nil {
		p.Umask, p.SetUmask = *cfg.Umask, true
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Ulimits)) {
		soft, hard, err := structs.ParseUlimit(name, cfg.Ulimits[name])
		if err != nil {
			return p, driver.Permanent(fmt.Errorf("ulimits: %s: %w", name, err))
		}
		l, err := supervisor.NewRlimit(name, soft, hard)
		if err != nil {
			return p, driver.Permanent(err)
		}
		p.Rlimits = append(p.Rlimits, l)
	}
	return p, nil
}

// WorkDir returns the working directory of a task. asked is the job's setting, relative to the task's own directory
// unless absolute, and looked up with the user's rights.
func WorkDir(d driver.Dirs, asked string, user *supervisor.Credential) (string, error) {
	base := d.LocalDir
	if base == "" {
		base = d.TaskDir
		if st, err := os.Stat(filepath.Join(d.TaskDir, "local")); err == nil && st.IsDir() {
			base = filepath.Join(d.TaskDir, "local")
		}
	}
	if base == "" {
		base = "/"
	}
	if asked == "" {
		return base, nil
	}
	dir := asked
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(base, dir)
	}
	if st, err := (look{user: user, alloc: d.AllocRoot}).stat(dir); errors.Is(err, os.ErrPermission) {
		return "", driver.Permanent(fmt.Errorf("the task's user may not enter the working directory %q", dir))
	} else if err != nil || !st.IsDir() {
		return "", driver.Permanent(fmt.Errorf("working directory %q is not a directory", dir))
	}
	return dir, nil
}

// Search says where to look for a task's commands.
type Search struct {
	Driver string // named in errors
	Dirs   driver.Dirs
	Dir    string // the task's working directory
	AsUser bool   // Dir is the user's choice, as returned by Place: commands may lead out of it, and the user may see what root may not
	Env    map[string]string
	Root   string                 // the task's root directory, "" for the host's; the allocation has the same path in it
	User   *supervisor.Credential // with whose rights; nil: the agent's
}

// Look finds a command: an absolute path unchanged, otherwise in the task's directories and then in PATH.
func (s Search) Look(command string) (string, error) {
	runnable := func(p string) error {
		err := judge(look{user: s.User, alloc: s.Dirs.AllocRoot, root: s.Root}.stat(p))
		if s.AsUser && strings.Contains(command, "/") && errors.Is(err, os.ErrPermission) {
			return nil // the check is left to the user's attempt
		}
		return err
	}
	fail := func(format string, args ...any) (string, error) {
		return "", driver.Permanent(fmt.Errorf("%s: command %q "+format, append([]any{s.Driver, command}, args...)...))
	}
	if filepath.IsAbs(command) {
		if err := runnable(command); err != nil {
			return fail("cannot be executed: %v", err)
		}
		return command, nil
	}
	var unusable error
	for i, base := range []string{s.Dir, s.Dirs.LocalDir, filepath.Join(s.Dirs.TaskDir, "local"), s.Dirs.TaskDir} {
		if base == "" || !filepath.IsAbs(base) {
			continue
		}
		// A relative command stays inside the directory it is looked up in, unless the user chose that directory.
		p := filepath.Join(base, command)
		if !(i == 0 && s.AsUser) && !filepath.IsLocal(command) {
			return fail("leads out of the task's directory")
		}
		err := runnable(p)
		switch {
		case err == nil:
			return p, nil
		case !filepath.IsLocal(command):
			return fail("cannot be executed: %v", err)
		case !errors.Is(err, os.ErrNotExist) && unusable == nil:
			unusable = err
		}
	}
	if strings.Contains(command, "/") {
		if unusable != nil {
			return fail("cannot be executed: %v", unusable)
		}
		if s.AsUser {
			return fail("not found in the working directory (%s)", s.Dir)
		}
		return fail("not found in the task's directory (%s)", s.Dirs.TaskDir)
	}
	path, ok := s.Env["PATH"]
	if !ok {
		path = DefaultPath
	}
	for _, p := range filepath.SplitList(path) {
		if filepath.IsAbs(p) && runnable(filepath.Join(p, command)) == nil {
			return filepath.Join(p, command), nil
		}
	}
	if unusable != nil {
		return fail("cannot be executed: %v", unusable)
	}
	return fail("not found in the task's directory or in PATH (%s)", path)
}

// look is how paths of a task are looked up.
type look struct {
	user  *supervisor.Credential // with whose rights; nil: the agent's
	alloc string                 // the allocation's directory, which need not be reachable for the user; "" for none
	root  string                 // as a process with this root directory sees them, links included; "": the host's
}

// stat describes what a path leads to.
func (l look) stat(p string) (st os.FileInfo, err error) {
	base, below, how := "/", p, unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	if rest, ok := strings.CutPrefix(p, l.alloc+"/"); ok && l.alloc != "" {
		base, below = l.alloc, rest
	} else if l.root != "" {
		base, how.Resolve = l.root, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS
	}
	dir, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	err = as(l.user, func() error {
		fd, err := unix.Openat2(dir, below, &how)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), p)
		defer f.Close()
		st, err = f.Stat()
		return err
	})
	return st, err
}

// IsDir reports whether a user sees a directory at a path of the host.
func IsDir(path string, user *supervisor.Credential) bool {
	st, err := look{user: user}.stat(path)
	return err == nil && st.IsDir()
}

func judge(st os.FileInfo, err error) error {
	switch {
	case err != nil:
		return err
	case st.IsDir():
		return errors.New("it is a directory")
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("it has no execute permission (mode %s)", st.Mode().Perm())
	}
	return nil
}

// LookUser turns a user name or number into credentials.
func LookUser(name string, withGroups bool) (*supervisor.Credential, error) {
	u, err := users.Lookup(name)
	if err != nil {
		if _, nerr := strconv.ParseUint(name, 10, 32); nerr != nil {
			return nil, driver.Permanent(fmt.Errorf("user %q does not exist on this node", name))
		}
		if u, err = users.LookupID(name); err != nil {
			n, _ := strconv.ParseUint(name, 10, 32)
			return &supervisor.Credential{UID: uint32(n), GID: uint32(n)}, nil
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("user %q: %w", name, err)
	}
	c := &supervisor.Credential{UID: uint32(uid), GID: uint32(gid)}
	if !withGroups {
		return c, nil
	}
	ids, err := users.Groups(u)
	if err != nil {
		return nil, fmt.Errorf("groups of user %q: %w", name, err)
	}
	for _, id := range ids {
		if g, err := strconv.ParseUint(id, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(g))
		}
	}
	return c, nil
}

// Logs turns the task's log settings into the supervisor's.
func Logs(l driver.LogConfig) (stdout, stderr supervisor.Log) {
	return supervisor.Log{Base: l.StdoutBase, MaxFiles: l.MaxFiles, MaxSize: l.MaxFileSize},
		supervisor.Log{Base: l.StderrBase, MaxFiles: l.MaxFiles, MaxSize: l.MaxFileSize}
}

// Launch starts a task's command through the launcher, if there is one (driver.TaskConfig.Launcher).
func Launch(spec *supervisor.Spec, cfg *driver.TaskConfig) {
	if cfg.Launcher == "" {
		return
	}
	spec.Argv = slices.Concat([]string{"muster", "ranks"}, cfg.LauncherArgs, []string{"--", spec.Path}, spec.Argv)
	spec.Path, spec.Early = cfg.Launcher, true
}

// Lease returns the lease of a task; nil if it runs on without contact to the servers.
func Lease(cfg *driver.TaskConfig) (*supervisor.Lease, error) {
	if cfg.StopOnClientAfter <= 0 {
		return nil, nil
	}
	sig, timeout, err := driver.HowToStop("", 0, cfg.KillSignal, cfg.KillTimeout)
	if err != nil {
		return nil, fmt.Errorf("kill_signal: %w", err)
	}
	return &supervisor.Lease{Group: cfg.AllocID, Limit: cfg.StopOnClientAfter, Signal: int(sig), Timeout: timeout}, nil
}

// State is a task's persisted state. It contains neither environment nor secrets.
type State struct {
	ID          string
	Dir         string
	User        *supervisor.Credential `json:",omitempty"`
	Rights      supervisor.Rights
	Posture     supervisor.Posture
	Root        string        `json:",omitempty"` // host directory that is the task's root, "" for the host's own
	KillSignal  string        `json:",omitempty"`
	KillTimeout time.Duration `json:",omitempty"`
	TaskDirs    driver.Dirs
}

// Task is a task run by the supervisor. It implements driver.Task.
type Task struct {
	name  string // driver
	sup   *supervisor.Client
	state State

	mu     sync.Mutex
	status supervisor.Status // guarded by mu
	last   sample            // guarded by mu
}

type sample struct {
	at  time.Time
	cpu time.Duration
}

// Start runs spec and returns its task. name is the driver's.
func Start(ctx context.Context, name string, sup *supervisor.Client, spec *supervisor.Spec, st State) (driver.Task, error) {
	if _, err := driver.ParseSignal(st.KillSignal); err != nil {
		return nil, fmt.Errorf("kill_signal: %w", err)
	}
	status, err := sup.Start(ctx, spec)
	if errors.Is(err, supervisor.ErrLapsed) {
		return nil, fmt.Errorf("%s: %w: %w", name, driver.ErrLapsed, err)
	}
	if err != nil {
		var se *supervisor.StartError
		if errors.As(err, &se) && strings.Contains(se.Msg, "cannot be executed") {
			err = driver.Permanent(err)
		} else if errors.As(err, &se) && st.Posture.AsUser && strings.Contains(se.Msg, "enter the working directory") {
			err = fmt.Errorf("%w (as the task's user)", err)
			if dir := allocdir.Barred(spec.Dir); dir != "" && st.TaskDirs.AllocRoot != "" && strings.HasPrefix(spec.Dir, st.TaskDirs.AllocRoot) {
				err = fmt.Errorf("%w: only its owner may enter %s, which is above the agent's data_dir; chmod o+x it", err, dir)
			}
			err = driver.Permanent(err)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	st.ID = spec.ID
	return &Task{name: name, sup: sup, state: st, status: status}, nil
}

// Discard implements driver.Discarder.
func Discard(ctx context.Context, sup *supervisor.Client, taskID, signal string, timeout time.Duration) error {
	sig, timeout, err := driver.HowToStop(signal, timeout, "", 0)
	if err != nil {
		return err
	}
	if err = sup.Stop(ctx, taskID, sig, timeout); err == nil {
		err = sup.Destroy(ctx, taskID)
	}
	if errors.Is(err, supervisor.ErrUnknownTask) {
		return nil
	}
	return err
}

// Recover finds the running task of a stored handle.
func Recover(ctx context.Context, name string, sup *supervisor.Client, state []byte) (driver.Task, error) {
	var st State
	if err := json.Unmarshal(state, &st); err != nil || st.ID == "" {
		return nil, fmt.Errorf("%s: task state is unreadable (%v): %w", name, err, driver.ErrLost)
	}
	status, err := sup.Inspect(ctx, st.ID)
	if errors.Is(err, supervisor.ErrUnknownTask) {
		return nil, fmt.Errorf("%s: task %s: %w", name, st.ID, driver.ErrLost)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Task{name: name, sup: sup, state: st, status: status}, nil
}

func (t *Task) snapshot() supervisor.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// Status describes the task.
func (t *Task) Status() driver.TaskStatus {
	s := t.snapshot()
	b, err := json.Marshal(t.state)
	if err != nil {
		panic("state of a task cannot be encoded: " + err.Error()) // plain strings and numbers: cannot happen
	}
	return driver.TaskStatus{TaskID: s.ID, State: b, PID: s.PID, StartedAt: s.StartedAt, Running: !s.Ended}
}

// Wait returns when the task has ended.
func (t *Task) Wait(ctx context.Context) (driver.ExitResult, error) {
	s := t.snapshot()
	if !s.Ended {
		e, err := t.sup.Wait(ctx, s.ID)
		if errors.Is(err, supervisor.ErrUnknownTask) {
			return driver.ExitResult{ExitCode: -1, LostStatus: true, Err: "the supervisor does not know the task any more"}, nil
		}
		if err != nil {
			return driver.ExitResult{}, err
		}
		t.mu.Lock()
		t.status.Ended, t.status.Exit = true, e
		s = t.status
		t.mu.Unlock()
	}
	e := s.Exit
	return driver.ExitResult{ExitCode: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled, LostStatus: e.Lost, Err: e.Err, EndedAt: e.EndedAt}, nil
}

func (t *Task) translate(err error) error {
	switch {
	case errors.Is(err, supervisor.ErrUnknownTask), errors.Is(err, supervisor.ErrEnded):
		return driver.ErrNotRunning
	}
	return err
}

// Signal sends a signal to the main process.
func (t *Task) Signal(ctx context.Context, name string) error {
	sig, err := driver.ParseSignal(name)
	if err != nil {
		return err
	}
	return t.translate(t.sup.Signal(ctx, t.state.ID, sig))
}

// Suspend freezes all processes of the task.
func (t *Task) Suspend(context.Context) error {
	s := t.snapshot()
	switch {
	case s.Ended:
		return driver.ErrNotRunning
	case s.Group.Zero():
		return errors.New("it runs without a control group, which an agent without the right to make one cannot give it")
	}
	if err := s.Group.Freeze(true); err != nil {
		if ended(s.PID) {
			return errors.Join(driver.ErrNotRunning, s.Group.Freeze(false))
		}
		return err
	}
	if ended(s.PID) { // killed while it was frozen: its launcher, which is frozen too, has to notice
		return errors.Join(driver.ErrNotRunning, s.Group.Freeze(false))
	}
	return nil
}

// Resume thaws the task.
func (t *Task) Resume(context.Context) error {
	s := t.snapshot()
	if s.Ended || s.Group.Zero() {
		return nil
	}
	return s.Group.Freeze(false)
}

// ended reports whether a process is gone, or a zombie.
func ended(pid int) bool {
	b, err := procfile.Of(pid, "stat")
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// Stop ends the task.
func (t *Task) Stop(ctx context.Context, name string, timeout time.Duration) error {
	sig, timeout, err := driver.HowToStop(name, timeout, t.state.KillSignal, t.state.KillTimeout)
	if err != nil {
		return err
	}
	thawed := t.Resume(ctx) // a frozen task would not receive the signal; it is killed anyway after the timeout
	err = t.sup.Stop(ctx, t.state.ID, sig, timeout)
	if err == nil || errors.Is(err, supervisor.ErrUnknownTask) {
		return nil
	}
	return errors.Join(err, thawed)
}

// Destroy kills and forgets the task.
func (t *Task) Destroy(ctx context.Context) error { return t.sup.Destroy(ctx, t.state.ID) }

// Stats measures the task.
func (t *Task) Stats(ctx context.Context) (driver.Stats, error) {
	s := t.snapshot()
	if s.Ended {
		return driver.Stats{}, driver.ErrNotRunning
	}
	now := time.Now()
	out := driver.Stats{Time: now}
	var pids []int
	if s.Group.Zero() {
		pids = []int{s.PID}
	} else {
		u, err := s.Group.Usage()
		if err != nil {
			return driver.Stats{}, driver.ErrNotRunning
		}
		out.CPUTotalNS, out.CPUUserNS, out.CPUSystemNS, out.ThrottledNS = uint64(u.CPU), uint64(u.User), uint64(u.System), uint64(u.Throttled)
		if u.HasMemory {
			out.RSSBytes, out.CacheBytes, out.UsageBytes, out.MaxUsage, out.SwapBytes, out.MemoryLimit = u.RSS, u.Cache, u.Memory, u.MaxMemory, u.Swap, u.MemoryLimit
			out.MeasuredKeys = []string{"RSS", "Cache", "Swap", "Usage", "Max Usage"}
		}
		if pids, err = s.Group.Procs(); err != nil {
			return driver.Stats{}, driver.ErrNotRunning
		}
	}
	var rss, cpu uint64
	const perProcessMax = 256
	if len(pids) <= perProcessMax {
		out.PerProcess = make(map[int]driver.ProcStats, len(pids))
	}
	for _, pid := range pids {
		p, ok := procStats(pid)
		if !ok {
			continue
		}
		out.PidsCount++
		rss += p.RSSBytes
		cpu += p.CPUTotalNS
		if out.PerProcess != nil {
			out.PerProcess[pid] = p
		}
	}
	if out.MeasuredKeys == nil {
		out.RSSBytes, out.UsageBytes = rss, rss
		out.MeasuredKeys = []string{"RSS"}
	}
	if s.Group.Zero() || !s.Group.V2 {
		out.CPUTotalNS = cpu
	}
	t.mu.Lock()
	if el := now.Sub(t.last.at); !t.last.at.IsZero() && el > 0 && out.CPUTotalNS >= uint64(t.last.cpu) {
		out.CPUPercent = float64(out.CPUTotalNS-uint64(t.last.cpu)) / float64(el) * 100
	}
	t.last = sample{now, time.Duration(out.CPUTotalNS)}
	t.mu.Unlock()
	return out, nil
}

// procStats reads one process; launchers are not part of the task.
func procStats(pid int) (driver.ProcStats, bool) {
	st, err := procfile.StatOf(pid)
	return driver.ProcStats{CPUTotalNS: uint64(st.CPU), RSSBytes: st.RSS}, err == nil && st.Name != "muster-launch"
}

// environOf returns the environment that a process was started with.
func environOf(pid int) (map[string]string, error) {
	b, err := procfile.Of(pid, "environ")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return nil, driver.ErrNotRunning
		}
		return nil, fmt.Errorf("read the task's environment: %w", err)
	}
	env := map[string]string{}
	for _, kv := range strings.Split(string(b), "\x00") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env, nil
}
