package scheduler

import (
	"slices"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// memo is what passes have worked out about nodes and GPUs and need not work out again. It hangs on the views of one
// lineage and goes from each to the next. It only remembers what pure functions gave, so that no decision depends on it:
// an entry is used only for the very node and holding that it was made from.
type memo struct {
	mu      sync.Mutex
	live    liveShapes
	ledgers []*ledger        // most recently used first
	tails   map[int]heldTail // by row, of those with a long one
	asks    []*askMemos      // most recently used first
}

// liveShapes counts what is held by shape, over the chunks of the view that asked last.
type liveShapes struct {
	chunks []*chunk
	sums   map[Shape]int64
	all    int64
	mix    *Mix
}

// Limits of a memo: what is used least is forgotten.
const (
	ledgersMax    = 4       // pairs of policy and mix, for each pool
	ledgerRowsMax = 1 << 19 // rows remembered by one ledger, over all asks: about 30 MiB
)

// liveMix is the mix of everything held. Sizes and shares are rounded, so that it changes seldom and what was worked out
// for it stays of use; it depends on nothing but the view.
func (m *memo) liveMix(v *View) *Mix {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &m.live
	if l.sums == nil {
		l.sums = make(map[Shape]int64)
	}
	changed := l.mix == nil
	row := func(c *chunk, i int, sign int64) {
		c.eachShape(i, func(s Shape) {
			changed = true
			l.all += sign
			if l.sums[s] += sign; l.sums[s] == 0 {
				delete(l.sums, s)
			}
		})
	}
	add := func(c *chunk, sign int64) {
		for i := range c.hold {
			row(c, i, sign)
		}
	}
	for k := range max(len(l.chunks), len(v.chunks)) {
		switch {
		case k >= len(v.chunks):
			add(l.chunks[k], -1)
		case k >= len(l.chunks):
			add(v.chunks[k], 1)
		case l.chunks[k] == v.chunks[k]:
		case !slices.Equal(l.chunks[k].nodes, v.chunks[k].nodes):
			add(l.chunks[k], -1)
			add(v.chunks[k], 1)
		default: // of most chunks one node changed
			for i, h := range v.chunks[k].hold {
				if l.chunks[k].hold[i] != h {
					row(l.chunks[k], i, -1)
					row(v.chunks[k], i, 1)
				}
			}
		}
	}
	l.chunks = v.chunks
	if !changed {
		return l.mix
	}
	list := make([]Shape, 0, len(l.sums))
	for s, n := range l.sums {
		s.Count = roundShare(n, l.all)
		list = append(list, s)
	}
	slices.SortFunc(list, compareShapes)
	if mix := NewMix(list); l.mix == nil || !l.mix.same(mix) {
		l.mix = mix
	}
	return l.mix
}

// ledger is what is remembered for one policy, mix and pool. It belongs to one pass at a time.
type ledger struct {
	busy   sync.Mutex
	policy string
	pool   string
	mix    *Mix
	rater  GPURater
	suits  map[[16]byte][]bool // by class
	asks   map[string]*asked
	used   int64 // counts uses
	market marketRows
	now    []valued // by row
}

// valued is what a node is worth as it is, whatever is asked for.
type valued struct {
	node  *structs.Node
	hold  *holding
	value int64
}

// asked is how nodes were rated for one ask.
type asked struct {
	rows []rated
	whys []shortageOf // why it does not fit
	used int64
}

// whyOf keeps a shortage and gives 1 + its place. Nodes side by side are often short of the same.
func (a *asked) whyOf(x shortageOf) int32 {
	for k := len(a.whys) - 1; k >= max(0, len(a.whys)-8); k-- {
		if a.whys[k] == x {
			return int32(k + 1)
		}
	}
	a.whys = append(a.whys, x)
	return int32(len(a.whys))
}

// rated is what is known of one node for one ask; it holds for the very node and holding.
type rated struct {
	node   *structs.Node
	hold   *holding
	before int64
	after  [2]int64 // [0] without touching an idle GPU, [1] touching some; where can says so
	milli  [2]int32 // thousandths of GPUs that each takes
	can    [2]bool
	idle   uint8 // idle GPUs before
	takes  uint8 // idle GPUs that [1] takes
	why    int32 // 1 + place in whys when it does not fit
}

// take finds the ledger of a policy for a mix, or makes it. When another pass has it, the caller gets one of its own
// that is forgotten.
func (m *memo) take(p GPUPolicy, pool string, mix *Mix) *ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range m.ledgers {
		if l.policy != p.Name() || l.pool != pool || !l.mix.same(mix) {
			continue
		}
		if !l.busy.TryLock() {
			return newLedger(p, pool, mix)
		}
		copy(m.ledgers[1:i+1], m.ledgers[:i])
		m.ledgers[0] = l
		return l
	}
	l := newLedger(p, pool, mix)
	m.ledgers = slices.Insert(m.ledgers, 0, l)
	same := 0
	m.ledgers = slices.DeleteFunc(m.ledgers, func(o *ledger) bool {
		if o.pool == pool {
			same++
		}
		return o.pool == pool && same > ledgersMax
	})
	return l
}

// newLedger makes an empty one, taken already.
func newLedger(p GPUPolicy, pool string, mix *Mix) *ledger {
	l := &ledger{policy: p.Name(), pool: pool, mix: mix, rater: p.Rater(mix), suits: make(map[[16]byte][]bool), asks: make(map[string]*asked)}
	l.market.begin(mix)
	l.busy.Lock()
	return l
}

// ask gives what is remembered of an ask, by its key.
func (l *ledger) ask(key string, rows int) *asked {
	l.used++
	if len(l.now) < rows {
		l.now = append(l.now, make([]valued, rows-len(l.now))...)
	}
	a := l.asks[key]
	if a == nil {
		for (len(l.asks)+1)*rows > ledgerRowsMax && len(l.asks) > 0 { // forget the one used least recently
			oldest, when := "", l.used
			for k, x := range l.asks {
				if x.used < when {
					oldest, when = k, x.used
				}
			}
			delete(l.asks, oldest)
		}
		a = &asked{}
		l.asks[key] = a
	}
	if len(a.rows) < rows {
		a.rows = append(a.rows, make([]rated, rows-len(a.rows))...)
	}
	if len(a.whys) > 4*rows { // shortages of holdings long gone
		a.whys = nil
		clear(a.rows)
	}
	a.used = l.used
	return a
}

// suit tells which shapes of the mix nodes of a class suit.
func (l *ledger) suit(class [16]byte, n *structs.Node) []bool {
	s, ok := l.suits[class]
	if !ok {
		if len(l.suits) > 2*classesSlack {
			clear(l.suits)
		}
		s = l.mix.suits(n)
		l.suits[class] = s
	}
	return s
}

// ledger is the pass's for a policy, by the mix of the pass.
func (w *whatIf) ledger(p GPUPolicy, a *ask) *ledger {
	mix := w.mixFor(a)
	for _, l := range w.ledgers {
		if l.policy == p.Name() && l.pool == w.era+a.job.NodePool && l.mix.same(mix) {
			return l
		}
	}
	l := w.v.memo.take(p, w.era+a.job.NodePool, mix)
	w.ledgers = append(w.ledgers, l)
	return l
}

// release ends the picture of a pass: other passes have its ledgers and its scratch.
func (w *whatIf) release() {
	if w.scratch != nil {
		w.scratch.keep(w.touched)
		w.touched = nil
		scratches.Put(w.scratch)
		w.scratch = nil
	}
	w.unlock()
}

// unlock lets others have the ledgers.
func (w *whatIf) unlock() {
	for _, l := range w.ledgers {
		l.busy.Unlock()
	}
	for _, m := range w.asks {
		m.busy.Unlock()
	}
	w.ledgers, w.asks = nil, nil
}
