// Package cgroup puts each task into its own control group: one cgroup2 leaf for killing, freezing and processor time,
// with the limits in the same leaf where cgroup2 has the controllers, and otherwise in one leaf for each version 1
// hierarchy that has them. It finds the hierarchies in /proc/self/mountinfo and assumes nothing about their paths.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Layout says which control group hierarchies this machine has, and where.
type Layout struct {
	V2            string              // mount point of cgroup2, or ""
	V2Controllers []string            // controllers that cgroup2 offers at its root
	V1            map[string]string   // mount point by version 1 controller
	CanKill       bool                // cgroup2 with cgroup.kill (Linux 5.14)
	readonly      map[string]struct{} // mount points that cannot be written
}

// Detect reads the layout of the machine.
func Detect() (Layout, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fmt.Errorf("detect control groups: %w", err)
	}
	defer f.Close()
	l := Layout{V1: map[string]string{}, readonly: map[string]struct{}{}}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		a, b := strings.Fields(before), strings.Fields(after)
		if !ok || len(a) < 6 || len(b) < 3 {
			continue
		}
		point := unescape(a[4])
		switch b[0] {
		case "cgroup2":
			if l.V2 == "" {
				l.V2 = point
			}
		case "cgroup":
			for _, opt := range strings.Split(b[2], ",") {
				switch opt {
				case "cpu", "cpuacct", "memory", "pids", "cpuset", "devices", "freezer":
					if _, dup := l.V1[opt]; !dup {
						l.V1[opt] = point
					}
				}
			}
		default:
			continue
		}
		if slices.Contains(strings.Split(a[5], ","), "ro") {
			l.readonly[point] = struct{}{}
		}
	}
	if err := sc.Err(); err != nil {
		return Layout{}, fmt.Errorf("detect control groups: %w", err)
	}
	if l.V2 != "" {
		if b, err := os.ReadFile(filepath.Join(l.V2, "cgroup.controllers")); err == nil {
			l.V2Controllers = strings.Fields(string(b))
		}
	}
	return l, nil
}

// Freezes reports whether tasks can be frozen.
func (l Layout) Freezes() bool { return l.V2 != "" || l.V1["freezer"] != "" }

// Version returns "v1", "v2", "hybrid" (limits in version 1, with cgroup2) or "none".
func (l Layout) Version() string {
	switch {
	case l.V2 != "" && len(l.V1) > 0:
		return "hybrid"
	case l.V2 != "":
		return "v2"
	case len(l.V1) > 0:
		return "v1"
	}
	return "none"
}

// where returns the hierarchy that has a controller, "" for none, and whether it is cgroup2.
func (l Layout) where(controller string) (point string, v2 bool) {
	if slices.Contains(l.V2Controllers, controller) {
		return l.V2, true
	}
	return l.V1[controller], false
}

// Has reports whether limits of that controller can be set here.
func (l Layout) Has(controller string) bool { p, _ := l.where(controller); return p != "" }

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Manager makes the groups of one agent: <hierarchy>/muster/<scope>/<task>.
type Manager struct {
	Layout Layout
	scope  string
	shared string // see prepareShared; "" if there is none
	spares spares

	once    sync.Once
	devices string // see Devices
	mu      sync.Mutex
	program map[string]*ebpf.Program // device programs by rules; guarded by mu
}

// controllers are those that a limited task uses.
var controllers = []string{"cpu", "memory", "pids", "cpuset"}

// Open creates the parent groups of an agent. Its error says why tasks cannot have groups here. scope distinguishes the
// agents of one machine.
func Open(scope string) (*Manager, error) {
	l, err := Detect()
	if err != nil {
		return nil, err
	}
	if l.Version() == "none" {
		return nil, errors.New("no control group file system is mounted; mount cgroup2 on /sys/fs/cgroup")
	}
	m := &Manager{Layout: l, scope: scope}
	if l.V2 != "" {
		if err := m.prepareV2(); err != nil {
			return nil, err
		}
	} else if l.V1["freezer"] == "" && l.V1["pids"] == "" {
		return nil, errors.New("neither cgroup2 nor the version 1 controllers freezer or pids are mounted: tasks could not be killed reliably")
	}
	for _, c := range append(slices.Clone(controllers), "freezer") {
		point, v2 := l.where(c)
		if point == "" || v2 || (c == "freezer" && l.V2 != "") {
			continue
		}
		dir := m.dir(point)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make parent control group: %w", err)
		}
		if c == "cpuset" {
			if err := inheritCpuset(dir); err != nil {
				return nil, err
			}
			if err := m.prepareShared(); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

func (m *Manager) dir(point string) string { return filepath.Join(point, "muster", m.scope) }

// Leaf returns the path of a task's group in a hierarchy that is mounted at point, existing or not.
func Leaf(point, scope, id string) string { return filepath.Join(point, "muster", scope, id) }

func (m *Manager) prepareV2() error {
	point := m.Layout.V2
	dir := m.dir(point)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make parent control group: %w", err)
	}
	_, err := os.Stat(filepath.Join(dir, "cgroup.kill"))
	m.Layout.CanKill = err == nil
	// Tasks can use a controller only if it is enabled in every group above.
	for _, p := range []string{point, filepath.Join(point, "muster"), dir} {
		for _, c := range controllers {
			if !slices.Contains(m.Layout.V2Controllers, c) {
				continue
			}
			if err := os.WriteFile(filepath.Join(p, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
				if m.Layout.V1[c] != "" {
					m.Layout.V2Controllers = slices.DeleteFunc(slices.Clone(m.Layout.V2Controllers), func(x string) bool { return x == c })
					continue
				}
				hint := ""
				if errors.Is(err, unix.EBUSY) {
					hint = " (the group holds processes; run the agent in a separate group, for example as a systemd unit with Delegate=yes)"
				}
				return fmt.Errorf("enable controller %s below %s: %w%s", c, p, err, hint)
			}
		}
	}
	return nil
}

// inheritCpuset sets the cpuset of a directory and its parent: version 1 starts them empty, and then no process can
// run.
func inheritCpuset(dir string) error {
	for _, p := range []string{filepath.Dir(dir), dir} {
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			cur, err := os.ReadFile(filepath.Join(p, f))
			if err != nil {
				return fmt.Errorf("read cpuset: %w", err)
			}
			if strings.TrimSpace(string(cur)) != "" {
				continue
			}
			up, err := os.ReadFile(filepath.Join(filepath.Dir(p), f))
			if err != nil {
				return fmt.Errorf("read cpuset: %w", err)
			}
			if err := os.WriteFile(filepath.Join(p, f), up, 0o644); err != nil {
				return fmt.Errorf("inherit cpuset: %w", err)
			}
		}
	}
	return nil
}

// Close removes the parent groups of this agent if no task is left in them.
func (m *Manager) Close() {
	m.Sweep()
	m.forgetPrograms()
	m.dropShared()
	points := map[string]struct{}{}
	if m.Layout.V2 != "" {
		points[m.Layout.V2] = struct{}{}
	}
	for _, p := range m.Layout.V1 {
		points[p] = struct{}{}
	}
	for p := range points {
		os.Remove(m.dir(p))
		os.Remove(filepath.Dir(m.dir(p)))
	}
}
