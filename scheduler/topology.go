package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Levels of the topology over allocations (structs.Topology.Across) that are not keys of a node's meta.
const (
	levelNode       = "node"
	levelDatacenter = "datacenter"
)

// Levels within a node (structs.Topology.Inside).
const (
	insideIsland = "nvlink"
	insideNUMA   = "numa"
)

// LevelOf is where a node lies at a level of the topology: a value of its meta or attributes; "" when it does not say.
func LevelOf(n *structs.Node, level string) string {
	switch level {
	case levelNode:
		return n.ID.String()
	case levelDatacenter:
		return n.Datacenter
	}
	if v, ok := n.Meta[level]; ok {
		return v
	}
	return n.Attributes[level]
}

// level numbers the places of one level over the rows of a view, in the order of their names.
type level struct {
	of    []int32 // by row; -1: unknown
	names []string
}

// level gives a level of the topology. It is made once a pass.
func (w *whatIf) level(name string) *level {
	if l := w.levels[name]; l != nil {
		return l
	}
	l := &level{of: make([]int32, w.View.rows)}
	values := make([]string, w.View.rows)
	for row := range w.View.rows {
		c, i := w.View.at(row)
		values[row] = LevelOf(c.nodes[i], name)
	}
	l.names = slices.Compact(slices.Sorted(slices.Values(values)))
	for row, v := range values {
		at, _ := slices.BinarySearch(l.names, v)
		l.of[row] = int32(at)
		if v == "" {
			l.of[row] = -1
		}
	}
	if w.levels == nil {
		w.levels = make(map[string]*level)
	}
	w.levels[name] = l
	return l
}
