package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
)

// roomMax is the room of a node that nothing limits.
const roomMax = 1 << 16

// Rooms returns how many members of a gang fit in each place of a level, an upper bound by amounts and whole devices.
func (s *Search) Rooms(l *model.Level) []int64 {
	sums := make([]int64, len(l.Names))
	var known []int64 // by set of twins: 1 + the room of a row
	if s.openTwins() {
		known = make([]int64, len(s.twins.sets))
	}
	apart := s.apart
	for ci, c := range s.w.View.Chunks {
		for i := range c.IDs {
			row := s.w.View.Starts[ci] + i
			at := l.Of[row]
			for len(apart) > 0 && int(apart[0]) < row {
				apart = apart[1:]
			}
			if at < 0 || !c.Ready[i] {
				continue
			}
			v := s.ClassVerdict(&c.Classes[c.Class[i]])
			if v.Outside || v.Far || v.Refused > 0 || s.Banned(c.IDs[i]) {
				continue
			}
			var set *int64
			if known != nil && (len(apart) == 0 || int(apart[0]) != row) {
				if set = &known[s.twins.of[row].num]; *set > 0 {
					sums[at] += *set - 1
					continue
				}
			}
			o := s.w.Get(row)
			n := s.room(c, i, row, v, &o, roomMax)
			sums[at] += n
			if set != nil {
				*set = 1 + n
			}
		}
	}
	return sums
}

// RoomOn returns how many members fit on one node, by amounts and whole devices.
func (s *Search) RoomOn(row int) int64 {
	c, i := s.w.View.At(row)
	v := s.ClassVerdict(&c.Classes[c.Class[i]])
	if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] || s.Elsewhere(row) || s.Banned(c.IDs[i]) {
		return 0
	}
	o := s.w.Get(row)
	return s.room(c, i, row, v, &o, int64(max(s.Ask.Tg.Count, 1)))
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
					if g.Instances[j].Healthy && alt.Admits(&g.Instances[j]) && (o.Hold == nil || !o.Hold.Devs.Has(ch.First+j)) {
						open++
					}
				}
			}
			n = min(n, open/max(alt.Count, 1))
		}
	}
	return max(n, 0)
}

// Places is the room in the places of a tree, for one group.
type Places struct {
	t    *model.Tree
	room [][]int64   // by level and place
	kids [][][]int32 // by level and place: the places of the level before, those with the most room first, stopgaps last
}

// NewPlaces adds up the room of the nearest level by the places of the farther ones.
func NewPlaces(t *model.Tree, nearest []int64) *Places {
	p := &Places{t: t, room: [][]int64{nearest}, kids: [][][]int32{nil}}
	for k := 1; k <= len(t.Levels); k++ {
		below, n := t.Levels[k-1], 1 // the last one is everything
		if k < len(t.Levels) {
			n = len(t.Levels[k].Names)
		}
		room, kids := make([]int64, n), make([][]int32, n)
		for at := range int32(len(below.Names)) {
			up := int32(0)
			if below.Up != nil {
				up = below.Up[at]
			}
			if x := p.room[k-1][at]; x > 0 {
				room[up] += x
				kids[up] = append(kids[up], at)
			}
		}
		for _, list := range kids {
			slices.SortFunc(list, func(a, b int32) int {
				if x, y := below.Stopgap[a], below.Stopgap[b]; x != y {
					if x {
						return 1
					}
					return -1
				}
				parts := 0 // of equal room, the place that is fewer parts
				if p.kids[k-1] != nil {
					parts = len(p.kids[k-1][a]) - len(p.kids[k-1][b])
				}
				return cmp.Or(cmp.Compare(p.room[k-1][b], p.room[k-1][a]), parts, cmp.Compare(a, b))
			})
		}
		p.room, p.kids = append(p.room, room), append(p.kids, kids)
	}
	return p
}

// Room returns the room in a place of a level.
func (p *Places) Room(level int, at int32) int64 { return p.room[level][at] }

// Fitting lists the places of a level with room for so many members, those with the least room first, so that the larger
// ones stay whole.
func (p *Places) Fitting(level int, members int64) (out []int32) {
	l := p.t.Levels[level]
	for at, room := range p.room[level] {
		if room >= members && !l.Stopgap[at] {
			out = append(out, int32(at))
		}
	}
	slices.SortFunc(out, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.room[level][a], p.room[level][b]), cmp.Compare(a, b))
	})
	return out
}

// Roomiest lists the places of a level with room for any member, those with the most room first.
func (p *Places) Roomiest(level int) (out []int32) {
	l := p.t.Levels[level]
	for at, room := range p.room[level] {
		if room > 0 && !l.Stopgap[at] {
			out = append(out, int32(at))
		}
	}
	slices.SortFunc(out, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.room[level][b], p.room[level][a]), cmp.Compare(a, b))
	})
	return out
}

// Fewest chooses places of the nearest level, within a place of a level (len(Levels), 0: everywhere), so that so many
// members find room in as few places of each level as possible: the largest places as long as no single one has
// room for the rest, then the smallest one that has. The result is by place of the nearest level.
func (p *Places) Fewest(level int, at int32, members int64) []bool {
	set := make([]bool, len(p.room[0]))
	p.choose(set, level, at, members)
	return set
}

func (p *Places) choose(set []bool, level int, at int32, members int64) {
	if level == 0 {
		set[at] = true
		return
	}
	kids, room := p.kids[level][at], p.room[level-1]
	for k, kid := range kids {
		if room[kid] >= members {
			for _, next := range kids[k+1:] { // with less room, except for stopgaps
				if room[next] >= members && room[next] <= room[kid] && p.t.Levels[level-1].Stopgap[next] == p.t.Levels[level-1].Stopgap[kid] {
					kid = next
				}
			}
			p.choose(set, level-1, kid, members)
			return
		}
		p.choose(set, level-1, kid, room[kid])
		members -= room[kid]
	}
}

// Inside returns the places of the nearest level within a place of a level, by place.
func Inside(t *model.Tree, level int, at int32) []bool {
	set := make([]bool, len(t.Levels[0].Names))
	for cell := range int32(len(set)) {
		set[cell] = t.Above(0, cell, level) == at
	}
	return set
}
