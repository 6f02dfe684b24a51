package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// offer puts a node (again) among the candidates, if the group fits there.
func (s *scan) offer(row int) {
	if !s.built {
		return
	}
	c, i := s.w.View.At(row)
	v := s.classVerdict(&c.Classes[c.Class[i]])
	if v.outside || v.far || v.refused > 0 || !c.Ready[i] || s.elsewhere(row) || s.banned(c.IDs[i]) {
		return
	}
	o := s.w.Get(row)
	base := s.rate(c, i, row, v, &o, false)
	if base < 0 {
		return
	}
	at := v.cell
	if at < 0 {
		at = s.cellOf(s.spreadValues(v, c.Nodes[i]))
	}
	s.push(at, candidate{base, int32(row)})
}

// spot is a place found.
type spot struct {
	row  int
	node *structs.Node
	held *model.Held
}

// place finds the best node for one more allocation and debits it there. avoid are rows that should be taken only when
// nothing as good is left; prefer is a row to take if at all possible, or -1.
func (s *scan) place(id structs.AllocID, avoid []int, prefer int) (spot, bool) {
	if !s.built {
		s.build()
	}
	if prefer >= 0 {
		if sp, ok := s.placeOn(prefer, id, nil); ok {
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
				return spot{}, false
			}
			c, at := aside[bestAside], asideCells[bestAside]
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			if sp, ok := s.placeOn(int(c.row), id, nil); ok {
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
			if sp, ok := s.placeOn(int(aside[bestAside].row), id, nil); ok {
				aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
				return sp, true
			}
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			continue
		}
		row := int(c.row)
		ch, i := s.w.View.At(row)
		n := ch.Nodes[i]
		v := s.classVerdict(&ch.Classes[ch.Class[i]])
		if why, bad := s.indistinct(row, v, n); bad {
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
			x.heap[0].base = base // the node changed since it was rated
			s.siftDown(x.heap, 0)
			s.fixTurn(int(x.pos))
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
		if w := s.powerShort(row, n, after); w > 0 {
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
		x = &s.cells[at]
		if base < 0 {
			s.pop(at)
			s.exhausted(v, s.why)
		} else {
			x.heap[0].base = base
			s.siftDown(x.heap, 0)
			s.fixTurn(int(x.pos))
		}
		return spot{row, n, h}, true
	}
}

// took books a placement of this group on a row in everything but the heap.
func (s *scan) took(row int, v *verdict, n *structs.Node) {
	s.peersTook(row)
	if s.onRow == nil {
		s.onRow = s.w.Column()
	}
	s.onRow[row]++
	if s.jobRow != nil {
		s.jobRow[row]++
	}
	for i := range s.ask.Distinct {
		s.props[i].have[s.propValue(i, v, n)]++
	}
	if len(s.spreads) > 0 {
		s.spreadTook(s.spreadValues(v, n), 1)
	}
}

func (s *scan) propValue(i int, v *verdict, n *structs.Node) int32 {
	if i < len(v.props) && v.props[i] >= 0 {
		return v.props[i]
	}
	return s.props[i].value(match.Resolve(s.ask.Distinct[i].Target, n))
}

// indistinct tells whether a distinct_hosts or distinct_property constraint forbids one more allocation on a node.
func (s *scan) indistinct(row int, v *verdict, n *structs.Node) (match.Refusal, bool) {
	if s.jobRow != nil && s.jobRow[row] > 0 {
		return match.Cannot(structs.DimensionConstraint, structs.OperandDistinctHosts, "", structs.EventAllocStopped), true
	}
	if s.peers != nil {
		if why, bad := s.peers.refusesSelf(row); bad {
			return why, true
		}
	}
	for i := range s.ask.Distinct {
		val := s.propValue(i, v, n)
		if val == 0 || s.props[i].have[val] >= s.ask.Distinct[i].Limit {
			return s.ask.Distinct[i].Cond.Refusal(structs.EventAllocStopped), true
		}
	}
	return match.Refusal{}, false
}

// placeOn places on one given node; yields are allocations there that the new one will wait for.
func (s *scan) placeOn(row int, id structs.AllocID, yields []structs.AllocID) (spot, bool) {
	c, i := s.w.View.At(row)
	n := c.Nodes[i]
	v := s.classVerdict(&c.Classes[c.Class[i]])
	if v.outside || v.far || v.refused > 0 || !c.Ready[i] || s.elsewhere(row) || s.banned(n.ID) {
		return spot{}, false
	}
	for k := range s.ask.PerNode {
		if !s.ask.PerNode[k].Holds(n) {
			return spot{}, false
		}
	}
	if _, bad := s.indistinct(row, v, n); bad {
		return spot{}, false
	}
	if _, bad := s.peersRefuse(row); bad {
		return spot{}, false
	}
	o := s.w.Get(row)
	seen := o
	if len(yields) == 0 { // what takes over another's place takes nothing that is promised
		var short match.ShortageOf
		if seen, short = s.beside(c, i, row, o); short.Dim != structs.DimensionNone {
			return spot{}, false
		}
	}
	s.choose(c, i, v, &seen)
	h, short := s.ask.Equip(n, seen, v.choices, id, yields, &s.picker)
	if short.Dim != structs.DimensionNone {
		return spot{}, false
	}
	h.Work = s.work
	after, x := model.Fits(n, c.Total[i], c.MHz[i], o, h)
	if x.Dim != structs.DimensionNone || s.powerShort(row, n, after) > 0 {
		return spot{}, false
	}
	s.w.Set(row, after)
	s.took(row, v, n)
	s.offer(row)
	return spot{row, n, h}, true
}

// Equip gives an allocation what it asks for on a node that was rated, and checks that all of it fits.
func (s *scan) equip(c *model.Chunk, i, row int, v *verdict, o model.Occupancy, id structs.AllocID, base int64) (*model.Held, model.Occupancy, match.ShortageOf) {
	if base == rateShort {
		return nil, o, s.why
	}
	n := c.Nodes[i]
	seen, short := s.beside(c, i, row, o)
	if short.Dim != structs.DimensionNone {
		return nil, o, short
	}
	s.choose(c, i, v, &seen)
	h, short := s.ask.Equip(n, seen, v.choices, id, nil, &s.picker)
	if short.Dim != structs.DimensionNone {
		if seen.Hold != o.Hold {
			s.choose(c, i, v, &o)
			if _, alone := s.ask.Equip(n, o, v.choices, id, nil, &s.picker); alone.Dim == structs.DimensionNone {
				short.PromisedTo(s.books.promisee(row))
			}
		}
		return nil, o, short
	}
	h.Work = s.work
	after, x := model.Fits(n, c.Total[i], c.MHz[i], o, h)
	return h, after, match.ShortageOf{Shortage: x}
}

// exhaustedAll reports whether no candidate is left.
func (s *scan) exhaustedAll() bool { return s.built && len(s.turn) == 0 && len(s.parked) == 0 }
