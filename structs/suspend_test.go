package structs

import (
	"testing"
	"time"
)

// TestSuspendedTime follows one allocation through two suspensions, the first of which began before it had started.
func TestSuspendedTime(t *testing.T) {
	sec := func(n int) LogTime { return LogTime(n) * LogTime(time.Second) }
	want := func(what string, a *Allocation, now int, stood time.Duration, began int) {
		t.Helper()
		if s, b := a.Stood(sec(now)), a.Began(sec(now)); s != stood*time.Second || b != sec(began) {
			t.Errorf("%s: at %d it stood still for %s and began at %d s; want %d s and %d", what, now, s, b/sec(1), stood, began)
		}
	}
	a := &Allocation{Client: ClientPending}
	want("never suspended", a, 50, 0, 0)
	a = a.Suspend(true, "op", "why", sec(5))
	want("not started", a, 9, 0, 0)
	if a.Standing() != StandingAsked || !a.Suspended() || a.Suspension.By != "op" || a.Suspension.Reason != "why" {
		t.Errorf("%+v is %q", a.Suspension, a.Standing())
	}
	a.StartedAt, a.Client, a.Frozen = sec(10), ClientRunning, sec(11)
	want("suspended before its start", a, 14, 4, 14)
	if a.Standing() != StandingStill {
		t.Errorf("it is %q", a.Standing())
	}
	a = a.Suspend(false, "op", "", sec(20))
	want("resumed", a, 25, 10, 20)
	if a.Standing() != StandingResume {
		t.Errorf("it is %q", a.Standing())
	}
	a.Frozen = 0
	a = a.Suspend(true, "op", "", sec(30))
	want("suspended again", a, 33, 13, 23)
	want("by a clock that is behind", a, 29, 10, 20)
	a.Desired = DesiredStop
	if a.Standing() != "" {
		t.Errorf("one that ends is %q", a.Standing())
	}
	a.Client, a.FinishedAt = ClientComplete, sec(40)
	if a.Ran() != 10*time.Second {
		t.Errorf("it ran for %s, want 10s: 10 to 40, without 10 to 20 and 30 to 40", a.Ran())
	}
}
