package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
)

// Room is an upper bound of how many members of a gang fit in a place of the topology.
type Room struct {
	At   int32
	Room int64
}

// Rooms lists the places of a level that have room for at least one member, counting up to limit.
func (s *Search) Rooms(l *model.Level, limit int64) []Room {
	sums := make([]int64, len(l.Names))
	for ci, c := range s.w.View.Chunks {
		for i := range c.IDs {
			row := s.w.View.Starts[ci] + i
			at := l.Of[row]
			if at < 0 || !c.Ready[i] || sums[at] >= limit {
				continue
			}
			v := s.ClassVerdict(&c.Classes[c.Class[i]])
			if v.Outside || v.Far || v.Refused > 0 || s.Banned(c.IDs[i]) {
				continue
			}
			o := s.w.Get(row)
			sums[at] += s.room(c, i, row, v, &o, limit-sums[at])
		}
	}
	var out []Room
	for at, n := range sums {
		if n > 0 {
			out = append(out, Room{int32(at), min(n, limit)})
		}
	}
	return out
}

// room returns how many members fit on one node by amounts and whole devices.
func (s *Search) room(c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy, limit int64) int64 {
	if s.rate(c, i, row, v, o, false) < 0 {
		return 0
	}
	n := limit
	if s.jobRow != nil {
		n = 1
	}
	need, mhz := s.Ask.Need, c.MHz[i]
	for _, x := range [...][3]int64{
		{need.CPU + need.Cores*mhz, c.Total[i].CPU, o.Used.CPU + o.Used.Cores*mhz}, {need.MemoryMiB, c.Total[i].MemoryMiB, o.Used.MemoryMiB},
		{need.DiskMiB, c.Total[i].DiskMiB, o.Used.DiskMiB}, {need.Cores, c.Total[i].Cores, o.Used.Cores},
	} {
		if x[0] > 0 {
			n = min(n, (x[1]-x[2])/x[0])
		}
	}
	for k := range s.Ask.Devices {
		if alt := &s.Ask.Devices[k].Alts[0]; len(s.Ask.Devices[k].Alts) == 1 && !alt.Shared() && k < len(v.Choices) {
			open := int64(0)
			for _, ch := range v.Choices[k] {
				g := &c.Nodes[i].Resources.Devices[ch.Group]
				for j := range g.Instances {
					if g.Instances[j].Healthy && alt.Admits(g.Instances[j].ID) && (o.Hold == nil || !o.Hold.Devs.Has(ch.First+j)) {
						open++
					}
				}
			}
			n = min(n, open/max(alt.Count, 1))
		}
	}
	return max(n, 0)
}

// Within orders the sets of places worth trying for so many members. First single places, the fullest with enough room
// first, so that larger ones stay whole. If the level is only preferred: then the largest ones together, one more each
// time.
func Within(rs []Room, members int64, required bool) [][]int32 {
	var out [][]int32
	var fit []Room
	for _, r := range rs {
		if r.Room >= members {
			fit = append(fit, r)
		}
	}
	slices.SortFunc(fit, func(a, b Room) int { return cmp.Or(cmp.Compare(a.Room, b.Room), cmp.Compare(a.At, b.At)) })
	for _, r := range fit[:min(len(fit), domainTries)] {
		out = append(out, []int32{r.At})
	}
	if required {
		return out
	}
	slices.SortFunc(rs, func(a, b Room) int { return cmp.Or(cmp.Compare(b.Room, a.Room), cmp.Compare(a.At, b.At)) })
	sum := int64(0)
	var set []int32
	for _, r := range rs {
		set = append(set, r.At)
		if sum += r.Room; sum >= members && len(set) > 1 {
			out = append(out, slices.Clone(set))
			if len(out) > domainTries {
				break
			}
		}
	}
	return out
}

// domainTries limits how many sets of places are tried for one gang. After that a preferred topology is given up; with
// a required one the gang waits.
const domainTries = 64
