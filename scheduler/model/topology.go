package model

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// Levels of the topology over allocations (structs.Topology.Across) that are not keys of a node's meta.
const (
	LevelNode       = "node"
	LevelDatacenter = structs.LevelDatacenter
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
	Key   string
	Of    []int32 // by row; -1: unknown
	Names []string

	// Of a level of a Tree: the places of the farther levels that contain the places of this one, and which of them are no
	// places: a stopgap stands for the nodes of a farther place, or of none, that have no value here.
	Up      []int32 // by place: of the next level; nil for the farthest one
	Stopgap []bool  // by place; nil: none
}

// Place returns the place of a row; -1 if the row has none at this level.
func (l *Level) Place(row int) int32 {
	if at := l.Of[row]; at >= 0 && (l.Stopgap == nil || !l.Stopgap[at]) {
		return at
	}
	return -1
}

// divides reports whether some nodes are in different places of the level, or in none.
func (l *Level) divides() bool { return len(l.Names) > 1 || slices.Contains(l.Stopgap, true) }

// Level returns a level of the topology. It is computed once a pass.
func (w *WhatIf) Level(name string) *Level {
	if l := w.levels[name]; l != nil {
		return l
	}
	l := newLevel(w.View, name)
	if w.levels == nil {
		w.levels = make(map[string]*Level)
	}
	w.levels[name] = l
	return l
}

func newLevel(v *View, name string) *Level {
	l := &Level{Key: name, Of: make([]int32, v.Rows)}
	values := make([]string, v.Rows)
	for row := range v.Rows {
		c, i := v.At(row)
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
	return l
}

// Tree is the levels of the topology, from near to far. A place of a level is part of exactly one place of the next:
// places with equal names in different places of a farther level are different places. Every row has a place at every
// level, if need be a stopgap.
type Tree struct{ Levels []*Level }

// Find returns the level with a key, counted from the nearest; -1 if the tree has none.
func (t *Tree) Find(key string) int {
	if t == nil {
		return -1
	}
	return slices.IndexFunc(t.Levels, func(l *Level) bool { return l.Key == key })
}

// Above returns the place of a farther level that contains a place of a level.
func (t *Tree) Above(level int, at int32, far int) int32 {
	for ; level < far; level++ {
		at = t.Levels[level].Up[at]
	}
	return at
}

// trees caches the trees of the newest nodes. A tree depends on nothing but the nodes and the levels.
type trees struct {
	mu      sync.Mutex
	rosters []*NodeColumns
	byKeys  map[string]*Tree
}

var treesOf Slot[trees]

// Tree returns the tree of levels for a group. declared is the levels that the operator declared
// (structs.SchedulerConfig.TopologyLevels). across is the level that the group names: if the tree does not have it, it is
// a separate tree, or with LevelNode the nearest level of the tree. The tree is nil if the group names none and no
// level divides the nodes.
func (w *WhatIf) Tree(declared []string, across string) *Tree {
	key := across + "\x00" + strings.Join(declared, "\x00")
	if t, ok := w.trees[key]; ok {
		return t
	}
	v, m := w.View, treesOf.Of(w.View)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKeys == nil || !v.madeOf(m.rosters) {
		m.byKeys = make(map[string]*Tree)
		m.rosters = m.rosters[:0]
		for _, c := range v.Chunks {
			m.rosters = append(m.rosters, c.NodeColumns)
		}
	}
	t, ok := m.byKeys[key]
	if !ok {
		keys := v.LevelKeys(declared)
		switch {
		case across == "" || slices.Contains(keys, across):
		case across == LevelNode:
			keys = append([]string{across}, keys...)
		default:
			keys = []string{across}
		}
		if t = newTree(v, keys); across == "" && t != nil && !slices.ContainsFunc(t.Levels, (*Level).divides) {
			t = nil
		}
		if len(m.byKeys) < treesMax {
			m.byKeys[key] = t
		}
	}
	if w.trees == nil {
		w.trees = make(map[string]*Tree)
	}
	w.trees[key] = t
	return t
}

// treesMax limits the trees that are kept: that of the cluster, and those of levels that groups name.
const treesMax = 16

// madeOf reports whether a view has these nodes.
func (v *View) madeOf(rosters []*NodeColumns) bool {
	return slices.EqualFunc(v.Chunks, rosters, func(c *Chunk, r *NodeColumns) bool { return c.NodeColumns == r })
}

// LevelKeys returns the keys of the levels of the tree, from near to far: those that the operator declared, else those
// of structs.TopologyLevelsKnown that some node has. Datacenters are one of these only where there are several.
func (v *View) LevelKeys(declared []string) []string {
	if len(declared) > 0 {
		if declared[0] == structs.TopologyNone {
			return nil
		}
		return declared
	}
	var out []string
	for _, key := range structs.TopologyLevelsKnown {
		none := ""
		if key == LevelDatacenter && v.Rows > 0 {
			none = v.Chunks[0].Nodes[0].Datacenter
		}
		if v.anyClass(func(n *structs.Node) bool { return LevelOf(n, key) != none }) {
			out = append(out, key)
		}
	}
	return out
}

// anyClass reports whether f holds for a node of some class. It must not look at what distinguishes nodes of a class.
func (v *View) anyClass(f func(n *structs.Node) bool) bool {
	return slices.ContainsFunc(v.Chunks, func(c *Chunk) bool {
		return slices.ContainsFunc(c.Classes, func(x NodeClass) bool { return f(x.Node) })
	})
}

// newTree makes the tree of some levels. Nodes of one class have the same places, except at the level of nodes.
func newTree(v *View, keys []string) *Tree {
	if len(keys) == 0 || v.Rows == 0 {
		return nil
	}
	t := &Tree{}
	paths := make([][]string, len(v.Classes.Num)) // of each class, by level: its value and those of the farther levels
	path := func(n *structs.Node) []string {
		p := make([]string, len(keys))
		after := ""
		for k := len(keys) - 1; k >= 0; k-- {
			after = LevelOf(n, keys[k]) + "\x00" + after
			p[k] = after
		}
		return p
	}
	rowPath := func(c *Chunk, i int) []string {
		if slices.ContainsFunc(keys, func(k string) bool { return k == LevelNode || strings.HasPrefix(k, "unique.") }) { // classes leave these out
			return path(c.Nodes[i])
		}
		num := c.Classes[c.Class[i]].Num
		if paths[num] == nil {
			paths[num] = path(c.Nodes[i])
		}
		return paths[num]
	}
	for k, key := range keys {
		l := &Level{Key: key, Of: make([]int32, v.Rows)}
		num := map[string]int32{}
		var all []string
		for _, c := range v.Chunks {
			for i := range c.IDs {
				if p := rowPath(c, i)[k]; num[p] == 0 {
					num[p] = 1
					all = append(all, p)
				}
			}
		}
		slices.Sort(all)
		for at, p := range all {
			num[p] = int32(at)
		}
		l.Names, l.Stopgap = shortNames(all), make([]bool, len(all))
		for at, p := range all {
			l.Stopgap[at] = p[0] == 0
		}
		if k > 0 {
			t.Levels[k-1].Up = make([]int32, len(t.Levels[k-1].Names))
		}
		for ci, c := range v.Chunks {
			for i := range c.IDs {
				row := v.Starts[ci] + i
				l.Of[row] = num[rowPath(c, i)[k]]
				if k > 0 {
					t.Levels[k-1].Up[t.Levels[k-1].Of[row]] = l.Of[row]
				}
			}
		}
		t.Levels = append(t.Levels, l)
	}
	return t
}

// shortNames makes names of paths: the value at the level, after those of the farther levels where other places of the
// level have the same value.
func shortNames(paths []string) []string {
	out, same := make([]string, len(paths)), map[string]int{}
	for _, p := range paths {
		own, _, _ := strings.Cut(p, "\x00")
		same[own]++
	}
	for i, p := range paths {
		parts := strings.Split(strings.TrimSuffix(p, "\x00"), "\x00")
		if out[i] = parts[0]; same[parts[0]] > 1 {
			slices.Reverse(parts)
			out[i] = strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
		}
	}
	return out
}

// PlaceText describes where a node is in the topology, from near to far, as "rack r3, leaf l2"; "" if it has no place at any
// level.
func PlaceText(keys []string, n *structs.Node) string {
	var out []string
	for _, key := range keys {
		if at := LevelOf(n, key); at != "" {
			out = append(out, key+" "+at)
		}
	}
	return strings.Join(out, ", ")
}

// ReachedText describes how near to each other the members of a gang are, as "all 8 in leaf l2, 2 racks": the nearest level
// with one place that has all of them, and how many places they have at the levels before. nodes has the node of each
// member. It is "" for fewer than two members, and without levels.
func ReachedText(keys []string, nodes []*structs.Node) string {
	if len(nodes) < 2 || len(keys) == 0 {
		return ""
	}
	in := make([]map[string]bool, len(keys)) // by level: the paths of the members
	shared := -1
	for k := range keys {
		in[k] = map[string]bool{}
		placed := 0
		for _, n := range nodes {
			if LevelOf(n, keys[k]) == "" {
				continue
			}
			path := ""
			for _, key := range keys[k:] {
				path += LevelOf(n, key) + "\x00"
			}
			in[k][path] = true
			placed++
		}
		if shared < 0 && placed == len(nodes) && len(in[k]) == 1 {
			shared = k
		}
	}
	text := fmt.Sprintf("%d in no common place", len(nodes))
	apart := keys
	if shared >= 0 {
		text = fmt.Sprintf("all %d in %s %s", len(nodes), keys[shared], LevelOf(nodes[0], keys[shared]))
		apart = keys[:shared]
	}
	for k := len(apart) - 1; k >= 0; k-- {
		if n := len(in[k]); n > 0 {
			text += fmt.Sprintf(", %d %s", n, plural(keys[k], n))
		}
	}
	return text
}

// plural returns the name of a level for n of its places.
func plural(key string, n int) string {
	switch {
	case n == 1:
		return key
	case key == "leaf":
		return "leaves"
	case strings.HasSuffix(key, "ch"), strings.HasSuffix(key, "s"), strings.HasSuffix(key, "x"):
		return key + "es"
	}
	return key + "s"
}
