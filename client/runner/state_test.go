package runner

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// Every transition that the drawing has is allowed, every other one is refused.
func TestTransitions(t *testing.T) {
	allowed := map[[2]state]bool{
		{created, preparing}: true, {created, ended}: true, {created, destroyed}: true, {preparing, driving}: true, {driving, resting}: true,
		{driving, ended}: true, {resting, driving}: true, {ended, destroyed}: true, {destroyed, destroyed}: true,
	}
	try := func(from, to state) (ok bool) {
		defer func() { ok = recover() == nil }()
		(&Runner{id: structs.AllocID{1}, state: from}).to(to)
		return true
	}
	for from := created; from <= destroyed; from++ {
		for to := created; to <= destroyed; to++ {
			if got, want := try(from, to), allowed[[2]state{from, to}]; got != want {
				t.Errorf("%s to %s: allowed %v, want %v", from, to, got, want)
			}
		}
	}
}

// A broadcast wakes those who wait, once, and none who come later.
func TestBroadcast(t *testing.T) {
	var b broadcast
	b.send() // without a receiver
	first, second := b.next(), b.next()
	b.send()
	<-first
	<-second
	select {
	case <-b.next():
		t.Error("one who waits since the last change is woken without a new one")
	default:
	}
}
