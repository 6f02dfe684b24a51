package scheduler

import "github.com/muster-sched/muster/structs"

// freeBlock is the free capacity of a node, or of several nodes the maximum in each dimension.
type freeBlock struct {
	free    structs.Vector
	devices int64
}

// Free capacity is summarized in blocks of blockRows nodes.
const blockRows = 16

func freeOn(c *chunk, i int, o *occupancy) (x freeBlock) {
	x.free = c.total[i].Sub(o.used)
	x.free.CPU -= o.used.Cores * c.MHz[i]
	if n := countDevices(c.nodes[i]); n > 0 {
		x.devices = n - o.hold.devicesInUse()
	}
	return x
}

// freeBlockAt summarizes the block of a chunk that begins at a row. It is computed once: chunks are immutable once published.
func (c *chunk) freeBlockAt(from int) *freeBlock {
	p := &c.freeBlocks[from/blockRows]
	x := p.Load()
	if x == nil {
		x = &freeBlock{}
		for i := from; i < min(from+blockRows, len(c.IDs)); i++ {
			x.raise(freeOn(c, i, &occupancy{c.used[i], c.hold[i]}))
		}
		p.Store(x)
	}
	return x
}

// raise makes x the maximum of x and o in each dimension.
func (x *freeBlock) raise(o freeBlock) {
	a, b := &x.free, &o.free
	a.CPU, a.Cores = max(a.CPU, b.CPU), max(a.Cores, b.Cores)
	a.MemoryMiB, a.DiskMiB = max(a.MemoryMiB, b.MemoryMiB), max(a.DiskMiB, b.DiskMiB)
	x.devices = max(x.devices, o.devices)
}
