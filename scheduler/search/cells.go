package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

func (s *Search) cellOf(values []int32) int32 {
	var key [16]byte
	for i, v := range values {
		k := i % 4 * 4
		// More than four spreads share key bytes; a collision would only merge cells, so keep them apart below.
		key[k] ^= byte(v)
		key[k+1] ^= byte(v >> 8)
		key[k+2] ^= byte(v >> 16)
		key[k+3] ^= byte(v >> 24)
	}
	for _, c := range s.cellIndex[key] {
		if slices.Equal(s.cells[c].values, values) {
			return c
		}
	}
	at := int32(len(s.cells))
	s.cells = append(s.cells, cell{values: slices.Clone(values), pos: -1})
	s.cellIndex[key] = append(s.cellIndex[key], at)
	for i, v := range values {
		s.spreads[i].grow()
		s.spreads[i].cells[v] = append(s.spreads[i].cells[v], at)
	}
	return at
}

func (s *Search) spreadValues(v *Verdict, n *structs.Node) []int32 {
	out := make([]int32, len(s.spreads))
	for i, sp := range s.spreads {
		if i < len(v.spread) && v.spread[i] >= 0 {
			out[i] = v.spread[i]
		} else {
			out[i] = sp.value(match.Resolve(s.Ask.Spreads[i].Target, n))
		}
		sp.grow()
	}
	return out
}

// better orders candidates: the higher base first, then the node that comes first.
func (s *Search) better(a, b candidate) bool {
	if a.base != b.base {
		return a.base > b.base
	}
	return s.turnOf(a.row) < s.turnOf(b.row)
}

// turnOf returns a node's place in the order of ties.
func (s *Search) turnOf(row int32) int32 {
	if row < s.first {
		return row + int32(s.w.View.Rows)
	}
	return row
}

func (s *Search) siftDown(h []candidate, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && s.better(h[c+1], h[c]) {
			c++
		}
		if !s.better(h[c], h[i]) {
			return
		}
		h[c], h[i] = h[i], h[c]
		i = c
	}
}

func (s *Search) heapify(h []candidate) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		s.siftDown(h, i)
	}
}

func (s *Search) push(at int32, c candidate) {
	x := &s.cells[at]
	x.heap = append(x.heap, c)
	h := x.heap
	for i := len(h) - 1; i > 0; {
		p := (i - 1) / 2
		if !s.better(h[i], h[p]) {
			break
		}
		h[i], h[p] = h[p], h[i]
		i = p
	}
	if len(h) == 1 {
		s.opened(at)
		return
	}
	s.fixTurn(int(x.pos))
}

func (s *Search) pop(at int32) candidate {
	x := &s.cells[at]
	top := x.heap[0]
	if next, ok := s.afterTwin(top); ok {
		x.heap[0], top.set = next, 0
		s.siftDown(x.heap, 0)
		s.fixTurn(int(x.pos))
		return top
	}
	top.set = 0
	last := len(x.heap) - 1
	x.heap[0] = x.heap[last]
	x.heap = x.heap[:last]
	if last == 0 {
		s.closed(at)
		return top
	}
	s.siftDown(x.heap, 0)
	s.fixTurn(int(x.pos))
	return top
}

// again gives the best candidate of a cell another score. From now on it stands for itself.
func (s *Search) again(at int32, base int64) {
	x := &s.cells[at]
	row := x.heap[0].row
	next, ok := s.afterTwin(x.heap[0])
	if !ok {
		next = candidate{base: base, row: row}
	}
	x.heap[0] = next
	s.siftDown(x.heap, 0)
	s.fixTurn(int(x.pos))
	if ok {
		s.push(at, candidate{base: base, row: row})
	}
}

// opened puts a cell that got its first candidate into the order of cells.
func (s *Search) opened(at int32) {
	x := &s.cells[at]
	x.pos = int32(len(s.turn))
	s.turn = append(s.turn, at)
	moved := false
	for i, v := range x.values {
		sp := s.spreads[i]
		sp.open[v]++
		if sp.open[v] == 1 && sp.joined(v) {
			moved = true
		}
	}
	if moved {
		s.rebonus()
		return
	}
	x.bonus = s.cellBonus(x)
	s.fixTurn(int(x.pos))
}

// closed removes a cell without candidates from the order of cells.
func (s *Search) closed(at int32) {
	x := &s.cells[at]
	i, last := int(x.pos), len(s.turn)-1
	s.swapTurn(i, last)
	s.turn = s.turn[:last]
	x.pos = -1
	if i < last {
		s.fixTurn(i)
	}
	moved := false
	for k, v := range x.values {
		sp := s.spreads[k]
		sp.open[v]--
		if sp.open[v] == 0 && sp.left(v) {
			moved = true
		}
	}
	if moved {
		s.rebonus()
	}
}

func (s *Search) cellBonus(x *cell) int64 {
	if s.spreadWeight == 0 {
		return 0
	}
	var sum int64
	for i, v := range x.values {
		sum += s.spreads[i].ask.Weight * s.spreads[i].bonus(v)
	}
	return s.weights.Spread * sum / s.spreadWeight
}

// rebonus recomputes the bonus of every cell and their order.
func (s *Search) rebonus() {
	for _, c := range s.turn {
		s.cells[c].bonus = s.cellBonus(&s.cells[c])
	}
	for i := len(s.turn)/2 - 1; i >= 0; i-- {
		s.downTurn(i)
	}
}

// spreadTook counts an allocation that came to (n = 1) or left (n = -1) these values.
func (s *Search) spreadTook(values []int32, n int64) {
	moved := false
	for i, v := range values {
		if s.spreads[i].took(v, n) {
			moved = true
		}
	}
	if moved {
		s.rebonus()
		return
	}
	for i, v := range values {
		for _, c := range s.spreads[i].cells[v] {
			x := &s.cells[c]
			if x.pos >= 0 {
				x.bonus = s.cellBonus(x)
				s.fixTurn(int(x.pos))
			}
		}
	}
}

// ahead orders cells by their best candidate, bonus included.
func (s *Search) ahead(a, b int32) bool {
	x, y := &s.cells[a], &s.cells[b]
	p, q := x.heap[0], y.heap[0]
	if p.base+x.bonus != q.base+y.bonus {
		return p.base+x.bonus > q.base+y.bonus
	}
	return s.turnOf(p.row) < s.turnOf(q.row)
}

func (s *Search) swapTurn(i, j int) {
	t := s.turn
	t[i], t[j] = t[j], t[i]
	s.cells[t[i]].pos, s.cells[t[j]].pos = int32(i), int32(j)
}

func (s *Search) downTurn(i int) {
	for {
		c := 2*i + 1
		if c >= len(s.turn) {
			return
		}
		if c+1 < len(s.turn) && s.ahead(s.turn[c+1], s.turn[c]) {
			c++
		}
		if !s.ahead(s.turn[c], s.turn[i]) {
			return
		}
		s.swapTurn(c, i)
		i = c
	}
}

func (s *Search) fixTurn(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !s.ahead(s.turn[i], s.turn[p]) {
			break
		}
		s.swapTurn(i, p)
		i = p
	}
	s.downTurn(i)
}
