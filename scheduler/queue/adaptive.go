package queue

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// Adaptive is the order of a cluster without a configured order. Within a priority, work is ordered by its submit time,
// delayed by what it costs others to let it go first:
//
//	submitted + turnover x log2(cost x sqrt(size))
//
// cost is how long the work will run, divided by what a second of waiting costs it (predict.Cost): by Smith's rule the
// mean slowdown is lowest when the cheapest goes first. turnover is the mean time until what is held now becomes free:
// it is the natural unit of waiting, so that the order means the same on a cluster of minutes and on one of weeks. So
// twice the cost is worth one turnover of waiting and no more: work submitted late enough comes later, and nothing
// starves. A key does not change while the work waits, except for what is learned meanwhile.
//
// By Smith's rule alone, the size would count in full. But narrow work finds gaps that wide work does not, in any
// order; with the square root, wide work is as far behind in the line as it would be ahead without it.
//
// Naive: the cheapest first, and work that has waited longer than a bound before all. Under load everything wide is
// beyond any bound then, and the line is first come, first served, just when it matters: on the logs of parallel
// machines the mean slowdown is twice as high.
type Adaptive struct{}

// Name is "adaptive".
func (Adaptive) Name() structs.Order { return structs.OrderAdaptive }

// KnowsRunTimes marks an order that prefers short work, and work that has waited for long, by itself: backfilling does
// not sort again, and the bound on waiting puts no workload in front.
func (Adaptive) KnowsRunTimes() {}

// Key is the priority, high first, then the time described above.
func (a Adaptive) Key(w *contend.Workload, at *Scene) Key {
	return Key{-int64(w.Priority()), int64(submitTime(w)) + int64(a.delay(w, at))}
}

// Terms are the priority and, in seconds, the wait and the delay of the work.
func (a Adaptive) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "priority", Micro: micro * int64(w.Priority())}, waitTerm(w, at),
		{Name: "delay_seconds", Micro: int64(a.delay(w, at) / time.Microsecond)}}
}

// delay returns by how much the work is delayed. Work without a known cost is assumed to run for as long as what is
// held now will be held.
func (a Adaptive) delay(w *contend.Workload, at *Scene) time.Duration {
	if at.Turnover <= 0 {
		return 0
	}
	cost := w.Cost
	if cost == 0 {
		ms := at.Turnover.Milliseconds()
		if d := at.Expect(w); d > 0 {
			ms = d.Milliseconds()
		}
		cost = predict.CostOf(max(1, ms))
	}
	asks := w.Asks()
	size, _ := at.Dominant(asks)
	if size == 0 {
		size = max(asks.GPUMilli, asks.CPU)
	}
	return at.Turnover / predict.Doubling * time.Duration(cost+predict.Log(size)/2)
}

func submitTime(w *contend.Workload) structs.LogTime {
	switch {
	case w.Queue != nil:
		return w.Queue.SubmitTime
	case w.Job != nil:
		return w.Job.SubmitTime
	}
	return 0
}
