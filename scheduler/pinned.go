package scheduler

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

// placePinned places on the only node in question, and counts why not.
func (s *scan) placePinned(row int, id structs.AllocID) (spot, bool) {
	if row < 0 {
		return spot{}, false
	}
	c, i := s.w.View.At(row)
	n := c.Nodes[i]
	v := s.classVerdict(&c.Classes[c.Class[i]])
	if v.outside || v.far || v.refused > 0 || !c.Ready[i] {
		return spot{}, false
	}
	if why, bad := s.indistinct(row, v, n); bad {
		v.filtered++
		s.refuse(why)
		return spot{}, false
	}
	o := s.w.Get(row)
	base := s.rate(c, i, row, v, &o, true)
	if base == rateRefused {
		return spot{}, false
	}
	h, after, short := s.equip(c, i, row, v, o, id, base)
	if short.Dim != structs.DimensionNone {
		s.exhausted(v, short)
		return spot{}, false
	}
	if w := s.powerShort(row, n, after); w > 0 {
		s.unpowered(v, n, w)
		return spot{}, false
	}
	if len(s.scores) < scoresKept && len(s.spreads) == 0 {
		s.scores = append(s.scores, s.score(row, &s.cells[0]))
	}
	s.w.Set(row, after)
	s.took(row, v, n)
	return spot{row, n, h}, true
}

// survey counts the nodes for the report of a group whose wants are pinned, without rating them.
func (s *scan) survey() {
	s.surveyed = true
	for _, c := range s.w.View.Chunks {
		for i := range c.IDs {
			v := s.classVerdict(&c.Classes[c.Class[i]])
			if v.outside {
				continue
			}
			v.inPool++
			switch {
			case v.far:
			case !c.Ready[i]:
				s.notReady(c.Nodes[i])
			default:
				v.available++
				s.looked++
				if v.refused > 0 {
					v.filtered++
					s.refusals[v.refused-1].Nodes++
				}
			}
		}
	}
}

func (s *scan) notReady(n *structs.Node) {
	state, cure := string(n.Status), structs.EventNodeJoined
	if n.Status == structs.NodeReady {
		state, cure = "ineligible", structs.EventNodeEligible
		if n.Drain != nil {
			state = "draining"
		}
	}
	s.refuse(match.Refused(structs.ReasonNodeIneligible, structs.Obstacle{Dimension: structs.DimensionNodeState, Subject: state}, cure))
}
