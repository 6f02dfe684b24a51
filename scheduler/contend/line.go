package contend

import (
	"github.com/muster-sched/muster/structs"
)

// Line orders the pending workloads of a pass. It sees what the pass has placed, so that orders by share can take
// turns. The lines of scheduler/queue are pure: equal inputs and results give an equal order.
type Line interface {
	// Next returns a position in the pending workloads, each at most once, or -1 at the end.
	Next() int
	// Placed reports what the pass has placed for the workload that got the turn: the one that Next returned, or another
	// one of its queue (Contests.Line). It is called before the next call of Next.
	Placed(i int, use structs.Amount)
}

// BlockedLine is a Line that learns, before Placed, that a part of a workload found no place.
type BlockedLine interface {
	Line
	Blocked(i int)
}

// NoteBlocked reports to a BlockedLine that a part of a workload found no place.
func NoteBlocked(l Line, i int) {
	if b, ok := l.(BlockedLine); ok {
		b.Blocked(i)
	}
}

// Pruner is a Line that can leave out many workloads at once. What is refused without being looked at stays refused for
// the rest of the pass, because placements only reduce the free capacity. The line need not sort it.
type Pruner interface {
	Line
	// Prune removes the workloads still to come for which noFit is true.
	Prune(noFit func(i int) bool)
}

// InOrder returns the line of n pending workloads in their given order.
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
