package scheduler

import "github.com/muster-sched/muster/structs"

// whatIf is the picture a pass works on: the view, what is in flight, and what the pass has proposed so far. It can be
// rolled back to any mark.
type whatIf struct {
	View    *View
	touched []int32 // per row: 1 + place in states; 0: as the view says
	states  []occupancy
	undo    []undone
	stamp   int // names the state, so that what was concluded from a state is not used for another
	changes int // counts what was set
	levels  map[string]*level
	shy     bool // something set here may keep others away
	gpus    int8 // 1: some node has GPUs, -1: none has, 0: not looked yet
	scratch *scratch
	power   *powerBooks // nil: no pool has a budget
}

type undone struct {
	row   int32
	state occupancy
	fresh bool // the row was not touched before
	stamp int  // of the state before
}

// open makes the picture of a view, with what is in flight. close ends it.
func (w *whatIf) open(v *View, f Overlay) {
	w.View, w.scratch = v, scratches.Get().(*scratch)
	w.touched = w.column()
	f.each(func(node structs.NodeID) {
		c, i, found := v.locate(node)
		if !found {
			return
		}
		w.set(v.starts[c]+i, f.over(v.chunks[c].nodes[i], occupancy{v.chunks[c].used[i], v.chunks[c].hold[i]}))
	})
	w.undo = w.undo[:0]
}

// close leaves the memory of the picture to others.
func (w *whatIf) close() {
	if w.scratch != nil {
		w.scratch.keep(w.touched)
		w.touched = nil
		scratches.Put(w.scratch)
		w.scratch = nil
	}
}

func (w *whatIf) get(row int) occupancy {
	if t := w.touched[row]; t != 0 {
		return w.states[t-1]
	}
	c, i := w.View.at(row)
	return occupancy{c.used[i], c.hold[i]}
}

func (w *whatIf) set(row int, o occupancy) {
	w.shy = w.shy || o.hold != nil && o.hold.shy > 0
	old := w.stamp
	if w.power != nil {
		w.power.moved(w, row, w.get(row), o)
	}
	w.touch()
	if t := w.touched[row]; t != 0 {
		w.undo = append(w.undo, undone{row: int32(row), state: w.states[t-1], stamp: old})
		w.states[t-1] = o
		return
	}
	w.states = append(w.states, o)
	w.touched[row] = int32(len(w.states))
	w.undo = append(w.undo, undone{row: int32(row), fresh: true, stamp: old})
}

// begin is set for a row that is not touched yet, before anything is tried: it cannot be rolled back.
func (w *whatIf) begin(row int, o occupancy) {
	w.shy = w.shy || o.hold != nil && o.hold.shy > 0
	w.states = append(w.states, o)
	w.touched[row] = int32(len(w.states))
}

// touch gives the state another name, because what surrounds it changed.
func (w *whatIf) touch() {
	w.changes++
	w.stamp = w.changes
}

// touches reports whether any of some rows differ from the view.
func (w *whatIf) touches(first, rows int) bool {
	if len(w.states) == 0 {
		return false
	}
	for _, t := range w.touched[first : first+rows] {
		if t != 0 {
			return true
		}
	}
	return false
}

// accept makes what was set so far final: rolling back ends there.
func (w *whatIf) accept() { w.undo = w.undo[:0] }

func (w *whatIf) mark() int { return len(w.undo) }

// rollback takes back everything set after the mark.
func (w *whatIf) rollback(mark int) {
	for len(w.undo) > mark {
		u := w.undo[len(w.undo)-1]
		w.undo = w.undo[:len(w.undo)-1]
		w.stamp = u.stamp
		from := occupancy{}
		if w.power != nil {
			from = w.get(int(u.row))
		}
		if u.fresh {
			w.touched[u.row] = 0
			w.states = w.states[:len(w.states)-1]
			if w.power != nil {
				w.power.moved(w, int(u.row), from, w.get(int(u.row)))
			}
			continue
		}
		if w.power != nil {
			w.power.moved(w, int(u.row), from, u.state)
		}
		w.states[w.touched[u.row]-1] = u.state
	}
}

// anyGPUs reports whether some node has GPUs.
func (w *whatIf) anyGPUs() bool {
	if w.gpus == 0 {
		w.gpus = -1
		for _, c := range w.View.chunks {
			for k := range c.classes {
				if hasGPUs(c.classes[k].node) {
					w.gpus = 1
					return true
				}
			}
		}
	}
	return w.gpus > 0
}

// anyShy reports whether anything held keeps others away.
func (w *whatIf) anyShy() bool {
	if w.shy {
		return true
	}
	for _, c := range w.View.chunks {
		if c.mayShy() {
			return true
		}
	}
	return false
}

// powerBooks are how many watts are used of the pools with a budget.
type powerBooks struct{ used map[string]int64 }

// countPower begins to count.
func (w *whatIf) countPower() {
	w.power = &powerBooks{used: map[string]int64{}}
	for r := range w.touched {
		c, i := w.View.at(r)
		if n := c.nodes[i]; n.PowerBudgetW > 0 {
			w.power.used[n.Pool] += powerOf(n, w.get(r))
		}
	}
}

// moved books that what is held on a row changes.
func (p *powerBooks) moved(w *whatIf, row int, from, to occupancy) {
	if p == nil {
		return
	}
	c, i := w.View.at(row)
	if n := c.nodes[i]; n.PowerBudgetW > 0 {
		p.used[n.Pool] += powerOf(n, to) - powerOf(n, from)
	}
}
