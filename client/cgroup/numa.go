package cgroup

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/procfile"
)

// sysNodes is where the kernel describes the machine's NUMA nodes.
const sysNodes = "/sys/devices/system/node"

// MemoryNodes lists the NUMA nodes of the cores; nil on a machine with one node, or if it is unknown.
func MemoryNodes(cores []int) []int { return memoryNodes(sysNodes, cores) }

func memoryNodes(sys string, cores []int) []int {
	dirs, _ := filepath.Glob(filepath.Join(sys, "node[0-9]*"))
	if len(dirs) < 2 {
		return nil
	}
	var out []int
	for _, d := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "node"))
		if err != nil {
			continue
		}
		b, err := procfile.Read(filepath.Join(d, "cpulist"))
		if err != nil {
			continue
		}
		has, err := parseSet(strings.TrimSpace(string(b)))
		if err == nil && slices.ContainsFunc(cores, func(c int) bool { return slices.Contains(has, c) }) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// FormatSet formats numbers for the kernel: "0,2,3".
func FormatSet(ids []int) string { return formatSet(ids) }

// memsOf returns the cpuset.mems of a version 1 cpuset: the requested nodes that its parent has, else all of the
// parent's.
func memsOf(parent string, l Limits) string {
	have, err := parseSet(strings.TrimSpace(parent))
	if err != nil {
		return parent
	}
	mine := slices.DeleteFunc(slices.Clone(l.Mems), func(id int) bool { return !slices.Contains(have, id) })
	if len(mine) == 0 {
		return parent
	}
	return formatSet(mine)
}
