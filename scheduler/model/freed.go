package model

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Freed is room that an allocation gave back.
type Freed struct {
	At      structs.LogTime
	Node    structs.NodeID
	Devices []string // its device instances; nil: it had none
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
		f := Freed{At: d.Time, Node: was.NodeID}
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
		if h.Rare == nil || len(h.Rare.Grants) == 0 {
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
