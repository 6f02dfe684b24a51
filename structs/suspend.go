package structs

import "time"

// Suspension is what is known of the times that an allocation was told to stand still in its place. It keeps all that it was
// granted meanwhile, and is charged for it; only the time that it may run does not pass.
type Suspension struct {
	Since  LogTime       // 0: it goes on
	By     string        // who said so last, of suspending and resuming
	Reason string        // of the suspension, "" for none
	Total  time.Duration // of those that are over, since it started
}

// Suspended reports whether the allocation is to stand still.
func (a *Allocation) Suspended() bool { return a.Suspension != nil && a.Suspension.Since != 0 }

// SuspendReasonMax is how many bytes the reason of a suspension may have.
const SuspendReasonMax = 256

// SuspendAttribute names the attribute of nodes whose driver can make tasks stand still; its value is then "1".
func SuspendAttribute(driver string) string { return "driver." + driver + ".suspend" }

// SuspendedFor is how long the suspensions of the allocation were that are over.
func (a *Allocation) SuspendedFor() time.Duration {
	if a.Suspension == nil {
		return 0
	}
	return a.Suspension.Total
}

// Stood is for how much of the time from its start up to now the allocation was to stand still.
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

// Began is when the allocation would have started, had it never stood still: its wall-clock limit counts from then. 0
// before it has started.
func (a *Allocation) Began(now LogTime) LogTime {
	if a.StartedAt == 0 {
		return 0
	}
	return a.StartedAt.Add(a.Stood(now))
}

// Ran is for how long an allocation that has ended ran, without the time that it stood still.
func (a *Allocation) Ran() time.Duration { return a.FinishedAt.Sub(a.Began(a.FinishedAt)) }

// Suspend is the allocation told to stand still, or to go on.
func (a *Allocation) Suspend(on bool, by, reason string, now LogTime) *Allocation {
	n := *a
	if on {
		n.Suspension = &Suspension{Since: now, By: by, Reason: reason, Total: a.Stood(now)}
	} else {
		n.Suspension = &Suspension{By: by, Total: a.Stood(now)}
	}
	return &n
}

// How far an allocation is with standing still (Allocation.Standing).
const (
	StandingAsked  = "suspending" // its agent has yet to say that it does
	StandingStill  = "suspended"
	StandingResume = "resuming" // its agent has yet to say that it goes on
)

// Standing tells in a word whether an allocation that runs stands still; "" for one that goes on as usual, and for one that
// ends, which is let go on so that it can.
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
