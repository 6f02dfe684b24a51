package search

import (
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
	set  int32 // 1 + the number of its twins, whose other candidates come after it; 0: it stands for itself
}

// cell is the nodes with equal spread values. They share the spread term, so the best of a cell is the best by base.
type cell struct {
	values []int32 // per spread
	heap   []candidate
	bonus  int64 // weighted
	pos    int32 // in Search.turn; -1 when empty
}
