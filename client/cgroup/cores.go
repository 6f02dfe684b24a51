package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/procfile"
)

// sharedSet is the version 1 cpuset of all tasks of an agent that own no core. A task's id cannot begin with a dot.
const sharedSet = ".shared"

// Shares reports whether the group's tasks run on all cores that are not owned: see KeepOff.
func (g Group) Shares() bool {
	return g.Shared != "" || slices.Contains(g.Ctl, "cpuset") && !g.Cores
}

// prepareShared creates the version 1 cpuset of tasks that own no core, if there is a version 1 cpuset hierarchy.
func (m *Manager) prepareShared() error {
	point, v2 := m.Layout.where("cpuset")
	if point == "" || v2 {
		return nil
	}
	dir := filepath.Join(m.dir(point), sharedSet)
	if err := mkdir(dir); err != nil {
		return fmt.Errorf("make control group: %w", err)
	}
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		if cur, err := procfile.Read(filepath.Join(dir, f)); err == nil && strings.TrimSpace(string(cur)) != "" {
			continue // tasks of an earlier supervisor are in it
		}
		up, err := procfile.Read(filepath.Join(m.dir(point), f))
		if err == nil {
			err = procfile.Write(filepath.Join(dir, f), string(up))
		}
		if err != nil {
			return fmt.Errorf("inherit cpuset: %w", err)
		}
	}
	m.shared = dir
	return nil
}

// KeepOff keeps tasks that own no core off the taken cores; with none taken they may run everywhere. In version 1 they
// share one set, in version 2 each group has its own. If every core is taken they share all.
func (m *Manager) KeepOff(taken []int, groups []Group) error {
	point, v2 := m.Layout.where("cpuset")
	if point == "" {
		return nil
	}
	file := "cpuset.cpus"
	if v2 {
		file = "cpuset.cpus.effective"
	}
	b, err := procfile.Read(filepath.Join(m.dir(point), file))
	if err != nil {
		return err
	}
	all, err := parseSet(strings.TrimSpace(string(b)))
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(all), func(c int) bool { return slices.Contains(taken, c) })
	if len(left) == 0 {
		left = all
	}
	if !v2 {
		return procfile.Write(filepath.Join(m.dir(point), sharedSet, "cpuset.cpus"), formatSet(left))
	}
	text := formatSet(left)
	if len(left) == len(all) {
		text = "\n" // the parent's set
	}
	var errs []error
	for _, g := range groups {
		if err := procfile.Write(filepath.Join(g.Main, "cpuset.cpus"), text); err != nil && !gone(err) && !errors.Is(err, fs.ErrPermission) {
			errs = append(errs, err) // the file of an ended group cannot be written
		}
	}
	return errors.Join(errs...)
}

// dropShared removes the set of tasks that own no core, if it is empty.
func (m *Manager) dropShared() {
	if p := m.Layout.V1["cpuset"]; p != "" {
		os.Remove(filepath.Join(m.dir(p), sharedSet))
	}
}

// parseSet reads a list such as "0-3,8".
func parseSet(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		lo, hi, ok := strings.Cut(part, "-")
		if !ok {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err := errors.Join(err1, err2); err != nil || a > b || b > 1<<16 {
			return nil, fmt.Errorf("set of cores %q cannot be read", s)
		}
		for c := a; c <= b; c++ {
			out = append(out, c)
		}
	}
	return out, nil
}

func formatSet(cores []int) string {
	s := make([]string, len(cores))
	for i, c := range cores {
		s[i] = strconv.Itoa(c)
	}
	return strings.Join(s, ",")
}
