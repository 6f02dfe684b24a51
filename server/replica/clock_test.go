package replica

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestClock(t *testing.T) {
	wall, even := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Duration(0)
	c := newClock(func() time.Time { return wall })
	c.mono = func() time.Duration { return even }
	pass := func(d time.Duration) { wall, even = wall.Add(d), even+d }
	mint := func() structs.LogTime { t.Helper(); return c.mint(0) }

	last := mint()
	expect := func(what string, want time.Duration) {
		t.Helper()
		now := mint()
		if got := now.Sub(last); got != want {
			t.Errorf("%s: log time moved %s, want %s", what, got, want)
		}
		last = now
	}
	pass(time.Hour)
	expect("an idle hour", time.Hour)
	wall = wall.Add(3 * time.Second)
	expect("a small step", 3*time.Second)
	wall = wall.Add(2 * 365 * 24 * time.Hour)
	expect("two years at once", 0)
	select {
	case <-c.kick:
	default:
		t.Error("nobody was asked for consent to two years")
	}
	pass(time.Second)
	expect("a second after the jump", time.Second)
	if !c.Consent(-2*365*24*time.Hour, c.Reading()) {
		t.Error("consent changed nothing")
	}
	pass(time.Second)
	expect("after the others refused the jump", time.Second)
	wall = wall.Add(-2 * 365 * 24 * time.Hour)
	c.Consent(0, c.Reading())
	pass(time.Second)
	expect("after the clock was put right", time.Second)
	wall = wall.Add(-time.Minute)
	pass(10 * time.Second)
	expect("after a step back", 10*time.Second)
	c.Consent(0, c.Reading())
	pass(time.Second)
	expect("until the wall has caught up", 0)
	if now := c.mint(last + 99); now != last+99 {
		t.Errorf("mint after %d gave %d", last+99, now)
	}
	// The others agree with the step: log time follows.
	wall = wall.Add(time.Hour)
	mint()
	c.Consent(0, c.Reading())
	if now := mint(); now.Sub(last) < 50*time.Minute {
		t.Errorf("consent to an hour moved log time by %s", now.Sub(last))
	}
	// A median that was asked for before a jump says nothing about the time after it.
	since := c.Reading()
	wall = wall.Add(-time.Hour)
	if c.Consent(0, since) {
		t.Error("a median from before a jump was accepted")
	}
	last = mint()
	pass(time.Minute)
	expect("a jump while the others were asked", time.Minute)
}
