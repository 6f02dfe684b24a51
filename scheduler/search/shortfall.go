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
	if len(m.hold) != v.Rows || len(m.rosters) != len(v.Chunks) || len(m.kinds) >= kindsMax {
		m.hold, m.lack, m.short = make([]*model.Holding, v.Rows), make([]int32, v.Rows), make([]int64, v.Rows)
		m.rosters, m.Soon = make([]*model.NodeColumns, len(v.Chunks)), nil
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

// takeShortfalls finds the cache of a pool and era; nil when another pass uses it.
func (m *known) takeShortfalls(pool string) *shortfallCache {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, b := range m.shortfalls {
		if b.pool != pool {
			continue
		}
		if !b.busy.TryLock() {
			return nil
		}
		copy(m.shortfalls[1:i+1], m.shortfalls[:i])
		m.shortfalls[0] = b
		return b
	}
	b := &shortfallCache{pool: pool, asks: make(map[string]*Shortfalls)}
	b.busy.Lock()
	m.shortfalls = slices.Insert(m.shortfalls, 0, b)
	m.shortfalls = m.shortfalls[:min(len(m.shortfalls), shortfallCachesMax)]
	return b
}

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

// plainKey is equal for asks that have the same shortage on the same nodes; nil for asks that are not cached.
func (s *Search) plainKey() []byte {
	a := s.Ask
	if s.peers != nil || s.Places != nil || len(s.Ban)+len(a.PerNode)+len(a.Static)+len(a.Cores) > 0 || a.NumaWish || a.Shares || a.Job == nil {
		return nil
	}
	if b := s.Reserved; b != nil && len(b.Windows) > 0 {
		return nil
	}
	b := a.PlainKey(0)
	if b != nil && s.gpus.policy != nil { // GPU policies have their own shortages
		b = append(b, 1)
	}
	return b
}

// buildKnown looks at the rows of a chunk with the help of the cache.
func (s *Search) buildKnown(m *Shortfalls, table []*Verdict, c *model.Chunk, first int) {
	n := len(c.IDs)
	hold, lack := m.hold[first:first+n], m.lack[first:first+n]
	touched := s.w.Touched[first : first+n]
	promised := s.Reserved != nil && s.Reserved.Rows != nil
	for i, h := range c.Hold {
		if t := touched[i]; t != 0 {
			h = s.w.States[t-1].Hold
		}
		row := first + i
		plain := !promised || !s.Reserved.ReservedAny(row, 1)
		if k := lack[i]; k > 0 && hold[i] == h && plain {
			x := &m.sums[k-1]
			x.nodes++
			if short := m.short[row]; short > 0 && (x.short == 0 || short < x.short) {
				x.short = short
			}
			continue
		}
		v := table[c.Class[i]]
		if !s.counted(c, i, v) {
			continue
		}
		o := model.Occupancy{Used: c.Used[i], Hold: h}
		if t := touched[i]; t != 0 {
			o = s.w.States[t-1]
		}
		base := s.candidateAt(c, i, row, v, &o)
		switch {
		case !plain || lack[i] == 0 && hold[i] == h:
		case base == rateShort:
			hold[i], lack[i], m.short[row] = h, m.kind(c.Classes[c.Class[i]].Num, &s.why), s.why.Short
		case base >= 0:
			hold[i], lack[i] = h, 0
		}
	}
}

// countKnown counts the nodes with a cached shortage.
func (s *Search) countKnown(m *Shortfalls) {
	for k := range m.sums {
		sum := m.sums[k]
		if sum.nodes == 0 {
			continue
		}
		m.sums[k] = shortfallSum{}
		v := s.verdicts[m.kinds[k].class]
		if !s.countedAll(v, sum.nodes) {
			continue
		}
		x := m.kinds[k].shortage
		x.Short = sum.short
		s.exhausted(v, x)
		v.exhausted += sum.nodes - 1
		if x.By == nil {
			s.amounts[x.Dim].nodes += sum.nodes - 1
		} else {
			s.refusals[s.lastRefusal-1].Nodes += sum.nodes - 1
		}
	}
}

// EarliestFree is when places for some allocations become free on a node without reservations. The first ones are in
// Shortfalls.When.
type EarliestFree struct {
	Hold        *model.Holding
	From, Until structs.LogTime // valid from and until; until 0: unknown
	N           int8
	Whole       bool // the ends of all that is held are known
}
