package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func TestWorkRows(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	hour := wire.Duration(time.Hour)
	job := &wire.Job{Status: ptr("pending"), StatusDescription: ptr("why"), Array: &wire.Array{Count: ptr(100), Concurrency: ptr(5)},
		Runtime: &wire.Runtime{Limit: &hour}, Deadline: ptr("2030-01-01T11:00:00Z"), DependsOn: []*wire.DependsOn{{Name: "prep", When: "success"}, {Name: "x", Job: "load", Namespace: "etl", When: "started"}}}
	got := fmt.Sprint(workRows(job, now))
	for _, want := range []string{"[Reason why]", "[Array 100 indices, at most 5 at once]", "[Runtime at most 1h0m0s]", "(missed 1h ago)", "[Waits For prep (success)]", "[Waits For etl/load (started)]"} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in %s", want, got)
		}
	}
	job.Deadline = ptr("2030-01-01T13:00:00Z")
	if got := fmt.Sprint(workRows(job, now)); !strings.Contains(got, "(in 1h)") {
		t.Error(got)
	}
	if rows := workRows(&wire.Job{}, now); len(rows) != 0 {
		t.Errorf("rows of a plain job: %v", rows)
	}
}
