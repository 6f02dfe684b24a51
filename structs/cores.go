package structs

import (
	"slices"
	"strconv"
	"strings"
)

// What a task may say of NUMA nodes (NUMA.Affinity).
const (
	NUMANone    = "none"
	NUMAPrefer  = "prefer"
	NUMARequire = "require"
)

// NUMACountAttribute is how many NUMA nodes a machine has.
const NUMACountAttribute = "numa.node.count"

// NUMACoresAttribute names the attribute that lists the cores of one NUMA node of a machine ("0-15,32-47").
func NUMACoresAttribute(node int) string { return "numa.node" + strconv.Itoa(node) + ".cores" }

// Wants is the affinity, NUMANone for a task that says nothing.
func (n *NUMA) Wants() string {
	if n == nil || n.Affinity == "" {
		return NUMANone
	}
	return n.Affinity
}

// Ties reports whether devices of a name, a request's or a device group's, should lie on the NUMA node of the task's cores.
func (n *NUMA) Ties(device string) bool {
	return n.Wants() != NUMANone && slices.ContainsFunc(n.Devices, func(d string) bool { return SameDevice(d, device) })
}

// SameDevice reports whether one of two names of devices ("gpu", "nvidia/gpu", "nvidia/gpu/H100") means some that the other
// means.
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

// CoreSpan is which of an allocation's cores are a task's: those from one place of Allocation.Cores to before another.
// Tasks that may run together share none: sidecars that start before the others have the first ones, the main tasks and
// those that start after them the next. Tasks that run alone before (beside such sidecars) or after them use the same.
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

// TaskCores is the share of an allocation's reserved cores that is one task's (Group.CoreSpan); nil when it has none.
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
