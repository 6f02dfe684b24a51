package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

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
