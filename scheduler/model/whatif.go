package model

import "github.com/muster-sched/muster/structs"

// WhatIf is the cluster as a pass sees it: the view, what is in flight, and what the pass has proposed so far. It can
// be rolled back to any mark.
type WhatIf struct {
	View    *View
	Touched []int32 // per row: 1 + place in States; 0: as in the view
	States  []Occupancy
	undo    []undone
	Stamp   int // identifies the state, so that a conclusion from one state is not used for another
	changes int // number of changes so far
	levels  map[string]*Level
	trees   map[string]*Tree
	Shy     bool // some row that was set may keep others away
	gpus    int8 // 1: some node has GPUs, -1: none has, 0: not known yet
	Scratch *scratch
	Power   *powerUse // nil: no pool has a budget
}

type undone struct {
	row   int32
	state Occupancy
	fresh bool // the row was not touched before
	stamp int  // of the state before
}

// Open fills the what-if from a view and what is in flight. Close ends it.
func (w *WhatIf) Open(v *View, f Overlay) {
	w.View, w.Scratch = v, scratches.Get().(*scratch)
	w.Touched = w.Column()
	f.Each(func(node structs.NodeID) {
		c, i, found := v.Locate(node)
		if !found {
			return
		}
		w.Set(v.Starts[c]+i, f.Over(v.Chunks[c].Nodes[i], Occupancy{v.Chunks[c].Used[i], v.Chunks[c].Hold[i]}))
	})
	w.undo = w.undo[:0]
}

// Close releases the memory of the what-if for reuse.
func (w *WhatIf) Close() {
	if w.Scratch != nil {
		w.Scratch.Keep(w.Touched)
		w.Touched = nil
		scratches.Put(w.Scratch)
		w.Scratch = nil
	}
}

// Get returns what is held on a row.
func (w *WhatIf) Get(row int) Occupancy {
	if t := w.Touched[row]; t != 0 {
		return w.States[t-1]
	}
	c, i := w.View.At(row)
	return Occupancy{c.Used[i], c.Hold[i]}
}

// Set changes what is held on a row, until it is rolled back.
func (w *WhatIf) Set(row int, o Occupancy) {
	w.Shy = w.Shy || o.Hold != nil && o.Hold.Shy > 0
	old := w.Stamp
	if w.Power != nil {
		w.Power.moved(w, row, w.Get(row), o)
	}
	w.Touch()
	if t := w.Touched[row]; t != 0 {
		w.undo = append(w.undo, undone{row: int32(row), state: w.States[t-1], stamp: old})
		w.States[t-1] = o
		return
	}
	w.States = append(w.States, o)
	w.Touched[row] = int32(len(w.States))
	w.undo = append(w.undo, undone{row: int32(row), fresh: true, stamp: old})
}

// Begin sets a row that was not touched yet, before anything is tried. It cannot be rolled back.
func (w *WhatIf) Begin(row int, o Occupancy) {
	w.Shy = w.Shy || o.Hold != nil && o.Hold.Shy > 0
	w.States = append(w.States, o)
	w.Touched[row] = int32(len(w.States))
}

// Touch gives the state a new stamp, because something outside it changed.
func (w *WhatIf) Touch() {
	w.changes++
	w.Stamp = w.changes
}

// Touches reports whether any of the given rows differs from the view.
func (w *WhatIf) Touches(first, rows int) bool {
	if len(w.States) == 0 {
		return false
	}
	for _, t := range w.Touched[first : first+rows] {
		if t != 0 {
			return true
		}
	}
	return false
}

// Accept makes all changes so far final: they cannot be rolled back any more.
func (w *WhatIf) Accept() { w.undo = w.undo[:0] }

// Mark returns the current state for Rollback.
func (w *WhatIf) Mark() int { return len(w.undo) }

// Rollback undoes everything set after the mark.
func (w *WhatIf) Rollback(mark int) {
	for len(w.undo) > mark {
		u := w.undo[len(w.undo)-1]
		w.undo = w.undo[:len(w.undo)-1]
		w.Stamp = u.stamp
		from := Occupancy{}
		if w.Power != nil {
			from = w.Get(int(u.row))
		}
		if u.fresh {
			w.Touched[u.row] = 0
			w.States = w.States[:len(w.States)-1]
			if w.Power != nil {
				w.Power.moved(w, int(u.row), from, w.Get(int(u.row)))
			}
			continue
		}
		if w.Power != nil {
			w.Power.moved(w, int(u.row), from, u.state)
		}
		w.States[w.Touched[u.row]-1] = u.state
	}
}

// AnyGPUs reports whether some node has GPUs.
func (w *WhatIf) AnyGPUs() bool {
	if w.gpus == 0 {
		w.gpus = -1
		for _, c := range w.View.Chunks {
			for k := range c.Classes {
				if HasGPUs(c.Classes[k].Node) {
					w.gpus = 1
					return true
				}
			}
		}
	}
	return w.gpus > 0
}

// AnyShy reports whether any allocation keeps others away.
func (w *WhatIf) AnyShy() bool {
	if w.Shy {
		return true
	}
	for _, c := range w.View.Chunks {
		if c.MayShy() {
			return true
		}
	}
	return false
}

// powerUse is how many watts are used, for each pool with a budget.
type powerUse struct{ Used map[structs.PoolName]int64 }

// CountPower starts to count power.
func (w *WhatIf) CountPower() {
	w.Power = &powerUse{Used: map[structs.PoolName]int64{}}
	for r := range w.Touched {
		c, i := w.View.At(r)
		if n := c.Nodes[i]; n.PowerBudgetW > 0 {
			w.Power.Used[n.Pool] += PowerOf(n, w.Get(r))
		}
	}
}

// moved counts a change of what is held on a row.
func (p *powerUse) moved(w *WhatIf, row int, from, to Occupancy) {
	if p == nil {
		return
	}
	c, i := w.View.At(row)
	if n := c.Nodes[i]; n.PowerBudgetW > 0 {
		p.Used[n.Pool] += PowerOf(n, to) - PowerOf(n, from)
	}
}
