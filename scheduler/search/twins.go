package search

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Most nodes of a cluster are like many others: of one class, and with the same free. A plain ask cannot distinguish such twins:
// a search rates one of each set and counts the others with it. The first row of a set is its candidate; when
// it is used, the next one takes its place, as if each had been rated. The sets are kept from pass to pass: only rows
// whose node or holding changed are sorted again.
//
// Naive: rate every row. On 10,000 nodes the values that were found for an ask before help (see ledger), but counting
// them takes half a millisecond, and an ask that was not met before takes 20.

// twins is a set of rows that are equal to plain asks. Its address is its name in caches, which compare it as they
// compare holdings.
type twins struct {
	rows []int32 // ascending
	key  string
	num  int32   // in twinIndex.sets
	free []int64 // see freeGPUs
}

// freeGPUs returns the free thousandths of each healthy GPU of the rows. The caller must not change them.
func (x *twins) freeGPUs(c *model.Chunk, i int, o *model.Occupancy) []int64 {
	if x.free == nil {
		var g model.GPUState
		model.GPUStateOf(c, i, o, &g)
		x.free = append([]int64{}, g.Free...)
	}
	return x.free
}

// twinIndex is all rows of a view by set. One pass at a time uses it.
type twinIndex struct {
	busy   sync.Mutex
	pool   string // of the passes that use it; it has the rows of all pools
	chunks []*model.Chunk
	starts []int
	of     []*twins // by row
	sets   []*twins // nil: unused number
	unused []int32  // numbers
	byKey  map[string]*twins
	first  []uint64 // a bit for each row that is the first of its set
	doubts []doubt  // by which rows are sorted
	key    []byte
}

// takeTwins finds or makes the index for a pool; nil when another pass uses it.
func (m *known) takeTwins(pool string) *twinIndex {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.twins, func(t *twinIndex) bool { return t.pool == pool })
	if at < 0 {
		t := &twinIndex{pool: pool}
		t.busy.Lock()
		m.twins = append(m.twins[:min(len(m.twins), twinIndexesMax-1)], t)
		at = len(m.twins) - 1
	} else if !m.twins[at].busy.TryLock() {
		return nil
	}
	t := m.twins[at]
	copy(m.twins[1:at+1], m.twins[:at]) // the least recently used one is the last
	m.twins[0] = t
	return t
}

// twinIndexesMax is the highest number of pools with an index.
const twinIndexesMax = 16

// sync updates the index to a view, and to what a pass doubts.
func (t *twinIndex) sync(v *model.View, d doubts) {
	was := t.doubts
	if d.known {
		t.doubts = d.list
	}
	if len(t.of) != v.Rows || !slices.Equal(t.starts, v.Starts) {
		t.byKey, t.sets, t.unused = make(map[string]*twins), nil, nil
		t.chunks, t.of, t.first = make([]*model.Chunk, len(v.Chunks)), make([]*twins, v.Rows), make([]uint64, v.Rows/64+1)
		if was = nil; !d.known {
			t.doubts = nil
		}
	}
	t.starts = v.Starts
	for k, c := range v.Chunks {
		old := t.chunks[k]
		if old == c {
			continue
		}
		for i := range c.IDs {
			if old == nil || old.Nodes[i] != c.Nodes[i] || old.Hold[i] != c.Hold[i] || old.Used[i] != c.Used[i] {
				t.put(int32(v.Starts[k]+i), c, i)
			}
		}
		t.chunks[k] = c
	}
	again := func(row int32) {
		c, i := v.At(int(row))
		t.put(row, c, i)
	}
	for now := t.doubts; len(was)+len(now) > 0; { // the rows of both lists are in order
		switch {
		case len(now) == 0 || len(was) > 0 && was[0].row < now[0].row:
			again(was[0].row)
			was = was[1:]
		case len(was) == 0 || now[0].row < was[0].row:
			again(now[0].row)
			now = now[1:]
		default:
			if was[0].rate != now[0].rate {
				again(now[0].row)
			}
			was, now = was[1:], now[1:]
		}
	}
}

// put moves a row to the set of its twins.
func (t *twinIndex) put(row int32, c *model.Chunk, i int) {
	t.key = binary.AppendVarint(appendTwinKey(t.key[:0], c, i), rateIn(t.doubts, row))
	x := t.byKey[string(t.key)]
	was := t.of[row]
	if x != nil && x == was {
		return
	}
	if was != nil {
		at, _ := slices.BinarySearch(was.rows, row)
		was.rows = slices.Delete(was.rows, at, at+1)
		if at == 0 {
			t.first[row/64] &^= 1 << (row % 64)
			if len(was.rows) > 0 {
				t.first[was.rows[0]/64] |= 1 << (was.rows[0] % 64)
			}
		}
		if len(was.rows) == 0 {
			delete(t.byKey, was.key)
			t.sets[was.num] = nil
			t.unused = append(t.unused, was.num)
		}
	}
	if x == nil {
		x = &twins{key: string(t.key)}
		if last := len(t.unused) - 1; last >= 0 {
			x.num, t.unused = t.unused[last], t.unused[:last]
			t.sets[x.num] = x
		} else {
			x.num = int32(len(t.sets))
			t.sets = append(t.sets, x)
		}
		t.byKey[x.key] = x
	}
	at, _ := slices.BinarySearch(x.rows, row)
	if at == 0 {
		if len(x.rows) > 0 {
			t.first[x.rows[0]/64] &^= 1 << (x.rows[0] % 64)
		}
		t.first[row/64] |= 1 << (row % 64)
	}
	x.rows = slices.Insert(x.rows, at, row)
	t.of[row] = x
}

// appendTwinKey appends all that a plain ask looks at on a row, but for how reliable the node is.
func appendTwinKey(b []byte, c *model.Chunk, i int) []byte {
	n := c.Nodes[i]
	b = append(b, c.Hash[i][:]...)
	num := func(x int64) { b = binary.AppendVarint(b, x) }
	for _, x := range [...]structs.Vector{c.Total[i], c.Used[i]} {
		num(x.CPU)
		num(x.Cores)
		num(x.MemoryMiB)
		num(x.DiskMiB)
	}
	num(c.MHz[i])
	if c.Ready[i] {
		b = append(b, 0)
	} else {
		b = append(append(b, 1), stateOf(n)...)
		b = append(b, 0)
	}
	for k := range n.Resources.Devices {
		for j := range n.Resources.Devices[k].Instances {
			in := &n.Resources.Devices[k].Instances[j]
			num(in.MemoryMiB)
			b = append(binary.AppendUvarint(b, uint64(len(in.Island))), in.Island...)
		}
	}
	words := func(x model.Bitset) {
		num(int64(len(x)))
		for _, w := range x {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	words(c.Sick[i])
	words(c.Worn[i])
	if h := c.Hold[i]; h != nil {
		words(h.Devs)
		for k := range h.Shares {
			x := &h.Shares[k]
			num(int64(x.Pos))
			num(x.Mem)
			num(x.Compute)
			if x.Whole {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	return b
}

// twinIndex returns the index of the pass for a pool; nil when another pass uses it.
func (w *Pass) twinIndex(pool structs.PoolName) *twinIndex {
	for _, t := range w.twins {
		if t.pool == string(pool) {
			return t
		}
	}
	t := remembered.Of(w.View).takeTwins(string(pool))
	if t != nil {
		t.sync(w.View, w.doubts)
		w.twins = append(w.twins, t)
	}
	return t
}

// setOf returns the set of a row that is as in the view, else nil.
func (t *twinIndex) setOf(row int, c *model.Chunk, i int, o *model.Occupancy) *twins {
	if t == nil || o.Hold != c.Hold[i] || o.Used != c.Used[i] {
		return nil
	}
	return t.of[row]
}

// distinguishes reports whether the ask or the policy can distinguish twins.
func (s *Search) distinguishes() bool {
	a := s.Ask
	return !a.IsSimple || a.Job == nil || a.ByID || a.NUMAWish || len(a.PerNode)+len(a.WishPerNode)+len(a.Static)+len(a.Cores) > 0 || a.Tg.Gang != nil && a.Shares ||
		s.first != 0 || s.peers != nil || s.Places != nil || len(s.Ban) > 0 || s.sees || s.lots || s.learns || s.counts ||
		slices.ContainsFunc(s.spreads, func(x *spreadState) bool { return x.ask.PerNode })
}

// openTwins finds the sets of twins, and the rows that differ from their twins in this search: what is held there in the
// what-if, what is reserved there, or what the job has there. It returns false if rating every row is better.
func (s *Search) openTwins() bool {
	if s.distinguishes() {
		return false
	}
	s.apart = s.apart[:0]
	most := s.w.View.Rows / twinsWorth
	if len(s.w.States) > most {
		return false
	}
	if len(s.w.States) > 0 {
		for row, t := range s.w.Touched {
			if t != 0 {
				s.apart = append(s.apart, int32(row))
			}
		}
	}
	if s.onRow != nil && s.weights.Load > 0 {
		for row, n := range s.onRow {
			if n != 0 {
				s.apart = append(s.apart, int32(row))
			}
		}
	}
	if s.Reserved.Keeps() {
		for k, w := range s.Reserved.marked {
			for ; w != 0; w &= w - 1 {
				s.apart = append(s.apart, int32(64*k+bits.TrailingZeros64(w)))
			}
		}
		for row := range s.Reserved.Windows {
			s.apart = append(s.apart, int32(row))
		}
	}
	slices.Sort(s.apart)
	s.apart = slices.Compact(s.apart)
	if len(s.apart) > most {
		return false
	}
	t := s.w.twinIndex(s.Ask.Job.NodePool)
	if t == nil || len(t.sets)-len(t.unused) > most {
		return false
	}
	s.twins = t
	return true
}

// twinsWorth: with fewer rows than so many for each set, every row is rated.
const twinsWorth = 2

// isApart reports whether a row differs from its twins in this search.
func (s *Search) isApart(row int32) bool {
	if len(s.apart) == 0 {
		return false
	}
	_, found := slices.BinarySearch(s.apart, row)
	return found
}

// firstTwin returns the first row of a set from a place on that is not apart, or -1.
func (s *Search) firstTwin(x *twins, from int) int32 {
	for _, row := range x.rows[from:] {
		if !s.isApart(row) {
			return row
		}
	}
	return -1
}

// afterTwin returns the candidate that comes after another one of its set, with the same score.
func (s *Search) afterTwin(c candidate) (candidate, bool) {
	if c.set == 0 {
		return c, false
	}
	x := s.twins.sets[c.set-1]
	at, _ := slices.BinarySearch(x.rows, c.row)
	c.row = s.firstTwin(x, at+1)
	return c, c.row >= 0
}

// oddRow is a row that is looked at out of turn: one that is apart, or the first of a set whose first row is apart.
type oddRow struct {
	row int32
	set *twins // nil: it is apart
}

// oddRows lists them in order.
func (s *Search) oddRows() (odd []oddRow, fewer map[*twins]int64) {
	if len(s.apart) == 0 {
		return nil, nil
	}
	fewer = make(map[*twins]int64)
	for _, row := range s.apart {
		x := s.twins.of[row]
		odd = append(odd, oddRow{row: row})
		fewer[x]++
		if x.rows[0] == row {
			if first := s.firstTwin(x, 1); first >= 0 {
				odd = append(odd, oddRow{first, x})
			}
		}
	}
	slices.SortFunc(odd, func(a, b oddRow) int { return int(a.row - b.row) })
	return odd, fewer
}

// buildTwins looks at one row of each set and at all that are apart, in the order of rows, as build does.
func (s *Search) buildTwins() {
	view := s.w.View
	table := make([]*Verdict, 0, 8)
	odd, fewer := s.oddRows()
	for ci, c := range view.Chunks {
		table = table[:0]
		for k := range c.Classes {
			table = append(table, s.ClassVerdict(&c.Classes[k]))
		}
		first, end := view.Starts[ci], view.Starts[ci]+len(c.IDs)
		look := func(row int32, x *twins) {
			i := int(row) - first
			v := table[c.Class[i]]
			if x != nil {
				s.candidatesOf(x, int64(len(x.rows))-fewer[x], c, i, row, v)
				return
			}
			if !s.counted(c, i, v) {
				return
			}
			o := s.w.Get(int(row))
			s.candidateAt(c, i, int(row), v, &o)
		}
		oddTo := func(row int32) {
			for len(odd) > 0 && odd[0].row < row {
				look(odd[0].row, odd[0].set)
				odd = odd[1:]
			}
		}
		for k := first / 64; k <= (end-1)/64; k++ {
			for w := s.twins.first[k]; w != 0; w &= w - 1 {
				row := int32(64*k + bits.TrailingZeros64(w))
				if int(row) < first || int(row) >= end || s.isApart(row) {
					continue
				}
				oddTo(row)
				look(row, s.twins.of[row])
			}
		}
		oddTo(int32(end))
	}
}

// candidatesOf puts the n rows of a set among the candidates, represented by one, or counts their shortage.
func (s *Search) candidatesOf(x *twins, n int64, c *model.Chunk, i int, row int32, v *Verdict) {
	if !v.Outside && !v.Far && !c.Ready[i] {
		v.inPool += n
		for range n {
			s.notReady(c.Nodes[i])
		}
		return
	}
	if !s.countedAll(v, n) {
		return
	}
	o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
	base := s.rate(c, i, int(row), v, &o, true)
	if base < 0 {
		if base == rateShort {
			s.exhaustedAll(v, s.why, n)
		}
		return
	}
	h := &s.cells[v.cell].heap
	*h = append(*h, candidate{base: base, row: row, set: x.num + 1})
}
