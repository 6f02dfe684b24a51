package main

import (
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestPrioritiesText: priorities of submitters stand after that of all others, by name, and are not endless.
func TestPrioritiesText(t *testing.T) {
	many := map[string]int64{}
	for i := range int64(11) {
		many[string(rune('a'+i))] = i + 1
	}
	for _, c := range []struct {
		all   int64
		users map[string]int64
		want  string
	}{{0, nil, "-"}, {60, nil, "60"}, {60, map[string]int64{"bob": 30, "alice": 90}, "60 (alice 90, bob 30)"}, {0, map[string]int64{"alice": 90}, "- (alice 90)"},
		{0, many, "- (a 1, b 2, c 3, d 4, e 5, f 6, g 7, h 8, 3 more)"}} {
		if got := prioritiesText(c.all, c.users); got != c.want {
			t.Errorf("%d, %v: %q, want %q", c.all, c.users, got, c.want)
		}
	}
}

// TestBoundText: a queue whose limit is not one of GPUs shows it.
func TestBoundText(t *testing.T) {
	two, mhz := 2.0, int64(4000)
	for want, a := range map[string]*wire.Amount{"-": nil, "2": {GPUs: &two, CPU: &mhz}, "4000 MHz": {CPU: &mhz}} {
		if got := boundText(a); got != want {
			t.Errorf("%+v: %q, want %q", a, got, want)
		}
	}
}
