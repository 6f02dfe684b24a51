package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/procfile"
)

// Limits are what a group enforces; zero means no limit.
type Limits struct {
	CPUShares   int64 // relative share, in MHz
	CPUQuota    int64 // thousandths of a core
	Cores       []int
	Mems        []int // NUMA nodes whose memory the owner of Cores may use; none: all
	MemoryBytes int64 // hard limit
	MemoryLow   int64 // memory that is reclaimed last
	PidsMax     int64
	Devices     []DeviceRule // what the group may use; nil: everything
	Accounting  bool         // use the controllers even without a limit, for their measurements
}

// Group is the control groups of one task. It is plain data, so that it can be written to disk and used by another process.
type Group struct {
	Main string            `json:",omitempty"` // the cgroup2 leaf; without cgroup2, the version 1 leaf used for killing
	V2   bool              `json:",omitempty"` // Main is cgroup2
	V1   map[string]string `json:",omitempty"` // version 1 leaves by controller
	Ctl  []string          `json:",omitempty"` // controllers usable in Main (cgroup2)
	// Shared is the version 1 cpuset, not this group's own, of the tasks that own no core; "" elsewhere.
	Shared string `json:",omitempty"`
	Cores  bool   `json:",omitempty"` // the task owns cores
	// Again is the limit in bytes with which the version 1 memory leaf can be used again; 0: it cannot.
	Again int64 `json:",omitempty"`
}

// Zero reports whether there is no group (the agent may not create one).
func (g Group) Zero() bool { return g.Main == "" }

// Create makes the group of a task. An existing empty group of that name is reused.
func (m *Manager) Create(id string, l Limits) (Group, error) {
	g := Group{V1: map[string]string{}}
	limited := l.Accounting || l.CPUShares > 0 || l.CPUQuota > 0 || len(l.Cores) > 0 || l.MemoryBytes > 0 || l.PidsMax > 0
	fail := func(err error) (Group, error) {
		g.Remove()
		return Group{}, err
	}
	if m.Layout.V2 != "" {
		g.Main, g.V2 = filepath.Join(m.dir(m.Layout.V2), id), true
		if err := mkdir(g.Main); err != nil {
			return fail(fmt.Errorf("make control group: %w", err))
		}
	} else {
		c := "freezer"
		if m.Layout.V1[c] == "" {
			c = "pids"
		}
		g.Main = filepath.Join(m.dir(m.Layout.V1[c]), id)
		if err := mkdir(g.Main); err != nil {
			return fail(fmt.Errorf("make control group: %w", err))
		}
		g.V1[c] = g.Main
	}
	if limited {
		for _, c := range controllers {
			point, v2 := m.Layout.where(c)
			switch {
			case v2:
				g.Ctl = append(g.Ctl, c)
			case point == "" || (c == "cpuset" && len(l.Cores) == 0) || g.V1[c] != "":
			default:
				dir := filepath.Join(m.dir(point), id)
				if c == "memory" && l.MemoryBytes > 0 && l.MemoryLow <= 0 {
					if g.Again = l.MemoryBytes; m.spares.take(dir, g.Again) {
						g.V1[c] = dir
						l.MemoryBytes = 0 // is set
						continue
					}
				}
				if err := mkdir(dir); err != nil {
					return fail(fmt.Errorf("make control group: %w", err))
				}
				g.V1[c] = dir
			}
		}
	}
	if g.Cores = len(l.Cores) > 0; limited && !g.Cores {
		g.Shared = m.shared
	}
	if err := g.apply(l); err != nil {
		return fail(err)
	}
	if l.Devices != nil {
		if err := m.filter(&g, id, l.Devices); err != nil {
			return fail(err)
		}
	}
	return g, nil
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// path returns the file of a controller: its version 2 name if the controller is in Main, else its version 1 name.
func (g Group) path(controller, v2name, v1name string) string {
	for _, c := range g.Ctl {
		if c == controller {
			return filepath.Join(g.Main, v2name)
		}
	}
	if d := g.V1[controller]; d != "" && v1name != "" {
		return filepath.Join(d, v1name)
	}
	return ""
}

func (g Group) apply(l Limits) error {
	set := func(what, controller, v2name, v2val, v1name, v1val string) error {
		p := g.path(controller, v2name, v1name)
		if p == "" {
			return fmt.Errorf("limit %s: this machine has no %s controller", what, controller)
		}
		val := v2val
		if filepath.Base(p) == v1name && v1name != v2name {
			val = v1val
		}
		if err := procfile.Write(p, val); err != nil {
			return fmt.Errorf("limit %s: %w", what, err)
		}
		return nil
	}
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	if l.CPUShares > 0 {
		shares := min(max(l.CPUShares, 2), 262144)
		weight := 1 + (shares-2)*9999/262142
		if err := set("cpu share", "cpu", "cpu.weight", num(weight), "cpu.shares", num(shares)); err != nil {
			return err
		}
	}
	if l.CPUQuota > 0 {
		quota := max(l.CPUQuota*100, 1000) // us in a period of 100 ms; the kernel's minimum is 1 ms
		if err := set("cpu", "cpu", "cpu.max", num(quota)+" 100000", "cpu.cfs_quota_us", num(quota)); err != nil {
			return err
		}
	}
	if len(l.Cores) > 0 {
		list := formatSet(l.Cores)
		if err := set("cores", "cpuset", "cpuset.cpus", list, "cpuset.cpus", list); err != nil {
			return err
		}
		if d := g.V1["cpuset"]; d != "" {
			mems, err := procfile.Read(filepath.Join(filepath.Dir(d), "cpuset.mems"))
			if err == nil {
				err = procfile.Write(filepath.Join(d, "cpuset.mems"), memsOf(string(mems), l))
			}
			if err != nil {
				return fmt.Errorf("limit cores: %w", err)
			}
		} else if len(l.Mems) > 0 { // the kernel ignores nodes that the parent lacks
			if err := set("memory nodes", "cpuset", "cpuset.mems", formatSet(l.Mems), "cpuset.mems", ""); err != nil {
				return err
			}
		}
	}
	if l.MemoryBytes > 0 {
		if err := set("memory", "memory", "memory.max", num(l.MemoryBytes), "memory.limit_in_bytes", num(l.MemoryBytes)); err != nil {
			return err
		}
		// No swap: a limit that a task can evade is not one. Machines without swap accounting lack the files.
		if p := g.path("memory", "memory.swap.max", "memory.memsw.limit_in_bytes"); p != "" {
			val := "0"
			if filepath.Base(p) != "memory.swap.max" {
				val = num(l.MemoryBytes)
			}
			if err := procfile.Write(p, val); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("limit swap: %w", err)
			}
		}
		if l.MemoryLow > 0 && l.MemoryLow < l.MemoryBytes {
			if err := set("memory reservation", "memory", "memory.low", num(l.MemoryLow), "memory.soft_limit_in_bytes", num(l.MemoryLow)); err != nil {
				return err
			}
		}
	}
	if l.PidsMax > 0 {
		if err := set("pids", "pids", "pids.max", num(l.PidsMax), "pids.max", num(l.PidsMax)); err != nil {
			return err
		}
	}
	return nil
}

// JoinFiles returns the files into which a process writes "0" to join the version 1 leaves of the group. Main is among
// them only when it is version 1; a cgroup2 leaf is joined at clone.
func (g Group) JoinFiles() []string {
	var out []string
	for _, c := range []string{"freezer", "pids", "cpu", "cpuset", "memory", "devices"} {
		if d := g.V1[c]; d != "" {
			// "tasks" and not "cgroup.procs": the kernel then moves one thread without its machine-wide lock.
			out = append(out, filepath.Join(d, "tasks"))
		}
	}
	if g.Shared != "" {
		out = append(out, filepath.Join(g.Shared, "tasks"))
	}
	return out
}

// Has reports whether a process is in the group now.
func (g Group) Has(pid int) bool {
	b, err := procfile.Of(pid, "cgroup")
	if err != nil {
		return false
	}
	tail := "/" + filepath.Base(filepath.Dir(g.Main)) + "/" + filepath.Base(g.Main)
	for line := range strings.Lines(string(b)) {
		if strings.HasSuffix(strings.TrimRight(line, "\n"), tail) {
			return true
		}
	}
	return false
}

// Procs lists the processes in the group.
func (g Group) Procs() ([]int, error) {
	b, err := procfile.Read(filepath.Join(g.Main, "cgroup.procs"))
	if err != nil {
		if gone(err) {
			return nil, nil
		}
		return nil, err
	}
	var out []int
	for _, f := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(f); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out, nil
}

func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// Kill ends every process of the group and returns when it is empty, or with an error after the timeout.
func (g Group) Kill(timeout time.Duration) error {
	if g.Zero() {
		return nil
	}
	deadline := time.Now().Add(timeout)
	wait := 100 * time.Microsecond
	killed := false
	for {
		pids, err := g.Procs()
		if err != nil {
			return fmt.Errorf("kill control group: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill control group %s: %d processes are still there after %s (first pid %d); they may hang in the kernel", filepath.Base(g.Main), len(pids), timeout, pids[0])
		}
		if g.V2 && !killed {
			if err := procfile.Write(filepath.Join(g.Main, "cgroup.kill"), "1"); err == nil {
				killed = true // once is enough: a fork in progress is killed, too
			}
		}
		if !killed {
			g.freeze(true)
			if pids, err = g.Procs(); err == nil {
				for _, p := range pids {
					if g.Has(p) { // read while frozen: the pid cannot have been reused
						syscall.Kill(p, syscall.SIGKILL)
					}
				}
			}
			g.freeze(false)
		}
		time.Sleep(wait)
		wait = min(wait*2, 20*time.Millisecond)
	}
}

func (g Group) freeze(on bool) {
	name, val := "freezer.state", "THAWED"
	if on {
		val = "FROZEN"
	}
	if g.V2 {
		name, val = "cgroup.freeze", "0"
		if on {
			val = "1"
		}
	}
	_ = procfile.Write(filepath.Join(g.Main, name), val) // who freezes looks at the state afterwards
}

// freezeWithin limits how long freezing may take; processes inside the kernel freeze late.
const freezeWithin = 5 * time.Second

// Freeze freezes or thaws all processes of the group and of the groups below it, and returns once that is done. Frozen
// processes can be killed; under version 1 they die when they are thawed.
func (g Group) Freeze(on bool) error {
	what, ask, key, want := "thaw", "freezer.state", "", "THAWED"
	if on {
		what, want = "freeze", "FROZEN"
	}
	value, tell := want, ask
	switch {
	case g.V2:
		ask, tell, key, value = "cgroup.freeze", "cgroup.events", "frozen", "0"
		if on {
			value = "1"
		}
	case g.V1["freezer"] == "" && !on:
		return nil // the group cannot be frozen
	case g.V1["freezer"] == "":
		return fmt.Errorf("%s control group: this machine has neither cgroup2 nor the freezer controller", what)
	}
	if err := procfile.Write(filepath.Join(g.Main, ask), value); err != nil {
		if gone(err) && !on {
			return nil
		}
		return fmt.Errorf("%s control group: %w", what, err)
	}
	deadline := time.Now().Add(freezeWithin)
	for wait := 100 * time.Microsecond; ; wait = min(wait*2, 20*time.Millisecond) {
		path := filepath.Join(g.Main, tell)
		if key != "" && (keyed(path)[key] != 0) == on {
			return nil
		}
		if key == "" {
			if b, err := procfile.Read(path); err != nil && gone(err) {
				return nil
			} else if string(bytes.TrimSpace(b)) == want {
				return nil
			}
			if err := procfile.Write(path, value); err != nil && !gone(err) { // under version 1 the write fails while some processes are not frozen yet
				return fmt.Errorf("%s control group: %w", what, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s control group %s: its processes did not come to it within %s; one may hang in the kernel", what, filepath.Base(g.Main), freezeWithin)
		}
		time.Sleep(wait)
	}
}

// Remove deletes the group. It must be empty; removing an absent group is not an error.
func (g Group) Remove() error {
	var errs []error
	rm := func(dir string) {
		wait := 100 * time.Microsecond
		for {
			err := unix.Rmdir(dir)
			// A process that has just been reaped can hold the group for a moment.
			if err == unix.EBUSY && wait < 200*time.Millisecond {
				time.Sleep(wait)
				wait *= 2
				continue
			}
			if err != nil && err != unix.ENOENT {
				errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
			}
			return
		}
	}
	for _, d := range g.V1 {
		if d != g.Main {
			rm(d)
		}
	}
	if g.Main != "" {
		rm(g.Main)
	}
	return errors.Join(errs...)
}

// OOMKills returns how many processes of the group the kernel has killed for lack of memory.
func (g Group) OOMKills() int64 {
	p := g.path("memory", "memory.events", "memory.oom_control")
	if p == "" {
		return 0
	}
	return int64(keyed(p)["oom_kill"])
}

// Usage is a group's current use of resources.
type Usage struct {
	CPU, User, System, Throttled time.Duration
	Memory, MaxMemory            uint64 // bytes charged
	RSS, Cache, Swap             uint64
	MemoryLimit                  uint64 // 0: none
	HasMemory                    bool
	Pids                         uint64
}

// Usage measures the group.
func (g Group) Usage() (Usage, error) {
	var u Usage
	if g.V2 {
		s := keyed(filepath.Join(g.Main, "cpu.stat"))
		if len(s) == 0 {
			return u, fmt.Errorf("measure %s: %w", filepath.Base(g.Main), os.ErrNotExist)
		}
		us := func(k string) time.Duration { return time.Duration(s[k]) * time.Microsecond }
		u.CPU, u.User, u.System, u.Throttled = us("usage_usec"), us("user_usec"), us("system_usec"), us("throttled_usec")
	}
	if d := g.V1["cpu"]; d != "" {
		u.Throttled = time.Duration(keyed(filepath.Join(d, "cpu.stat"))["throttled_time"])
	}
	if p := g.path("memory", "memory.current", "memory.usage_in_bytes"); p != "" {
		u.HasMemory = true
		u.Memory = number(p)
		s := keyed(g.path("memory", "memory.stat", "memory.stat"))
		if d := g.V1["memory"]; d != "" {
			u.RSS, u.Cache, u.Swap = s["rss"], s["cache"], s["swap"]
			u.MaxMemory = number(filepath.Join(d, "memory.max_usage_in_bytes"))
			u.MemoryLimit = number(filepath.Join(d, "memory.limit_in_bytes"))
		} else {
			u.RSS, u.Cache = s["anon"], s["file"]
			u.Swap = number(filepath.Join(g.Main, "memory.swap.current"))
			u.MaxMemory = number(filepath.Join(g.Main, "memory.peak"))
			u.MemoryLimit = number(filepath.Join(g.Main, "memory.max"))
		}
		if u.MemoryLimit > 1<<60 {
			u.MemoryLimit = 0
		}
	}
	if p := g.path("pids", "pids.current", "pids.current"); p != "" {
		u.Pids = number(p)
	} else if pids, err := g.Procs(); err == nil {
		u.Pids = uint64(len(pids))
	}
	return u, nil
}

func number(p string) uint64 {
	b, err := procfile.Read(p)
	if err != nil {
		return 0
	}
	return parseNumber(b)
}

func parseNumber(b []byte) uint64 {
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return n
}

func keyed(p string) map[string]uint64 {
	b, err := procfile.Read(p)
	if err != nil {
		return nil
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			out[k] = n
		}
	}
	return out
}
