package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestNamesWithLineBreaks: an id with a line break, which Nomad permits, is one line of a list and of -q, so that a script that reads lines
// takes it for no other job.
func TestNamesWithLineBreaks(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/jobs"] = func(*http.Request) any {
		return []*wire.JobListStub{{ID: "a\nb", Name: "a\u2028b", Status: "running", Type: "batch", Namespace: "default"}}
	}
	for line, lines := range map[string]int{"job status -q": 1, "job status": 2} {
		r := f.run(t, "", strings.Fields(line)...)
		if n := strings.Count(r.out, "\n"); r.code != 0 || n != lines {
			t.Errorf("%s: exit status %d, %d lines in place of %d: %q", line, r.code, n, lines, r.out)
		}
	}
}
