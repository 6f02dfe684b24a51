package scheduler

import (
	"maps"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Advance gives the view after an applied batch. It copies only the chunks that the batch touched; the receiver stays
// as it is. A Restored delta cannot be advanced over: call NewView.
func (v *View) Advance(d structs.Delta) *View {
	if len(d.Nodes)+len(d.Allocs)+len(d.Pools) == 0 {
		next := *v
		next.index, next.copied = d.Index, 0
		return &next
	}
	a := &advancer{v: &View{
		index:   d.Index,
		chunks:  slices.Clone(v.chunks),
		starts:  v.starts,
		rows:    v.rows,
		orphans: v.orphans,
		pools:   v.pools,
		classes: v.classes,
		memo:    v.memo,
	}, own: make(map[*chunk]bool)}
	if len(d.Pools) > 0 {
		a.v.pools = maps.Clone(v.pools)
		for _, c := range d.Pools {
			if c.After == nil {
				if c.Before != nil {
					delete(a.v.pools, c.Before.Name)
				}
				continue
			}
			a.v.pools[c.After.Name] = c.After
		}
	}
	if len(d.Nodes) > 0 {
		a.v.classes = &classTable{num: maps.Clone(v.classes.num)}
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
		if len(a.v.classes.num) > 2*a.v.rows+classesSlack {
			a.forgetClasses()
		}
	}
	for _, c := range d.Allocs {
		was := c.Before != nil && structs.Holds(c.Before)
		is := c.After != nil && structs.Holds(c.After)
		switch {
		case is:
			h := heldOf(c.After)
			if was && heldOf(c.Before).same(h) && c.Before.NodeID == c.After.NodeID {
				continue
			}
			a.hold(c.After.NodeID, h)
		case was:
			a.release(c.Before.NodeID, c.Before.ID)
		}
	}
	a.v.copied = len(a.own)
	return a.v
}

// classesSlack is how many classes without nodes a view remembers, beside two for every node.
const classesSlack = 1000

// forgetClasses numbers the classes anew, without those that no node has any more.
func (a *advancer) forgetClasses() {
	a.v.classes = &classTable{num: make(map[[16]byte]int32)}
	for k := range a.v.chunks {
		c := a.writable(k)
		c.nodeColumns = makeRoster(a.v.classes, c.nodes, c.hash)
	}
}

// advancer makes a new view out of an old one, copying a chunk the first time it is written to.
type advancer struct {
	v   *View
	own map[*chunk]bool
}

func (a *advancer) writable(k int) *chunk {
	c := a.v.chunks[k]
	if !a.own[c] {
		old := c
		c = &chunk{nodeColumns: c.nodeColumns, used: slices.Clone(c.used), hold: slices.Clone(c.hold)}
		for i := range old.freeBlocks {
			c.freeBlocks[i].Store(old.freeBlocks[i].Load())
		}
		a.own[c] = true
		a.v.chunks[k] = c
	}
	return c
}

// writableAt is writable for a change of one row.
func (a *advancer) writableAt(k, i int) *chunk {
	c := a.writable(k)
	c.freeBlocks[i/blockRows].Store(nil)
	return c
}

func (a *advancer) putNode(n *structs.Node) {
	k, i, found := a.v.locate(n.ID)
	if found {
		old := a.v.chunks[k].nodes[i]
		c := a.writableAt(k, i)
		a.replaceNode(c, i, n)
		if c.hold[i] != nil && !sameLayout(old, n) {
			o := occupancy{hold: c.hold[i]}.tally(n)
			c.used[i], c.hold[i] = o.used, o.hold
		}
		return
	}
	o := occupancy{}
	if hs := a.v.orphans[n.ID]; len(hs) > 0 {
		o = occupied(n, hs)
		a.v.setOrphans(n.ID, nil)
	}
	if len(a.v.chunks) == 0 {
		c := &chunk{nodeColumns: makeRoster(a.v.classes, []*structs.Node{n}, nil), used: []structs.Vector{o.used}, hold: []*holding{o.hold}}
		a.own[c] = true
		a.v.chunks = append(a.v.chunks, c)
		return
	}
	old := a.v.chunks[k]
	nodes := slices.Insert(slices.Clone(old.nodes), i, n)
	hash := slices.Insert(slices.Clone(old.hash), i, [16]byte{})
	used := slices.Insert(slices.Clone(old.used), i, o.used)
	hold := slices.Insert(slices.Clone(old.hold), i, o.hold)
	delete(a.own, old)
	if len(nodes) <= ChunkNodes {
		c := &chunk{nodeColumns: makeRoster(a.v.classes, nodes, hash), used: used, hold: hold}
		a.own[c] = true
		a.v.chunks[k] = c
		return
	}
	mid := len(nodes) / 2
	if k == len(a.v.chunks)-1 && i == len(nodes)-1 {
		mid = len(nodes) - 1 // nodes that come in order of ids fill their chunks
	}
	left := &chunk{nodeColumns: makeRoster(a.v.classes, nodes[:mid], hash[:mid]), used: used[:mid:mid], hold: hold[:mid:mid]}
	right := &chunk{nodeColumns: makeRoster(a.v.classes, nodes[mid:], hash[mid:]), used: used[mid:], hold: hold[mid:]}
	a.own[left], a.own[right] = true, true
	a.v.chunks = slices.Replace(a.v.chunks, k, k+1, left, right)
}

// replaceNode writes a new version of a node into a writable chunk.
func (a *advancer) replaceNode(c *chunk, i int, n *structs.Node) {
	h := classHash(n)
	if h != c.hash[i] {
		nodes, hash := slices.Clone(c.nodes), slices.Clone(c.hash)
		nodes[i], hash[i] = n, h
		c.nodeColumns = makeRoster(a.v.classes, nodes, hash)
		return
	}
	r := *c.nodeColumns
	r.nodes, r.total, r.MHz, r.ready, r.sick = slices.Clone(r.nodes), slices.Clone(r.total), slices.Clone(r.MHz), slices.Clone(r.ready), slices.Clone(r.sick)
	r.nodes[i] = n
	r.total[i], r.MHz[i] = capacity(n)
	r.ready[i] = n.Ready()
	r.sick[i] = sickDevices(n)
	if k := r.class[i]; r.classes[k].node.ID == n.ID {
		r.classes = slices.Clone(r.classes)
		r.classes[k].node = n
	}
	c.nodeColumns = &r
}

// sameLayout reports whether positions of devices and networks mean the same on both versions of a node.
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
	k, i, found := a.v.locate(id)
	if !found {
		return
	}
	old := a.v.chunks[k]
	if hs := old.hold[i].list(); len(hs) > 0 {
		a.v.setOrphans(id, hs)
	}
	delete(a.own, old)
	if len(old.IDs) == 1 {
		a.v.chunks = slices.Delete(a.v.chunks, k, k+1)
		return
	}
	c := &chunk{
		nodeColumns: makeRoster(a.v.classes, slices.Delete(slices.Clone(old.nodes), i, i+1), slices.Delete(slices.Clone(old.hash), i, i+1)),
		used:        slices.Delete(slices.Clone(old.used), i, i+1),
		hold:        slices.Delete(slices.Clone(old.hold), i, i+1),
	}
	a.own[c] = true
	a.v.chunks[k] = c
}

func (a *advancer) hold(node structs.NodeID, h *held) {
	k, i, found := a.v.locate(node)
	if !found {
		hs := a.v.orphans[node]
		at, have := findHeld(hs, h.ID)
		if have {
			next := slices.Clone(hs)
			next[at] = h
			a.v.setOrphans(node, next)
			return
		}
		a.v.setOrphans(node, slices.Insert(slices.Clone(hs), at, h))
		return
	}
	c := a.writableAt(k, i)
	o := occupancy{c.used[i], c.hold[i]}.with(c.nodes[i], h)
	c.used[i], c.hold[i] = o.used, o.hold
}

func (a *advancer) release(node structs.NodeID, id structs.AllocID) {
	k, i, found := a.v.locate(node)
	if !found {
		hs := a.v.orphans[node]
		if at, have := findHeld(hs, id); have {
			a.v.setOrphans(node, slices.Delete(slices.Clone(hs), at, at+1))
		}
		return
	}
	if !a.v.chunks[k].hold[i].has(id) {
		return
	}
	c := a.writableAt(k, i)
	o := occupancy{c.used[i], c.hold[i]}.without(c.nodes[i], id)
	c.used[i], c.hold[i] = o.used, o.hold
}
