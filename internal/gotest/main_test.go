package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestCrashedDetector: a package whose race detector failed itself continues; one with a finding has failed.
func TestCrashedDetector(t *testing.T) {
	const crash = `{"Action":"output","Package":"p","Test":"TestA","Output":"ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346\n"}` + "\n"
	const end = `{"Action":"fail","Package":"p","Elapsed":1}` + "\n"
	for _, c := range []struct {
		name, events string
		crashed      bool
		failed       int
		broken       bool
	}{
		{"crashed", crash + end, true, 0, false},
		{"crashed after a data race", `{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}` + "\n" + crash + end, false, 0, true},
		{"crashed after a failure", `{"Action":"fail","Package":"p","Test":"TestB"}` + "\n" + crash + end, false, 1, false},
		{"another package failed", `{"Action":"fail","Package":"q","Test":"TestB"}` + "\n" + crash + end, true, 1, false},
		{"died", `{"Action":"output","Package":"p","Test":"TestA","Output":"panic\n"}` + "\n" + end, false, 0, true},
	} {
		r := read(strings.NewReader(c.events))
		if slices.Equal(r.crashed, []string{"p"}) != c.crashed || r.failed != c.failed || r.broken != c.broken {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	r := read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestC"}` + "\n" + `{"Action":"pass","Package":"p","Test":"TestC/sub"}` + "\n" + `{"Action":"skip","Package":"p","Test":"TestD"}` + "\n" + crash + end))
	got := rest([]string{"-race", "-timeout", "25m", "./a/...", module + "b", "-args", "-x"}, "p", r.done["p"])
	if want := []string{"-skip", "^(TestC|TestD)$", "-race", "-timeout", "25m", "p", "-args", "-x"}; !slices.Equal(got, want) {
		t.Errorf("the second run has the arguments %q, want %q", got, want)
	}
}

// TestSlowest: the tests that took longest come first, without their subtests.
func TestSlowest(t *testing.T) {
	var events strings.Builder
	for i := range slowestMax + 5 {
		fmt.Fprintf(&events, `{"Action":"pass","Package":"`+module+`p","Test":"Test%02d","Elapsed":%d}`+"\n", i, i)
	}
	events.WriteString(`{"Action":"pass","Package":"p","Test":"Test00/sub","Elapsed":99}` + "\n")
	r := read(strings.NewReader(events.String()))
	got := r.slowest()
	if len(got) != slowestMax || got[0] != "  19.0s  p Test19" {
		t.Errorf("%d lines, of which the first is %q", len(got), got[0])
	}
}
