package structs

import "time"

// Suspension is the history of an allocation's suspensions. A suspended allocation is frozen: it keeps everything that
// it was granted and is charged for it, but its time limit does not run.
type Suspension struct {
	Since  LogTime       // 0: not suspended
	By     string        // the last user who suspended or resumed it
	Reason string        // of the current suspension, "" for none
	Total  time.Duration // of the suspensions that are over, since it started
}

// Suspended reports whether the allocation must be frozen.
func (a *Allocation) Suspended() bool { return a.Suspension != nil && a.Suspension.Since != 0 }

// SuspendReasonMax is the maximum length of a suspension's reason, in bytes.
const SuspendReasonMax = 256

// SuspendAttribute names the attribute of nodes whose driver can freeze tasks; its value is then "1".
func SuspendAttribute(driver string) string { return "driver." + driver + ".suspend" }

// SuspendedFor returns the total duration of the suspensions that are over.
func (a *Allocation) SuspendedFor() time.Duration {
	if a.Suspension == nil {
		return 0
	}
	return a.Suspension.Total
}

// Stood returns for how long the allocation was suspended, between its start and now.
func (a *Allocation) Stood(now LogTime) time.Duration {
	s := a.Suspension
	if s == nil {
		return 0
	}
	if s.Since == 0 || a.StartedAt == 0 {
		return s.Total
	}
	return s.Total + max(0, now.Sub(max(s.Since, a.StartedAt)))
}

// Began returns when the allocation would have started if it had never been suspended: its wall-clock limit counts from
// then. 0 before its start.
func (a *Allocation) Began(now LogTime) LogTime {
	if a.StartedAt == 0 {
		return 0
	}
	return a.StartedAt.Add(a.Stood(now))
}

// WorksSince returns since when the work of an allocation counts for decisions about what runs (its age, what it would lose,
// when it ends): since its tasks started, before that since it was placed, moved later by suspensions that are over. Once
// they have started, preparing the start (an image pull) is no work that could be lost; and tasks that never start do not keep
// an allocation young. A time before the placement is an error of the agent's clock.
func (a *Allocation) WorksSince() LogTime {
	return max(a.StartedAt, a.CreateTime).Add(a.SuspendedFor())
}

// Unsaved returns the GPU time, in GPU-seconds, that the allocation has worked since a checkpoint (see SavedAs), or since it
// started: what it loses if it ends now without saving. Suspended time is none. A share of a GPU counts as its share.
func (a *Allocation) Unsaved(saved *Saved, now LogTime) int64 {
	if a.StartedAt == 0 || a.ClientTerminal() {
		return 0
	}
	worked := now.Sub(a.Began(now)) // it cannot have worked longer since a checkpoint
	if saved != nil {
		until := now
		if a.Suspended() {
			until = min(now, a.Suspension.Since)
		}
		worked = min(worked, until.Sub(saved.Time))
	}
	return AmountOf(a).GPUMilli * int64(max(worked, 0)/time.Second) / 1000
}

// Ran returns for how long an ended allocation ran, without suspensions.
func (a *Allocation) Ran() time.Duration { return a.FinishedAt.Sub(a.Began(a.FinishedAt)) }

// Suspend returns the allocation suspended, or resumed if on is false.
func (a *Allocation) Suspend(on bool, by, reason string, now LogTime) *Allocation {
	n := *a
	if on {
		n.Suspension = &Suspension{Since: now, By: by, Reason: reason, Total: a.Stood(now)}
	} else {
		n.Suspension = &Suspension{By: by, Total: a.Stood(now)}
	}
	return &n
}

// Values of Allocation.Standing.
const (
	StandingAsked  = "suspending" // its agent has not reported it as frozen yet
	StandingStill  = "suspended"
	StandingResume = "resuming" // its agent has not reported it as running yet
)

// Standing returns the state of an allocation's suspension in a word; "" for one that runs normally, and for one that
// ends, which is resumed so that it can.
func (a *Allocation) Standing() string {
	switch {
	case a.Terminal():
		return ""
	case a.Suspended() && a.Frozen != 0:
		return StandingStill
	case a.Suspended():
		return StandingAsked
	case a.Frozen != 0:
		return StandingResume
	}
	return ""
}
