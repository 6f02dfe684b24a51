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
	if at := h.AtLimit(now); at > 0 && !h.Ending {
		return at
	}
	if at := h.Ends(now); at > 0 {
		return at
	}
	return Never
}

// lateGrace is how long work that outlives its prediction is expected to end at any moment. What waits for it keeps its
// reservation meanwhile: a prediction that is wrong by a second must not let others pass.
const lateGrace = time.Minute

// lateSteps are by how much a prediction that turned out too short is corrected after the grace, each from where the
// last one ended (Tsafrir, Etsion, Feitelson, "Backfilling using system-generated predictions rather than user runtime
// estimates", 2007).
//
// Naive: count on the limit from then on. That moves reservations away by hours for work that ends in minutes, and
// work that fits into these hours passes what was reserved.
var lateSteps = [...]time.Duration{5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 20 * time.Hour, 50 * time.Hour, 100 * time.Hour}

// Corrected returns when work that was predicted to end at a time is expected to end, as seen at now; Never when all
// corrections are used up.
func Corrected(at, now structs.LogTime) structs.LogTime {
	if at >= now {
		return at
	}
	if at = at.Add(lateGrace); at >= now {
		return now
	}
	for _, step := range lateSteps {
		if at = at.Add(step); at >= now {
			return at
		}
	}
	return Never
}

// Ends returns when an allocation is expected to end, as seen at now; 0 for never. A prediction counts as it is until it
// has passed, even beyond the limit. Then it is corrected in steps, up to the limit.
func (h *HeldWork) Ends(now structs.LogTime) structs.LogTime {
	if h.Ending {
		return now
	}
	at := Never
	if h.Expect > 0 {
		predicted := h.begunBy(now).Add(h.Expect)
		if at = Corrected(predicted, now); at == predicted {
			return at
		}
	}
	if limit := h.AtLimit(now); limit > 0 {
		return min(at, limit)
	}
	if at == Never {
		return 0
	}
	return at
}

// AtLimit returns when an allocation reaches its limit, as seen at now; 0 for never.
func (h *HeldWork) AtLimit(now structs.LogTime) structs.LogTime {
	if h.Job == nil {
		return 0
	}
	if g := h.Job.Group(h.Group); g != nil {
		if limit := h.Job.RunLimit(g); limit > 0 {
			return max(now, h.begunBy(now).Add(limit))
		}
	}
	return 0
}

// begunBy returns when the work would have begun if it had never been frozen.
func (h *HeldWork) begunBy(now structs.LogTime) structs.LogTime {
	if h.Frozen == 0 {
		return h.Began
	}
	return h.Began.Add(max(0, now.Sub(max(h.Frozen, h.Began))))
}
