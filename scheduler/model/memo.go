package model

import (
	"math"
	"slices"
	"sync"
)

// memo caches what passes have computed about nodes and GPUs. All views of one lineage share it. It only holds results
// of pure functions, so no decision depends on it: an entry is used only for the very node and holding that it was made
// from.
type memo struct {
	mu       sync.Mutex
	live     liveShapes
	releases map[int]heldReleases // by row, for holdings with many allocations
	slots    map[any]any          // by Slot: caches of other packages
}

// liveShapes counts what is held by shape, over the chunks of the view that was last used.
type liveShapes struct {
	chunks []*Chunk
	sums   map[Shape]shapeSum
	all    int64
	mix    *Mix
}

// shapeSum is how many allocations have a shape, and one that had it.
type shapeSum struct {
	n    int64
	like *Held
}

// LiveMix returns the mix of everything held. Sizes and shares are rounded, so that the mix changes seldom and what was
// computed for it stays useful. It depends on nothing but the view.
func (v *View) LiveMix() *Mix {
	v.memo.mu.Lock()
	defer v.memo.mu.Unlock()
	return v.memo.live.at(v)
}

// LiveWork returns an example of each kind of work that is held, the most frequent kinds first. An example may have ended:
// it says what is usually asked for.
func (v *View) LiveWork() []*HeldWork {
	v.memo.mu.Lock()
	defer v.memo.mu.Unlock()
	l := &v.memo.live
	mix := l.at(v)
	works := make([]*HeldWork, 0, len(mix.Shapes))
	for _, s := range mix.Shapes {
		s.Count = 0
		if sum := l.sums[s]; sum.like != nil {
			works = append(works, &sum.like.Work)
		}
	}
	return works
}

// at counts the changes since the view that was last used, and returns the mix.
func (l *liveShapes) at(v *View) *Mix {
	if l.sums == nil {
		l.sums = make(map[Shape]shapeSum)
	}
	changed := l.mix == nil
	count := func(c *Chunk, i int, h *Held, sign int64) {
		s := shapeOf(c.Nodes[i], c.MHz[i], h)
		changed = true
		l.all += sign
		sum := l.sums[s]
		if sum.n += sign; sum.n == 0 {
			delete(l.sums, s)
			return
		}
		if sum.like == nil {
			sum.like = h
		}
		l.sums[s] = sum
	}
	add := func(c *Chunk, sign int64) {
		for i := range c.Hold {
			for h := range c.Hold[i].All() {
				count(c, i, h, sign)
			}
		}
	}
	for k := range max(len(l.chunks), len(v.Chunks)) {
		switch {
		case k >= len(v.Chunks):
			add(l.chunks[k], -1)
		case k >= len(l.chunks):
			add(v.Chunks[k], 1)
		case l.chunks[k] == v.Chunks[k]:
		case !slices.Equal(l.chunks[k].Nodes, v.Chunks[k].Nodes):
			add(l.chunks[k], -1)
			add(v.Chunks[k], 1)
		default: // in most chunks one allocation of one node changed
			was, is := l.chunks[k], v.Chunks[k]
			for i := range is.Hold {
				if was.Hold[i] == is.Hold[i] {
					continue
				}
				a, b := was.Hold[i].roll(), is.Hold[i].roll()
				gone, fresh, _ := DifferRolls(&a, &b, math.MaxInt)
				for _, h := range gone {
					count(was, i, h, -1)
				}
				for _, h := range fresh {
					count(is, i, h, 1)
				}
			}
		}
	}
	l.chunks = v.Chunks
	if !changed {
		return l.mix
	}
	list := make([]Shape, 0, len(l.sums))
	for s, sum := range l.sums {
		s.Count = roundShare(sum.n, l.all)
		list = append(list, s)
	}
	slices.SortFunc(list, compareShapes)
	if mix := NewMix(list); l.mix == nil || !l.mix.Same(mix) {
		l.mix = mix
	}
	return l.mix
}

// Slot is a place in every lineage of views where another package keeps a cache of type T about nodes. It may be empty
// at any time, and no decision may depend on its content.
type Slot[T any] struct{ _ byte }

// Of returns the T of a view's lineage and creates it on first use. T needs its own lock, because passes share it.
func (s *Slot[T]) Of(v *View) *T {
	m := v.memo
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.slots[s].(*T); ok {
		return t
	}
	if m.slots == nil {
		m.slots = make(map[any]any)
	}
	t := new(T)
	m.slots[s] = t
	return t
}
