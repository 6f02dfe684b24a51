package model

import (
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
	sums   map[Shape]int64
	all    int64
	mix    *Mix
}

// LiveMix returns the mix of everything held. Sizes and shares are rounded, so that the mix changes seldom and what was
// computed for it stays useful. It depends on nothing but the view.
func (v *View) LiveMix() *Mix {
	m := v.memo
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &m.live
	if l.sums == nil {
		l.sums = make(map[Shape]int64)
	}
	changed := l.mix == nil
	row := func(c *Chunk, i int, sign int64) {
		c.eachShape(i, func(s Shape) {
			changed = true
			l.all += sign
			if l.sums[s] += sign; l.sums[s] == 0 {
				delete(l.sums, s)
			}
		})
	}
	add := func(c *Chunk, sign int64) {
		for i := range c.Hold {
			row(c, i, sign)
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
		default: // in most chunks one node changed
			for i, h := range v.Chunks[k].Hold {
				if l.chunks[k].Hold[i] != h {
					row(l.chunks[k], i, -1)
					row(v.Chunks[k], i, 1)
				}
			}
		}
	}
	l.chunks = v.Chunks
	if !changed {
		return l.mix
	}
	list := make([]Shape, 0, len(l.sums))
	for s, n := range l.sums {
		s.Count = roundShare(n, l.all)
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
