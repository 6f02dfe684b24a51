package model

import (
	"math"
	"time"

	"github.com/muster-sched/muster/structs"
)

const Never = structs.LogTime(math.MaxInt64)

// Predicted returns when the resources are expected to be free, by prediction or limit; 0 for never. Reservations count
// on it. It ignores that the allocation was asked to stop, because that does not say when it ends; and a blocked
// workload is not decided again at that moment, so the answer would depend on which workload was decided when.
func (h *HeldWork) Predicted(now structs.LogTime) structs.LogTime {
	if !h.Ending {
		return h.Ends(now)
	}
	x := *h
	x.Ending = false
	return x.Ends(now)
}

// Guess returns an end for batch work without a prediction or limit: it runs for as long again as it has run so far. 0
// for work that may run for ever. Only the reservation of a workload that has waited beyond its queue's bound counts on
// it; without it, such a workload might never get a reservation, and its nodes would never be free at the same time.
// Other reservations do not count on it, because a reservation also keeps away work of unknown length.
func (h *HeldWork) Guess(now structs.LogTime) structs.LogTime {
	if h.Job == nil || h.Job.Type != structs.JobBatch {
		return 0
	}
	return now.Add(max(now.Sub(h.begunBy(now)), time.Minute))
}

// Latest returns when work has ended at the latest: at its limit, which is enforced, so an operator's window can rely
// on it; without a limit, at its prediction.
func (h *HeldWork) Latest(now structs.LogTime) structs.LogTime {
	x := *h
	if h.Job != nil {
		if g := h.Job.Group(h.Group); g != nil && h.Job.RunLimit(g) > 0 {
			x.Expect = 0
		}
	}
	if at := x.Ends(now); at > 0 {
		return at
	}
	return Never
}

// Ends returns when an allocation is expected to end, as seen at now; 0 for never. A prediction that turned out too
// short is replaced by the limit.
func (h *HeldWork) Ends(now structs.LogTime) structs.LogTime {
	if h.Ending {
		return now
	}
	began := h.begunBy(now)
	if h.Expect > 0 {
		if at := began.Add(h.Expect); at >= now {
			return at
		}
	}
	if h.Job == nil {
		return 0
	}
	g := h.Job.Group(h.Group)
	if g == nil {
		return 0
	}
	limit := h.Job.RunLimit(g)
	if limit <= 0 {
		return 0
	}
	return max(now, began.Add(limit))
}

// begunBy returns when the work would have begun if it had never been frozen.
func (h *HeldWork) begunBy(now structs.LogTime) structs.LogTime {
	if h.Frozen == 0 {
		return h.Began
	}
	return h.Began.Add(max(0, now.Sub(max(h.Frozen, h.Began))))
}
