package search

import (
	"maps"
	"slices"
	"sync"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// What a search finds out about a node that is too full for an ask depends on the ask, the node and what is held there.
// From pass to pass few nodes change, so it is cached by row, in columns: a search counts the nodes that are as full as
// they were and looks at those that changed or have room.
//
// Naive: look at every node. On 1,000 nodes with a backlog a decision asks 1,000 nodes to find that all but a few have
// as little room as before. A cache by blocks of nodes does not help: between two searches for equal asks something
// changes in every block.

// rowsKept limits the cached rows of a pool, over all asks: about 5 MiB, plus the holdings that the entries refer to.
const rowsKept = 1 << 18

// shortfallCache is the cache of one pool and era. One pass at a time uses it.
type shortfallCache struct {
	busy   sync.Mutex
	pool   string
	asks   map[string]*Shortfalls
	used   int64 // counts uses
	unused []*Shortfalls
}

// Shortfalls is the cache of one ask.
type Shortfalls struct {
	rosters []*model.NodeColumns // of the chunks, when their rows were cached
	starts  []int                // and their first rows
	hold    []*model.Holding     // by row: what was held there
	lack    []int32              // by row: 1 + place in kinds; 0: it has room; unlooked: unknown
	short   []int64              // by row: the amount that is short
	kinds   []shortfallKind
	sums    []shortfallSum    // by kind, of the current search
	Soon    []EarliestFree    // by row
	When    []structs.LogTime // of Soon; 0: now
	used    int64
}

const unlooked = -1

// shortfallKind is nodes of one class with the same shortage.
type shortfallKind struct {
	class    int32 // number in the classTable
	shortage match.ShortageOf
}

type shortfallSum struct{ nodes, short int64 }

// kindsMax is the highest number of kinds; with more, the cache is cleared.
const kindsMax = 1 << 10

// kind returns 1 + the place of a kind, or unlooked for a shortage that is not cached.
func (m *Shortfalls) kind(class int32, x *match.ShortageOf) int32 {
	if x.Largest != 0 || x.Free != 0 || x.Asked != 0 {
		return unlooked
	}
	y := *x
	y.Short = 0
	for k := range m.kinds {
		if m.kinds[k].class == class && m.kinds[k].shortage.Same(&y) {
			return int32(k + 1)
		}
	}
	if len(m.kinds) >= kindsMax {
		return unlooked
	}
	m.kinds = append(m.kinds, shortfallKind{class, y})
	m.sums = append(m.sums, shortfallSum{})
	return int32(len(m.kinds))
}

// ready makes room for the rows of a view, and drops those whose nodes changed.
func (m *Shortfalls) ready(v *model.View) {
	if len(m.hold) != v.Rows || !slices.Equal(m.starts, v.Starts) || len(m.kinds) >= kindsMax { // a node that comes moves the rows after it
		m.hold, m.lack, m.short = make([]*model.Holding, v.Rows), make([]int32, v.Rows), make([]int64, v.Rows)
		m.rosters, m.starts, m.Soon = make([]*model.NodeColumns, len(v.Chunks)), v.Starts, nil
		m.kinds, m.sums = m.kinds[:0], m.sums[:0]
	}
	for ci, c := range v.Chunks {
		if m.rosters[ci] == c.NodeColumns {
			continue
		}
		m.rosters[ci] = c.NodeColumns
		for row := v.Starts[ci]; row < v.Starts[ci]+len(c.IDs); row++ {
			m.lack[row] = unlooked
			if m.Soon != nil {
				m.Soon[row] = EarliestFree{}
			}
		}
	}
}

// shortfallCachesMax is the highest number of pools and eras with a cache.
const shortfallCachesMax = 64

func (m *shortfallCache) ask(key []byte, rows int) *Shortfalls {
	m.used++
	a := m.asks[string(key)]
	if a == nil {
		if most := max(2, rowsKept/max(rows, 1)); len(m.asks) >= most { // drop the least recently used ones
			maps.DeleteFunc(m.asks, func(_ string, x *Shortfalls) bool {
				if x.used >= m.used-int64(most)/2 {
					return false
				}
				clear(x.rosters)
				clear(x.hold) // free the holdings that it refers to
				x.kinds, x.sums, x.Soon, x.When = x.kinds[:0], x.sums[:0], nil, nil
				m.unused = append(m.unused, x) // its memory is reused
				return true
			})
		}
		if last := len(m.unused) - 1; last >= 0 {
			a, m.unused = m.unused[last], m.unused[:last]
		} else {
			a = &Shortfalls{}
		}
		m.asks[string(key)] = a
	}
	a.used = m.used
	return a
}

// EarliestFree is when places for some allocations become free on a node without reservations. The first ones are in
// Shortfalls.When.
type EarliestFree struct {
	Hold        *model.Holding
	From, Until structs.LogTime // valid from and until; until 0: unknown
	N           int8
	Whole       bool // the ends of all that is held are known
}
