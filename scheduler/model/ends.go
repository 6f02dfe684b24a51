package model

import (
	"math"
	"time"

	"github.com/muster-sched/muster/structs"
)

const Never = structs.LogTime(math.MaxInt64)

// Predicted is when what is held will be given back as far as promises count on it: by its prediction or limit. That
// something was told to stop says nothing about when; and a blocked workload is not asked anew at that moment, so that
// with it the answer would depend on who was asked when.
func (h *HeldWork) Predicted(now structs.LogTime) structs.LogTime {
	if !h.Ending {
		return h.Ends(now)
	}
	x := *h
	x.Ending = false
	return x.Ends(now)
}

// Guess is an end of batch work of which nothing is known: it goes on for as long as it has run. 0 for what may run for
// ever. A promise to what has waited beyond its queue's bound counts on it, for without any promise its nodes would never
// come to be free together. Others never do: a promise keeps work away whose end nobody knows, too.
func (h *HeldWork) Guess(now structs.LogTime) structs.LogTime {
	if h.Job == nil || h.Job.Type != structs.JobBatch {
		return 0
	}
	return now.Add(max(now.Sub(h.begunBy(now)), time.Minute))
}

// Latest is when work holds no more at the latest: by its limit, which an operator's window counts on, since it is kept; by
// its prediction where it has none.
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

// Ends is when an allocation is expected to hold no more, as far as a decision at now can tell; 0 for never. A prediction
// that turned out too short is corrected to the limit.
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

// begunBy is when the work would have begun, had it never stood still.
func (h *HeldWork) begunBy(now structs.LogTime) structs.LogTime {
	if h.Frozen == 0 {
		return h.Began
	}
	return h.Began.Add(max(0, now.Sub(max(h.Frozen, h.Began))))
}
