package search

import (
	"sync"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Pass is what the searches of one pass share: the picture they work on, what they rate nodes by, and what was worked out
// about nodes in earlier passes.
type Pass struct {
	model.WhatIf
	Mix     *model.Mix // see mixFor
	Seed    uint64     // for lots
	Past    map[structs.NodeID]Past
	dear    int64                    // see dearest
	Later   map[structs.AllocID]bool // placed by decisions that may still grow, whose entries come after those of others
	era     string                   // "" for the present; pictures of the future have ledgers of their own
	ledgers []*ledger
	caches  []*shortfallCache
	heaps   *heaps
}

// NewPass begins a pass over a view, with what is in flight.
func NewPass(v *model.View, f model.Overlay) *Pass {
	w := &Pass{heaps: heapsLeft.Get().(*heaps)}
	w.Open(v, f)
	return w
}

// known is what earlier passes worked out, of most recent use first.
type known struct {
	mu         sync.Mutex
	ledgers    []*ledger
	shortfalls []*shortfallCache
}

var remembered model.Slot[known]

// heaps is memory of scans that are done, for those to come: see scratch.
type heaps struct{ list [][]candidate }

// heapsMax is how many heaps are kept.
const heapsMax = 4

var heapsLeft = sync.Pool{New: func() any { return new(heaps) }}

// Future is a pass over a picture of the future: it remembers in places of its own.
func (w *Pass) Future() *Pass {
	x := &Pass{Mix: w.Mix, heaps: w.heaps, era: "then "}
	x.View, x.Scratch = w.View, w.Scratch
	return x
}

// Release ends a pass: others have its ledgers and its memory.
func (w *Pass) Release() {
	w.Close()
	heapsLeft.Put(w.heaps)
	w.heaps = nil
	w.Unlock()
}

// ShortfallsOf gives what is remembered of an ask, or nil: for asks that are not plain, and when another pass has it.
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

// ledger is the pass's for a policy, by the mix of the pass.
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

// Unlock lets others have the ledgers.
func (w *Pass) Unlock() {
	for _, l := range w.ledgers {
		l.busy.Unlock()
	}
	for _, m := range w.caches {
		m.busy.Unlock()
	}
	w.ledgers, w.caches = nil, nil
}

// mixFor is the mix that a pass rates by: the one it was given, else that of everything held, else the ask itself.
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

// heap gives room for a candidate of every row.
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

// dearest is what the dearest node costs.
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
