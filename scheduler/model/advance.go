package model

import (
	"iter"
	"maps"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Advance returns the view after an applied batch. It copies only the chunks that the batch touched and leaves the
// receiver unchanged. A Restored delta cannot be advanced over: call NewView.
func (v *View) Advance(d structs.Delta) *View {
	if len(d.Nodes)+len(d.Allocs)+len(d.Pools) == 0 {
		next := *v
		next.index, next.copied = d.Index, 0
		return &next
	}
	a := &advancer{v: &View{
		index:   d.Index,
		Chunks:  slices.Clone(v.Chunks),
		Starts:  v.Starts,
		Rows:    v.Rows,
		orphans: v.orphans,
		Pools:   v.Pools,
		Classes: v.Classes,
		memo:    v.memo,
	}, own: make(map[*Chunk]bool)}
	if len(d.Pools) > 0 {
		a.v.Pools = maps.Clone(v.Pools)
		for _, c := range d.Pools {
			if c.After == nil {
				if c.Before != nil {
					delete(a.v.Pools, c.Before.Name)
				}
				continue
			}
			a.v.Pools[c.After.Name] = c.After
		}
	}
	if len(d.Nodes) > 0 {
		a.v.Classes = &classTable{Num: maps.Clone(v.Classes.Num)}
	}
	for _, c := range d.Nodes {
		switch {
		case c.After != nil:
			a.putNode(c.After)
		case c.Before != nil:
			a.dropNode(c.Before.ID)
		}
	}
	if len(d.Nodes) > 0 {
		a.v.number()
		if len(a.v.Classes.Num) > 2*a.v.Rows+ClassesSlack {
			a.forgetClasses()
		}
	}
	for run := range moves(d.Allocs) {
		a.settle(run)
	}
	a.v.copied = len(a.own)
	return a.v
}

// ClassesSlack is how many classes without nodes a view remembers, in addition to two for every node.
const ClassesSlack = 1000

// forgetClasses numbers the classes again and drops those that no node has any more.
func (a *advancer) forgetClasses() {
	a.v.Classes = &classTable{Num: make(map[[16]byte]int32)}
	for k := range a.v.Chunks {
		c := a.writable(k)
		c.NodeColumns = makeRoster(a.v.Classes, c.Nodes, c.Hash)
	}
}

// advancer builds a new view from an old one. It copies a chunk before the first write to it.
type advancer struct {
	v   *View
	own map[*Chunk]bool
}

func (a *advancer) writable(k int) *Chunk {
	c := a.v.Chunks[k]
	if !a.own[c] {
		old := c
		c = &Chunk{NodeColumns: c.NodeColumns, Used: slices.Clone(c.Used), Hold: slices.Clone(c.Hold)}
		for i := range old.freeBlocks {
			c.freeBlocks[i].Store(old.freeBlocks[i].Load())
		}
		a.own[c] = true
		a.v.Chunks[k] = c
	}
	return c
}

// writableAt returns a chunk in which row i may be changed.
func (a *advancer) writableAt(k, i int) *Chunk {
	c := a.writable(k)
	c.freeBlocks[i/BlockRows].Store(nil)
	return c
}

func (a *advancer) putNode(n *structs.Node) {
	k, i, found := a.v.Locate(n.ID)
	if found {
		old := a.v.Chunks[k].Nodes[i]
		c := a.writableAt(k, i)
		a.replaceNode(c, i, n)
		if c.Hold[i] != nil && !sameLayout(old, n) {
			o := Occupancy{Hold: c.Hold[i]}.tally(n)
			c.Used[i], c.Hold[i] = o.Used, o.Hold
		}
		return
	}
	o := Occupancy{}
	if hs := a.v.orphans[n.ID]; len(hs) > 0 {
		o = Occupied(n, hs)
		a.v.setOrphans(n.ID, nil)
	}
	if len(a.v.Chunks) == 0 {
		c := &Chunk{NodeColumns: makeRoster(a.v.Classes, []*structs.Node{n}, nil), Used: []structs.Vector{o.Used}, Hold: []*Holding{o.Hold}}
		a.own[c] = true
		a.v.Chunks = append(a.v.Chunks, c)
		return
	}
	old := a.v.Chunks[k]
	nodes := slices.Insert(slices.Clone(old.Nodes), i, n)
	hash := slices.Insert(slices.Clone(old.Hash), i, [16]byte{})
	used := slices.Insert(slices.Clone(old.Used), i, o.Used)
	hold := slices.Insert(slices.Clone(old.Hold), i, o.Hold)
	delete(a.own, old)
	if len(nodes) <= ChunkNodes {
		c := &Chunk{NodeColumns: makeRoster(a.v.Classes, nodes, hash), Used: used, Hold: hold}
		a.own[c] = true
		a.v.Chunks[k] = c
		return
	}
	mid := len(nodes) / 2
	if k == len(a.v.Chunks)-1 && i == len(nodes)-1 {
		mid = len(nodes) - 1 // nodes that arrive in ID order fill their chunks
	}
	left := &Chunk{NodeColumns: makeRoster(a.v.Classes, nodes[:mid], hash[:mid]), Used: used[:mid:mid], Hold: hold[:mid:mid]}
	right := &Chunk{NodeColumns: makeRoster(a.v.Classes, nodes[mid:], hash[mid:]), Used: used[mid:], Hold: hold[mid:]}
	a.own[left], a.own[right] = true, true
	a.v.Chunks = slices.Replace(a.v.Chunks, k, k+1, left, right)
}

// replaceNode writes a new version of a node into a writable chunk.
func (a *advancer) replaceNode(c *Chunk, i int, n *structs.Node) {
	h := ClassHash(n)
	if h != c.Hash[i] {
		nodes, hash := slices.Clone(c.Nodes), slices.Clone(c.Hash)
		nodes[i], hash[i] = n, h
		c.NodeColumns = makeRoster(a.v.Classes, nodes, hash)
		return
	}
	r := *c.NodeColumns
	r.Nodes, r.Total, r.MHz, r.Ready, r.Sick = slices.Clone(r.Nodes), slices.Clone(r.Total), slices.Clone(r.MHz), slices.Clone(r.Ready), slices.Clone(r.Sick)
	r.Worn = slices.Clone(r.Worn)
	r.Nodes[i] = n
	r.Total[i], r.MHz[i] = capacity(n)
	r.Ready[i] = n.Ready()
	r.Sick[i], r.Worn[i] = sickDevices(n)
	if now := n.WasLost(); now != r.Faulty.Has(i) {
		if r.Faulty = slices.Clone(r.Faulty); now {
			r.Faulty.Set(i)
		} else {
			r.Faulty.Clear(i)
		}
	}
	if k := r.Class[i]; r.Classes[k].Node.ID == n.ID {
		r.Classes = slices.Clone(r.Classes)
		r.Classes[k].Node = n
	}
	c.NodeColumns = &r
}

// sameLayout reports whether positions of devices and networks mean the same in both versions of a node.
func sameLayout(a, b *structs.Node) bool {
	if len(a.Resources.Networks) != len(b.Resources.Networks) || len(a.Resources.Devices) != len(b.Resources.Devices) {
		return false
	}
	for i := range a.Resources.Networks {
		if a.Resources.Networks[i].IP != b.Resources.Networks[i].IP {
			return false
		}
	}
	for i := range a.Resources.Devices {
		x, y := &a.Resources.Devices[i], &b.Resources.Devices[i]
		if x.ID() != y.ID() || len(x.Instances) != len(y.Instances) {
			return false
		}
		for j := range x.Instances {
			if x.Instances[j].ID != y.Instances[j].ID {
				return false
			}
		}
	}
	return true
}

func (a *advancer) dropNode(id structs.NodeID) {
	k, i, found := a.v.Locate(id)
	if !found {
		return
	}
	old := a.v.Chunks[k]
	if hs := old.Hold[i].List(); len(hs) > 0 {
		a.v.setOrphans(id, hs)
	}
	delete(a.own, old)
	if len(old.IDs) == 1 {
		a.v.Chunks = slices.Delete(a.v.Chunks, k, k+1)
		return
	}
	c := &Chunk{
		NodeColumns: makeRoster(a.v.Classes, slices.Delete(slices.Clone(old.Nodes), i, i+1), slices.Delete(slices.Clone(old.Hash), i, i+1)),
		Used:        slices.Delete(slices.Clone(old.Used), i, i+1),
		Hold:        slices.Delete(slices.Clone(old.Hold), i, i+1),
	}
	a.own[c] = true
	a.v.Chunks[k] = c
}

// move is one allocation that begins to hold something on a node, holds something else there, or holds nothing any more.
type move struct {
	node structs.NodeID
	id   structs.AllocID
	held *Held // nil: nothing any more
}

// moves returns the changes to what nodes hold, those of one node together and in ID order, and only the last one of
// each allocation: a batch often has several allocations of a node, and each new version of a Holding copies a leaf.
func moves(changes []structs.Changed[structs.Allocation]) iter.Seq[[]move] {
	return func(yield func([]move) bool) {
		ms := make([]move, 0, len(changes))
		for _, c := range changes {
			was := c.Before != nil && structs.Holds(c.Before)
			is := c.After != nil && structs.Holds(c.After)
			switch {
			case is:
				h := heldOf(c.After)
				if was && c.Before.NodeID == c.After.NodeID {
					if b := heldOf(c.Before); b.same(&h) {
						continue
					}
				}
				kept := h
				ms = append(ms, move{c.After.NodeID, c.After.ID, &kept})
			case was:
				ms = append(ms, move{c.Before.NodeID, c.Before.ID, nil})
			}
		}
		slices.SortStableFunc(ms, func(x, y move) int {
			if c := CompareID(x.node, y.node); c != 0 {
				return c
			}
			return CompareID(x.id, y.id)
		})
		last := ms[:0]
		for i, m := range ms {
			if i+1 == len(ms) || ms[i+1].node != m.node || ms[i+1].id != m.id {
				last = append(last, m)
			}
		}
		for from := 0; from < len(last); {
			to := from + 1
			for to < len(last) && last[to].node == last[from].node {
				to++
			}
			if !yield(last[from:to]) {
				return
			}
			from = to
		}
	}
}

// settle makes the moves of one node.
func (a *advancer) settle(run []move) {
	node := run[0].node
	k, i, found := a.v.Locate(node)
	if !found {
		was := a.v.orphans[node]
		hs := slices.Clone(was)
		for _, m := range run {
			switch at, have := findHeld(hs, m.id); {
			case have && m.held != nil:
				hs[at] = m.held
			case have:
				hs = slices.Delete(hs, at, at+1)
			case m.held != nil:
				hs = slices.Insert(hs, at, m.held)
			}
		}
		if len(was)+len(hs) > 0 {
			a.v.setOrphans(node, hs)
		}
		return
	}
	n, hold := a.v.Chunks[k].Nodes[i], a.v.Chunks[k].Hold[i]
	o := Occupancy{a.v.Chunks[k].Used[i], hold}
	hs := make([]*Held, 0, len(run))
	for _, m := range run {
		if m.held != nil {
			hs = append(hs, m.held)
		} else {
			o = o.Without(n, m.id)
		}
	}
	if o = o.withAll(n, hs); o.Hold == hold {
		return // it held none of what was released
	}
	c := a.writableAt(k, i)
	c.Used[i], c.Hold[i] = o.Used, o.Hold
}
