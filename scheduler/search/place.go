package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Placement is a place that was found.
type Placement struct {
	Row  int
	Node *structs.Node
	Held *model.Held
}

// Place finds the best node for one more allocation and debits it there. avoid lists rows that are taken only when no
// other row is as good; prefer is a row to take if at all possible, or -1.
func (s *Search) Place(id structs.AllocID, avoid []int, prefer int) (Placement, bool) {
	if !s.built {
		s.build()
	}
	if prefer >= 0 {
		if sp, ok := s.PlaceOn(prefer, id, nil); ok {
			return sp, true
		}
	}
	var aside []candidate // of avoided rows
	var asideCells []int32
	defer func() {
		for i, c := range aside {
			s.push(asideCells[i], c)
		}
	}()
	penalty := max(s.weights.Load, DefaultWeights.Load) * model.Micro
	for {
		// The best of the avoided ones competes with its penalty.
		bestAside := -1
		for i := range aside {
			if bestAside < 0 || s.better(aside[i], aside[bestAside]) {
				bestAside = i
			}
		}
		if len(s.turn) == 0 {
			if bestAside < 0 {
				s.unplaced++
				return Placement{}, false
			}
			c, at := aside[bestAside], asideCells[bestAside]
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			if sp, ok := s.PlaceOn(int(c.row), id, nil); ok {
				return sp, true
			}
			_ = at
			continue
		}
		if s.peers != nil && s.peers.stale {
			s.rerate()
		}
		at := s.turn[0]
		x := &s.cells[at]
		c := x.heap[0]
		if slices.Contains(avoid, int(c.row)) && !slices.ContainsFunc(aside, func(o candidate) bool { return o.row == c.row }) {
			aside, asideCells = append(aside, s.pop(at)), append(asideCells, at)
			continue
		}
		if bestAside >= 0 && aside[bestAside].base+s.cells[asideCells[bestAside]].bonus-penalty > c.base+x.bonus {
			if sp, ok := s.PlaceOn(int(aside[bestAside].row), id, nil); ok {
				aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
				return sp, true
			}
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			continue
		}
		row := int(c.row)
		ch, i := s.w.View.At(row)
		n := ch.Nodes[i]
		v := s.ClassVerdict(&ch.Classes[ch.Class[i]])
		if why, bad := s.Indistinct(row, v, n); bad {
			s.parked = append(s.parked, s.pop(at))
			if !slices.ContainsFunc(s.parked[:len(s.parked)-1], func(o candidate) bool { return o.row == c.row }) {
				v.filtered++
				s.refuse(why)
			}
			continue
		}
		o := s.w.Get(row)
		base := s.rate(ch, i, row, v, &o, false)
		if base >= 0 && base != c.base {
			s.again(at, base) // the node changed since it was rated
			continue
		}
		if base == rateRefused {
			s.pop(at)
			continue
		}
		h, after, short := s.equip(ch, i, row, v, o, id, base)
		if short.Dim != structs.DimensionNone {
			s.pop(at)
			s.exhausted(v, short)
			continue
		}
		if w := s.PowerShort(row, n, after); w > 0 {
			s.pop(at)
			s.unpowered(v, n, w)
			continue
		}
		if s.scores == nil {
			s.remember()
		}
		s.w.Set(row, after)
		s.took(row, v, n)
		// Only the node just used is rated again.
		base = s.rate(ch, i, row, v, &after, false)
		if base < 0 {
			s.pop(at)
			s.exhausted(v, s.why)
		} else {
			s.again(at, base)
		}
		return Placement{row, n, h}, true
	}
}

// took counts a placement of this group on a row in everything but the heap.
func (s *Search) took(row int, v *Verdict, n *structs.Node) {
	s.peersTook(row)
	if s.onRow == nil {
		s.onRow = s.w.Column()
	}
	s.onRow[row]++
	if s.jobRow != nil {
		s.jobRow[row]++
	}
	for i := range s.Ask.Distinct {
		s.props[i].have[s.propValue(i, v, n)]++
	}
	if len(s.spreads) > 0 {
		s.spreadTook(s.spreadValues(v, n), 1)
	}
}

func (s *Search) propValue(i int, v *Verdict, n *structs.Node) int32 {
	if i < len(v.props) && v.props[i] >= 0 {
		return v.props[i]
	}
	return s.props[i].value(match.Resolve(s.Ask.Distinct[i].Target, n))
}

// Indistinct returns the refusal if a distinct_hosts or distinct_property constraint forbids one more allocation on a
// node.
func (s *Search) Indistinct(row int, v *Verdict, n *structs.Node) (match.Refusal, bool) {
	if s.jobRow != nil && s.jobRow[row] > 0 {
		return match.Cannot(structs.DimensionConstraint, structs.OperandDistinctHosts, "", structs.EventAllocStopped), true
	}
	if s.peers != nil {
		if why, bad := s.peers.refusesSelf(row); bad {
			return why, true
		}
	}
	for i := range s.Ask.Distinct {
		val := s.propValue(i, v, n)
		if val == 0 || s.props[i].have[val] >= s.Ask.Distinct[i].Limit {
			return s.Ask.Distinct[i].Cond.Refusal(structs.EventAllocStopped), true
		}
	}
	return match.Refusal{}, false
}

// PlaceOn places on one given node; yields lists allocations there that the new one will wait for.
func (s *Search) PlaceOn(row int, id structs.AllocID, yields []structs.AllocID) (Placement, bool) {
	c, i := s.w.View.At(row)
	n := c.Nodes[i]
	v := s.ClassVerdict(&c.Classes[c.Class[i]])
	if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] || s.Elsewhere(row) || s.Banned(n.ID) {
		return Placement{}, false
	}
	for k := range s.Ask.PerNode {
		if !s.Ask.PerNode[k].Holds(n) {
			return Placement{}, false
		}
	}
	if _, bad := s.Indistinct(row, v, n); bad {
		return Placement{}, false
	}
	if _, bad := s.peersRefuse(row); bad {
		return Placement{}, false
	}
	o := s.w.Get(row)
	seen := o
	if len(yields) == 0 { // an allocation that takes over another's place takes nothing that is reserved
		var short match.ShortageOf
		if seen, short = s.withReserved(c, i, row, o); short.Dim != structs.DimensionNone {
			return Placement{}, false
		}
	}
	s.Choose(c, i, v, &seen)
	h, short := s.Ask.Equip(n, seen, v.Choices, id, yields, &s.Picker)
	if short.Dim != structs.DimensionNone {
		return Placement{}, false
	}
	h.Work = s.Work
	after, x := model.Fits(n, c.Total[i], c.MHz[i], o, h)
	if x.Dim != structs.DimensionNone || s.PowerShort(row, n, after) > 0 {
		return Placement{}, false
	}
	s.w.Set(row, after)
	s.took(row, v, n)
	s.PushRow(row)
	return Placement{row, n, h}, true
}

// equip gives an allocation what it asks for on a node that was rated, and checks that all of it fits.
func (s *Search) equip(c *model.Chunk, i, row int, v *Verdict, o model.Occupancy, id structs.AllocID, base int64) (*model.Held, model.Occupancy, match.ShortageOf) {
	if base == rateShort {
		return nil, o, s.why
	}
	n := c.Nodes[i]
	seen, short := s.withReserved(c, i, row, o)
	if short.Dim != structs.DimensionNone {
		return nil, o, short
	}
	s.Choose(c, i, v, &seen)
	h, short := s.Ask.Equip(n, seen, v.Choices, id, nil, &s.Picker)
	if short.Dim != structs.DimensionNone {
		if seen.Hold != o.Hold {
			s.Choose(c, i, v, &o)
			if _, alone := s.Ask.Equip(n, o, v.Choices, id, nil, &s.Picker); alone.Dim == structs.DimensionNone {
				short.ReservedFor(s.Reserved.reservedFor(row))
			}
		}
		return nil, o, short
	}
	h.Work = s.Work
	after, x := model.Fits(n, c.Total[i], c.MHz[i], o, h)
	return h, after, match.ShortageOf{Shortage: x}
}

// ExhaustedAll reports whether no candidate is left.
func (s *Search) ExhaustedAll() bool { return s.built && len(s.turn) == 0 && len(s.parked) == 0 }

// peersTook counts a placement of the search itself, which changes nothing about others.
func (s *Search) peersTook(row int) {
	if s.peers == nil {
		return
	}
	s.peers.took(row, 1)
	if s.peers.known {
		s.peers.stamp = s.w.Stamp
	}
}

// rerate rates all candidates again, because the last placement changed the scores of others.
func (s *Search) rerate() {
	s.peers.stale = false
	for k := range s.cells {
		x := &s.cells[k]
		for i := range x.heap {
			row := int(x.heap[i].row)
			c, at := s.w.View.At(row)
			o := s.w.Get(row)
			if base := s.rate(c, at, row, s.ClassVerdict(&c.Classes[c.Class[at]]), &o, false); base >= 0 {
				x.heap[i].base = base
			}
		}
		s.heapify(x.heap)
	}
	s.rebonus()
}
