package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/procfile"
)

// spares are version 1 memory groups of ended tasks, kept for new ones with the same limit. Creating and removing such
// a group costs more than everything else about a task's groups, mostly later, in the kernel's own threads; renaming it
// costs little. (Groups of version 2 cannot be renamed.)
type spares struct {
	mu   sync.Mutex
	list []spare
	made int         // number in the next name
	idle *time.Timer // removes them when no task has ended for spareTime
}

type spare struct {
	dir   string
	limit int64
}

const (
	// sparePrefix begins the names of spare groups. A task's id cannot begin with a dot.
	sparePrefix = ".spare-"
	sparesMax   = 16
	// spareTime is how long they are kept after the last end of a task.
	spareTime = 3 * time.Second
	// spareUsage is how much memory may be charged to a spare group: the kernel's per-processor reserve, and file
	// pages, which it reclaims when the next task needs the memory.
	spareUsage = 512 << 10
)

// take renames a spare group with this limit to dir, and reports whether there was one.
func (s *spares) take(dir string, limit int64) bool {
	s.mu.Lock()
	found := ""
	for i := len(s.list) - 1; i >= 0; i-- {
		if s.list[i].limit == limit {
			found = s.list[i].dir
			s.list = append(s.list[:i], s.list[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	// The kernel refuses a name that is taken even without RENAME_NOREPLACE: control groups are not replaced.
	return found != "" && unix.Rename(found, dir) == nil
}

// keep makes the empty memory group at dir a spare one. It refuses a group with traces that a next task would see: more
// than a little memory, or OOM kills.
func (s *spares) keep(dir string, limit int64) bool {
	s.mu.Lock()
	full := len(s.list) >= sparesMax
	s.made++
	name := fmt.Sprintf("%s%d-%d", sparePrefix, os.Getpid(), s.made)
	s.mu.Unlock()
	if full {
		return false
	}
	// A task that is root can create groups below its own and change its limit.
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || st.Nlink > 2 || number(filepath.Join(dir, "memory.limit_in_bytes")) != uint64(limit) {
		return false
	}
	usage, err := procfile.Read(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil || parseNumber(usage) > spareUsage {
		return false
	}
	if events := keyed(filepath.Join(dir, "memory.oom_control")); events == nil || events["oom_kill"] > 0 {
		return false
	}
	to := filepath.Join(filepath.Dir(dir), name)
	if procfile.Write(filepath.Join(dir, "memory.max_usage_in_bytes"), "0") != nil || unix.Rename(dir, to) != nil {
		return false
	}
	s.mu.Lock()
	s.list = append(s.list, spare{to, limit})
	if s.idle == nil {
		s.idle = time.AfterFunc(spareTime, s.drop)
	} else {
		s.idle.Reset(spareTime)
	}
	s.mu.Unlock()
	return true
}

// drop removes the spare groups.
func (s *spares) drop() {
	s.mu.Lock()
	list := s.list
	s.list = nil
	s.mu.Unlock()
	for _, x := range list {
		unix.Rmdir(x.dir)
	}
}

// Sweep removes the spare groups, including those left by a killed process.
func (m *Manager) Sweep() {
	m.spares.drop()
	point, v2 := m.Layout.where("memory")
	if point == "" || v2 {
		return
	}
	entries, err := os.ReadDir(m.dir(point))
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), sparePrefix) {
			unix.Rmdir(filepath.Join(m.dir(point), e.Name()))
		}
	}
}

// Remove deletes a group like its own Remove, but keeps what a next task can reuse. The group must be empty.
func (m *Manager) Remove(g Group) error {
	if d := g.V1["memory"]; d != "" && d != g.Main && g.Again > 0 && m.spares.keep(d, g.Again) {
		g.V1 = maps.Clone(g.V1)
		delete(g.V1, "memory")
	}
	return g.Remove()
}
