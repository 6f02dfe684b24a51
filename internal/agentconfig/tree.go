package agentconfig

import (
	"math/big"
	"slices"
	"strings"
)

// depthMax limits how deeply values nest. The schema needs five levels.
const depthMax = 32

type kind int

const (
	null kind = iota
	text
	number
	boolean
	list
	object
)

func (k kind) String() string {
	return [...]string{"null", "text", "a number", "true or false", "a list", "a block"}[k]
}

// node is one value of a configuration, in either syntax.
type node struct {
	kind     kind
	pos      pos
	str      string // text itself; the digits of a number
	bool     bool
	items    []*node
	keys     []string // of an object, in the order of the text
	fields   map[string]*node
	implicit bool // an object that labels created: more labels may be added
}

func newObject(at pos) *node { return &node{kind: object, pos: at, fields: map[string]*node{}} }

func (n *node) set(key string, v *node) {
	if _, ok := n.fields[key]; !ok {
		n.keys = append(n.keys, key)
	}
	n.fields[key] = v
}

// numberOf makes a number, or nil if its exponent is so large that the digits could fill the memory.
func numberOf(f *big.Float, at pos, errs *problems) *node {
	if e := f.MantExp(nil); f.IsInf() || e > 128 || e < -128 {
		errs.add(at, "the number is out of range")
		return nil
	}
	return &node{kind: number, pos: at, str: f.Text('f', -1)}
}

// get follows keys; nil if one is missing.
func (n *node) get(path ...string) *node {
	for _, k := range path {
		if n == nil || n.kind != object {
			return nil
		}
		n = n.fields[k]
	}
	return n
}

// put places a block under its type and labels. If another value is there already and they cannot be combined, put
// returns that value.
func (n *node) put(path []string, v *node) (before *node) {
	for _, k := range path[:len(path)-1] {
		next := n.fields[k]
		if next == nil {
			next = newObject(v.pos)
			next.implicit = true
			n.set(k, next)
		}
		if !next.implicit {
			return next
		}
		n = next
	}
	last := path[len(path)-1]
	if old := n.fields[last]; old != nil {
		return old
	}
	n.set(last, v)
	return nil
}

// merge lays b over a: objects are merged key by key, all other values are replaced. Neither is changed.
func merge(a, b *node) *node {
	switch {
	case a == nil || a.kind == null:
		return b
	case b == nil || b.kind == null:
		return a
	}
	if b = single(b); a.kind != object || b.kind != object {
		return b
	}
	out := newObject(b.pos)
	for _, k := range a.keys {
		out.set(k, a.fields[k])
	}
	for _, k := range b.keys {
		out.set(k, merge(out.fields[k], b.fields[k]))
	}
	return out
}

// single turns a list of objects, the form of blocks in older JSON files, into one object.
func single(n *node) *node {
	if n.kind != list || len(n.items) == 0 {
		return n
	}
	out := newObject(n.pos)
	for _, i := range n.items {
		if i.kind != object {
			return n
		}
		for _, k := range i.keys {
			if old := out.fields[k]; old != nil && old.kind == object && i.fields[k].kind == object {
				out.set(k, merge(old, i.fields[k]))
				continue
			}
			out.set(k, i.fields[k])
		}
	}
	return out
}

// leaves calls f with each value that is not an object and its path, in the order of paths.
func (n *node) leaves(path string, f func(path string, n *node)) {
	if n == nil {
		return
	}
	if n.kind != object {
		f(path, n)
		return
	}
	keys := slices.Clone(n.keys)
	slices.Sort(keys)
	for _, k := range keys {
		n.fields[k].leaves(strings.TrimPrefix(path+"."+k, "."), f)
	}
}

// same reports whether two values are equal, wherever they were written.
func same(a, b *node) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.kind != b.kind || a.str != b.str || a.bool != b.bool || len(a.items) != len(b.items) || len(a.fields) != len(b.fields) {
		return false
	}
	for i := range a.items {
		if !same(a.items[i], b.items[i]) {
			return false
		}
	}
	for k, v := range a.fields {
		if w, ok := b.fields[k]; !ok || !same(v, w) {
			return false
		}
	}
	return true
}
