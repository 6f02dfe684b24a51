package scheduler

import "github.com/muster-sched/muster/structs"

// Pruner is a Line that can leave out many at once. What is refused without being looked at stays refused for the rest
// of the pass, as room only becomes less; the line need not put it in order.
type Pruner interface {
	Line
	// Prune takes out those still to come for which vain is true.
	Prune(noFit func(i int) bool)
}

// asGiven is the Line of an Input that has none: Pending in its order.
type asGiven struct{ at, n int }

func (l *asGiven) Next() int {
	if l.at == l.n {
		return -1
	}
	l.at++
	return l.at - 1
}

func (l *asGiven) Placed(int, structs.Amount) {}

// placedAmount is what the decision has placed, less what it replaces.
func (d *decision) placedAmount() structs.Amount {
	var sum structs.Amount
	var bill *structs.Billing
	if len(d.placed) > 0 {
		bill = d.in.Queues.Billing(d.load.QueueName())
	}
	for i := range d.placed {
		pl := &d.placed[i]
		sum = sum.Add(pl.at.Held.Amount())
		if bill != nil {
			sum.Billed += bill.Of(pl.at.Held.Alloc())
		}
		if pl.want.Prev != nil && structs.Holds(pl.want.Prev) {
			sum = sum.Sub(structs.AmountOf(pl.want.Prev))
			sum.Billed -= bill.Of(pl.want.Prev)
		}
	}
	return sum
}
