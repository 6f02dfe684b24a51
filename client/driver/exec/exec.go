// Package exec runs a task as an isolated process of the host: with control groups for processor, memory and process
// limits, separate mount, pid, ipc and uts namespaces, a private /tmp, /dev/shm and /proc, a user that is not root, no
// new privileges, few capabilities and a filter of system calls. It sees the host's root file system (read-only, or
// another root, if the job asks for it), but not the agent's data directory except for its own allocation. A task that
// may be root can write wherever the host's root can, except /sys and /proc: agents deny that user by default.
package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/process"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/client/supervisor/launch"
	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/structs"
)

// Options of the driver.
type Options struct {
	Supervisor  *supervisor.Client
	DefaultUser string   // of tasks that name none; "" means the user nobody
	DeniedUsers []string // names that a task may not run as, or their numbers
	AllowCaps   []string // capabilities that a task may have; nil is DefaultCaps, "all" is all
	NoFilter    bool     // system calls are not restricted
	NoFile      uint64   // limit on the open files of a process, also the most that a task may ask for; 0 is the agent's own limit
	RootDirs    []string // directories whose subdirectories may be a task's root, besides the task's own directory
}

// Driver is exec.
type Driver struct{ opt Options }

// New makes the driver.
func New(opt Options) *Driver {
	if opt.DefaultUser == "" {
		opt.DefaultUser = "nobody"
	}
	return &Driver{opt}
}

// Name is "exec".
func (d *Driver) Name() string { return "exec" }

// JoinsNetwork implements driver.NetworkJoiner.
func (d *Driver) JoinsNetwork() bool { return true }

// MountsProgram implements driver.ProgramMounter.
func (d *Driver) MountsProgram() bool { return true }

// Fingerprint reports whether tasks can be isolated here.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	no := func(format string, args ...any) driver.Fingerprint {
		return driver.Fingerprint{Health: driver.Undetected, Detail: fmt.Sprintf(format, args...)}
	}
	if os.Geteuid() != 0 {
		return no("the agent does not run as root, which exec needs to isolate tasks; raw_exec does not")
	}
	if _, err := launch.Binary(); err != nil {
		return no("%v", err)
	}
	if ns := lacking(); ns != "" {
		return no("the kernel has no %s namespaces", ns)
	}
	l, err := d.opt.Supervisor.Groups()
	if err != nil {
		return no("%v", err)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !l.Has(c) {
			return no("control groups have no %s controller, so limits could not be enforced", c)
		}
	}
	f := driver.Fingerprint{Detected: true, Health: driver.Healthy, Detail: "Healthy", Attributes: map[string]string{
		"driver.exec": "1", "driver.exec.cgroup": l.Version(), "driver.exec.devices": d.opt.Supervisor.Devices(),
	}}
	if l.Freezes() {
		f.Attributes[structs.SuspendAttribute(d.Name())] = "1"
	}
	return f
}

// lacking names a kind of namespace that the kernel does not have, or "". It is read before each start of a task, and
// determined once.
var lacking = sync.OnceValue(func() string {
	for _, ns := range []string{"mnt", "pid", "ipc", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + ns); err != nil {
			return ns
		}
	}
	return ""
})

// ConfigSchema lists the config keys.
func (d *Driver) ConfigSchema() driver.Schema { return driver.Schema(driverconf.Exec.Keys) }

// denied compares user ids as well as names: "0" is root, and so is any other name with this id.
func (d *Driver) denied(name string, cred *supervisor.Credential) bool {
	return slices.ContainsFunc(d.opt.DeniedUsers, func(no string) bool {
		if no == name {
			return true
		}
		c, err := process.LookUser(no, false)
		return err == nil && c.UID == cred.UID
	})
}

// Start runs the task.
func (d *Driver) Start(ctx context.Context, cfg *driver.TaskConfig) (driver.Task, error) {
	if f := d.Fingerprint(ctx); !f.Detected {
		return nil, driver.Permanent(fmt.Errorf("exec does not work on this node: %s", f.Detail))
	}
	v, err := d.ConfigSchema().Decode(d.Name(), cfg.Config)
	if err != nil {
		return nil, err
	}
	for _, k := range []string{"pid_mode", "ipc_mode"} {
		if m := v.String(k); m != "" && m != "private" {
			return nil, driver.Permanent(fmt.Errorf("exec: config key %q: want \"private\", got %q; sharing the host's namespaces is not supported", k, m))
		}
	}
	caps, ambient, err := capMask(v, d.opt.AllowCaps)
	if err != nil {
		return nil, err
	}
	rights := supervisor.Rights{Caps: caps, Ambient: ambient, Filter: !d.opt.NoFilter}
	if rights.NoFile, err = d.noFile(v); err != nil {
		return nil, err
	}
	root, err := d.root(cfg.Dirs, v.String("rootfs"))
	if err != nil {
		return nil, err
	}
	name := cfg.User
	if name == "" {
		name = d.opt.DefaultUser
	}
	cred, err := process.LookUser(name, cfg.UserGroups)
	if err != nil {
		return nil, err
	}
	if d.denied(name, cred) {
		return nil, driver.Permanent(fmt.Errorf("exec: this node does not allow tasks to run as %q (plugin \"exec\", denied_users)", name))
	}
	at, dir, asUser := "", v.String("work_dir"), false
	if root != nil {
		at = filepath.Join(root.Base, root.Path)
	}
	switch {
	case root != nil && dir == "" && cfg.WorkDir != "":
		dir, asUser = cfg.WorkDir, true
	case root == nil || !filepath.IsAbs(dir): // an absolute path is looked up in the task's root
		if dir, asUser, err = process.Place(cfg, dir, cred); err != nil {
			return nil, err
		}
	}
	own := cfg.Dirs.AllocRoot != "" && strings.HasPrefix(dir, cfg.Dirs.AllocRoot+"/") // which every task sees, wherever it is
	if asUser && root == nil && !own && (dir == "/tmp" || strings.HasPrefix(dir, "/tmp/")) {
		return nil, driver.Permanent(fmt.Errorf("exec: the working directory %s is below /tmp, and every task has its own /tmp; use another directory, or the driver raw_exec", dir))
	}
	// A directory that the job names may be one that only root may enter, also through a link of the task.
	posture, err := d.posture(cfg, asUser || v.String("work_dir") != "")
	if err != nil {
		return nil, err
	}
	path, err := process.Search{Driver: d.Name(), Dirs: cfg.Dirs, Dir: dir, AsUser: asUser, Env: cfg.Env(), Root: at, User: cred}.Look(v.String("command"))
	if err != nil {
		return nil, err
	}
	limits, err := d.limits(cfg, v)
	if err != nil {
		return nil, err
	}
	iso := &supervisor.Isolation{
		ShmMiB: cfg.Resources.ShmMiB, Rights: rights, Root: root, ReadOnly: v.Bool("readonly_rootfs"), AllocRoot: cfg.Dirs.AllocRoot,
		Hostname: cfg.Hostname,
	}
	for _, m := range cfg.Etc {
		if !strings.HasPrefix(m.Source, cfg.Dirs.AllocRoot+"/") || cfg.Dirs.AllocRoot == "" {
			return nil, fmt.Errorf("exec: %s is not below the allocation's directory", m.Source)
		}
		iso.Files = append(iso.Files, supervisor.File{Source: m.Source, Target: m.Target})
	}
	if m := cfg.Muster; m.Source != "" {
		if !strings.HasPrefix(m.Target, cfg.Dirs.AllocRoot+"/") || cfg.Dirs.AllocRoot == "" {
			return nil, fmt.Errorf("exec: %s is not below the allocation's directory", m.Target)
		}
		iso.Program = supervisor.File{Source: m.Source, Target: m.Target}
	}
	if iso.Volumes, err = volumes(cfg, root != nil, cred); err != nil {
		return nil, err
	}
	if cfg.Dirs.TaskDir != "" {
		iso.TmpDir = filepath.Join(cfg.Dirs.TaskDir, allocdir.Tmp)
	}
	if h := cfg.Dirs.HideDir; h != "" && cfg.Dirs.AllocRoot != "" {
		if !strings.HasPrefix(cfg.Dirs.AllocRoot, strings.TrimSuffix(h, "/")+"/") {
			return nil, fmt.Errorf("exec: the allocation's directory %s is not below %s", cfg.Dirs.AllocRoot, h)
		}
		iso.HideDir = h
	}
	spec := &supervisor.Spec{
		ID: cfg.TaskID, Path: path, Argv: append([]string{v.String("command")}, v.List("args")...), Env: process.Environ(cfg.Env()), Dir: dir,
		Isolate: iso, User: cred, Limits: limits, NoFile: cfg.NoFile, Posture: posture, NetNS: cfg.NetNS,
	}
	if spec.Lease, err = process.Lease(cfg); err != nil {
		return nil, err
	}
	process.Launch(spec, cfg)
	spec.Stdout, spec.Stderr = process.Logs(cfg.Logs)
	return process.Start(ctx, d.Name(), d.opt.Supervisor, spec, process.State{
		Dir: dir, Root: at, User: cred, Rights: rights, Posture: posture, KillSignal: cfg.KillSignal, KillTimeout: cfg.KillTimeout, TaskDirs: cfg.Dirs,
	})
}

// Recover finds a running task again.
func (d *Driver) Recover(ctx context.Context, state []byte) (driver.Task, error) {
	return process.Recover(ctx, d.Name(), d.opt.Supervisor, state)
}

// Discard implements driver.Discarder.
func (d *Driver) Discard(ctx context.Context, taskID, sig string, timeout time.Duration) error {
	return process.Discard(ctx, d.opt.Supervisor, taskID, sig, timeout)
}

func (d *Driver) limits(cfg *driver.TaskConfig, v driver.Values) (cgroup.Limits, error) {
	r := cfg.Resources
	l := cgroup.Limits{CPUShares: r.CPUMHz, CPUQuota: r.CPUQuota, Cores: r.Cores, Mems: r.Mems, PidsMax: r.PidsMax, Accounting: true}
	if n := v.Int("pids_limit"); n < 0 {
		return l, driver.Permanent(fmt.Errorf("exec: config key \"pids_limit\" must not be negative, got %d", n))
	} else if n > 0 && (l.PidsMax == 0 || n < l.PidsMax) {
		l.PidsMax = n
	}
	l.MemoryBytes = r.MemoryMiB << 20
	if r.MemoryMaxMiB > r.MemoryMiB {
		l.MemoryBytes, l.MemoryLow = r.MemoryMaxMiB<<20, r.MemoryMiB<<20
	}
	if d.opt.Supervisor.Devices() != cgroup.DevicesByNone {
		l.Devices = cgroup.DevicesStandard()
		for _, n := range r.Devices {
			l.Devices = append(l.Devices, cgroup.DeviceRule{Major: n.Major, Minor: n.Minor, Access: "rw"})
		}
		for _, n := range r.RDMA {
			l.Devices = append(l.Devices, cgroup.DeviceRule{Major: n.Major, Minor: n.Minor, Access: "rw"})
		}
	}
	if v.Bool("cpu_hard_limit") && l.CPUQuota == 0 && r.CPUMHz > 0 {
		mhz := coreMHz()
		if mhz == 0 {
			return l, fmt.Errorf("exec: cpu_hard_limit: the speed of this node's cores is unknown")
		}
		l.CPUQuota = r.CPUMHz * 1000 / mhz
	}
	return l, nil
}

// posture returns the task's umask and limits, after checking them against the node's limit of open files.
func (d *Driver) posture(cfg *driver.TaskConfig, asUser bool) (supervisor.Posture, error) {
	p, err := process.Posture(cfg, asUser)
	if err != nil {
		return p, fmt.Errorf("exec: %w", err)
	}
	for _, r := range p.Rlimits {
		if r.Resource != unix.RLIMIT_NOFILE {
			continue
		}
		most, err := d.noFileMax()
		if err != nil {
			return p, err
		}
		if r.Hard > most {
			return p, driver.Permanent(fmt.Errorf("exec: ulimits ask for nofile = %s, this node allows %d (plugin \"exec\", nofile)", cfg.Ulimits["nofile"], most))
		}
	}
	return p, nil
}

// noFileMax returns the most open files that a task may ask for.
func (d *Driver) noFileMax() (uint64, error) {
	if d.opt.NoFile > 0 {
		return d.opt.NoFile, nil
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 0, fmt.Errorf("exec: read the limit of open files: %w", err)
	}
	return own.Max, nil
}

// noFile returns the task's limit of open files.
func (d *Driver) noFile(v driver.Values) (uint64, error) {
	n := v.Int("nofile_limit")
	if n < 0 {
		return 0, driver.Permanent(fmt.Errorf("exec: config key \"nofile_limit\" must not be negative, got %d", n))
	}
	if n == 0 {
		return d.opt.NoFile, nil
	}
	most, err := d.noFileMax()
	if err != nil {
		return 0, err
	}
	if uint64(n) > most {
		return 0, driver.Permanent(fmt.Errorf("exec: config key \"nofile_limit\" asks for %d open files, this node allows %d (plugin \"exec\", nofile)", n, most))
	}
	return uint64(n), nil
}

// root turns the job's rootfs into a path that the task cannot redirect: a trusted base directory, and the path below
// it.
func (d *Driver) root(dirs driver.Dirs, asked string) (*supervisor.Root, error) {
	if asked == "" {
		return nil, nil
	}
	if dirs.AllocRoot == "" || dirs.TaskDir == "" {
		return nil, driver.Permanent(errors.New("exec: rootfs needs a task with directories"))
	}
	bases := d.opt.RootDirs
	clean := filepath.Clean(asked)
	if !filepath.IsAbs(clean) {
		clean = filepath.Join(dirs.TaskDir, clean)
	}
	for _, base := range append([]string{dirs.AllocRoot}, bases...) {
		rel, err := filepath.Rel(base, clean)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") || rel == "." && base == dirs.AllocRoot {
			continue
		}
		return &supervisor.Root{Base: base, Path: rel}, nil
	}
	return nil, driver.Permanent(fmt.Errorf("exec: rootfs %q is neither in the task's directory nor in one that this node allows (plugin \"exec\", rootfs_dirs)", asked))
}

// coreMHz returns the speed of the fastest core, 0 if unknown.
var coreMHz = sync.OnceValue(func() int64 {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	var best int64
	for line := range strings.Lines(string(b)) {
		if k, val, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "cpu MHz" {
			if f, err := strconv.ParseFloat(strings.TrimSpace(val), 64); err == nil {
				best = max(best, int64(f))
			}
		}
	}
	return best
})
