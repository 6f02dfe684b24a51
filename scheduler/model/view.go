package model

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// ChunkNodes is the highest number of nodes in a chunk of the view.
const ChunkNodes = 128

// View is the cluster as decisions see it: immutable column chunks, nodes in ID order (D2). It is published together
// with the store's snapshot of the same index. Safe for concurrent use.
type View struct {
	index   structs.Index
	Chunks  []*Chunk
	Starts  []int // row number of each chunk's first node
	Rows    int
	orphans map[structs.NodeID][]*Held // held on nodes that the view does not know; usually empty
	Pools   map[structs.PoolName]*structs.NodePool
	Classes *classTable
	memo    *memo
	copied  int // chunks that Advance or NewView had to copy or make
}

// Chunk is a run of nodes. What changes with every placement (Used, Hold) is apart from what does not.
type Chunk struct {
	*NodeColumns
	Used []structs.Vector
	Hold []*Holding

	shrinks    atomic.Int32 // whether an allocation may shrink for others: 0 unknown, 1 no, 2 yes
	shies      atomic.Int32 // whether an allocation keeps others away: the same values
	ends       atomic.Int32 // whether an allocation has a prediction or a limit: the same values
	freeBlocks [ChunkNodes / BlockRows]atomic.Pointer[FreeBlock]
}

// mayShrink reports whether an allocation on the nodes of a chunk may shrink for others. It is computed once, because
// chunks are immutable once published.
func (c *Chunk) mayShrink() bool {
	x := c.shrinks.Load()
	if x == 0 {
		x = 1
		for _, h := range c.Hold {
			if h != nil && h.Yields > 0 {
				x = 2
				break
			}
		}
		c.shrinks.Store(x)
	}
	return x == 2
}

// MayEnd reports whether an allocation on the nodes of a chunk has a prediction of its run time or a limit. Without one
// no end is known. It is computed once, because chunks are immutable once published.
func (c *Chunk) MayEnd() bool {
	x := c.ends.Load()
	if x == 0 {
		x = 1
		for _, h := range c.Hold {
			for e := range h.All() {
				if e.Work.Expect > 0 || e.Work.AtLimit(0) > 0 {
					x = 2
				}
			}
		}
		c.ends.Store(x)
	}
	return x == 2
}

// AnyLost reports whether any node was lost, as far as that is remembered.
func (v *View) AnyLost() bool {
	return slices.ContainsFunc(v.Chunks, func(c *Chunk) bool { return slices.ContainsFunc(c.Faulty, func(w uint64) bool { return w != 0 }) })
}

// MayShrink reports whether any allocation may shrink for others.
func (v *View) MayShrink() bool {
	return slices.ContainsFunc(v.Chunks, (*Chunk).mayShrink)
}

// NodeColumns is the part of a chunk that changes only with the nodes themselves.
type NodeColumns struct {
	IDs     []structs.NodeID
	Nodes   []*structs.Node
	Total   []structs.Vector // less what is reserved
	MHz     []int64          // of a reserved core
	Class   []uint16         // into Classes
	Hash    [][16]byte       // ClassHash of each node
	Ready   []bool
	Sick    []Bitset    // positions of unhealthy devices; nil for most nodes
	Faulty  Bitset      // nodes that were lost (structs.Node.WasLost); empty in most chunks
	Worn    []Bitset    // positions of degraded devices; nil for most nodes
	Classes []NodeClass // classes of this chunk, by first occurrence
}

// NodeClass is a set of nodes that constraints, drivers, volumes and device kinds cannot tell apart.
type NodeClass struct {
	Hash [16]byte
	Node *structs.Node // one of them
	Num  int32         // in the view's classTable
}

// classTable numbers the classes of a view in the order they were met, so that a search finds what it knows of a class
// by index. Immutable once the view is published. No decision depends on the numbers.
type classTable struct {
	Num map[[16]byte]int32
}

// intern returns the number of a class; a new one gets the next.
func (t *classTable) intern(h [16]byte) int32 {
	n, ok := t.Num[h]
	if !ok {
		n = int32(len(t.Num))
		t.Num[h] = n
	}
	return n
}

// NewView builds a view from scratch. Nodes may come in any order; allocations that hold nothing are skipped.
func NewView(index structs.Index, nodes []*structs.Node, allocs []*structs.Allocation, pools []*structs.NodePool) *View {
	v := &View{index: index, Pools: make(map[structs.PoolName]*structs.NodePool, len(pools)), Classes: &classTable{Num: make(map[[16]byte]int32)}, memo: &memo{}}
	for _, p := range pools {
		v.Pools[p.Name] = p
	}
	byNode := make(map[structs.NodeID][]*Held, len(nodes))
	for _, a := range allocs {
		if structs.Holds(a) {
			byNode[a.NodeID] = append(byNode[a.NodeID], HeldOf(a))
		}
	}
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b *structs.Node) int { return CompareID(a.ID, b.ID) })
	for from := 0; from < len(sorted); from += ChunkNodes {
		part := sorted[from:min(from+ChunkNodes, len(sorted))]
		c := &Chunk{NodeColumns: makeRoster(v.Classes, part, nil), Used: make([]structs.Vector, len(part)), Hold: make([]*Holding, len(part))}
		for i, n := range part {
			hs := byNode[n.ID]
			delete(byNode, n.ID)
			if len(hs) == 0 {
				continue
			}
			slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
			o := Occupied(n, hs)
			c.Used[i], c.Hold[i] = o.Used, o.Hold
		}
		v.Chunks = append(v.Chunks, c)
	}
	for id, hs := range byNode {
		slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
		v.setOrphans(id, hs)
	}
	v.number()
	v.copied = len(v.Chunks)
	return v
}

// makeRoster computes the columns of nodes. hashes may have known class hashes, because nodes keep theirs when others
// come and go; a zero one is computed.
func makeRoster(t *classTable, nodes []*structs.Node, hashes [][16]byte) *NodeColumns {
	r := &NodeColumns{
		Hash:  make([][16]byte, len(nodes)),
		IDs:   make([]structs.NodeID, len(nodes)),
		Nodes: slices.Clone(nodes),
		Total: make([]structs.Vector, len(nodes)),
		MHz:   make([]int64, len(nodes)),
		Class: make([]uint16, len(nodes)),
		Ready: make([]bool, len(nodes)),
		Sick:  make([]Bitset, len(nodes)),
		Worn:  make([]Bitset, len(nodes)),
	}
	for i, n := range nodes {
		r.IDs[i] = n.ID
		r.Total[i], r.MHz[i] = capacity(n)
		r.Ready[i] = n.Ready()
		r.Sick[i], r.Worn[i] = sickDevices(n)
		if n.WasLost() {
			r.Faulty.Set(i)
		}
		var h [16]byte
		if hashes != nil {
			h = hashes[i]
		}
		if h == [16]byte{} {
			h = ClassHash(n)
		}
		r.Hash[i] = h
		at := slices.IndexFunc(r.Classes, func(c NodeClass) bool { return c.Hash == h })
		if at < 0 {
			at = len(r.Classes)
			r.Classes = append(r.Classes, NodeClass{Hash: h, Node: n, Num: t.intern(h)})
		}
		r.Class[i] = uint16(at)
	}
	return r
}

// sickDevices returns the positions of a node's unhealthy devices and of its degraded ones.
func sickDevices(n *structs.Node) (sick, worn Bitset) {
	pos := 0
	for i := range n.Resources.Devices {
		for j := range n.Resources.Devices[i].Instances {
			switch in := &n.Resources.Devices[i].Instances[j]; {
			case !in.Healthy:
				sick.Set(pos)
			case in.Degraded():
				worn.Set(pos)
			}
			pos++
		}
	}
	return sick, worn
}

// capacity returns what a node offers to allocations, and the MHz that one reserved core takes from its CPU.
func capacity(n *structs.Node) (structs.Vector, int64) {
	r, kept := &n.Resources, &n.Reserved
	mhz := r.MHzPerCore
	if mhz == 0 && r.Cores > 0 {
		mhz = r.CPU / r.Cores
	}
	return n.Overcommit.Of(structs.Vector{
		CPU:       r.CPU - max(kept.CPU, int64(len(kept.Cores))*mhz),
		Cores:     int64(len(reservableCores(n))),
		MemoryMiB: r.MemoryMiB - kept.MemoryMiB,
		DiskMiB:   r.DiskMiB - kept.DiskMiB,
	}), mhz
}

// reservableCores lists the core IDs that allocations may reserve, ascending.
func reservableCores(n *structs.Node) []int64 {
	var ids []int64
	if n.Resources.ReservableCPUs != nil {
		ids = slices.Clone(n.Resources.ReservableCPUs)
		slices.Sort(ids)
	} else {
		for i := range n.Resources.Cores {
			ids = append(ids, i)
		}
	}
	if len(n.Reserved.Cores) == 0 {
		return ids
	}
	return slices.DeleteFunc(ids, func(id int64) bool { return slices.Contains(n.Reserved.Cores, id) })
}

// number sets the row numbers of the chunks.
func (v *View) number() {
	v.Starts = make([]int, len(v.Chunks))
	v.Rows = 0
	for i, c := range v.Chunks {
		v.Starts[i] = v.Rows
		v.Rows += len(c.IDs)
	}
}

func (v *View) setOrphans(id structs.NodeID, hs []*Held) {
	next := make(map[structs.NodeID][]*Held, len(v.orphans)+1)
	for k, x := range v.orphans {
		next[k] = x
	}
	if len(hs) == 0 {
		delete(next, id)
	} else {
		next[id] = hs
	}
	v.orphans = next
}

// Index returns the log index that the view shows.
func (v *View) Index() structs.Index { return v.index }

// Len returns the number of nodes.
func (v *View) Len() int { return v.Rows }

// ChunksCopied returns how many chunks the call that made this view had to copy or make; the others are shared with the
// previous view.
func (v *View) ChunksCopied() int { return v.copied }

// ChunkCount returns the number of chunks.
func (v *View) ChunkCount() int { return len(v.Chunks) }

// Pool returns a node pool, or nil.
func (v *View) Pool(name structs.PoolName) *structs.NodePool { return v.Pools[name] }

// Node returns a node, or nil.
func (v *View) Node(id structs.NodeID) *structs.Node {
	c, i, ok := v.Locate(id)
	if !ok {
		return nil
	}
	return v.Chunks[c].Nodes[i]
}

// Usage returns what is used on a node and what it offers in total; ok is false for an unknown node.
func (v *View) Usage(id structs.NodeID) (used, total structs.Vector, ok bool) {
	c, i, ok := v.Locate(id)
	if !ok {
		return used, total, false
	}
	return v.Chunks[c].Used[i], v.Chunks[c].Total[i], true
}

// EachNode calls f for every node in ID order, until f returns false.
func (v *View) EachNode(f func(n *structs.Node) bool) {
	for _, c := range v.Chunks {
		for _, n := range c.Nodes {
			if !f(n) {
				return
			}
		}
	}
}

// Locate finds the chunk of a node and its place in it, or where it would have to be inserted.
func (v *View) Locate(id structs.NodeID) (c, i int, found bool) {
	c = sort.Search(len(v.Chunks), func(k int) bool {
		ids := v.Chunks[k].IDs
		return CompareID(ids[len(ids)-1], id) >= 0
	})
	if c == len(v.Chunks) {
		if c == 0 {
			return 0, 0, false
		}
		c--
		return c, len(v.Chunks[c].IDs), false
	}
	i, found = slices.BinarySearchFunc(v.Chunks[c].IDs, id, func(a, b structs.NodeID) int { return CompareID(a, b) })
	return c, i, found
}

// Row returns the row number of a node, or -1.
func (v *View) Row(id structs.NodeID) int {
	c, i, ok := v.Locate(id)
	if !ok {
		return -1
	}
	return v.Starts[c] + i
}

// At returns the chunk of a row and the place in it.
func (v *View) At(row int) (*Chunk, int) {
	k := sort.Search(len(v.Starts), func(k int) bool { return v.Starts[k] > row }) - 1
	return v.Chunks[k], row - v.Starts[k]
}

// ClassHash identifies everything that class-level checks may look at.
func ClassHash(n *structs.Node) [16]byte {
	var b []byte
	str := func(s string) { b = binary.AppendUvarint(b, uint64(len(s))); b = append(b, s...) }
	strs := func(m map[string]string) {
		for _, k := range SortedKeys(m) {
			if !strings.HasPrefix(k, "unique.") {
				str(k)
				str(m[k])
			}
		}
		b = append(b, 0xff)
	}
	flag := func(f bool) {
		if f {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	str(n.Datacenter)
	str(string(n.Pool))
	str(n.Class)
	str(n.Version)
	strs(n.Attributes)
	strs(n.Meta)
	for _, k := range SortedKeys(n.Drivers) {
		d := n.Drivers[k]
		str(k)
		flag(d.Detected)
		flag(d.Healthy)
		strs(d.Attributes)
	}
	b = append(b, 0xfe)
	for _, k := range SortedKeys(n.HostVolumes) {
		str(k)
		flag(n.HostVolumes[k].ReadOnly)
	}
	b = append(b, 0xfd)
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		str(g.ID())
		b = binary.AppendUvarint(b, uint64(len(g.Instances)))
		for _, k := range SortedKeys(g.Attributes) {
			a := g.Attributes[k]
			str(k)
			str(a.Kind)
			b = binary.AppendVarint(b, a.Int)
			str(a.Str)
			flag(a.Bool)
			str(a.Unit)
		}
		b = append(b, 0xfc)
	}
	for i := range n.Resources.Networks {
		str(n.Resources.Networks[i].Alias)
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// SortedKeys returns the keys of a map in order.
func SortedKeys[K ~string, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// AppendCanonical appends bytes that are equal for equal views, whether they were rebuilt or advanced. They do not
// depend on the chunking or the counters.
func (v *View) AppendCanonical(b []byte) []byte {
	num := func(n int64) { b = binary.AppendVarint(b, n) }
	vec := func(x structs.Vector) { num(x.CPU); num(x.Cores); num(x.MemoryMiB); num(x.DiskMiB) }
	helds := func(hs []*Held) {
		num(int64(len(hs)))
		for _, h := range hs {
			b = append(b, h.ID[:]...)
			vec(h.Need)
			if h.Rare == nil {
				continue
			}
			for _, w := range h.Rare.Waits {
				b = append(b, w[:]...)
			}
			for _, p := range h.Rare.Ports {
				b = append(b, p.HostIP...)
				num(int64(p.Value))
			}
			for _, c := range h.Rare.Cores {
				num(c)
			}
			for _, g := range h.Rare.Grants {
				b = append(b, g.Device...)
				b = append(b, g.Instance...)
				num(g.MemoryMiB)
				num(g.Compute)
			}
		}
	}
	num(int64(v.index))
	num(int64(v.Rows))
	for _, c := range v.Chunks {
		for i := range c.IDs {
			cl := c.Classes[c.Class[i]]
			b = append(b, c.IDs[i][:]...)
			b = append(b, cl.Hash[:]...)
			vec(c.Total[i])
			vec(c.Used[i])
			num(c.MHz[i])
			num(int64(c.Nodes[i].Epoch))
			if c.Ready[i] {
				num(1)
			}
			if h := c.Hold[i]; h != nil {
				helds(h.List())
				for _, p := range h.ports {
					num(int64(p))
				}
				for _, w := range h.Cores {
					num(int64(w))
				}
				for _, w := range h.Devs {
					num(int64(w))
				}
				for _, s := range h.Shares {
					num(int64(s.Pos))
					num(s.Mem)
					num(s.Compute)
					if s.Whole {
						num(1)
					}
				}
				num(int64(h.rares))
				num(int64(h.Waits))
			}
		}
	}
	for _, p := range SortedKeys(v.Pools) {
		b = append(b, p...)
		b = append(b, v.Pools[p].Algorithm...)
	}
	orphans := make([]structs.NodeID, 0, len(v.orphans))
	for id := range v.orphans {
		orphans = append(orphans, id)
	}
	slices.SortFunc(orphans, func(a, b structs.NodeID) int { return CompareID(a, b) })
	for _, id := range orphans {
		b = append(b, id[:]...)
		helds(v.orphans[id])
	}
	return b
}

// RowAfter returns the row at which ties start when the last node used was id: the row of that node.
func (v *View) RowAfter(id structs.NodeID) int {
	if id.IsZero() || v.Rows == 0 {
		return 0
	}
	c, i, _ := v.Locate(id)
	if row := v.Starts[c] + i; row < v.Rows {
		return row
	}
	return 0
}

// EachHeld calls f for every allocation, by node and ID, with its node, its expected end as seen at now (0: never) and
// what it holds.
func (v *View) EachHeld(f func(n *structs.Node, end structs.LogTime, need structs.Vector, grants []structs.Grant), now structs.LogTime) {
	for _, c := range v.Chunks {
		for i, n := range c.Nodes {
			for h := range c.Hold[i].All() {
				var grants []structs.Grant
				if h.Rare != nil {
					grants = h.Rare.Grants
				}
				f(n, h.Work.Predicted(now), h.Need, grants)
			}
		}
	}
}

// IsGPU reports whether a device group consists of whole GPUs.
func IsGPU(g *structs.DeviceGroup) bool { return g.Type == "gpu" && g.MIGProfile() == "" }

// HasGPUs reports whether a node has GPUs that can be allocated whole or in shares.
func HasGPUs(n *structs.Node) bool {
	return slices.ContainsFunc(n.Resources.Devices, func(g structs.DeviceGroup) bool { return IsGPU(&g) })
}

// EachAllocation calls f with each allocation of the view, by node and ID, until f returns false. The records are made
// for the caller and contain only what decisions use.
func (v *View) EachAllocation(f func(a *structs.Allocation) bool) {
	for _, c := range v.Chunks {
		for i, h := range c.Hold {
			for e := range h.All() {
				if !f(e.allocation(c.IDs[i])) {
					return
				}
			}
		}
	}
}

// MayShy reports whether an allocation on the nodes of a chunk keeps others away. It is computed once, like mayShrink.
func (c *Chunk) MayShy() bool {
	x := c.shies.Load()
	if x == 0 {
		x = 1
		for _, h := range c.Hold {
			if h != nil && h.Shy > 0 {
				x = 2
				break
			}
		}
		c.shies.Store(x)
	}
	return x == 2
}

func countDevices(n *structs.Node) int64 {
	total := 0
	for i := range n.Resources.Devices {
		total += len(n.Resources.Devices[i].Instances)
	}
	return int64(total)
}
