package main

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
	// What a shell is to replace is not for the node to replace.
	r = agent.run(t, "", "run", "-output", "-chdir", "/srv/${HOME}", "--", "sh", "-c", `PATH=/x; echo ${PATH} $$ ${NOMAD_TASK_DIR}`)
	for _, want := range []string{`"PATH=/x; echo ${\"$\"}{PATH} $$ ${\"$\"}{NOMAD_TASK_DIR}"`, `"WorkDir": "/srv/${\"$\"}{HOME}"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
		}
	}
	for _, gpus := range []string{"H100:A100", "8:4", "0", "-1", "H100:", ":", "H100:0"} {
		if r = agent.run(t, "", "run", "-gpus", gpus, "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "a number, a model, or both") {
			t.Errorf("-gpus %s: exit %d: %s", gpus, r.code, r.errOut)
		}
	}
	for _, flag := range []string{"-nodes=0", "-shm=-1", "-ranks=-1", "-time=-1s"} {
		if r = agent.run(t, "", "run", flag, "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "nothing negative") {
			t.Errorf("%s: exit %d: %s", flag, r.code, r.errOut)
		}
	}
}

// TestRunSilentAgent: signals end a run whose agent takes requests and does not answer.
func TestRunSilentAgent(t *testing.T) {
	agent := newAgentFake(t)
	looks, enough := make(chan struct{}, 16), make(chan struct{})
	t.Cleanup(func() { close(enough) }) // before the agent ends, which waits for its answers
	agent.answers["PUT /v1/jobs"] = wire.JobRegisterResponse{}
	agent.answers["GET /v1/job/silent/allocations"] = func(r *http.Request) any {
		looks <- struct{}{}
		select {
		case <-enough:
		case <-r.Context().Done():
		}
		return []*wire.AllocationListStub{}
	}
	agent.answers["DELETE /v1/job/silent"] = wire.JobDeregisterResponse{}
	ended := make(chan result, 1)
	go func() { ended <- agent.run(t, "", "run", "-name", "silent", "--", "true") }()
	for range 2 {
		select {
		case <-looks:
		case <-time.After(30 * time.Second):
			t.Fatal("the first signal was not heard")
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case r := <-ended:
		if r.code != 130 || !strings.Contains(r.errOut, "Canceling job silent") || strings.Contains(r.errOut, "No answer") {
			t.Errorf("exit %d: %s", r.code, r.errOut)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the second signal was not heard")
	}
	if !strings.Contains(agent.log(), "DELETE /v1/job/silent") {
		t.Errorf("the job was not stopped:\n%s", agent.log())
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

func TestExitOfSeveral(t *testing.T) {
	at := func(name string, code int, second int64) *wire.AllocationListStub {
		s := &wire.AllocationListStub{Name: name, ClientStatus: "complete", TaskStates: map[string]*wire.TaskState{"main": {FinishedAt: time.Unix(second, 0)}}}
		if code != 0 {
			s.ClientStatus = "failed"
			s.TaskStates["main"].Events = []*wire.TaskEvent{{Type: "Terminated", ExitCode: code}}
		}
		return s
	}
	runs := &wire.AllocationListStub{Name: "c", ClientStatus: "running"}
	for _, c := range []struct {
		what string
		list []*wire.AllocationListStub
		done bool
		code int
	}{
		{"all well", []*wire.AllocationListStub{at("a", 0, 1), at("b", 0, 2)}, true, 0},
		{"the first to fail, not the one that was ended with it", []*wire.AllocationListStub{at("a", 143, 9), at("b", 7, 5)}, true, 7},
		{"one still runs", []*wire.AllocationListStub{at("a", 0, 1), runs}, false, 0},
		{"one ended well, the other failed", []*wire.AllocationListStub{at("a", 0, 1), at("b", 5, 2)}, true, 5},
		{"none yet", nil, false, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			if done, code := ended(c.list, 2); done != c.done || code != c.code {
				t.Errorf("%s: %v, %d; want %v, %d", c.what, done, code, c.done, c.code)
			}
		})
	}
}

func TestLogMark(t *testing.T) {
	m := &logMark{}
	var got string
	for _, f := range []wire.StreamFrame{
		{File: "main.stdout.0", Offset: 0, Data: []byte("abc")}, {File: "main.stdout.0", Offset: 3, Data: []byte("de")},
		// and from the start again, in other pieces
		{File: "main.stdout.0", Offset: 0, Data: []byte("abcd")}, {File: "main.stdout.0", Offset: 4, Data: []byte("efg")},
		{File: "main.stdout.1", Offset: 0, Data: []byte("h")}, {FileEvent: "truncated"},
		{File: "main.stdout.0", Offset: 0, Data: []byte("abcdefg")}, {File: "main.stdout.1", Offset: 0, Data: []byte("hi")},
		{File: "main.stdout.4", Offset: 0, Data: []byte("j")}, {File: "main.stdout.2", Offset: 0, Data: []byte("x")},
	} {
		if m.gap != (f.File == "main.stdout.2") {
			t.Errorf("before %s at %d: gap %v", f.File, f.Offset, m.gap)
		}
		m.pass(&f)
		got += string(f.Data)
	}
	late := &logMark{}
	late.pass(&wire.StreamFrame{File: "main.stdout.1", Data: []byte("x")})
	if !late.gap {
		t.Error("the first file had gone before anything was read, and nobody is told")
	}
	if got != "abcdefghij" {
		t.Errorf("passed on %q", got)
	}
}

func TestEndedBy(t *testing.T) {
	stub := func(status, desired, client, desc string, code int, message string) *wire.AllocationListStub {
		e := &wire.TaskEvent{Type: "Terminated", ExitCode: code}
		if message != "" {
			e.Details = map[string]string{"exit_message": message}
		}
		return &wire.AllocationListStub{ClientStatus: status, DesiredStatus: desired, ClientDescription: client, DesiredDescription: desc,
			TaskStates: map[string]*wire.TaskState{"main": {Events: []*wire.TaskEvent{e}}}}
	}
	for _, c := range []struct {
		what string
		s    *wire.AllocationListStub
		code int
		want string
	}{
		{"well", stub("complete", "run", "", "", 0, ""), 0, ""},
		{"failed by itself", stub("failed", "run", "task main failed", "", 3, ""), 3, ""},
		{"out of memory", stub("failed", "run", "task main failed", "", 137, "out of memory"), 137, "out of memory"},
		{"out of time", stub("failed", "stop", "has run for its limit", "exceeded", 143, ""), 143, "has run for its limit"},
		{"stopped", stub("complete", "stop", "", "alloc not needed", 143, ""), 143, "it was stopped: alloc not needed"},
		{"stopped, and ended well", stub("complete", "stop", "", "alloc not needed", 0, ""), 0, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			if code, got := exitOf(c.s), endedBy(c.s); code != c.code || got != c.want {
				t.Errorf("%s: %d, %q; want %d, %q", c.what, code, got, c.code, c.want)
			}
		})
	}
}
