package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
)

// valueTable numbers the values of an attribute in the order they are met. Value 0 is "absent".
type valueTable struct {
	number map[string]int32
	names  []string
}

func newValueTable() *valueTable {
	return &valueTable{number: make(map[string]int32), names: []string{""}}
}

func (t *valueTable) value(text string, found bool) int32 {
	if !found {
		return 0
	}
	if n, ok := t.number[text]; ok {
		return n
	}
	n := int32(len(t.names))
	t.number[text] = n
	t.names = append(t.names, text)
	return n
}

// spreadState is the state of one spread: how many allocations of the group each value has, against its share.
//
// The level of a value is what it would have after one more allocation, divided by its share. The value with the lowest
// level is next (the method of highest averages). The bonus of a value decreases with how many allocations it would be
// ahead of that one: 1, 1/2, 1/3 ...
type spreadState struct {
	*valueTable
	ask    *match.SpreadAsk
	have   []int64
	share  []int64 // millionths
	cells  [][]int32
	open   []int32 // per value: cells that still have candidates
	min    int64   // lowest level of the open values
	atMin  int     // open values with that level
	isOpen bool
}

func newSpreadState(a *match.SpreadAsk) *spreadState {
	return &spreadState{valueTable: newValueTable(), ask: a}
}

// grow makes room for new values and sets their share.
func (s *spreadState) grow() {
	for v := len(s.have); v < len(s.names); v++ {
		share := int64(0)
		switch {
		case v == 0:
		case len(s.ask.Targets) == 0:
			share = model.Micro
		default:
			share = s.targetShare(s.names[v])
		}
		s.have = append(s.have, 0)
		s.share = append(s.share, share)
		s.cells = append(s.cells, nil)
		s.open = append(s.open, 0)
	}
}

// targetShare returns the wanted share of a value: its target, or for "*" and values without a target what the targets
// leave over.
func (s *spreadState) targetShare(name string) int64 {
	var sum int64
	for _, t := range s.ask.Targets {
		if t.Value == name {
			return t.Percent * (model.Micro / 100)
		}
		sum += t.Percent
	}
	for _, t := range s.ask.Targets {
		if t.Value == "*" {
			return t.Percent * (model.Micro / 100)
		}
	}
	return max(0, 100-sum) * (model.Micro / 100)
}

func (s *spreadState) level(v int32) int64 {
	if s.share[v] == 0 {
		return -1
	}
	return (s.have[v] + 1) * (1000 * model.Micro) / s.share[v]
}

// lowest recomputes the lowest level and reports whether it changed.
func (s *spreadState) lowest() bool {
	was, had := s.min, s.isOpen
	s.isOpen, s.atMin = false, 0
	for v := range s.have {
		if s.open[v] == 0 || s.share[v] == 0 {
			continue
		}
		switch l := s.level(int32(v)); {
		case !s.isOpen || l < s.min:
			s.min, s.atMin, s.isOpen = l, 1, true
		case l == s.min:
			s.atMin++
		}
	}
	return was != s.min || had != s.isOpen
}

// joined records that a value has candidates now; it reports whether the lowest level moved.
func (s *spreadState) joined(v int32) bool {
	l := s.level(v)
	switch {
	case l < 0:
	case !s.isOpen || l < s.min:
		s.min, s.atMin, s.isOpen = l, 1, true
		return true
	case l == s.min:
		s.atMin++
	}
	return false
}

// left records that a value has no candidates any more; it reports whether the lowest level moved.
func (s *spreadState) left(v int32) bool {
	switch l := s.level(v); {
	case l < 0 || l > s.min:
		return false
	case s.atMin > 1:
		s.atMin--
		return false
	}
	return s.lowest()
}

// bonus returns the term of a value, in millionths.
func (s *spreadState) bonus(v int32) int64 {
	if s.share[v] == 0 || !s.isOpen {
		return 0
	}
	ahead := (s.have[v]+1)*model.Micro - s.min*s.share[v]/1000
	return model.Micro * model.Micro / (model.Micro + max(ahead, 0))
}

// took counts one more allocation on a value, or n fewer if n is negative. It reports whether the lowest level moved,
// in which case every bonus has changed.
func (s *spreadState) took(v int32, n int64) bool {
	before := s.level(v)
	s.have[v] += n
	if s.share[v] == 0 || s.open[v] == 0 {
		return false
	}
	if n < 0 || before == s.min {
		if before == s.min && n > 0 && s.atMin > 1 {
			s.atMin--
			return false
		}
		return s.lowest()
	}
	return false
}

// candidate is a node that the group fits on, with its score without the spread term.
type candidate struct {
	base int64
	row  int32
}

// cell is the nodes with equal spread values. They share the spread term, so the best of a cell is the best by base.
type cell struct {
	values []int32 // per spread
	heap   []candidate
	bonus  int64 // weighted
	pos    int32 // in Search.turn; -1 when empty
}

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
