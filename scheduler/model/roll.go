package model

import (
	"iter"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// roll is what is held on one node, in ID order. It is immutable: a change makes a new roll that shares the unchanged
// leaves with the old one.
//
// Naive: one sorted slice, copied for each change. On a node that runs 8,000 tasks that is 64 KiB, several times for
// each placement and on every server, and collecting them costs more than copying. A roll is cut into leaves: a change
// copies one of them and the list of the others, which has a word for each. A node that holds little has one leaf and no
// list.
type roll struct {
	first []*Held
	rest  []*heldLeaf // none is empty
	Len   int         // number of allocations
}

type heldLeaf struct{ hs []*Held }

// rollLeaf is the highest number of allocations in a leaf.
const rollLeaf = 64

// rollOf makes a roll of a list in ID order and takes over the list.
func rollOf(hs []*Held) roll { return rollOfLeaves(cutLeaves(nil, hs), len(hs)) }

func rollOfLeaves(leaves []*heldLeaf, n int) roll {
	switch len(leaves) {
	case 0:
		return roll{}
	case 1:
		return roll{first: leaves[0].hs, Len: n}
	}
	return roll{first: leaves[0].hs, rest: leaves[1:], Len: n}
}

// cutLeaves appends a list as leaves of about equal length.
func cutLeaves(to []*heldLeaf, hs []*Held) []*heldLeaf {
	for parts := (len(hs) + rollLeaf - 1) / rollLeaf; parts > 0; parts-- {
		k := (len(hs) + parts - 1) / parts
		to, hs = append(to, &heldLeaf{hs[:k:k]}), hs[k:]
	}
	return to
}

// leaf returns the i-th leaf; there is always one.
func (r *roll) leaf(i int) []*Held {
	if i == 0 {
		return r.first
	}
	return r.rest[i-1].hs
}

// seek returns the leaf and the place in it where id is, or where it would be inserted.
func (r *roll) seek(id structs.AllocID) (leaf, at int, found bool) {
	if len(r.rest) > 0 {
		lo, hi := 0, len(r.rest) // the last leaf that does not begin after id
		for lo < hi {
			if mid := (lo + hi + 1) / 2; CompareID(r.rest[mid-1].hs[0].ID, id) <= 0 {
				lo = mid
			} else {
				hi = mid - 1
			}
		}
		leaf = lo
	}
	at, found = findHeld(r.leaf(leaf), id)
	return leaf, at, found
}

// get returns what the allocation holds, or nil.
func (r *roll) get(id structs.AllocID) *Held {
	if leaf, at, found := r.seek(id); found {
		return r.leaf(leaf)[at]
	}
	return nil
}

// put returns the roll with h, in place of an older record of the same allocation.
func (r *roll) put(h *Held) roll {
	leaf, at, found := r.seek(h.ID)
	old := r.leaf(leaf)
	if found {
		next := slices.Clone(old)
		next[at] = h
		return r.replace(leaf, r.Len, next, nil)
	}
	next := make([]*Held, 0, len(old)+1)
	next = append(append(append(next, old[:at]...), h), old[at:]...)
	if len(next) <= rollLeaf {
		return r.replace(leaf, r.Len+1, next, nil)
	}
	mid := len(next) / 2
	return r.replace(leaf, r.Len+1, next[:mid:mid], next[mid:])
}

// drop returns the roll without an allocation, which must be in it.
func (r *roll) drop(id structs.AllocID) roll {
	leaf, at, _ := r.seek(id)
	old := r.leaf(leaf)
	if len(old) == 1 {
		return r.replace(leaf, r.Len-1, nil, nil)
	}
	return r.replace(leaf, r.Len-1, slices.Concat(old[:at], old[at+1:]), nil)
}

// replace returns the roll with up to two leaves in place of one.
func (r *roll) replace(leaf, n int, a, b []*Held) roll {
	if leaf == 0 && len(a) > 0 && len(b) == 0 {
		return roll{first: a, rest: r.rest, Len: n}
	}
	some := make([]*heldLeaf, 0, 2)
	for _, hs := range [2][]*Held{a, b} {
		if len(hs) > 0 {
			some = append(some, &heldLeaf{hs})
		}
	}
	if leaf > 0 {
		return roll{first: r.first, rest: slices.Concat(r.rest[:leaf-1], some, r.rest[leaf:]), Len: n}
	}
	return rollOfLeaves(slices.Concat(some, r.rest), n)
}

// merge returns the roll with several records in ID order. pick is called for each of them with the roll's record of the
// same allocation, or nil, and returns which of the two stays.
//
// Naive: look each one up, then merge the lists. The records lie all over memory, and each would be looked at twice.
func (r *roll) merge(hs []*Held, pick func(was, h *Held) *Held) roll {
	all := make([]*heldLeaf, 0, 1+len(r.rest)+len(hs)/rollLeaf+2)
	n := r.Len
	var few [2 * rollLeaf]*Held
	for i := range 1 + len(r.rest) {
		old, k := r.leaf(i), len(hs)
		if i < len(r.rest) {
			k, _ = findHeld(hs, r.rest[i].hs[0].ID)
		}
		switch {
		case k > 0:
			out := mergeHeld(few[:0], old, hs[:k], pick)
			n += len(out) - len(old)
			all = cutLeaves(all, slices.Clone(out))
		case i > 0:
			all = append(all, r.rest[i-1])
		case len(old) > 0:
			all = append(all, &heldLeaf{old})
		}
		hs = hs[k:]
	}
	return rollOfLeaves(all, n)
}

// mergeHeld appends two lists in ID order, merged; see merge about pick. The place of each record of b is sought from that of
// the one before, in steps that double: of a long a most records are copied without a look at them.
func mergeHeld(out, a, b []*Held, pick func(was, h *Held) *Held) []*Held {
	for _, h := range b {
		end := 1
		for end < len(a) && CompareID(a[end-1].ID, h.ID) < 0 {
			end *= 2
		}
		from := end / 2
		at, found := findHeld(a[from:min(end, len(a))], h.ID)
		out, a = append(out, a[:from+at]...), a[from+at:]
		var was *Held
		if found {
			was, a = a[0], a[1:]
		}
		out = append(out, pick(was, h))
	}
	return append(out, a...)
}

func findHeld(list []*Held, id structs.AllocID) (int, bool) {
	return slices.BinarySearchFunc(list, id, func(e *Held, id structs.AllocID) int { return CompareID(e.ID, id) })
}

// all iterates over everything in ID order.
func (r *roll) all() iter.Seq[*Held] {
	return func(yield func(*Held) bool) {
		for _, h := range r.first {
			if !yield(h) {
				return
			}
		}
		for _, l := range r.rest {
			for _, h := range l.hs {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// list returns everything in ID order as one slice. The caller must not change it.
func (r *roll) list() []*Held {
	if len(r.rest) == 0 {
		return r.first
	}
	return slices.AppendSeq(make([]*Held, 0, r.Len), r.all())
}

// DifferRolls returns what only a has and what only b has, in ID order; ok is false when that is more than most. It
// skips leaves that both share.
func DifferRolls(a, b *roll, most int) (gone, fresh []*Held, ok bool) {
	x, y := cursor{r: a}, cursor{r: b}
	for {
		for x.shares(&y) {
			x.nextLeaf()
			y.nextLeaf()
		}
		p, q := x.peek(), y.peek()
		switch {
		case p == nil && q == nil:
			return gone, fresh, true
		case p == q:
			x.next()
			y.next()
			continue
		case q == nil || p != nil && CompareID(p.ID, q.ID) <= 0:
			gone = append(gone, p)
			x.next()
		default:
			fresh = append(fresh, q)
			y.next()
		}
		if len(gone)+len(fresh) > most {
			return nil, nil, false
		}
	}
}

// cursor is a position in a roll.
type cursor struct {
	r        *roll
	leaf, at int
}

// peek returns the allocation at the position; nil at the end.
func (c *cursor) peek() *Held {
	if c.leaf > len(c.r.rest) || c.r.Len == 0 {
		return nil
	}
	return c.r.leaf(c.leaf)[c.at]
}

func (c *cursor) next() {
	if c.at++; c.at == len(c.r.leaf(c.leaf)) {
		c.nextLeaf()
	}
}

func (c *cursor) nextLeaf() { c.leaf, c.at = c.leaf+1, 0 }

// shares reports whether both cursors are at the beginning of the same leaf.
func (c *cursor) shares(d *cursor) bool {
	if c.at != 0 || d.at != 0 || c.peek() == nil || d.peek() == nil {
		return false
	}
	l, m := c.r.leaf(c.leaf), d.r.leaf(d.leaf)
	return len(l) == len(m) && &l[0] == &m[0]
}
