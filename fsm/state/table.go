package state

import (
	"encoding/binary"
	"iter"
	"strings"

	"github.com/google/btree"
	"github.com/muster-sched/muster/structs"
)

// degree of the B-trees: nodes hold 15 to 31 items. Smaller copies less per write, larger reads a little faster.
const degree = 16

// item is one row of a primary tree. The key lies beside the pointer so that a search touches no object.
type item[K any, T any] struct {
	key K
	val *T
}

type tree[K any, T any] = btree.BTreeG[item[K, T]]

// Table is the writer's side of one table: K names a row and T is the row. Only the owner of the Store uses it.
type Table[K comparable, T any] struct {
	name string
	id   tableID
	s    *Store
	keyf func(*T) K
	tree *tree[K, T]

	// hook keeps secondary indexes and derived counters; nil for none. It runs for every change, undone ones too.
	hook func(before, after *T)
	// slot is where a snapshot keeps this table's tree, and delta where a Delta lists its changes (nil: not listed).
	slot  func(*trees) **tree[K, T]
	delta func(*structs.Delta) *[]structs.Changed[T]
	// share publishes the secondary indexes; nil for none.
	share func(*trees)

	first map[K]*T    // rows changed in this batch, as they were before it
	entry map[K]int   // rows changed in this entry: position in list
	list  []change[T] // changes of this entry, in order

	known digests[T]
}

type change[T any] struct{ before, after *T }

// anyTable is what the Store does with every table alike.
type anyTable interface {
	tableName() string
	commitEntry(d *structs.Delta) bool
	rollbackEntry()
	publish(t *trees) bool
	length(t *trees) int
	rows(t *trees) iter.Seq[any]
	newRow() any
	insert(row any)
}

func (t *Table[K, T]) get(k K) *T {
	it, _ := t.tree.Get(item[K, T]{key: k})
	return it.val
}

// Get gives the row called k, or nil.
func (t *Table[K, T]) Get(k K) *T { return t.get(k) }

// Put writes a row, new or in place of the one with the same key. The row must not change afterwards.
func (t *Table[K, T]) Put(v *T) { t.set(t.keyf(v), v) }

// Delete removes the row called k, if there is one.
func (t *Table[K, T]) Delete(k K) {
	if t.get(k) != nil {
		t.set(k, nil)
	}
}

// All gives every row in the order of keys. The table must not change meanwhile.
func (t *Table[K, T]) All() iter.Seq[*T] { return ascend(t.tree) }

// First gives the row with the lowest key, or nil.
func (t *Table[K, T]) First() *T {
	it, _ := t.tree.Min()
	return it.val
}

// Last gives the row with the highest key, or nil.
func (t *Table[K, T]) Last() *T {
	it, _ := t.tree.Max()
	return it.val
}

// Len is the number of rows.
func (t *Table[K, T]) Len() int { return t.tree.Len() }

func (t *Table[K, T]) set(k K, after *T) {
	before := t.apply(k, after)
	if _, ok := t.first[k]; !ok {
		t.first[k] = before
	}
	if i, ok := t.entry[k]; ok {
		t.list[i].after = after
		return
	}
	t.entry[k] = len(t.list)
	t.list = append(t.list, change[T]{before, after})
}

// apply changes the trees and derived values, and nothing of the bookkeeping.
func (t *Table[K, T]) apply(k K, after *T) (before *T) {
	var it item[K, T]
	if after == nil {
		it, _ = t.tree.Delete(item[K, T]{key: k})
	} else {
		it, _ = t.tree.ReplaceOrInsert(item[K, T]{k, after})
	}
	if t.hook != nil && it.val != after {
		t.hook(it.val, after)
	}
	return it.val
}

func (t *Table[K, T]) tableName() string { return t.name }

func (t *Table[K, T]) commitEntry(d *structs.Delta) bool {
	changed := false
	for _, c := range t.list {
		if c.before == c.after {
			continue // made and deleted within the entry
		}
		changed = true
		if t.delta != nil {
			l := t.delta(d)
			*l = append(*l, structs.Changed[T]{Before: c.before, After: c.after})
		}
	}
	t.list = t.list[:0]
	clear(t.entry)
	return changed
}

func (t *Table[K, T]) rollbackEntry() {
	for i := len(t.list) - 1; i >= 0; i-- {
		c := t.list[i]
		of := c.before
		if of == nil {
			of = c.after
		}
		if of != nil {
			t.apply(t.keyf(of), c.before)
		}
	}
	t.list = t.list[:0]
	clear(t.entry)
}

// publish brings the state hash up to date with the batch and hands an immutable copy of the tree to tr.
func (t *Table[K, T]) publish(tr *trees) bool {
	if len(t.first) == 0 {
		return false
	}
	changed := false
	for k, before := range t.first { // addition commutes, so the order does not matter
		after := t.get(k)
		if before == after {
			continue
		}
		changed = true
		if before != nil {
			d := t.digestBefore(before)
			t.s.sum.sub(d)
			t.s.check.left(before, d)
		}
		if after != nil {
			d := t.s.digest(t.name, after)
			t.s.sum.add(d)
			t.s.check.entered(after, d, t.name)
			t.known.put(after, d)
		}
	}
	clear(t.first)
	if changed {
		*t.slot(tr) = t.tree.Clone()
		if t.share != nil {
			t.share(tr)
		}
	}
	return changed
}

// digestBefore is the digest of a row that is in the table no more: the remembered one, if it is still known.
func (t *Table[K, T]) digestBefore(row *T) digest {
	if d, ok := t.known.take(row); ok && t.s.check == nil {
		return d
	}
	return t.s.digest(t.name, row)
}

func (t *Table[K, T]) length(tr *trees) int { return (*t.slot(tr)).Len() }

func (t *Table[K, T]) rows(tr *trees) iter.Seq[any] {
	return func(yield func(any) bool) {
		for v := range ascend(*t.slot(tr)) {
			if !yield(v) {
				return
			}
		}
	}
}

func (t *Table[K, T]) newRow() any    { return new(T) }
func (t *Table[K, T]) insert(row any) { t.Put(row.(*T)) }

func ascend[K any, T any](t *tree[K, T]) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.Ascend(func(it item[K, T]) bool { return yield(it.val) })
	}
}

func newTree[K any, T any](less func(a, b K) bool) *tree[K, T] {
	return btree.NewG(degree, func(a, b item[K, T]) bool { return less(a.key, b.key) })
}

func lessString(a, b string) bool { return a < b }

func lessJob(a, b structs.JobKey) bool { return a.Less(b) }

func lessID[K ~[16]byte](a, b K) bool {
	x, y := [16]byte(a), [16]byte(b)
	return less16(&x, &y)
}

func less16(x, y *[16]byte) bool {
	xh, yh := binary.BigEndian.Uint64(x[:8]), binary.BigEndian.Uint64(y[:8])
	if xh != yh {
		return xh < yh
	}
	return binary.BigEndian.Uint64(x[8:]) < binary.BigEndian.Uint64(y[8:])
}

// prefix of an id in text, as people abbreviate ids: an even or odd number of hex digits with the dashes in place.
type prefix struct {
	lo     [16]byte
	digits int
}

func parsePrefix(text string) (p prefix, err error) {
	hex := strings.ReplaceAll(strings.ToLower(text), "-", "")
	if len(hex) > 32 || len(text) > 36 {
		return p, structs.Errorf(structs.CodeInvalid, "id prefix of %d characters: an id has 36", len(text))
	}
	for i, c := range []byte(hex) {
		var n byte
		switch {
		case c >= '0' && c <= '9':
			n = c - '0'
		case c >= 'a' && c <= 'f':
			n = c - 'a' + 10
		default:
			return p, structs.Errorf(structs.CodeInvalid, "id prefix %q: only 0-9, a-f and dashes may occur", text)
		}
		p.lo[i/2] |= n << (4 * (1 - i%2))
	}
	p.digits = len(hex)
	return p, nil
}

func (p prefix) matches(id [16]byte) bool {
	whole := p.digits / 2
	return string(p.lo[:whole]) == string(id[:whole]) &&
		(p.digits%2 == 0 || p.lo[whole]>>4 == id[whole]>>4)
}
