package scheduler

import "github.com/muster-sched/muster/structs"

// spare is what is free on a node, or of each dimension the most on any of several.
type spare struct {
	free    structs.Vector
	devices int64
}

// spareRows is of how many rows together it is known what is free.
const spareRows = 16

// spares is what is free on some rows that follow each other. Immutable.
type spares struct {
	most spare
	rows [spareRows]spare
}

// spareOf is what is free on a node.
func spareOf(c *chunk, i int, o *occupancy) (x spare) {
	x.free = c.total[i].Sub(o.used)
	x.free.CPU -= o.used.Cores * c.mhz[i]
	if n := countDevices(c.nodes[i]); n > 0 {
		x.devices = n - o.hold.devicesInUse()
	}
	return x
}

// spares is what is free on the rows of a chunk from one on. It is found out once, as chunks are immutable once published.
func (c *chunk) spares(from int) *spares {
	p := &c.spare[from/spareRows]
	x := p.Load()
	if x == nil {
		x = &spares{}
		for i := from; i < min(from+spareRows, len(c.ids)); i++ {
			x.rows[i-from] = spareOf(c, i, &occupancy{c.used[i], c.hold[i]})
			x.most.raise(&x.rows[i-from])
		}
		p.Store(x)
	}
	return x
}

func (x *spare) raise(o *spare) {
	a, b := &x.free, &o.free
	a.CPU, a.Cores = max(a.CPU, b.CPU), max(a.Cores, b.Cores)
	a.MemoryMiB, a.DiskMiB = max(a.MemoryMiB, b.MemoryMiB), max(a.DiskMiB, b.DiskMiB)
	x.devices = max(x.devices, o.devices)
}
