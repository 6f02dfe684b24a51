package scheduler

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/muster-sched/muster/structs"
)

// ChunkNodes is how many nodes a chunk of the view holds at most.
const ChunkNodes = 128

// View is a picture of the cluster for decisions: immutable column chunks, nodes in the order of their ids (D2). It is
// published together with the store's snapshot of the same index. Safe for concurrent use.
type View struct {
	index   structs.Index
	chunks  []*chunk
	starts  []int // row number of each chunk's first node
	rows    int
	orphans map[structs.NodeID][]*held // what is held on nodes that the view does not know; usually empty
	pools   map[string]*structs.NodePool
	classes *classTable
	memo    *memo
	copied  int // chunks that the Advance which made this view had to copy or make
}

// chunk is a run of nodes. What changes with every placement (used, hold) is apart from what does not.
type chunk struct {
	*nodeColumns
	used []structs.Vector
	hold []*holding

	shrinks    atomic.Int32 // whether something held may shrink for others: 0 not known, 1 no, 2 yes
	shies      atomic.Int32 // whether something held keeps others away: the same
	freeBlocks [ChunkNodes / blockRows]atomic.Pointer[freeBlock]
}

// mayShrink reports whether something held on the nodes of a chunk may shrink for others. It is found out once, as
// chunks are immutable once published.
func (c *chunk) mayShrink() bool {
	x := c.shrinks.Load()
	if x == 0 {
		x = 1
		for _, h := range c.hold {
			if h != nil && h.yields > 0 {
				x = 2
				break
			}
		}
		c.shrinks.Store(x)
	}
	return x == 2
}

// mayShrink reports whether anything held may shrink for others.
func (v *View) mayShrink() bool {
	return slices.ContainsFunc(v.chunks, (*chunk).mayShrink)
}

// nodeColumns is the part of a chunk that only nodes themselves change.
type nodeColumns struct {
	IDs     []structs.NodeID
	nodes   []*structs.Node
	total   []structs.Vector // less what is reserved
	MHz     []int64          // of a reserved core
	class   []uint16         // into classes
	hash    [][16]byte       // classHash of each node
	ready   []bool
	sick    []bitset    // devices that are not healthy, by their position; nil for most nodes
	classes []nodeClass // that occur in this chunk, by first occurrence
}

// nodeClass is a set of nodes that constraints, drivers, volumes and device kinds cannot tell apart.
type nodeClass struct {
	hash [16]byte
	node *structs.Node // one of them
	num  int32         // in the view's classTable
}

// classTable numbers the classes of a view in the order they were met, so that a scan finds what it knows of a class by
// index. Immutable once the view is published. Numbers enter no decision.
type classTable struct {
	num map[[16]byte]int32
}

// intern gives the number of a class; a new one gets the next.
func (t *classTable) intern(h [16]byte) int32 {
	n, ok := t.num[h]
	if !ok {
		n = int32(len(t.num))
		t.num[h] = n
	}
	return n
}

// NewView builds the picture from scratch. Nodes may come in any order; allocations that hold nothing are skipped.
func NewView(index structs.Index, nodes []*structs.Node, allocs []*structs.Allocation, pools []*structs.NodePool) *View {
	v := &View{index: index, pools: make(map[string]*structs.NodePool, len(pools)), classes: &classTable{num: make(map[[16]byte]int32)}, memo: &memo{}}
	for _, p := range pools {
		v.pools[p.Name] = p
	}
	byNode := make(map[structs.NodeID][]*held, len(nodes))
	for _, a := range allocs {
		if structs.Holds(a) {
			byNode[a.NodeID] = append(byNode[a.NodeID], heldOf(a))
		}
	}
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b *structs.Node) int { return CompareID(a.ID, b.ID) })
	for from := 0; from < len(sorted); from += ChunkNodes {
		part := sorted[from:min(from+ChunkNodes, len(sorted))]
		c := &chunk{nodeColumns: makeRoster(v.classes, part, nil), used: make([]structs.Vector, len(part)), hold: make([]*holding, len(part))}
		for i, n := range part {
			hs := byNode[n.ID]
			delete(byNode, n.ID)
			if len(hs) == 0 {
				continue
			}
			slices.SortFunc(hs, func(a, b *held) int { return CompareID(a.ID, b.ID) })
			o := occupied(n, hs)
			c.used[i], c.hold[i] = o.used, o.hold
		}
		v.chunks = append(v.chunks, c)
	}
	for id, hs := range byNode {
		slices.SortFunc(hs, func(a, b *held) int { return CompareID(a.ID, b.ID) })
		v.setOrphans(id, hs)
	}
	v.number()
	v.copied = len(v.chunks)
	return v
}

// makeRoster takes stock of nodes. A hash that is known already may be given, as nodes keep theirs when others come and
// go; a zero one is computed.
func makeRoster(t *classTable, nodes []*structs.Node, hashes [][16]byte) *nodeColumns {
	r := &nodeColumns{
		hash:  make([][16]byte, len(nodes)),
		IDs:   make([]structs.NodeID, len(nodes)),
		nodes: slices.Clone(nodes),
		total: make([]structs.Vector, len(nodes)),
		MHz:   make([]int64, len(nodes)),
		class: make([]uint16, len(nodes)),
		ready: make([]bool, len(nodes)),
		sick:  make([]bitset, len(nodes)),
	}
	for i, n := range nodes {
		r.IDs[i] = n.ID
		r.total[i], r.MHz[i] = capacity(n)
		r.ready[i] = n.Ready()
		r.sick[i] = sickDevices(n)
		var h [16]byte
		if hashes != nil {
			h = hashes[i]
		}
		if h == [16]byte{} {
			h = classHash(n)
		}
		r.hash[i] = h
		at := slices.IndexFunc(r.classes, func(c nodeClass) bool { return c.hash == h })
		if at < 0 {
			at = len(r.classes)
			r.classes = append(r.classes, nodeClass{hash: h, node: n, num: t.intern(h)})
		}
		r.class[i] = uint16(at)
	}
	return r
}

// sickDevices are the devices of a node that are not healthy, by position.
func sickDevices(n *structs.Node) (out bitset) {
	pos := 0
	for i := range n.Resources.Devices {
		for j := range n.Resources.Devices[i].Instances {
			if !n.Resources.Devices[i].Instances[j].Healthy {
				out.set(pos)
			}
			pos++
		}
	}
	return out
}

// capacity is what a node offers to allocations, and the MHz that one reserved core takes from its CPU.
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

// reservableCores lists the core ids that allocations may reserve, ascending.
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
	v.starts = make([]int, len(v.chunks))
	v.rows = 0
	for i, c := range v.chunks {
		v.starts[i] = v.rows
		v.rows += len(c.IDs)
	}
}

func (v *View) setOrphans(id structs.NodeID, hs []*held) {
	next := make(map[structs.NodeID][]*held, len(v.orphans)+1)
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

// Index is the log index that the view shows.
func (v *View) Index() structs.Index { return v.index }

// Len is the number of nodes.
func (v *View) Len() int { return v.rows }

// ChunksCopied is how many chunks the call that made this view had to copy or make; the others are shared with the
// view before it.
func (v *View) ChunksCopied() int { return v.copied }

// ChunkCount is the number of chunks.
func (v *View) ChunkCount() int { return len(v.chunks) }

// Pool finds a node pool, or nil.
func (v *View) Pool(name string) *structs.NodePool { return v.pools[name] }

// Node finds a node, or nil.
func (v *View) Node(id structs.NodeID) *structs.Node {
	c, i, ok := v.locate(id)
	if !ok {
		return nil
	}
	return v.chunks[c].nodes[i]
}

// Usage is what is held on a node and what the node offers in total; ok is false for an unknown node.
func (v *View) Usage(id structs.NodeID) (used, total structs.Vector, ok bool) {
	c, i, ok := v.locate(id)
	if !ok {
		return used, total, false
	}
	return v.chunks[c].used[i], v.chunks[c].total[i], true
}

// EachNode calls f for every node in the order of ids, until f returns false.
func (v *View) EachNode(f func(n *structs.Node) bool) {
	for _, c := range v.chunks {
		for _, n := range c.nodes {
			if !f(n) {
				return
			}
		}
	}
}

// locate finds the chunk and the place in it of a node, or where it would have to be inserted.
func (v *View) locate(id structs.NodeID) (c, i int, found bool) {
	c = sort.Search(len(v.chunks), func(k int) bool {
		ids := v.chunks[k].IDs
		return CompareID(ids[len(ids)-1], id) >= 0
	})
	if c == len(v.chunks) {
		if c == 0 {
			return 0, 0, false
		}
		c--
		return c, len(v.chunks[c].IDs), false
	}
	i, found = slices.BinarySearchFunc(v.chunks[c].IDs, id, func(a, b structs.NodeID) int { return CompareID(a, b) })
	return c, i, found
}

// row gives the row number of a node, or -1.
func (v *View) row(id structs.NodeID) int {
	c, i, ok := v.locate(id)
	if !ok {
		return -1
	}
	return v.starts[c] + i
}

// at gives the chunk of a row and the place in it.
func (v *View) at(row int) (*chunk, int) {
	k := sort.Search(len(v.starts), func(k int) bool { return v.starts[k] > row }) - 1
	return v.chunks[k], row - v.starts[k]
}

// classHash identifies everything that class-level checks may look at.
func classHash(n *structs.Node) [16]byte {
	var b []byte
	str := func(s string) { b = binary.AppendUvarint(b, uint64(len(s))); b = append(b, s...) }
	strs := func(m map[string]string) {
		for _, k := range sortedKeys(m) {
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
	str(n.Pool)
	str(n.Class)
	str(n.Version)
	strs(n.Attributes)
	strs(n.Meta)
	for _, k := range sortedKeys(n.Drivers) {
		d := n.Drivers[k]
		str(k)
		flag(d.Detected)
		flag(d.Healthy)
		strs(d.Attributes)
	}
	b = append(b, 0xfe)
	for _, k := range sortedKeys(n.HostVolumes) {
		str(k)
		flag(n.HostVolumes[k].ReadOnly)
	}
	b = append(b, 0xfd)
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		str(g.ID())
		b = binary.AppendUvarint(b, uint64(len(g.Instances)))
		for _, k := range sortedKeys(g.Attributes) {
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

func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// AppendCanonical appends bytes that are equal for equal pictures, however they came about (rebuilt or advanced). The
// chunking and the counters do not enter.
func (v *View) AppendCanonical(b []byte) []byte {
	num := func(n int64) { b = binary.AppendVarint(b, n) }
	vec := func(x structs.Vector) { num(x.CPU); num(x.Cores); num(x.MemoryMiB); num(x.DiskMiB) }
	helds := func(hs []*held) {
		num(int64(len(hs)))
		for _, h := range hs {
			b = append(b, h.ID[:]...)
			vec(h.need)
			if h.rare == nil {
				continue
			}
			for _, w := range h.rare.waits {
				b = append(b, w[:]...)
			}
			for _, p := range h.rare.ports {
				b = append(b, p.HostIP...)
				num(int64(p.Value))
			}
			for _, c := range h.rare.cores {
				num(c)
			}
			for _, g := range h.rare.grants {
				b = append(b, g.Device...)
				b = append(b, g.Instance...)
				num(g.MemoryMiB)
				num(g.Compute)
			}
		}
	}
	num(int64(v.index))
	num(int64(v.rows))
	for _, c := range v.chunks {
		for i := range c.IDs {
			cl := c.classes[c.class[i]]
			b = append(b, c.IDs[i][:]...)
			b = append(b, cl.hash[:]...)
			vec(c.total[i])
			vec(c.used[i])
			num(c.MHz[i])
			num(int64(c.nodes[i].Epoch))
			if c.ready[i] {
				num(1)
			}
			if h := c.hold[i]; h != nil {
				helds(h.list())
				for _, p := range h.ports {
					num(int64(p))
				}
				for _, w := range h.cores {
					num(int64(w))
				}
				for _, w := range h.devs {
					num(int64(w))
				}
				for _, s := range h.shares {
					num(int64(s.pos))
					num(s.mem)
					num(s.compute)
					if s.whole {
						num(1)
					}
				}
				num(int64(h.rares))
				num(int64(h.waits))
			}
		}
	}
	for _, p := range sortedKeys(v.pools) {
		b = append(b, p...)
		b = append(b, v.pools[p].Algorithm...)
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

// rowAfter is the row at which ties start when the last node used was id; the node itself comes first.
func (v *View) rowAfter(id structs.NodeID) int {
	if id.IsZero() || v.rows == 0 {
		return 0
	}
	c, i, _ := v.locate(id)
	if row := v.starts[c] + i; row < v.rows {
		return row
	}
	return 0
}

// EachHeld calls f for everything held, by node and id: when it is expected to end as seen at now (0: never), and what
// it holds.
func (v *View) EachHeld(f func(n *structs.Node, end structs.LogTime, need structs.Vector, grants []structs.Grant), now structs.LogTime) {
	for _, c := range v.chunks {
		for i, n := range c.nodes {
			for h := range c.hold[i].all() {
				var grants []structs.Grant
				if h.rare != nil {
					grants = h.rare.grants
				}
				f(n, h.work.foreseen(now), h.need, grants)
			}
		}
	}
}

// isGPU reports whether a group of devices is whole GPUs.
func isGPU(g *structs.DeviceGroup) bool { return g.Type == "gpu" && g.MIGProfile() == "" }

func hasGPUs(n *structs.Node) bool {
	return slices.ContainsFunc(n.Resources.Devices, func(g structs.DeviceGroup) bool { return isGPU(&g) })
}

// EachAllocation calls f with what each allocation that the view knows holds, in the order of nodes and ids, until f returns
// false. The records are made for the caller, and hold no more than decisions see.
func (v *View) EachAllocation(f func(a *structs.Allocation) bool) {
	for _, c := range v.chunks {
		for i, h := range c.hold {
			for e := range h.all() {
				if !f(e.allocation(c.IDs[i])) {
					return
				}
			}
		}
	}
}

// mayShy is mayShrink for what keeps others away.
func (c *chunk) mayShy() bool {
	x := c.shies.Load()
	if x == 0 {
		x = 1
		for _, h := range c.hold {
			if h != nil && h.shy > 0 {
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
