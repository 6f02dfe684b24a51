package model

import "github.com/muster-sched/muster/structs"

// FreeBlock is the free capacity of a node, or the maximum of several nodes in each dimension.
type FreeBlock struct {
	Free    structs.Vector
	Devices int64
}

// BlockRows is the number of nodes in a block, the unit in which free capacity is summarized.
const BlockRows = 16

// FreeOn returns the free capacity of a row.
func FreeOn(c *Chunk, i int, o *Occupancy) (x FreeBlock) {
	x.Free = c.Total[i].Sub(o.Used)
	x.Free.CPU -= o.Used.Cores * c.MHz[i]
	if n := countDevices(c.Nodes[i]); n > 0 {
		x.Devices = n - o.Hold.DevicesInUse()
	}
	return x
}

// FreeBlockAt summarizes the block of a chunk that begins at a row. It is computed once, because chunks are immutable
// once published.
func (c *Chunk) FreeBlockAt(from int) *FreeBlock {
	p := &c.freeBlocks[from/BlockRows]
	x := p.Load()
	if x == nil {
		x = &FreeBlock{}
		for i := from; i < min(from+BlockRows, len(c.IDs)); i++ {
			x.Raise(FreeOn(c, i, &Occupancy{c.Used[i], c.Hold[i]}))
		}
		p.Store(x)
	}
	return x
}

// Raise makes x the maximum of x and o in each dimension.
func (x *FreeBlock) Raise(o FreeBlock) {
	a, b := &x.Free, &o.Free
	a.CPU, a.Cores = max(a.CPU, b.CPU), max(a.Cores, b.Cores)
	a.MemoryMiB, a.DiskMiB = max(a.MemoryMiB, b.MemoryMiB), max(a.DiskMiB, b.DiskMiB)
	x.Devices = max(x.Devices, o.Devices)
}
