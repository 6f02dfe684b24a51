package main

import (
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestBoundText: a queue whose limit is not one of GPUs shows it.
func TestBoundText(t *testing.T) {
	two, mhz := 2.0, int64(4000)
	for want, a := range map[string]*wire.Amount{"-": nil, "2": {GPUs: &two, CPU: &mhz}, "4000 MHz": {CPU: &mhz}} {
		if got := boundText(a); got != want {
			t.Errorf("%+v: %q, want %q", a, got, want)
		}
	}
}
