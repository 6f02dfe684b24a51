package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// soonest is a time before which what a decision misses cannot be placed, whatever ends: by amounts and by whole devices
// alone, without promises. It is now when nothing is known, and never when not even empty nodes have enough.
func (b *books) soonest(d *decision, rows []int) structs.LogTime {
	now := d.in.Now
	var g *groupWork
	for _, x := range d.rec.groups {
		if d.misses[x.name] == 0 {
			continue
		}
		if g != nil || x.ask == nil {
			return now
		}
		g = x
	}
	if g == nil {
		return now
	}
	missing := d.misses[g.name]
	devices := int64(0)
	if g.ask.plainDevices {
		devices = g.ask.devices[0].alts[0].count
	}
	var when []structs.LogTime // of each place that comes to be
	var ends []ending
	var freed []int64 // devices that each of ends gives back
	for _, row := range rows {
		c, i := b.w.v.at(row)
		o := b.w.get(row)
		if o.hold != nil && o.hold.waits > 0 {
			return now
		}
		total := &c.total[i]
		used, free := o.used, int64(0)
		if devices > 0 {
			free = deviceCount(c.nodes[i])
		}
		ends, freed = ends[:0], freed[:0]
		for _, e := range o.hold.list() {
			n := wholeDevices(e)
			free -= n
			at := e.work.ends(now)
			if at == 0 {
				at = b.foreseen(row, &e.work)
			}
			if at > 0 {
				k := len(ends)
				ends, freed = append(ends, ending{at, e.need}), append(freed, n)
				for ; k > 0 && ends[k-1].at > ends[k].at; k-- {
					ends[k], ends[k-1] = ends[k-1], ends[k]
					freed[k], freed[k-1] = freed[k-1], freed[k]
				}
			}
		}
		have := roomBy(total, &used, &g.ask.need, c.mhz[i], free, devices, missing)
		for range have {
			when = append(when, now)
		}
		for k := 0; k < len(ends) && have < missing; k++ {
			used, free = used.Sub(ends[k].need), free+freed[k]
			more := roomBy(total, &used, &g.ask.need, c.mhz[i], free, devices, missing)
			for ; have < more; have++ {
				when = append(when, max(ends[k].at, now))
			}
		}
	}
	if int64(len(when)) < missing {
		return never
	}
	slices.Sort(when)
	return when[missing-1]
}

// roomBy is how many allocations fit by amounts and whole devices, at most a number of them.
func roomBy(total, used, need *structs.Vector, mhz, free, devices, most int64) int64 {
	room := most
	for _, x := range [...][2]int64{{total.CPU - used.CPU - used.Cores*mhz, need.CPU + need.Cores*mhz}, {total.MemoryMiB - used.MemoryMiB, need.MemoryMiB},
		{total.DiskMiB - used.DiskMiB, need.DiskMiB}, {total.Cores - used.Cores, need.Cores}, {free, devices}} {
		if x[1] > 0 {
			room = min(room, max(x[0], 0)/x[1])
		}
	}
	return room
}

func deviceCount(n *structs.Node) (all int64) {
	for i := range n.Resources.Devices {
		all += int64(len(n.Resources.Devices[i].Instances))
	}
	return all
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
