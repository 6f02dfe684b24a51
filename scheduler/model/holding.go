package model

import (
	"bytes"
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Held is what one allocation that holds resources occupies on its node. Immutable.
type Held struct {
	ID   structs.AllocID
	Need structs.Vector
	Rare *HeldRare // nil: no ports, cores, devices or waits
	Work HeldWork
}

// HeldWork says whose an allocation is and how long it will run. Reservations and preemption use it.
type HeldWork struct {
	Job    *structs.Job // the version that it runs; nil when unknown
	Group  structs.GroupName
	Began  structs.LogTime // when its tasks started, before that when it was placed, moved later by the time that it was frozen: Allocation.WorksSince
	Placed structs.LogTime // when it was placed; 0: by the pass that looks
	Frozen structs.LogTime // since when it is frozen; 0: it runs
	Expect time.Duration   // predicted run time; 0: none
	Ending bool            // it was asked to stop
	Yields bool            // its group is elastic: it may shrink for others
	Shy    bool            // it keeps others away
	Index  int             // name index
	Times  int64           // how often the job had been preempted when this was placed
	Saved  structs.LogTime // when its newest checkpoint was written; 0 for none
	Took   time.Duration   // how long that took from a notice; 0: no notice caused it, or it is unknown
}

// Elastic reports whether the group is elastic.
func Elastic(j *structs.Job, group structs.GroupName) bool {
	if j == nil {
		return false
	}
	g := j.Group(group)
	return g != nil && g.Elastic != nil
}

// Of reports whether the work belongs to a group of a job, in any version.
func (h *HeldWork) Of(job *structs.Job, group structs.GroupName) bool {
	return h.Job != nil && job != nil && h.Group == group && h.Job.ID == job.ID && h.Job.Namespace == job.Namespace
}

// HeldRare is what few allocations hold.
type HeldRare struct {
	Waits  []structs.AllocID
	Ports  []structs.PortGrant
	Cores  []int64
	Grants []structs.Grant
}

// HeldOf returns what an allocation holds.
func HeldOf(a *structs.Allocation) *Held {
	h := heldOf(a)
	return &h
}

func heldOf(a *structs.Allocation) Held {
	h := Held{ID: a.ID, Need: a.Resources, Work: HeldWork{Job: a.Job, Group: a.Group, Began: a.WorksSince(), Placed: a.CreateTime, Expect: a.Expect, Ending: a.ServerTerminal(), Index: a.NameIndex, Times: a.Lineage().Preempted, Yields: Elastic(a.Job, a.Group), Shy: KeepsAway(a.Job, a.Group)}}
	if s := a.Suspension; s != nil {
		h.Work.Frozen = s.Since
	}
	if a.Saved != nil {
		h.Work.Saved, h.Work.Took = a.Saved.Time, a.Saved.Took
	}
	if len(a.WaitsOn)+len(a.Ports)+len(a.Cores)+len(a.Grants) > 0 {
		h.Rare = &HeldRare{Waits: a.WaitsOn, Ports: a.Ports, Cores: a.Cores, Grants: a.Grants}
	}
	return h
}

// same reports whether two records of one allocation occupy the same resources.
func (h *Held) same(o *Held) bool {
	return h.Need == o.Need && h.Work == o.Work && h.Rare.same(o.Rare)
}

func (r *HeldRare) same(o *HeldRare) bool {
	if r == nil || o == nil {
		return r == o
	}
	return slices.Equal(r.Waits, o.Waits) && slices.Equal(r.Ports, o.Ports) && slices.Equal(r.Cores, o.Cores) && slices.Equal(r.Grants, o.Grants)
}

// WaitsOn reports whether h waits on an allocation.
func (h *Held) WaitsOn(id structs.AllocID) bool {
	return h.Rare != nil && slices.Contains(h.Rare.Waits, id)
}

// Holding is everything held on one node. It is immutable: a change makes a new one, so that a what-if rolls back by
// keeping the old pointer. A nil Holding is empty.
type Holding struct {
	held   roll
	ports  []uint32 // sorted, by PortKey
	Cores  Bitset   // core ids in use
	Devs   Bitset   // device instances in use, by their position on the node
	Shares []Share  // of shared devices, by position; a device in Devs that is not here is allocated whole
	rares  int      // how many of held have a rare part
	Waits  int      // how many of held wait for others
	Yields int      // how many of held may shrink for others
	Shy    int      // how many of held keep others away

	releases atomic.Pointer[ReleaseTimes] // the release times that a reservation last computed, or nil; a cache that no decision depends on
}

func (h *Holding) roll() roll {
	if h == nil {
		return roll{}
	}
	return h.held
}

// List returns everything that is held, in ID order. The caller must not change it.
func (h *Holding) List() []*Held {
	if h == nil {
		return nil
	}
	return h.held.list()
}

// All iterates over everything that is held, in ID order.
func (h *Holding) All() iter.Seq[*Held] {
	if h == nil {
		return func(func(*Held) bool) {}
	}
	return h.held.all()
}

// Size returns how many allocations are held.
func (h *Holding) Size() int {
	if h == nil {
		return 0
	}
	return h.held.Len
}

// Get returns what an allocation holds here, or nil.
func (h *Holding) Get(id structs.AllocID) *Held {
	if h == nil {
		return nil
	}
	return h.held.get(id)
}

// CompareID orders IDs by their bytes.
func CompareID(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// Occupancy is the use of a node: the amounts and what is held.
type Occupancy struct {
	Used structs.Vector
	Hold *Holding
}

// Occupied counts what a list in ID order occupies on a node. It takes over the list.
func Occupied(n *structs.Node, hs []*Held) Occupancy {
	return Occupancy{Hold: &Holding{held: rollOf(hs)}}.tally(n)
}

// begun returns a holding of other allocations with the counts of h.
func (h *Holding) begun(of roll) *Holding {
	if h == nil {
		return &Holding{held: of}
	}
	return &Holding{held: of, ports: h.ports, Cores: h.Cores, Devs: h.Devs, Shares: h.Shares, rares: h.rares, Waits: h.Waits, Yields: h.Yields, Shy: h.Shy}
}

// with returns the occupancy with h added, or in place of an older record of the same allocation.
func (o Occupancy) with(n *structs.Node, h *Held) Occupancy {
	old := o.Hold.roll()
	was := old.get(h.ID)
	next := o.Hold.begun(old.put(h))
	switch {
	case next.Waits > 0, was == nil && h.Rare != nil, was != nil && !was.Rare.same(h.Rare):
		return Occupancy{Hold: next}.tally(n)
	case was != nil: // same devices and ports: another version of its job, or it was asked to stop
		o.Used = o.Used.Sub(was.Need)
		next.Yields -= count(was.Work.Yields)
		next.Shy -= count(was.Work.Shy)
	}
	next.Yields += count(h.Work.Yields)
	next.Shy += count(h.Work.Shy)
	return Occupancy{Used: o.Used.Add(h.Need), Hold: next}
}

// withAll is with for several allocations, in ID order.
func (o Occupancy) withAll(n *structs.Node, hs []*Held) Occupancy {
	switch len(hs) {
	case 0:
		return o
	case 1:
		return o.with(n, hs[0])
	}
	return o.merged(n, hs, false)
}

// withNew is withAll for allocations some of which may be held already: the records of those stay.
func (o Occupancy) withNew(n *structs.Node, hs []*Held) Occupancy {
	if len(hs) == 0 || len(hs) == 1 && o.Hold.Has(hs[0].ID) {
		return o
	}
	if len(hs) == 1 {
		return o.with(n, hs[0])
	}
	return o.merged(n, hs, true)
}

// merged adds allocations in ID order. Of one that is held already the old record stays, or it is replaced.
func (o Occupancy) merged(n *structs.Node, hs []*Held, stays bool) Occupancy {
	next := o.Hold.begun(roll{})
	plain := next.Waits == 0
	old := o.Hold.roll()
	next.held = old.merge(hs, func(was, h *Held) *Held {
		switch {
		case was == nil:
			plain = plain && h.Rare == nil
		case stays:
			return was
		default:
			plain = plain && was.Rare.same(h.Rare)
			next.Yields -= count(was.Work.Yields)
			next.Shy -= count(was.Work.Shy)
			o.Used = o.Used.Sub(was.Need)
		}
		next.Yields += count(h.Work.Yields)
		next.Shy += count(h.Work.Shy)
		o.Used = o.Used.Add(h.Need)
		return h
	})
	if stays && next.held.Len == old.Len {
		return o
	}
	if !plain {
		return Occupancy{Hold: next}.tally(n)
	}
	return Occupancy{Used: o.Used, Hold: next}
}

// Without returns the occupancy without the allocation.
func (o Occupancy) Without(n *structs.Node, id structs.AllocID) Occupancy {
	gone := o.Hold.Get(id)
	if gone == nil {
		return o
	}
	if o.Hold.held.Len == 1 {
		return Occupancy{}
	}
	next := o.Hold.begun(o.Hold.held.drop(id))
	if gone.Rare != nil || next.Waits > 0 {
		return Occupancy{Hold: next}.tally(n)
	}
	next.Yields -= count(gone.Work.Yields)
	next.Shy -= count(gone.Work.Shy)
	return Occupancy{Used: o.Used.Sub(gone.Need), Hold: next}
}

// tally computes all counts from the list of what is held.
func (o Occupancy) tally(n *structs.Node) Occupancy {
	if o.Hold.Size() == 0 {
		return Occupancy{}
	}
	h := &Holding{held: o.Hold.held}
	var used structs.Vector
	for e := range h.held.all() {
		used = used.Add(e.Need)
		h.Yields += count(e.Work.Yields)
		h.Shy += count(e.Work.Shy)
		if e.Rare == nil {
			continue
		}
		h.rares++
		if len(e.Rare.Waits) > 0 {
			h.Waits++
		}
		for _, p := range e.Rare.Ports {
			h.ports = append(h.ports, PortKey(networkOf(n, p.HostIP), p.Value))
		}
		for _, c := range e.Rare.Cores {
			h.Cores.Set(int(c))
		}
	}
	h.tallyDevices(n)
	slices.Sort(h.ports)
	h.ports = slices.Compact(h.ports)
	if h.Waits > 0 { // an allocation that waits for others takes over what they free: structs.Usage counts that
		as := make([]*structs.Allocation, 0, h.held.Len)
		for e := range h.held.all() {
			a := &structs.Allocation{ID: e.ID, Resources: e.Need}
			if e.Rare != nil {
				a.WaitsOn = e.Rare.Waits
			}
			as = append(as, a)
		}
		used = structs.Usage(as)
	}
	return Occupancy{Used: used, Hold: h}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Has reports whether an allocation holds something here.
func (h *Holding) Has(id structs.AllocID) bool {
	return h.Get(id) != nil
}

// Claimed reports whether an allocation on the node already waits for id.
func (h *Holding) Claimed(id structs.AllocID) bool {
	if h == nil || h.Waits == 0 {
		return false
	}
	for e := range h.held.all() {
		if e.WaitsOn(id) {
			return true
		}
	}
	return false
}

// Waiting reports whether id itself waits for an allocation that still holds resources here.
func (h *Holding) Waiting(id structs.AllocID) bool {
	e := h.Get(id)
	if e == nil || e.Rare == nil {
		return false
	}
	for _, w := range e.Rare.Waits {
		if h.Has(w) {
			return true
		}
	}
	return false
}

// PortKey identifies a port on one of a node's networks.
func PortKey(network, port int) uint32 { return uint32(network)<<16 | uint32(port)&0xffff }

// networkOf returns the position of the network with an address; the first one for an empty or unknown address.
func networkOf(n *structs.Node, ip string) int {
	if ip == "" {
		return 0
	}
	for i := range n.Resources.Networks {
		if n.Resources.Networks[i].IP == ip {
			return i
		}
	}
	return 0
}

// InstancePos returns the position of a device instance over all device groups of a node, or -1.
func InstancePos(n *structs.Node, group, instance string) int {
	pos := 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			if g.Instances[j].ID == instance && g.HasID(group) {
				return pos
			}
			pos++
		}
	}
	return -1
}

// Bitset is a set of small integers.
type Bitset []uint64

// Has reports whether i is in the set.
func (b Bitset) Has(i int) bool { return i>>6 < len(b) && b[i>>6]&(1<<(i&63)) != 0 }

// Set adds i to the set.
func (b *Bitset) Set(i int) {
	if i < 0 || i > 1<<16 {
		return
	}
	for i>>6 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i>>6] |= 1 << (i & 63)
}

// Clear removes i from the set.
func (b Bitset) Clear(i int) {
	if i>>6 < len(b) {
		b[i>>6] &^= 1 << (i & 63)
	}
}

// HoldingOr returns h, or an empty holding for nil.
func HoldingOr(h *Holding) *Holding {
	if h == nil {
		return &EmptyHolding
	}
	return h
}

func (h *Held) allocation(node structs.NodeID) *structs.Allocation {
	w := &h.Work
	a := &structs.Allocation{ID: h.ID, NodeID: node, Resources: h.Need, Client: structs.ClientRunning, Desired: structs.DesiredRun, Job: w.Job, Group: w.Group,
		CreateTime: w.Began, Expect: w.Expect}
	if w.Job != nil {
		a.Namespace, a.JobID, a.JobVersion = w.Job.Namespace, w.Job.ID, w.Job.Version
	}
	if w.Frozen != 0 {
		a.Suspension = &structs.Suspension{Since: w.Frozen}
	}
	if w.Saved != 0 {
		a.Saved = &structs.Saved{Time: w.Saved, Took: w.Took}
	}
	if w.Ending {
		a.Desired = structs.DesiredStop
	}
	if r := h.Rare; r != nil {
		a.WaitsOn, a.Ports, a.Cores, a.Grants = r.Waits, r.Ports, r.Cores, r.Grants
	}
	return a
}

// Alloc returns what is held as an allocation, with the fields that charging needs.
func (h *Held) Alloc() *structs.Allocation {
	a := &structs.Allocation{ID: h.ID, Resources: h.Need, Job: h.Work.Job, Group: h.Work.Group}
	if a.Job != nil {
		a.Namespace, a.JobID = a.Job.Namespace, a.Job.ID
	}
	if h.Rare != nil {
		a.Grants, a.WaitsOn = h.Rare.Grants, h.Rare.Waits
	}
	return a
}

// Amount returns what an allocation counts in its queues.
func (h *Held) Amount() structs.Amount {
	a := structs.Allocation{Resources: h.Need}
	if h.Rare != nil {
		a.Grants = h.Rare.Grants
	}
	return structs.AmountOf(&a)
}

// KeepsAway reports whether allocations of a group keep others away.
func KeepsAway(j *structs.Job, group structs.GroupName) bool {
	if j == nil {
		return false
	}
	for i := range j.Away {
		if j.Away[i].Required {
			return true
		}
	}
	g := j.Group(group)
	for i := 0; g != nil && i < len(g.Away); i++ {
		if g.Away[i].Required {
			return true
		}
	}
	return false
}

// DevicesInUse counts the devices that are allocated whole or shared.
func (h *Holding) DevicesInUse() int64 {
	if h == nil {
		return 0
	}
	n := 0
	for _, w := range h.Devs {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// WholeDevices counts the devices that an allocation holds whole.
func WholeDevices(h *Held) (n int64) {
	if h.Rare == nil {
		return 0
	}
	for i := range h.Rare.Grants {
		if h.Rare.Grants[i].MemoryMiB == 0 && h.Rare.Grants[i].Compute == 0 {
			n++
		}
	}
	return n
}

var EmptyHolding Holding
