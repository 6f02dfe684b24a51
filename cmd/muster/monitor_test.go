package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestMonitorSaysHowATaskStarts checks that what a task does before it runs is printed, once for each message, and that a
// large job prints none of it.
func TestMonitorSaysHowATaskStarts(t *testing.T) {
	var out bytes.Buffer
	p := &progress{env: &env{out: &out, err: io.Discard, now: func() time.Time { return fixedNow }}, allocs: map[string]string{}, phases: map[string]string{}}
	alloc := func(id string, events ...*wire.TaskEvent) *wire.AllocationListStub {
		return &wire.AllocationListStub{ID: id, NodeName: "gpu-01", TaskGroup: "g", ClientStatus: "pending", TaskStates: map[string]*wire.TaskState{"main": {State: "pending", Events: events}}}
	}
	received := &wire.TaskEvent{Type: "Received", DisplayMessage: "Task received by client"}
	pull := &wire.TaskEvent{Type: "Driver", DisplayMessage: "Downloading image pytorch: 3 of 5 layers, 12.1 of 100.0 MiB so far"}
	fetch := &wire.TaskEvent{Type: "Downloading Artifacts", DisplayMessage: "Downloading artifact: 40 % of 812.0 MiB"}
	ev := &wire.Evaluation{}
	for _, events := range [][]*wire.TaskEvent{{received}, {received, fetch}, {received, fetch}, {received, fetch, pull}, {received, fetch, pull, {Type: "Started", DisplayMessage: "Task started by client"}}} {
		p.tell(ev, []*wire.AllocationListStub{alloc("a", events...)})
	}
	got := out.String()
	for text, n := range map[string]int{`Allocation "a", task "main": Downloading artifact: 40 % of 812.0 MiB`: 1, "3 of 5 layers": 1, "Task received": 0, "Task started": 0, "placed on node": 1} {
		if strings.Count(got, text) != n {
			t.Errorf("%d times %q, want %d, in\n%s", strings.Count(got, text), text, n, got)
		}
	}
	out.Reset()
	var many []*wire.AllocationListStub
	for _, id := range "abcdefghi" {
		many = append(many, alloc(string(id), received, pull))
	}
	if p.tell(ev, many); strings.Contains(out.String(), "layers") {
		t.Errorf("a job of %d allocations prints how each starts:\n%s", len(many), out.String())
	}
}

// TestMonitorSaysWhereWorkResumes: the monitor says which checkpoint a new allocation was given.
func TestMonitorSaysWhereWorkResumes(t *testing.T) {
	var out bytes.Buffer
	p := &progress{env: &env{out: &out, err: io.Discard, now: func() time.Time { return fixedNow }}, allocs: map[string]string{}, phases: map[string]string{}}
	next := &wire.AllocationListStub{ID: "b", NodeName: "gpu-01", TaskGroup: "g", ClientStatus: "pending", ResumeFrom: &wire.SavedCheckpoint{Time: ago(5 * time.Minute), Bytes: 3 << 30, Path: "/ckpt/step-400.pt"}}
	p.tell(&wire.Evaluation{}, []*wire.AllocationListStub{{ID: "a", NodeName: "gpu-02", TaskGroup: "g", ClientStatus: "pending"}, next})
	if got := out.String(); strings.Count(got, "resumes") != 1 || !strings.Contains(got, `"b" placed on node "gpu-01", group "g", resumes from the checkpoint of 5m ago, 3.00 GiB, /ckpt/step-400.pt`+"\n") {
		t.Error(got)
	}
}

// gangAtATerminal runs a gang of four at a terminal. The returned function moves it to its next phase.
func gangAtATerminal(t *testing.T) (x *console, next func()) {
	f := newAgentFake(t)
	var phase atomic.Int64
	in := func(n int64) bool { return phase.Load() >= n }
	event := func(typ, text string) *wire.TaskEvent { return &wire.TaskEvent{Type: typ, DisplayMessage: text} }
	list := func() []*wire.AllocationListStub {
		out := []*wire.AllocationListStub{}
		for i := range 4 {
			a := &wire.AllocationListStub{ID: strings.Replace(allocA, "8ba85cef", "8ba85ce"+string(rune('0'+i)), 1), EvalID: evalA, NodeName: "gpu-01", TaskGroup: "work", DesiredStatus: "run", ClientStatus: "pending", CreateIndex: 18}
			last := event("Received", "Task received by client")
			switch {
			case !in(2):
				return out
			case in(5), in(4) && i < 2:
				a.ClientStatus = "running"
			case !in(3):
				last = event("Driver", "Downloading image pytorch: 3 of 5 layers")
			}
			a.TaskStates = map[string]*wire.TaskState{"t": {State: "pending", Events: []*wire.TaskEvent{last}}}
			out = append(out, a)
		}
		return out
	}
	f.answers["GET /v1/evaluation/"+evalA] = func(*http.Request) any {
		ev := &wire.Evaluation{ID: evalA, JobID: "pair", TriggeredBy: "job-register", Status: "pending", CreateIndex: 17}
		if in(1) {
			ev.Status, ev.BlockedEval = "complete", evalB
			ev.FailedTGAllocs = map[string]*wire.AllocationMetric{"work": {CoalescedFailures: 3}}
		}
		return ev
	}
	f.answers["GET /v1/evaluation/"+evalA+"/allocations"] = []*wire.AllocationListStub{}
	f.answers["GET /v1/job/pair/allocations"] = func(*http.Request) any { return list() }
	f.answers["GET /v1/job/pair/summary"] = func(*http.Request) any {
		queued := 4
		if in(2) {
			queued = 0
		}
		return &wire.JobSummary{JobID: "pair", Summary: map[string]wire.TaskGroupSummary{"work": {Queued: queued}}}
	}
	f.answers["GET /v1/job/pair/why"] = &nomadlike.Why{JobID: "pair", Reason: "GANG", Position: 1, QueueLength: 2}
	file := filepath.Join(t.TempDir(), "pair.hcl")
	source := "job \"pair\" {\n  type = \"batch\"\n  group \"work\" {\n    count = 4\n    gang {}\n    task \"t\" {\n      driver = \"exec\"\n      config {\n        command = \"/bin/true\"\n      }\n    }\n  }\n}\n"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	return f.onTerminal(t, "job", "run", "-wait", "-no-color", file), func() { phase.Add(1) }
}

// TestMonitorPhases follows a gang at a terminal: each phase is printed when it begins, with how many of the gang are there, the
// time since the request, and the reason while it waits.
func TestMonitorPhases(t *testing.T) {
	x, next := gangAtATerminal(t)
	for _, want := range []string{"Phase queued, after ", "Phase placing (0/4 gang), after ", "Phase pulling, after ", "Phase starting (0/4 gang), after ", "Phase starting (2/4 gang), after ", "Phase running, after "} {
		x.await(want)
		if strings.Contains(want, "queued") {
			x.await("Waiting: GANG, position 1 of 2")
		}
		next()
	}
	code, out := x.end()
	if code != 0 || !strings.Contains(out, "4 running") || !strings.Contains(out, "Follow its logs:  muster alloc logs -f") || strings.Count(out, "Phase ") != 6 {
		t.Errorf("exit status %d: %s", code, out)
	}
}

// TestMonitorDetaches: Ctrl-C ends the command and not the job, and says so with the command that follows it.
func TestMonitorDetaches(t *testing.T) {
	x, next := gangAtATerminal(t)
	next()
	x.await("Phase placing (0/4 gang)")
	x.press("\x03")
	code, out := x.end()
	if code != exitInterrupted || !strings.Contains(out, "Detached: the cluster continues without this command.") || !strings.Contains(out, "Follow it with:  muster job status pair   or   muster job why pair") {
		t.Errorf("exit status %d: %s", code, out)
	}
}
