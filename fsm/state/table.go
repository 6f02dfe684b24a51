package state

import (
	"bytes"
	"fmt"
	"iter"
	"slices"

	"github.com/tidwall/btree"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// degree of the B-trees: nodes hold 15 to 31 items. A smaller degree copies less per write, a larger one reads a little
// faster.
const degree = 16

// item is one row of a primary tree. The key is stored next to the pointer so that a search touches no object. val is a
// *T: without T in the type, tables with the same kind of key share one instance of the tree's code, which takes a
// compiler most of its time in this package. It costs a word for each row.
type item[K any] struct {
	key K
	val any
}

type tree[K any] = btree.BTreeG[item[K]]

// rowOf returns the row of an item, or nil if there is none.
func rowOf[T any, K any](it item[K]) *T {
	v, _ := it.val.(*T)
	return v
}

// newTree creates a tree without locks: one goroutine changes it, and readers have copies.
func newTree[T any](less func(a, b T) bool) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(less, btree.Options{Degree: degree, NoLocks: true})
}

// Table is the declaration of one table, of rows T with keys K. The rows are in a Store and in its Snapshots, which are
// arguments of the methods. What a method returns is immutable.
type Table[K comparable, T any] struct {
	name   string
	id     int // position in tables
	less   func(a, b K) bool
	key    func(*T) K
	delta  func(*structs.Delta) *[]structs.Changed[T] // where a Delta lists its changes; nil: nowhere
	config bool                                       // a change sets Delta.Config
	needs  structs.Format                             // format that must be in force; 0: any
}

// AnyTable is a table with rows of any type.
type AnyTable interface {
	// Name returns the name of the table in snapshot files.
	Name() string
	// Changed reports whether a delta lists changes of the table.
	Changed(d *structs.Delta) bool

	place(id int)
	at() int
	format() structs.Format
	open(s *Store)
	count(s *Snapshot) int
	packed(s *Snapshot, f func(row []byte) error) error
	sum(s *Snapshot) sum
	has(s *Snapshot, row any) bool
}

// Reader is a Store or a Snapshot.
type Reader interface{ tree(id int) anyTree }

// Writer is a Store.
type Writer interface {
	Reader
	store() *Store
}

type anyTree interface{ Len() int }

// Name returns the name of the table in snapshot files.
func (t *Table[K, T]) Name() string { return t.name }

// Changed reports whether a delta lists changes of the table.
func (t *Table[K, T]) Changed(d *structs.Delta) bool {
	return t.config && d.Config || t.delta != nil && len(*t.delta(d)) > 0
}

// Get returns the row with key k, or nil.
func (t *Table[K, T]) Get(r Reader, k K) *T {
	it, _ := t.tree(r).Get(item[K]{key: k})
	return rowOf[T](it)
}

// Lookup returns Get as a function of the key.
func (t *Table[K, T]) Lookup(r Reader) func(K) *T {
	return func(k K) *T { return t.Get(r, k) }
}

// All returns every row in the order of keys. A Store must not change meanwhile.
func (t *Table[K, T]) All(r Reader) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.tree(r).Scan(func(it item[K]) bool { return yield(rowOf[T](it)) })
	}
}

// from returns the rows whose key is k or higher, in the order of keys.
func (t *Table[K, T]) from(r Reader, k K) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.tree(r).Ascend(item[K]{key: k}, func(it item[K]) bool { return yield(rowOf[T](it)) })
	}
}

// atOrBelow returns the highest key that is k or lower, or the zero key.
func (t *Table[K, T]) atOrBelow(r Reader, k K) (at K) {
	t.tree(r).Descend(item[K]{key: k}, func(it item[K]) bool {
		at = it.key
		return false
	})
	return at
}

// backward returns every row, the highest key first.
func (t *Table[K, T]) backward(r Reader) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		t.tree(r).Reverse(func(it item[K]) bool { return yield(rowOf[T](it)) })
	}
}

// First returns the row with the lowest key, or nil.
func (t *Table[K, T]) First(r Reader) *T {
	it, _ := t.tree(r).Min()
	return rowOf[T](it)
}

// Last returns the row with the highest key, or nil.
func (t *Table[K, T]) Last(r Reader) *T {
	it, _ := t.tree(r).Max()
	return rowOf[T](it)
}

// Len returns the number of rows.
func (t *Table[K, T]) Len(r Reader) int { return t.tree(r).Len() }

// Put writes a row, and replaces one with the same key. The row must not change afterwards.
func (t *Table[K, T]) Put(w Writer, v *T) { t.in(w.store()).set(t.key(v), v) }

// Delete removes the row with key k, if there is one.
func (t *Table[K, T]) Delete(w Writer, k K) {
	if t.Get(w, k) != nil {
		t.in(w.store()).set(k, nil)
	}
}

func (t *Table[K, T]) tree(r Reader) *tree[K]       { return r.tree(t.id).(*tree[K]) }
func (t *Table[K, T]) in(s *Store) *rows[K, T]      { return s.rows[t.id].(*rows[K, T]) }
func (t *Table[K, T]) place(id int)                 { t.id = id }
func (t *Table[K, T]) at() int                      { return t.id }
func (t *Table[K, T]) format() structs.Format       { return t.needs }
func (t *Table[K, T]) count(s *Snapshot) int        { return t.Len(s) }
func (t *Table[K, T]) digest(s *Store, v *T) digest { return s.digest(t.name, v) }

// open adds the empty table to a new store and its first snapshot.
func (t *Table[K, T]) open(s *Store) {
	r := &rows[K, T]{Table: t, s: s, at: map[K]int{}}
	r.tree = newTree(func(a, b item[K]) bool { return t.less(a.key, b.key) })
	r.put = func(v *T) { r.set(t.key(v), v) }
	if s.opts.CheckWrites || checkAlways {
		r.seen = map[*T]digest{}
	}
	s.rows = append(s.rows, r)
	s.trees = append(s.trees, r.tree)
	s.snap.trees = append(s.snap.trees, r.tree.Copy())
}

// packed calls f with each row in its snapshot form, until an error. The bytes are valid only until f returns.
func (t *Table[K, T]) packed(s *Snapshot, f func(row []byte) error) error {
	var buf []byte
	for v := range t.All(s) {
		buf = pack.Append(buf[:0], v)
		if err := f(buf); err != nil {
			return err
		}
	}
	return nil
}

// sum computes the table's part of the state hash from its rows.
func (t *Table[K, T]) sum(s *Snapshot) (out sum) {
	scratch := &Store{}
	for v := range t.All(s) {
		out.add(t.digest(scratch, v))
	}
	return out
}

// has reports whether the snapshot has the very row.
func (t *Table[K, T]) has(s *Snapshot, row any) bool {
	v := row.(*T)
	return t.Get(s, t.key(v)) == v
}

// rows is one table in a Store.
type rows[K comparable, T any] struct {
	*Table[K, T]
	s    *Store
	tree *tree[K]

	hook  func(before, after *T) // keeps secondary indexes and derived values; nil: there are none. It is also called for undone changes
	share func(*indexes)         // publishes the secondary indexes; nil: there are none
	put   func(*T)               // writes a row of a snapshot file

	batch []change[K, T] // rows that this batch changed, in the order of their first change
	at    map[K]int      // their positions in batch
	entry []int          // positions in batch of the rows that this entry changed, in order
	loads bool           // rows of a snapshot file were written, which are not in batch
	seen  map[*T]digest  // with Options.CheckWrites: the digest of each row when it entered
}

type change[K comparable, T any] struct {
	key    K
	first  *T // before the batch
	before *T // before the entry, if the entry changed it
	after  *T
	listed bool // in rows.entry
}

// anyRows is the operations of a Store that are the same for every table.
type anyRows interface {
	commitEntry(d *structs.Delta) bool
	rollbackEntry()
	publish(next *Snapshot) bool
	load(row []byte) error
	verify() error
}

func (r *rows[K, T]) get(k K) *T {
	it, _ := r.tree.Get(item[K]{key: k})
	return rowOf[T](it)
}

func (r *rows[K, T]) set(k K, after *T) {
	before := r.apply(k, after)
	if r.s.loading {
		return // nothing is rolled back, and load takes the digest
	}
	i, ok := r.at[k]
	if !ok {
		i = len(r.batch)
		r.at[k] = i
		r.batch = append(r.batch, change[K, T]{key: k, first: before})
	}
	c := &r.batch[i]
	if !c.listed {
		c.listed, c.before = true, before
		r.entry = append(r.entry, i)
	}
	c.after = after
}

// apply changes the tree and derived values without recording the change.
func (r *rows[K, T]) apply(k K, after *T) (before *T) {
	var it item[K]
	if after == nil {
		it, _ = r.tree.Delete(item[K]{key: k})
	} else {
		it, _ = r.tree.Set(item[K]{k, after})
	}
	before = rowOf[T](it)
	if r.hook != nil && before != after {
		r.hook(before, after)
	}
	return before
}

func (r *rows[K, T]) commitEntry(d *structs.Delta) bool {
	changed := false
	for _, i := range r.entry {
		c := &r.batch[i]
		c.listed = false
		if c.before == c.after {
			continue // created and deleted within the entry
		}
		changed = true
		if r.delta != nil {
			l := r.delta(d)
			*l = append(*l, structs.Changed[T]{Before: c.before, After: c.after})
		}
	}
	r.entry = r.entry[:0]
	d.Config = d.Config || changed && r.config
	return changed
}

func (r *rows[K, T]) rollbackEntry() {
	for _, i := range slices.Backward(r.entry) {
		c := &r.batch[i]
		r.apply(c.key, c.before)
		c.after, c.listed = c.before, false
	}
	r.entry = r.entry[:0]
}

// publish updates the state hash for the batch and gives the next snapshot a copy of the tree.
func (r *rows[K, T]) publish(next *Snapshot) bool {
	changed := r.loads
	r.loads = false
	for i := range r.batch {
		c := &r.batch[i]
		if c.first == c.after {
			continue
		}
		changed = true
		if c.first != nil {
			r.left(c.first)
		}
		if c.after != nil {
			r.s.owing.add(r.Table, c.after)
			if r.seen != nil {
				r.seen[c.after] = r.digest(r.s, c.after)
			}
		}
	}
	clear(r.batch)
	r.batch = r.batch[:0]
	clear(r.at)
	if changed {
		next.trees[r.id] = r.tree.Copy()
		if r.share != nil {
			r.share(&next.indexes)
		}
	}
	return changed
}

// left takes a row that has left the table out of the state hash.
func (r *rows[K, T]) left(row *T) {
	lacks := r.s.owing.drop(row)
	if lacks && r.seen == nil {
		return
	}
	d := r.digest(r.s, row)
	if was, ok := r.seen[row]; ok && was != d {
		panic(changedInPlace(r.name, row))
	}
	delete(r.seen, row)
	if !lacks {
		r.s.sum.sub(d)
	}
}

// verify reports a published row that was changed in place.
func (r *rows[K, T]) verify() error {
	if r.seen == nil {
		return nil
	}
	scratch := &Store{} // another goroutine may be using the writer's buffer
	for v := range r.All(r.s.snap) {
		if was, ok := r.seen[v]; ok && was != r.digest(scratch, v) {
			return fmt.Errorf("%s", changedInPlace(r.name, v))
		}
	}
	return nil
}

func changedInPlace[T any](table string, row *T) string {
	return fmt.Sprintf("state: an object of table %s was changed in place after it had entered the store; clone it, change the clone and send a command. It now is %+v", table, row)
}

// packedAgain is how many rows of a table a restore packs again, all of those of small tables.
const packedAgain = 1 << 14

// load writes a row of a snapshot file. Its digest is that of the bytes in the file, because packing the row again gives
// the same and takes as long as reading it. The first rows of a table, and one of 64 of those beyond them, are packed again, so that
// a build that reads something else than was written does not start.
func (r *rows[K, T]) load(row []byte) error {
	v := new(T)
	if err := pack.Decode(row, v); err != nil {
		return err
	}
	n := r.tree.Len()
	if n < packedAgain || n%64 == 0 || r.seen != nil {
		if r.s.buf = pack.Append(r.s.buf[:0], v); !bytes.Equal(r.s.buf, row) {
			return fmt.Errorf("the row of %s is packed in %d bytes, but this version of muster packs it in %d others", r.name, len(row), len(r.s.buf))
		}
	}
	r.put(v)
	if r.tree.Len() == n {
		return fmt.Errorf("the row of %s is in the file twice", r.name)
	}
	d := r.s.digestOf(r.name, row)
	r.s.sum.add(d)
	if r.seen != nil {
		r.seen[v] = d
	}
	r.loads = true
	return nil
}
