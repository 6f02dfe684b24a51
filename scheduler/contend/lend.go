package contend

import (
	"github.com/muster-sched/muster/structs"
)

// Kept returns what keeps an amount of work that is not preemptible from the queue of a row: it would be taken from what
// other queues under the same parent are guaranteed, do not hold and do not lend (Queue.Lend). Preemptible work may
// borrow it, because it is reclaimed; a queue within its own guarantee borrows nothing. took is what the decision has
// placed, by row.
func (l *Limits) Kept(r structs.UseRow, took map[structs.UseRow]structs.Amount, add structs.Amount) *structs.Refusal {
	if _, ok := r.Path.Namespace(); ok || r.Path == structs.QueueRoot || !l.lends {
		return nil
	}
	parent := r.Path.Parent()
	free, ok := l.capacity(parent)
	if !ok {
		return nil
	}
	above := structs.UseRow{Path: parent}
	held, _ := l.Held(above)
	free = free.Sub(held).Sub(took[above]).Sub(add)
	own, _ := l.Held(r)
	own = own.Add(took[r]).Add(add)
	kept, most := structs.Amount{}, structs.Amount{}
	var owner structs.QueuePath // who is owed most GPUs
	for _, q := range l.queues.Queues {
		if q.Guarantee == nil || q.Lend == nil || q.Path == r.Path || q.Path.Parent() != parent {
			continue
		}
		has, _ := l.Held(structs.UseRow{Path: q.Path})
		owed := unlent(q).Sub(has)
		owed = structs.Amount{GPUMilli: max(owed.GPUMilli, 0), GPUMemoryMiB: max(owed.GPUMemoryMiB, 0), CPU: max(owed.CPU, 0), MemoryMiB: max(owed.MemoryMiB, 0)}
		if kept = kept.Add(owed); owner == "" || owed.GPUMilli > most.GPUMilli {
			owner, most = q.Path, owed
		}
	}
	mine := structs.Amount{}
	if q := l.queues.Queue(r.Path); q != nil && q.Guarantee != nil {
		mine = *q.Guarantee
	}
	adds, has, guarantee, frees := add.Parts(), own.Parts(), mine.Parts(), free.Parts()
	for i, k := range kept.Parts() {
		if over := k.Value - frees[i].Value; k.Value > 0 && over > 0 && adds[i].Value > 0 && has[i].Value > guarantee[i].Value {
			out := limitRefusal(QueueHolder(owner), "", k.Dimension, over)
			out.Code = structs.ReasonReservation
			return out
		}
	}
	return nil
}

// capacity returns what the children of a queue share: for the root the cluster, else what the queue is guaranteed. ok is
// false for a queue without a guarantee: its children have no claim on each other.
func (l *Limits) capacity(parent structs.QueuePath) (a structs.Amount, ok bool) {
	if parent == structs.QueueRoot {
		return l.queues.Total, true
	}
	if q := l.queues.Queue(parent); q != nil && q.Guarantee != nil {
		return *q.Guarantee, true
	}
	return a, false
}

// unlent returns what a queue with a guarantee lends only to preemptible work.
func unlent(q *structs.Queue) structs.Amount {
	left := func(guarantee, lend int64) int64 {
		if lend == structs.AmountNoLimit {
			return 0
		}
		return max(guarantee-lend, 0)
	}
	g := q.Guarantee
	return structs.Amount{GPUMilli: left(g.GPUMilli, q.Lend.GPUMilli), GPUMemoryMiB: left(g.GPUMemoryMiB, q.Lend.GPUMemoryMiB), CPU: left(g.CPU, q.Lend.CPU), MemoryMiB: left(g.MemoryMiB, q.Lend.MemoryMiB)}
}
