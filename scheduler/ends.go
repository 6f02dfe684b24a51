package scheduler

import (
	"math"
	"time"

	"github.com/muster-sched/muster/structs"
)

const never = structs.LogTime(math.MaxInt64)

// foreseen is when what is held will be given back as far as promises count on it: by its prediction or limit. That
// something was told to stop says nothing about when; and a blocked workload is not asked anew at that moment, so that
// with it the answer would depend on who was asked when.
func (h *heldWork) foreseen(now structs.LogTime) structs.LogTime {
	if !h.ending {
		return h.ends(now)
	}
	x := *h
	x.ending = false
	return x.ends(now)
}

// guess is an end of batch work of which nothing is known: it goes on for as long as it has run. 0 for what may run for
// ever. A promise to what has waited beyond its queue's bound counts on it, for without any promise its nodes would never
// come to be free together. Others never do: a promise keeps work away whose end nobody knows, too.
func (h *heldWork) guess(now structs.LogTime) structs.LogTime {
	if h.job == nil || h.job.Type != structs.JobBatch {
		return 0
	}
	return now.Add(max(now.Sub(h.begunBy(now)), time.Minute))
}

// latest is when work holds no more at the latest: by its limit, which an operator's window counts on, since it is kept; by
// its prediction where it has none.
func (h *heldWork) latest(now structs.LogTime) structs.LogTime {
	x := *h
	if h.job != nil {
		if g := h.job.Group(h.group); g != nil && h.job.RunLimit(g) > 0 {
			x.expect = 0
		}
	}
	if at := x.ends(now); at > 0 {
		return at
	}
	return never
}

// ends is when an allocation is expected to hold no more, as far as a decision at now can tell; 0 for never. A prediction
// that turned out too short is corrected to the limit.
func (h *heldWork) ends(now structs.LogTime) structs.LogTime {
	if h.ending {
		return now
	}
	began := h.begunBy(now)
	if h.expect > 0 {
		if at := began.Add(h.expect); at >= now {
			return at
		}
	}
	if h.job == nil {
		return 0
	}
	g := h.job.Group(h.group)
	if g == nil {
		return 0
	}
	limit := h.job.RunLimit(g)
	if limit <= 0 {
		return 0
	}
	return max(now, began.Add(limit))
}

// begunBy is when the work would have begun, had it never stood still.
func (h *heldWork) begunBy(now structs.LogTime) structs.LogTime {
	if h.frozen == 0 {
		return h.began
	}
	return h.began.Add(max(0, now.Sub(max(h.frozen, h.began))))
}
