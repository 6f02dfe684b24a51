package scheduler

import (
	"bytes"
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/structs"
)

// held is what one allocation that holds resources occupies on its node. Immutable.
type held struct {
	ID   structs.AllocID
	need structs.Vector
	rare *heldRare // nil: no ports, cores, devices or waits
	work heldWork
}

// heldWork is whose an allocation is and for how long it will hold: what reservations and preemption look at.
type heldWork struct {
	job    *structs.Job // the version that it runs; nil when not known
	group  string
	began  structs.LogTime // when it was placed, moved by the time that it stood still
	frozen structs.LogTime // since when it is suspended; 0: it runs
	expect time.Duration   // predicted run time; 0: none
	ending bool            // told to stop already
	yields bool            // of an elastic group: it may shrink for others
	shy    bool            // it keeps others away
	index  int             // name index
	times  int64           // that the job had been preempted when this was placed
	saved  structs.LogTime // when its newest checkpoint was written; 0 for none
}

// elastic tells whether the group is elastic.
func elastic(j *structs.Job, group string) bool {
	if j == nil {
		return false
	}
	g := j.Group(group)
	return g != nil && g.Elastic != nil
}

// of reports whether the work is of a group of a job, whatever its version.
func (h *heldWork) of(job *structs.Job, group string) bool {
	return h.job != nil && job != nil && h.group == group && h.job.ID == job.ID && h.job.Namespace == job.Namespace
}

type heldRare struct {
	waits  []structs.AllocID
	ports  []structs.PortGrant
	cores  []int64
	grants []structs.Grant
}

func heldOf(a *structs.Allocation) *held {
	h := &held{ID: a.ID, need: a.Resources, work: heldWork{job: a.Job, group: a.Group, began: a.CreateTime, expect: a.Expect, ending: a.ServerTerminal(), index: a.NameIndex, times: a.Preempted, yields: elastic(a.Job, a.Group), shy: keepsAway(a.Job, a.Group)}}
	if s := a.Suspension; s != nil {
		h.work.began, h.work.frozen = a.CreateTime.Add(s.Total), s.Since
	}
	if a.Saved != nil {
		h.work.saved = a.Saved.Time
	}
	if len(a.WaitsOn)+len(a.Ports)+len(a.Cores)+len(a.Grants) > 0 {
		h.rare = &heldRare{waits: a.WaitsOn, ports: a.Ports, cores: a.Cores, grants: a.Grants}
	}
	return h
}

// same reports whether two records of one allocation occupy the same.
func (h *held) same(o *held) bool {
	return h.need == o.need && h.work == o.work && h.rare.same(o.rare)
}

func (r *heldRare) same(o *heldRare) bool {
	if r == nil || o == nil {
		return r == o
	}
	return slices.Equal(r.waits, o.waits) && slices.Equal(r.ports, o.ports) && slices.Equal(r.cores, o.cores) && slices.Equal(r.grants, o.grants)
}

func (h *held) waitsOn(id structs.AllocID) bool {
	return h.rare != nil && slices.Contains(h.rare.waits, id)
}

// holding is everything held on one node. Immutable: changes make a new one, so that a what-if rolls back by keeping
// the old pointer. A nil holding is an empty one.
type holding struct {
	held   roll
	ports  []uint32 // sorted portKeys in use
	cores  bitset   // core ids in use
	devs   bitset   // device instances in use, by their position on the node
	shares []share  // of those that are shared, by position; a device in devs that is not here is given whole
	rares  int      // how many of held have a rare part
	waits  int      // how many of held wait on others
	yields int      // how many of held may shrink for others
	shy    int      // how many of held keep others away

	releases atomic.Pointer[releaseTimes] // what it is by when it ends, as some promise asked last; nil: none did. A memo: nothing depends on it
}

func (h *holding) roll() roll {
	if h == nil {
		return roll{}
	}
	return h.held
}

// list gives everything that is held, by id; nobody may change it.
func (h *holding) list() []*held {
	if h == nil {
		return nil
	}
	return h.held.list()
}

// all gives everything that is held, by id.
func (h *holding) all() iter.Seq[*held] {
	if h == nil {
		return func(func(*held) bool) {}
	}
	return h.held.all()
}

// size is how much is held.
func (h *holding) size() int {
	if h == nil {
		return 0
	}
	return h.held.Len
}

// get is what an allocation holds here, or nil.
func (h *holding) get(id structs.AllocID) *held {
	if h == nil {
		return nil
	}
	return h.held.get(id)
}

func CompareID(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// occupancy is a node's use: the amounts and what is held.
type occupancy struct {
	used structs.Vector
	hold *holding
}

// occupied counts what a list by id occupies on a node. The list is the occupancy's from then on.
func occupied(n *structs.Node, hs []*held) occupancy {
	return occupancy{hold: &holding{held: rollOf(hs)}}.tally(n)
}

// begun is a holding of other allocations that counts as h does so far.
func (h *holding) begun(of roll) *holding {
	if h == nil {
		return &holding{held: of}
	}
	return &holding{held: of, ports: h.ports, cores: h.cores, devs: h.devs, shares: h.shares, rares: h.rares, waits: h.waits, yields: h.yields, shy: h.shy}
}

// with gives the occupancy after h is held too (or in place of an older record of the same allocation).
func (o occupancy) with(n *structs.Node, h *held) occupancy {
	old := o.hold.roll()
	was := old.get(h.ID)
	next := o.hold.begun(old.put(h))
	switch {
	case next.waits > 0, was == nil && h.rare != nil, was != nil && !was.rare.same(h.rare):
		return occupancy{hold: next}.tally(n)
	case was != nil: // of the same devices and ports: another version of its job, or told to end
		o.used = o.used.Sub(was.need)
		next.yields -= count(was.work.yields)
		next.shy -= count(was.work.shy)
	}
	next.yields += count(h.work.yields)
	next.shy += count(h.work.shy)
	return occupancy{used: o.used.Add(h.need), hold: next}
}

// withAll is with for several that are not held yet. It sorts fresh.
func (o occupancy) withAll(n *structs.Node, fresh []*held) occupancy {
	switch len(fresh) {
	case 0:
		return o
	case 1:
		return o.with(n, fresh[0])
	}
	slices.SortFunc(fresh, func(a, b *held) int { return CompareID(a.ID, b.ID) })
	fresh = slices.CompactFunc(fresh, func(a, b *held) bool { return a.ID == b.ID })
	old := o.hold.roll()
	next := o.hold.begun(old.putAll(fresh))
	plain := next.waits == 0
	for _, h := range fresh {
		plain = plain && h.rare == nil
		next.yields += count(h.work.yields)
		next.shy += count(h.work.shy)
		o.used = o.used.Add(h.need)
	}
	if !plain {
		return occupancy{hold: next}.tally(n)
	}
	return occupancy{used: o.used, hold: next}
}

// without gives the occupancy after the allocation holds no more.
func (o occupancy) without(n *structs.Node, id structs.AllocID) occupancy {
	gone := o.hold.get(id)
	if gone == nil {
		return o
	}
	if o.hold.held.Len == 1 {
		return occupancy{}
	}
	next := o.hold.begun(o.hold.held.drop(id))
	if gone.rare != nil || next.waits > 0 {
		return occupancy{hold: next}.tally(n)
	}
	next.yields -= count(gone.work.yields)
	next.shy -= count(gone.work.shy)
	return occupancy{used: o.used.Sub(gone.need), hold: next}
}

// tally counts everything afresh from the list of what is held.
func (o occupancy) tally(n *structs.Node) occupancy {
	if o.hold.size() == 0 {
		return occupancy{}
	}
	h := &holding{held: o.hold.held}
	var used structs.Vector
	for e := range h.held.all() {
		used = used.Add(e.need)
		h.yields += count(e.work.yields)
		h.shy += count(e.work.shy)
		if e.rare == nil {
			continue
		}
		h.rares++
		if len(e.rare.waits) > 0 {
			h.waits++
		}
		for _, p := range e.rare.ports {
			h.ports = append(h.ports, portKey(networkOf(n, p.HostIP), p.Value))
		}
		for _, c := range e.rare.cores {
			h.cores.set(int(c))
		}
	}
	h.tallyDevices(n)
	slices.Sort(h.ports)
	h.ports = slices.Compact(h.ports)
	if h.waits > 0 { // an allocation that waits on others owns what they free: structs.Usage knows how
		as := make([]*structs.Allocation, 0, h.held.Len)
		for e := range h.held.all() {
			a := &structs.Allocation{ID: e.ID, Resources: e.need}
			if e.rare != nil {
				a.WaitsOn = e.rare.waits
			}
			as = append(as, a)
		}
		used = structs.Usage(as)
	}
	return occupancy{used: used, hold: h}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// has reports whether an allocation holds something here.
func (h *holding) has(id structs.AllocID) bool {
	return h.get(id) != nil
}

// claimed reports whether some holder on the node already waits for id.
func (h *holding) claimed(id structs.AllocID) bool {
	if h == nil || h.waits == 0 {
		return false
	}
	for e := range h.held.all() {
		if e.waitsOn(id) {
			return true
		}
	}
	return false
}

// waiting reports whether id itself waits on something that still holds here.
func (h *holding) waiting(id structs.AllocID) bool {
	e := h.get(id)
	if e == nil || e.rare == nil {
		return false
	}
	for _, w := range e.rare.waits {
		if h.has(w) {
			return true
		}
	}
	return false
}

// portKey names a port on one of a node's networks.
func portKey(network, port int) uint32 { return uint32(network)<<16 | uint32(port)&0xffff }

// networkOf is the position of the network with an address; the first one for none or an unknown one.
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

// instancePos is the position of a device instance over all device groups of a node, or -1.
func instancePos(n *structs.Node, group, instance string) int {
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

// bitset is a set of small integers.
type bitset []uint64

func (b bitset) has(i int) bool { return i>>6 < len(b) && b[i>>6]&(1<<(i&63)) != 0 }

func (b *bitset) set(i int) {
	if i < 0 || i > 1<<16 {
		return
	}
	for i>>6 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i>>6] |= 1 << (i & 63)
}

func holdingOr(h *holding) *holding {
	if h == nil {
		return &emptyHolding
	}
	return h
}

func (h *held) allocation(node structs.NodeID) *structs.Allocation {
	w := &h.work
	a := &structs.Allocation{ID: h.ID, NodeID: node, Resources: h.need, Client: structs.ClientRunning, Desired: structs.DesiredRun, Job: w.job, Group: w.group,
		CreateTime: w.began, Expect: w.expect}
	if w.job != nil {
		a.Namespace, a.JobID, a.JobVersion = w.job.Namespace, w.job.ID, w.job.Version
	}
	if w.frozen != 0 {
		a.Suspension = &structs.Suspension{Since: w.frozen}
	}
	if w.saved != 0 {
		a.Saved = &structs.Saved{Time: w.saved}
	}
	if w.ending {
		a.Desired = structs.DesiredStop
	}
	if r := h.rare; r != nil {
		a.WaitsOn, a.Ports, a.Cores, a.Grants = r.waits, r.ports, r.cores, r.grants
	}
	return a
}

// alloc is what is held as an allocation, as far as charging needs it.
func (h *held) alloc() *structs.Allocation {
	a := &structs.Allocation{ID: h.ID, Resources: h.need, Job: h.work.job, Group: h.work.group}
	if a.Job != nil {
		a.Namespace, a.JobID = a.Job.Namespace, a.Job.ID
	}
	if h.rare != nil {
		a.Grants, a.WaitsOn = h.rare.grants, h.rare.waits
	}
	return a
}

// amount is what an allocation counts for queues.
func (h *held) amount() structs.Amount {
	a := structs.Allocation{Resources: h.need}
	if h.rare != nil {
		a.Grants = h.rare.grants
	}
	return structs.AmountOf(&a)
}

// keepsAway reports whether allocations of a group keep others away.
func keepsAway(j *structs.Job, group string) bool {
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

// devicesInUse counts the devices that are given whole or shared.
func (h *holding) devicesInUse() int64 {
	if h == nil {
		return 0
	}
	n := 0
	for _, w := range h.devs {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// wholeDevices is how many devices an allocation holds that nobody shares.
func wholeDevices(h *held) (n int64) {
	if h.rare == nil {
		return 0
	}
	for i := range h.rare.grants {
		if h.rare.grants[i].MemoryMiB == 0 && h.rare.grants[i].Compute == 0 {
			n++
		}
	}
	return n
}

var emptyHolding holding
