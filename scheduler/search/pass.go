package search

import (
	"math/big"
	"slices"
	"strings"
	"sync"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Pass is what the searches of one pass share: the cluster as the pass sees it, what nodes are rated by, and what
// earlier passes cached about nodes.
type Pass struct {
	model.WhatIf
	Mix     *model.Mix // see mixFor
	Seed    uint64     // for random lots
	Past    map[structs.NodeID]Past
	dear    int64 // see dearest
	doubts  doubts
	Later   map[structs.AllocID]bool // placed by decisions that may still grow; their entries come after those of others
	era     string                   // "" for the present; a what-if about the future has separate ledgers
	ledgers []*ledger
	caches  []*shortfallCache
	twins   []*twinIndex
	heaps   *heaps
	known   *known // locked for sharing; nil: see Prepare
}

// NewPass begins a pass over a view and what is in flight.
func NewPass(v *model.View, f model.Overlay) *Pass {
	m := remembered.Of(v)
	m.use.RLock()
	w := newPass(v, f)
	w.known = m
	return w
}

func newPass(v *model.View, f model.Overlay) *Pass {
	w := &Pass{heaps: heapsLeft.Get().(*heaps)}
	w.Open(v, f)
	return w
}

// known is what earlier passes cached, most recently used first.
type known struct {
	use      sync.RWMutex // passes share it; Prepare takes it alone, and does not wait for it
	prepared prepared     // guarded by use

	mu         sync.Mutex
	ledgers    []*ledger
	shortfalls []*shortfallCache
	twins      []*twinIndex
}

var remembered model.Slot[known]

// heaps is memory of finished searches for reuse.
type heaps struct{ list [][]candidate }

// heapsMax is the highest number of heaps kept.
const heapsMax = 4

var heapsLeft = sync.Pool{New: func() any { return new(heaps) }}

// Future returns a pass over a what-if about the future, which uses separate caches.
func (w *Pass) Future() *Pass {
	x := &Pass{Mix: w.Mix, heaps: w.heaps, doubts: w.doubts, era: "then "}
	x.View, x.Scratch = w.View, w.Scratch
	return x
}

// Release ends a pass and frees its ledgers and its memory for other passes.
func (w *Pass) Release() {
	w.Scratch.Keep(w.doubts.rows)
	w.doubts = doubts{}
	w.Close()
	heapsLeft.Put(w.heaps)
	w.heaps = nil
	w.Unlock()
	if w.known != nil {
		w.known.use.RUnlock()
		w.known = nil
	}
}

// ShortfallsOf returns the shortfalls cached for an ask. It is nil for asks that are not plain, and when another pass
// uses the cache.
func (w *Pass) ShortfallsOf(key []byte, pool structs.PoolName) *Shortfalls {
	if key == nil {
		return nil
	}
	name := w.era + string(pool)
	var m *shortfallCache
	for _, x := range w.caches {
		if x.pool == name {
			m = x
		}
	}
	if m == nil {
		if m = remembered.Of(w.View).takeShortfalls(name); m == nil {
			return nil
		}
		w.caches = append(w.caches, m)
	}
	a := m.ask(key, w.View.Rows)
	a.ready(w.View)
	return a
}

// ledger returns the pass's ledger for a policy, by the mix of the pass.
func (w *Pass) ledger(p GPUPolicy, a *match.Ask) *ledger {
	mix := w.mixFor(a)
	for _, l := range w.ledgers {
		if l.policy == p.Name() && l.pool == w.era+string(a.Job.NodePool) && l.mix.Same(mix) {
			return l
		}
	}
	l := remembered.Of(w.View).takeLedger(p, w.era+string(a.Job.NodePool), mix)
	w.ledgers = append(w.ledgers, l)
	return l
}

// Unlock frees the ledgers for other passes.
func (w *Pass) Unlock() {
	for _, l := range w.ledgers {
		l.busy.Unlock()
	}
	for _, m := range w.caches {
		m.busy.Unlock()
	}
	for _, t := range w.twins {
		t.busy.Unlock()
	}
	w.ledgers, w.caches, w.twins = nil, nil, nil
}

// mixFor returns the mix that a pass rates by: the given one, else that of everything held, else the ask itself.
func (w *Pass) mixFor(a *match.Ask) *model.Mix {
	if w.Mix == nil {
		w.Mix = w.View.LiveMix()
	}
	if w.Mix.Total > 0 {
		return w.Mix
	}
	s := model.Shape{CPU: a.Need.CPU, Count: 1}
	for i := range a.Devices {
		alt := &a.Devices[i].Alts[0]
		s.GPUs += alt.Count
		s.Milli = 1000
		if alt.Share > 0 {
			s.Milli = alt.Share * 10
		}
	}
	return model.NewMix([]model.Shape{s})
}

// heap returns an empty heap with room for a candidate of every row.
func (w *Pass) heap() []candidate {
	if x := w.heaps; x != nil && len(x.list) > 0 {
		last := len(x.list) - 1
		h := x.list[last]
		x.list = x.list[:last]
		if cap(h) >= w.View.Rows {
			return h[:0]
		}
	}
	return make([]candidate, 0, w.View.Rows)
}

// dearest returns the cost of the dearest node.
func (w *Pass) dearest() int64 {
	if w.dear < 0 {
		return 0
	}
	if w.dear == 0 {
		for _, c := range w.View.Chunks {
			for k := range c.Classes {
				w.dear = max(w.dear, costOf(c.Classes[k].Node))
			}
		}
		if w.dear == 0 {
			w.dear = -1
			return 0
		}
	}
	return w.dear
}

// takeLedger finds or makes the ledger of a policy for a mix. If another pass uses it, the caller gets a separate one
// that is not kept.
func (m *known) takeLedger(p GPUPolicy, pool string, mix *model.Mix) *ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range m.ledgers {
		if l.policy != p.Name() || l.pool != pool || !l.mix.Same(mix) {
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

// costMax limits the cost of a node, in millionths, so that a million times it does not overflow.
const costMax = 1_000_000 * model.Micro

var bigMicro = big.NewInt(model.Micro)

// costOf returns the cost of a node, in millionths of its unit; at most costMax.
func costOf(n *structs.Node) int64 {
	r, ok := match.ParseDecimal(strings.TrimSpace(model.LevelOf(n, structs.CostKey)))
	if !ok || r.Sign() <= 0 {
		return 0
	}
	x := r.Num()
	x.Mul(x, bigMicro).Quo(x, r.Denom())
	if !x.IsInt64() {
		return costMax
	}
	return min(x.Int64(), costMax)
}
