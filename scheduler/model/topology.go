package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Levels of the topology over allocations (structs.Topology.Across) that are not keys of a node's meta.
const (
	LevelNode       = "node"
	LevelDatacenter = "datacenter"
)

// InsideNUMA is a level within a node (structs.Topology.Inside).
const InsideNUMA = "numa"

// LevelOf returns the place of a node at a level of the topology: a value of its meta or attributes; "" if it has none.
func LevelOf(n *structs.Node, level string) string {
	switch level {
	case LevelNode:
		return n.ID.String()
	case LevelDatacenter:
		return n.Datacenter
	}
	if v, ok := n.Meta[level]; ok {
		return v
	}
	return n.Attributes[level]
}

// Level numbers the places of one level over the rows of a view, in the order of their names.
type Level struct {
	Of    []int32 // by row; -1: unknown
	Names []string
}

// Level returns a level of the topology. It is computed once a pass.
func (w *WhatIf) Level(name string) *Level {
	if l := w.levels[name]; l != nil {
		return l
	}
	l := &Level{Of: make([]int32, w.View.Rows)}
	values := make([]string, w.View.Rows)
	for row := range w.View.Rows {
		c, i := w.View.At(row)
		values[row] = LevelOf(c.Nodes[i], name)
	}
	l.Names = slices.Compact(slices.Sorted(slices.Values(values)))
	for row, v := range values {
		at, _ := slices.BinarySearch(l.Names, v)
		l.Of[row] = int32(at)
		if v == "" {
			l.Of[row] = -1
		}
	}
	if w.levels == nil {
		w.levels = make(map[string]*Level)
	}
	w.levels[name] = l
	return l
}
