package structs

import (
	"slices"
	"strconv"
	"strings"
)

// Values of NUMA.Affinity.
const (
	NUMANone    = "none"
	NUMAPrefer  = "prefer"
	NUMARequire = "require"
)

// NUMACountAttribute is the number of NUMA nodes of a machine.
const NUMACountAttribute = "numa.node.count"

// NUMACoresAttribute names the attribute that lists the cores of one NUMA node of a machine ("0-15,32-47").
func NUMACoresAttribute(node int) string { return "numa.node" + strconv.Itoa(node) + ".cores" }

// Wants returns the affinity; NUMANone for a task that sets none.
func (n *NUMA) Wants() string {
	if n == nil || n.Affinity == "" {
		return NUMANone
	}
	return n.Affinity
}

// Ties reports whether a device (named as in a request or as a device group) should be on the NUMA node of the task's
// cores.
func (n *NUMA) Ties(device string) bool {
	return n.Wants() != NUMANone && slices.ContainsFunc(n.Devices, func(d string) bool { return SameDevice(d, device) })
}

// SameDevice reports whether two device names ("gpu", "nvidia/gpu", "nvidia/gpu/H100") have devices in common.
func SameDevice(a, b string) bool {
	if strings.Count(a, "/") > strings.Count(b, "/") {
		a, b = b, a
	}
	if a == b || strings.Contains(a, "/") && strings.HasPrefix(b, a+"/") {
		return true
	}
	_, rest, _ := strings.Cut(b, "/")
	kind, _, _ := strings.Cut(rest, "/")
	return a == kind
}

// CoreSpan returns a task's part of its allocation's cores: Allocation.Cores[from:to]. Tasks that may run together
// share none: sidecars that start before the others have the first ones, the main tasks and those that start after them
// the next. Tasks that run alone before (except for such sidecars) or after them use the same.
func (g *Group) CoreSpan(task string) (from, to int64) {
	t := g.Task(task)
	if t == nil || t.Resources.Cores == 0 {
		return 0, 0
	}
	phase := coresWhen(t)
	if phase == coresBefore || phase == coresMain {
		for _, x := range g.Tasks {
			if coresWhen(x) == coresThroughout {
				from += x.Resources.Cores
			}
		}
	}
	for _, x := range g.Tasks {
		if x.Name == task {
			break
		}
		if coresWhen(x) == phase {
			from += x.Resources.Cores
		}
	}
	return from, from + t.Resources.Cores
}

// When a task uses its cores.
const (
	coresThroughout = iota // a sidecar that starts before the main tasks
	coresBefore
	coresMain
	coresAfter
)

func coresWhen(t *Task) int {
	switch {
	case t.Lifecycle == nil || t.Lifecycle.Hook == "poststart":
		return coresMain
	case t.Lifecycle.Sidecar:
		return coresThroughout
	case t.Lifecycle.Hook == "poststop":
		return coresAfter
	}
	return coresBefore
}

// TaskCores returns one task's part of an allocation's reserved cores (Group.CoreSpan), or nil.
func (a *Allocation) TaskCores(task string) []int64 {
	g := a.Job.Group(a.Group)
	if g == nil {
		return nil
	}
	from, to := g.CoreSpan(task)
	if to == 0 || to > int64(len(a.Cores)) {
		return nil
	}
	return a.Cores[from:to]
}
