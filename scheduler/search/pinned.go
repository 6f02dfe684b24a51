package search

import (
	"github.com/muster-sched/muster/structs"
)

// PlacePinned places on the only node in question, and counts the refusal if it cannot.
func (s *Search) PlacePinned(row int, id structs.AllocID) (Placement, bool) {
	if row < 0 {
		return Placement{}, false
	}
	c, i := s.w.View.At(row)
	n := c.Nodes[i]
	v := s.ClassVerdict(&c.Classes[c.Class[i]])
	if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] {
		return Placement{}, false
	}
	if why, bad := s.Indistinct(row, v, n); bad {
		v.filtered++
		s.refuse(why)
		return Placement{}, false
	}
	o := s.w.Get(row)
	base := s.rate(c, i, row, v, &o, true)
	if base == rateRefused {
		return Placement{}, false
	}
	h, after, short := s.equip(c, i, row, v, o, id, base)
	if short.Dim != structs.DimensionNone {
		s.exhausted(v, short)
		return Placement{}, false
	}
	if w := s.PowerShort(row, n, after); w > 0 {
		s.unpowered(v, n, w)
		return Placement{}, false
	}
	if len(s.scores) < scoresKept && len(s.spreads) == 0 {
		s.scores = append(s.scores, s.score(row, &s.cells[0]))
	}
	s.w.Set(row, after)
	s.took(row, v, n)
	return Placement{row, n, h}, true
}

// Survey counts the nodes for the report of a group whose placements are pinned, without rating them.
func (s *Search) Survey() {
	s.surveyed = true
	for _, c := range s.w.View.Chunks {
		for i := range c.IDs {
			v := s.ClassVerdict(&c.Classes[c.Class[i]])
			if v.Outside {
				continue
			}
			v.inPool++
			switch {
			case v.Far:
			case !c.Ready[i]:
				s.notReady(c.Nodes[i])
			default:
				v.available++
				s.Looked++
				if v.Refused > 0 {
					v.filtered++
					s.refusals[v.Refused-1].Nodes++
				}
			}
		}
	}
}
