package main

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func TestRunMakesAJob(t *testing.T) {
	agent := newAgentFake(t)
	r := agent.run(t, "", "run", "-output", "-name", "x", "-gpus", "H100:8", "-nodes", "2", "-time", "2h", "--", "torchrun", "-v", "train.py")
	for _, want := range []string{`"Count": 2`, `"Count": 8`, `"Model": "H100"`, `"Gang": {`, `"Limit": 7200000000000`, `"-v"`, `"Mode": "node"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
		}
	}
	if r.code != 0 {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	if r = agent.run(t, "", "run", "-gpus", "H100:A100", "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "a number, a model, or both") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}

func TestUnstarted(t *testing.T) {
	task := func(events ...wire.TaskEvent) map[string]*wire.TaskState {
		st := &wire.TaskState{State: "dead", Failed: true}
		for i := range events {
			st.Events = append(st.Events, &events[i])
		}
		return map[string]*wire.TaskState{"main": st}
	}
	giveUp := wire.TaskEvent{Type: "Not Restarting", DisplayMessage: "Error was unrecoverable", FailsTask: true}
	for _, c := range []struct {
		what, status string
		states       map[string]*wire.TaskState
		want         string
	}{
		{"a command that failed says so by its exit code", "failed", task(wire.TaskEvent{Type: "Terminated", ExitCode: 3}, giveUp), ""},
		{"one that ended well", "complete", nil, ""},
		{"one that never began", "failed", task(wire.TaskEvent{Type: "Received"}, wire.TaskEvent{Type: "Driver Failure", DisplayMessage: "no user \"x\""}, giveUp), "no user \"x\""},
		{"a node that was lost", "lost", nil, "lost"},
	} {
		if got := unstarted(&wire.AllocationListStub{ClientStatus: c.status, TaskStates: c.states}); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
