package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestWhySaysHowTasksAre: job why says what a starting allocation does, and with which exit code the one of an array failed.
func TestWhySaysHowTasksAre(t *testing.T) {
	f := newAgentFake(t)
	sum := &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"g": {Starting: 1, Failed: 2, Complete: 1}}}
	f.answers["GET /v1/jobs"] = jobPrefix(&wire.JobListStub{ID: "sw", Name: "sw", Namespace: "default", Type: "batch", Status: "dead", JobSummary: sum, End: &wire.JobEnd{Exit: "failed", ExitCode: 4}})
	f.answers["GET /v1/job/sw/why"] = &nomadlike.Why{JobID: "sw", Namespace: "default", Priority: 50, Status: "dead", Summary: sum}
	f.answers["GET /v1/job/sw/evaluations"] = []*wire.Evaluation{}
	task := func(failed bool, events ...*wire.TaskEvent) map[string]*wire.TaskState {
		return map[string]*wire.TaskState{"main": {Failed: failed, Events: events}}
	}
	f.answers["GET /v1/job/sw/allocations"] = func(r *http.Request) any { // a page of what is asked for: an array may be large
		if r.FormValue("per_page") != "3" {
			t.Errorf("asked with %s", r.URL.RawQuery)
		}
		if strings.Contains(r.FormValue("filter"), `"failed" and NextAllocation == ""`) {
			return []*wire.AllocationListStub{
				{ID: allocA, Name: "sw.g[3]", NodeName: "gpu-01", ClientStatus: "failed", TaskStates: task(true, &wire.TaskEvent{Type: "Terminated", ExitCode: 4}, &wire.TaskEvent{Type: "Not Restarting", FailsTask: true})},
				{ID: allocA, Name: "sw.g[4]", NodeName: "gpu-01", ClientStatus: "failed", TaskStates: task(true, &wire.TaskEvent{Type: "Killing", FailsTask: true, DisplayMessage: "Sent interrupt", Details: map[string]string{"kill_reason": "it has run for its limit of 2s"}}, &wire.TaskEvent{Type: "Killed"})},
			}
		}
		return []*wire.AllocationListStub{
			{ID: allocA, Name: "sw.g[5]", NodeName: "gpu-01", ClientStatus: "pending", DesiredStatus: "run", TaskStates: task(false, &wire.TaskEvent{Type: "Template", DisplayMessage: "Missing: nomad.var.block(x)"})},
		}
	}
	r := f.run(t, "", "job", "why", "sw")
	for _, want := range []string{"Job sw (ns default, prio 50) is dead: failed (exit 4)", "sw.g[3] on gpu-01: task main ended with exit code 4 (muster alloc status 8ba85cef)", "sw.g[4] on gpu-01: task main: it has run for its limit of 2s (", "sw.g[5] on gpu-01: task main: Missing: nomad.var.block(x) ("} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("exit %d, %s lacks %q:\n%s", r.code, r.errOut, want, r.out)
		}
	}
}
