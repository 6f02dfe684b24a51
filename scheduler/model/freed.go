package model

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Freed is room that an allocation gave back.
type Freed struct {
	From, At structs.LogTime // when it was taken, and when it was given back
	Node     structs.NodeID
	Need     structs.Vector
	Devices  []string // its device instances; nil: it had none
}

// freedMost bounds how many allocations that gave back room are remembered: room whose end is not among them counts as
// free for long.
const freedMost = 4096

// AppendFreed adds to a list, oldest first, what a batch of the log gave back. The result may share memory with the list,
// which remains valid.
func AppendFreed(list []Freed, d *structs.Delta) []Freed {
	for i := range d.Allocs {
		was, is := d.Allocs[i].Before, d.Allocs[i].After
		if was == nil || !structs.Holds(was) || is != nil && structs.Holds(is) {
			continue
		}
		f := Freed{From: was.CreateTime, At: d.Time, Node: was.NodeID, Need: was.Resources}
		for k := range was.Grants {
			f.Devices = append(f.Devices, was.Grants[k].Instance)
		}
		list = append(list, f)
	}
	return list[max(0, len(list)-freedMost):]
}

// FreedAt returns when the newest of the room that an allocation has on a node became free: of its devices, else of the node;
// 0: it has been free for as long as the list goes back.
func FreedAt(list []Freed, node structs.NodeID, h *Held) structs.LogTime {
	for _, f := range slices.Backward(list) {
		if f.Node != node {
			continue
		}
		if h == nil || h.Rare == nil || len(h.Rare.Grants) == 0 {
			return f.At
		}
		for k := range h.Rare.Grants {
			if slices.Contains(f.Devices, h.Rare.Grants[k].Instance) {
				return f.At
			}
		}
	}
	return 0
}

// freshID is the allocation that stands for room that became free lately.
var freshID = structs.AllocID{0: 0xff, 1: 0xff, 15: 0xff}

// TakeFresh takes the room that was not free all the time since a time, until the what-if is rolled back: the devices that were
// given back since then, and of CPU, memory and disk what was in use beyond what is in use now. It reports whether there is any,
// and how many records it looked at, of room given back and of what is held there.
//
// Naive: the node has been free since its last allocation ended. With short jobs that follow each other nothing is ever free
// for long then, though most of the node is.
func (w *WhatIf) TakeFresh(list []Freed, since structs.LogTime) (any bool, looked int) {
	byRow := map[int][]*Freed{}
	var rows []int
	for i := len(list) - 1; i >= 0 && list[i].At > since; i-- {
		looked++
		row := w.View.Row(list[i].Node)
		if row < 0 {
			continue
		}
		if byRow[row] == nil {
			rows = append(rows, row)
		}
		byRow[row] = append(byRow[row], &list[i])
	}
	for _, row := range rows {
		c, i := w.View.At(row)
		o := w.Get(row)
		looked += o.Hold.Size()
		h := &Held{ID: freshID, Need: mostInUse(byRow[row], o.Hold, since)}
		left := c.Total[i].Sub(o.Used) // it takes no more than that
		h.Need.Cores, h.Need.MemoryMiB, h.Need.DiskMiB = clamp(h.Need.Cores, left.Cores), clamp(h.Need.MemoryMiB, left.MemoryMiB), clamp(h.Need.DiskMiB, left.DiskMiB)
		h.Need.CPU = clamp(h.Need.CPU, left.CPU-(o.Used.Cores+h.Need.Cores)*c.MHz[i])
		for _, f := range byRow[row] {
			for _, id := range f.Devices {
				if g := grantOf(c.Nodes[i], id); g.Instance != "" && (h.Rare == nil || !slices.Contains(h.Rare.Grants, g)) {
					if h.Rare == nil {
						h.Rare = &HeldRare{}
					}
					h.Rare.Grants = append(h.Rare.Grants, g)
				}
			}
		}
		if h.Rare != nil || h.Need != (structs.Vector{}) {
			w.Set(row, o.with(c.Nodes[i], h))
			any = true
		}
	}
	return any, looked
}

func clamp(n, most int64) int64 { return max(0, min(n, most)) }

// grantOf returns a grant of a whole device of a node; none if it does not have it.
func grantOf(n *structs.Node, instance string) structs.Grant {
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for j := range g.Instances {
			if g.Instances[j].ID == instance {
				return structs.Grant{Device: g.ID(), Instance: instance}
			}
		}
	}
	return structs.Grant{}
}

// mostInUse returns by how much more of a node was in use since a time than now, for each amount the most at any moment: by what
// was given back, less what is held since later.
func mostInUse(gone []*Freed, now *Holding, since structs.LogTime) (most structs.Vector) {
	type change struct {
		at   structs.LogTime
		more structs.Vector
		less bool
	}
	var changes []change
	var use structs.Vector
	for _, f := range gone {
		if f.From <= since {
			use = use.Add(f.Need)
		} else {
			changes = append(changes, change{f.From, f.Need, false})
		}
		changes = append(changes, change{f.At, f.Need, true})
	}
	for h := range now.All() {
		from := h.Work.Placed
		if h.Rare != nil && len(h.Rare.Waits) > 0 {
			from = h.Work.Began // until then what it waits for has the place
		}
		if from == 0 || from > since {
			use = use.Sub(h.Need)
			if from > 0 {
				changes = append(changes, change{from, h.Need, false})
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { // what ends at a moment makes room for what begins then
		switch {
		case a.at != b.at:
			return cmp.Compare(a.at, b.at)
		case a.less == b.less:
			return 0
		case a.less:
			return -1
		}
		return 1
	})
	most = mostOf(most, use)
	for _, c := range changes {
		if c.less {
			use = use.Sub(c.more)
		} else {
			use = use.Add(c.more)
		}
		most = mostOf(most, use)
	}
	return most
}

func mostOf(a, b structs.Vector) structs.Vector {
	return structs.Vector{CPU: max(a.CPU, b.CPU), Cores: max(a.Cores, b.Cores), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB), DiskMiB: max(a.DiskMiB, b.DiskMiB)}
}
