package queue

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// waitBound is what a queue does with work that has waited for longer than its MaxWait. Lines and choosers ask the same
// one: such work comes first, the longest wait in front. Under an order that knows run times, which starves nothing
// among work of one priority, it only counts as of the highest priority that waits, unless the bound is configured.
type waitBound struct {
	after time.Duration
	lifts bool // counts as of the highest priority, instead of coming first
}

// boundOf returns the bound of a queue with all settings filled in. configured: its MaxWait is not the default.
func boundOf(q *structs.Queue, configured bool) waitBound {
	_, aware := Named(q.Order).(interface{ KnowsRunTimes() })
	return waitBound{after: q.MaxWait, lifts: aware && !configured}
}

// passed reports whether a workload has waited for longer than the bound, and since when it waits.
func (b waitBound) passed(w *contend.Workload, now structs.LogTime) (since structs.LogTime, late bool) {
	since = w.WaitingSince()
	return since, since > 0 && now.Sub(since) > b.after
}

// first reports whether a workload comes first, and since when it waits.
func (b waitBound) first(w *contend.Workload, now structs.LogTime) (since structs.LogTime, late bool) {
	since, late = b.passed(w, now)
	return since, late && !b.lifts
}

// lifted reports whether a workload counts as of the highest priority that waits, top.
func (b waitBound) lifted(w *contend.Workload, now structs.LogTime, top int) bool {
	if !b.lifts || w.Priority() >= top {
		return false
	}
	_, late := b.passed(w, now)
	return late
}
