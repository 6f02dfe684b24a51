package main

import "testing"

// TestStages: a trace counts for the innermost function that a stage names.
func TestStages(t *testing.T) {
	const traces = `Type: cpu
-----------+-------------------------------------------------------
   30000us   runtime.mallocgc
             github.com/muster-sched/muster/fsm.Encode
             github.com/muster-sched/muster/server/replica.(*Replica).runProposer
-----------+-------------------------------------------------------
   10000us   github.com/muster-sched/muster/server/planner.(*Planner).verify
-----------+-------------------------------------------------------
`
	if got, want := stagesIn(traces, 0.4, 1000), "apply 300, verify and propose 100 us"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
