package scheduler

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// member is a roster row with its sort key.
type member struct {
	row   structs.RosterMember
	first int // position of its first device on the node
}

// rosters makes the rosters of the gangs that get members.
func (d *decision) rosters() []*structs.Roster {
	var out []*structs.Roster
	for _, g := range d.groups {
		if !g.Gang || !slices.ContainsFunc(d.placed, func(p placement) bool { return p.g == g && !p.want.Standby }) {
			continue
		}
		ro := &structs.Roster{Namespace: d.load.Key.Namespace, JobID: d.load.Key.ID, Group: g.Name, Reason: structs.RosterPlaced}
		var ms []member
		if g.Roster != nil {
			ro.Epoch = g.Roster.Epoch
			if len(g.Roster.Members) > 0 {
				ro.Reason = structs.RosterGrown
			}
			for _, m := range g.Roster.Members {
				if !slices.ContainsFunc(d.placed, func(p placement) bool { return p.g == g && p.want.Prev != nil && p.want.Prev.ID == m.Alloc }) {
					x := member{row: m}
					for _, a := range d.load.Allocs {
						if a.ID == m.Alloc {
							x.first = d.firstDevice(m.Node, a.Grants)
						}
					}
					ms = append(ms, x)
				}
			}
		}
		// Allocations that run already but are on no roster also belong to the gang: the group may have become a gang
		// since.
		for _, a := range g.Staying {
			n := d.w.View.Node(a.NodeID)
			if n == nil || slices.ContainsFunc(ms, func(m member) bool { return m.row.Alloc == a.ID }) {
				continue
			}
			x := member{row: structs.RosterMember{Alloc: a.ID, Node: n.ID, Name: n.Name, Address: match.NetworkIP(n, 0), Index: a.NameIndex}, first: d.firstDevice(n.ID, a.Grants)}
			for i := range a.Grants {
				if a.Grants[i].IsGPU() {
					x.row.GPUs++
				}
			}
			ms = append(ms, x)
		}
		ro.Epoch++
		for i := range d.placed {
			p := &d.placed[i]
			if p.g != g || p.want.Standby {
				continue
			}
			n := p.At.Node
			x := member{row: structs.RosterMember{Alloc: p.At.Held.ID, Node: n.ID, Name: n.Name, Address: match.NetworkIP(n, 0), Index: p.want.Index}}
			if r := p.At.Held.Rare; r != nil {
				x.first = d.firstDevice(n.ID, r.Grants)
				for k := range r.Grants {
					if r.Grants[k].IsGPU() {
						x.row.GPUs++
					}
				}
			}
			ms = append(ms, x)
		}
		across := ""
		if g.Tg.Topology != nil {
			across = g.Tg.Topology.Across
		}
		byTopology(d.w, d.in.Config.TopologyLevels, across, ms)
		for i := range ms {
			ro.Members = append(ro.Members, ms[i].row)
		}
		out = append(out, ro)
	}
	return out
}

// firstDevice returns the lowest position among granted devices on their node.
func (d *decision) firstDevice(node structs.NodeID, grants []structs.Grant) int {
	n := d.w.View.Node(node)
	first := -1
	for i := range grants {
		if n == nil {
			break
		}
		if pos := model.InstancePos(n, grants[i].Device, grants[i].Instance); pos >= 0 && (first < 0 || pos < first) {
			first = pos
		}
	}
	return first
}

// byTopology orders members so that consecutive ranks are close: by the levels of the cluster, the farthest first, and by
// node, then by their devices. A level of the job that the cluster does not have comes before them.
func byTopology(w *search.Pass, declared []string, across string, members []member) {
	keys := slices.Clone(w.View.LevelKeys(declared))
	slices.Reverse(keys)
	if across != "" && across != model.LevelNode && across != structs.TopologyAny && !slices.Contains(keys, across) {
		keys = append([]string{across}, keys...)
	}
	at := func(m *member, key string) string {
		if n := w.View.Node(m.row.Node); n != nil {
			return model.LevelOf(n, key)
		}
		return ""
	}
	slices.SortFunc(members, func(a, b member) int {
		for _, k := range keys {
			if c := cmp.Compare(at(&a, k), at(&b, k)); c != 0 {
				return c
			}
		}
		return cmp.Or(model.CompareID(a.row.Node, b.row.Node), cmp.Compare(a.first, b.first), cmp.Compare(a.row.Index, b.row.Index))
	})
}
