package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Overlay is what plans in flight (proposed, not yet committed) will hold. Placements count at once; stops free nothing
// before they are committed (D7). An Overlay is an immutable value: Add and Remove return new ones and copy only what
// they touch. The zero Overlay is empty. An allocation that is in the view already is not counted twice.
type Overlay struct {
	shards *flightShards // by first byte of the node ID, then sorted by ID; nil: empty
	Plans  []flightPlan  // in the order they were added
}

// flightShards has two levels because all 256 shards are 6 KiB and the plan of one allocation touches only one of them.
type flightShards [16]*flightPage

// flightPage holds the shards of 16 first bytes.
type flightPage [16][]flightNode

// at returns a shard for reading.
func (s *flightShards) at(b byte) []flightNode {
	if s == nil || s[b>>4] == nil {
		return nil
	}
	return s[b>>4][b&15]
}

// flightOwned records which parts of a new overlay were copied already.
type flightOwned struct {
	pages  [16]bool
	shards [256]bool
}

type flightNode struct {
	node structs.NodeID
	held []flightHeld
	sum  *Sum // nil: not known
}

// Sum is what Over returns for a node.
type Sum struct {
	Node *structs.Node
	View Occupancy // what the view holds there
	All  Occupancy // and with everything in flight
}

type flightHeld struct {
	Plan uint64
	Held *Held
}

type flightPlan struct {
	Id    uint64
	Job   structs.JobKey
	Nodes []structs.NodeID
	Stops []structs.AllocID
	shy   bool // some of its placements keep others away
}

// Shy reports whether a placement in flight keeps others away.
func (f Overlay) Shy() bool {
	return slices.ContainsFunc(f.Plans, func(p flightPlan) bool { return p.shy })
}

// Len is the number of plans in flight.
func (f Overlay) Len() int { return len(f.Plans) }

// HasJob reports whether a plan of the job is in flight.
func (f Overlay) HasJob(k structs.JobKey) bool {
	return slices.ContainsFunc(f.Plans, func(p flightPlan) bool { return p.Job == k })
}

// Stopping reports whether a plan in flight stops an allocation.
func (f Overlay) Stopping(id structs.AllocID) bool {
	return slices.ContainsFunc(f.Plans, func(p flightPlan) bool { return slices.Contains(p.Stops, id) })
}

// Add returns the overlay with one more plan in flight, under an ID that the caller chooses. Parts for which accepted
// is false are left out; nil means all are accepted.
func (f Overlay) Add(id uint64, e *structs.PlanEntry, accepted []bool) Overlay {
	return f.add(id, e, accepted, nil)
}

// AddVerified is Add for an entry that was accepted whole. sums are those of its nodes with the entry, which its
// verification has computed: as long as the view and what is in flight there stay, Over need not do it again.
func (f Overlay) AddVerified(id uint64, e *structs.PlanEntry, sums map[structs.NodeID]*Sum) Overlay {
	return f.add(id, e, nil, sums)
}

func (f Overlay) add(id uint64, e *structs.PlanEntry, accepted []bool, sums map[structs.NodeID]*Sum) Overlay {
	p := flightPlan{Id: id, Job: structs.JobKey{Namespace: e.Namespace, ID: e.JobID}}
	next := Overlay{shards: new(flightShards)}
	if f.shards != nil {
		*next.shards = *f.shards
	}
	var owned flightOwned
	fresh := make([][]flightHeld, len(e.Nodes))
	for i := range e.Parts {
		if accepted != nil && !accepted[i] {
			continue
		}
		for k := range e.Parts[i].Places {
			pl := &e.Parts[i].Places[k]
			_, h, ok := HeldOfPlace(e, pl)
			if !ok {
				continue
			}
			fresh[pl.Node] = append(fresh[pl.Node], flightHeld{id, h})
			p.shy = p.shy || h.Work.Shy
		}
		for k := range e.Parts[i].Stops {
			p.Stops = append(p.Stops, e.Parts[i].Stops[k].ID)
		}
	}
	for i, hs := range fresh {
		if len(hs) > 0 {
			next.put(&owned, e.Nodes[i].ID, sums[e.Nodes[i].ID], hs...)
			p.Nodes = append(p.Nodes, e.Nodes[i].ID)
		}
	}
	next.Plans = append(slices.Clone(f.Plans), p)
	return next
}

// Remove returns the overlay without a plan that was refused, or committed and thus in the view.
func (f Overlay) Remove(id uint64) Overlay {
	at := slices.IndexFunc(f.Plans, func(p flightPlan) bool { return p.Id == id })
	if at < 0 {
		return f
	}
	if len(f.Plans) == 1 {
		return Overlay{}
	}
	next := Overlay{shards: new(flightShards), Plans: slices.Concat(f.Plans[:at], f.Plans[at+1:])}
	*next.shards = *f.shards
	var owned flightOwned
	for _, node := range f.Plans[at].Nodes {
		s := next.shard(&owned, node[0])
		i, found := findFlight(*s, node)
		if !found {
			continue
		}
		left := slices.DeleteFunc(slices.Clone((*s)[i].held), func(h flightHeld) bool { return h.Plan == id })
		if len(left) == 0 {
			*s = slices.Delete(*s, i, i+1)
			continue
		}
		(*s)[i].held, (*s)[i].sum = left, nil
	}
	return next
}

func findFlight(s []flightNode, node structs.NodeID) (int, bool) {
	return slices.BinarySearchFunc(s, node, func(e flightNode, id structs.NodeID) int { return CompareID(e.node, id) })
}

// shard returns a shard for writing.
func (f *Overlay) shard(owned *flightOwned, b byte) *[]flightNode {
	page := &f.shards[b>>4]
	if !owned.pages[b>>4] {
		mine := new(flightPage)
		if *page != nil {
			*mine = **page
		}
		*page, owned.pages[b>>4] = mine, true
	}
	s := &(*page)[b&15]
	if !owned.shards[b] {
		*s = slices.Clone(*s)
		owned.shards[b] = true
	}
	return s
}

func (f *Overlay) put(owned *flightOwned, node structs.NodeID, sum *Sum, hs ...flightHeld) {
	s := f.shard(owned, node[0])
	i, found := findFlight(*s, node)
	if !found {
		*s = slices.Insert(*s, i, flightNode{node, slices.Clone(hs), sum})
		return
	}
	(*s)[i].held, (*s)[i].sum = slices.Concat((*s)[i].held, hs), sum
}

// On lists what plans in flight will hold on a node.
func (f Overlay) On(node structs.NodeID) []flightHeld { return f.on(node).held }

func (f Overlay) on(node structs.NodeID) flightNode {
	s := f.shards.at(node[0])
	if i, found := findFlight(s, node); found {
		return s[i]
	}
	return flightNode{}
}

// Each calls fn for every node with something in flight, in ID order.
func (f Overlay) Each(fn func(node structs.NodeID)) {
	if f.shards == nil {
		return
	}
	for b := range 256 {
		for _, n := range f.shards.at(byte(b)) {
			fn(n.node)
		}
	}
}

// Over adds what is in flight on a node to what the view holds there. It does so in one merge: adding one by one copies
// the list each time, which is quadratic on a node with many plans in flight. A sum of AddVerified needs none.
func (f Overlay) Over(n *structs.Node, o Occupancy) Occupancy {
	on := f.on(n.ID)
	switch {
	case len(on.held) == 0:
		return o
	case on.sum != nil && on.sum.Node == n && on.sum.View == o:
		return on.sum.All
	}
	var few [64]*Held
	fresh := few[:0]
	for _, h := range on.held {
		fresh = append(fresh, h.Held)
	}
	slices.SortFunc(fresh, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
	return o.withNew(n, slices.CompactFunc(fresh, func(a, b *Held) bool { return a.ID == b.ID }))
}

// HeldOfPlace returns what a proposed placement will hold and on which node; ok is false if the entry is inconsistent.
func HeldOfPlace(e *structs.PlanEntry, p *structs.PlanPlace) (node structs.NodeID, h *Held, ok bool) {
	if p.Node < 0 || p.Node >= len(e.Nodes) || p.Group < 0 || p.Group >= len(e.Groups) || p.Group >= len(e.Asks) {
		return node, nil, false
	}
	h = &Held{ID: structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, e.Groups[p.Group], p.Index), Need: e.Asks[p.Group],
		Work: HeldWork{Job: e.Job, Group: e.Groups[p.Group], Began: e.Decided, Placed: e.Decided, Expect: p.Expect, Index: p.Index, Yields: Elastic(e.Job, e.Groups[p.Group]), Shy: KeepsAway(e.Job, e.Groups[p.Group])}}
	if len(p.WaitsOn)+len(p.Ports)+len(p.Cores)+len(p.Grants) > 0 {
		h.Rare = &HeldRare{Waits: p.WaitsOn, Ports: p.Ports, Cores: p.Cores, Grants: p.Grants}
	}
	return e.Nodes[p.Node].ID, h, true
}

// HeldOn is what an allocation holds on a node.
type HeldOn struct {
	Node structs.NodeID
	Held *Held
}

// Restore returns the overlay with one more plan, read from a dump.
func (f Overlay) Restore(id uint64, job structs.JobKey, stops []structs.AllocID, hs []HeldOn) Overlay {
	next := Overlay{shards: new(flightShards)}
	if f.shards != nil {
		*next.shards = *f.shards
	}
	p := flightPlan{Id: id, Job: job, Stops: stops}
	var owned flightOwned
	for i := range hs {
		next.put(&owned, hs[i].Node, nil, flightHeld{id, hs[i].Held})
		p.Nodes = append(p.Nodes, hs[i].Node)
	}
	next.Plans = append(slices.Clone(f.Plans), p)
	return next
}
