package contend

import (
	"github.com/muster-sched/muster/structs"
)

// Line says which pending workload is decided next. It sees what the pass has placed, so that orders by share take
// turns. The ones of scheduler/queue are pure: equal inputs and answers give an equal line.
type Line interface {
	// Next gives a position in the pending workloads, each at most once, or -1 at the end.
	Next() int
	// Placed tells what the pass has placed for a workload that Next gave. It is called before Next is called again.
	Placed(i int, use structs.Amount)
}

// BlockedLine is a Line that is told, before Placed, that something of a workload found no place.
type BlockedLine interface {
	Line
	Blocked(i int)
}

// NoteBlocked tells a line that something of a workload found no place, if it wants to know.
func NoteBlocked(l Line, i int) {
	if b, ok := l.(BlockedLine); ok {
		b.Blocked(i)
	}
}

// Pruner is a Line that can leave out many workloads at once. What is refused without being looked at stays refused for
// the rest of the pass, as room only becomes less. The line need not put it in order.
type Pruner interface {
	Line
	// Prune takes out those still to come for which noFit is true.
	Prune(noFit func(i int) bool)
}

// InOrder gives n pending workloads in their order.
func InOrder(n int) Line { return &inOrder{n: n} }

type inOrder struct{ at, n int }

func (l *inOrder) Next() int {
	if l.at == l.n {
		return -1
	}
	l.at++
	return l.at - 1
}

func (l *inOrder) Placed(int, structs.Amount) {}
