package queue

import (
	"math"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// EDF is earliest deadline first. Work without a deadline comes after work with one, by priority and submission.
//
// A deadline that can no longer be met, because the expected run time is longer than the time left, loses its claim:
// the work comes after all work that can meet its deadline (before it, it would only make others late too), but before
// work without one.
type EDF struct{}

// Name is "edf".
func (EDF) Name() structs.Order { return structs.OrderEDF }

// Key orders by whether the deadline can be met, then by the deadline.
func (o EDF) Key(w *contend.Workload, at *Scene) Key {
	if w.Job == nil || w.Job.Deadline == 0 {
		return Key{2, math.MaxInt64, -int64(w.Priority())}
	}
	if o.slack(w, at) < 0 {
		return Key{1, int64(w.Job.Deadline), -int64(w.Priority())}
	}
	return Key{0, int64(w.Job.Deadline), -int64(w.Priority())}
}

// slack returns how many nanoseconds the workload may still wait without missing its deadline.
func (EDF) slack(w *contend.Workload, at *Scene) int64 {
	return int64(w.Job.Deadline.Sub(at.Now) - at.Expect(w))
}

// Terms are the slack in seconds, of work with a deadline, and the priority.
func (o EDF) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	prio := structs.ScoreTerm{Name: "priority", Micro: micro * int64(w.Priority())}
	if w.Job == nil || w.Job.Deadline == 0 {
		return []structs.ScoreTerm{prio, waitTerm(w, at)}
	}
	return []structs.ScoreTerm{{Name: "slack_seconds", Micro: o.slack(w, at) / 1000}, prio, waitTerm(w, at)}
}
