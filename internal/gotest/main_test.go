package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestCrashedDetector: a package whose race detector failed itself continues; one with a finding has failed.
func TestCrashedDetector(t *testing.T) {
	const crash = `{"Action":"output","Package":"p","Test":"TestA","Output":"ThreadSanitizer: CHECK failed: tsan_rtl.cpp:346\n"}` + "\n"
	faultOf := func(state, frames, next string) (events string) {
		for _, l := range strings.SplitAfter("SIGSEGV: segmentation violation\nPC=0x436e30 m=4 sigcode=2 addr=0x7f0dbaf00000\n\ngoroutine 0 gp=0xc0000825a0 m=4 mp=0xc000088008 "+state+":\n"+frames+"\n"+next, "\n") {
			e, err := json.Marshal(event{Action: "output", Package: "p", Test: "TestA", Output: l})
			if err != nil {
				t.Fatal(err)
			}
			events += string(e) + "\n"
		}
		return events
	}
	fault := func(frames string) string {
		return faultOf("[idle, synctest bubble 114]", frames, "goroutine 1 [running]:\n")
	}
	const (
		end      = `{"Action":"fail","Package":"p","Elapsed":1}` + "\n"
		caller   = "goroutine 14693 gp=0xc00040ba40 m=0 mp=0x3b63a20 [running, synctest bubble 15]:\n"
		onSystem = "runtime.systemstack_switch()\n\t/usr/local/go/src/runtime/asm_amd64.s:516 +0x8\nruntime.(*timer).maybeRunChan(0xc000431820, 0xc0004316c0)\n"
	)
	for _, c := range []struct {
		name, events string
		crashed      bool
		failed       int
		broken       bool
	}{
		{"crashed", crash + end, true, 0, false},
		{"faulted outside Go", fault("") + end, true, 0, false},
		{"faulted in Go", fault("runtime.scanobject()\n") + end, false, 0, true},
		{"faulted outside Go, called by a bubble", faultOf("[idle]", "", caller+onSystem) + end, true, 0, false},
		{"faulted in Go, called by a bubble", faultOf("[idle]", "runtime.scanobject()\n", caller+onSystem) + end, false, 0, true},
		{"faulted in a goroutine of a bubble", faultOf("[idle]", "", caller+"main.f()\n") + end, false, 0, true},
		{"faulted outside Go without a bubble", faultOf("[idle]", "", "goroutine 7 gp=0xc00040ba40 m=0 mp=0x3b63a20 [running]:\n"+onSystem) + end, false, 0, true},
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

// TestDeath: what a process died of is found below the logs of the tests that it was in.
func TestDeath(t *testing.T) {
	for _, says := range []string{"panic: x\n", "fatal error: all goroutines are asleep\n", "SIGSEGV: segmentation violation\n", "==12==FATAL: ThreadSanitizer: SEGV\n"} {
		got := death([]string{"=== RUN   TestA\n", "a log line: panic: no\n", says, "goroutine 1\n"})
		if want := []string{says, "goroutine 1\n"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := death([]string{"=== RUN   TestA\n", "--- PASS: TestA\n"}); got != nil {
		t.Errorf("%q died of nothing", got)
	}
}
