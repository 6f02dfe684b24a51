package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

func TestColourOnATerminal(t *testing.T) {
	f := newAgentFake(t)
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm-256color")
	f.run(t, "", "version") // clears the environment's own settings
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	e := &env{in: strings.NewReader(""), out: tty, err: io.Discard, now: func() time.Time { return fixedNow }}
	code := e.main(t.Context(), []string{"muster", "node", "status"})
	tty.Close()
	out, _ := io.ReadAll(master) // EIO when the other side is closed
	if code != 0 || !strings.Contains(string(out), "\x1b[32mready") {
		t.Errorf("exit status %d, on a terminal: %q", code, out)
	}
}

// TestTopWithoutAScreen checks that top prints once where it cannot draw, and that it asks for the namespace of the command
// line.
func TestTopWithoutAScreen(t *testing.T) {
	for args, query := range map[string]string{"top": "namespace=%2A", "top -namespace ml": "namespace=ml", "top -once -namespace ml": "namespace=ml"} {
		f := newAgentFake(t)
		r := f.run(t, "", strings.Fields(args)...)
		if r.code != 0 || !strings.HasPrefix(r.out, "JOB") || strings.Contains(r.out, "\x1b") || strings.Count(f.log(), "\n") != 0 || !strings.Contains(f.log(), query) {
			t.Errorf("%s: exit status %d, %q, requests %q", args, r.code, r.out, f.log())
		}
	}
	for term, want := range map[string]bool{"xterm": true, "dumb": false, "": false} {
		t.Setenv("TERM", term)
		if got := (&topOptions{env: &env{tty: true}}).screen(); got != want {
			t.Errorf("TERM=%s: %v", term, got)
		}
	}
	t.Setenv("LC_ALL", "")
	t.Setenv("LC_CTYPE", "")
	for lang, want := range map[string]bool{"": false, "C": true, "en_US.UTF-8": false, "C.utf8": false, "de_DE": true} {
		t.Setenv("LANG", lang)
		if got := asciiOnly(); got != want {
			t.Errorf("LANG=%s: %v", lang, got)
		}
	}
}

// TestTopRunsCommands runs a command of a pane with the options of top.
func TestTopRunsCommands(t *testing.T) {
	f := newAgentFake(t)
	f.run(t, "", "version") // clears the environment's own settings
	t.Setenv("MUSTER_ADDR", "http://127.0.0.1:1")
	e := &env{in: strings.NewReader(""), out: io.Discard, err: io.Discard, now: func() time.Time { return fixedNow }}
	if e.main(t.Context(), []string{"muster", "version"}); e.sub == nil {
		t.Fatal("no way to run a command")
	}
	c := newTop(e)
	if err := c.Flags().Parse([]string{"--address=" + f.URL, "--namespace=nothing"}); err != nil {
		t.Fatal(err)
	}
	o := &topOptions{env: e, flags: c.Flags()}
	if out, failed := o.command(t.Context(), []string{"job", "why", "-namespace", "default", "train"}); failed || !strings.Contains(out, "position 3 of 17") {
		t.Errorf("failed %v: %s", failed, out)
	}
	if out, failed := o.command(t.Context(), []string{"job", "why", "nothing-like-it"}); !failed || !strings.Contains(out, "Error:") {
		t.Errorf("failed %v: %s", failed, out)
	}
}

// TestHintsNameTheNamespace checks that a printed command reaches the object that it is about.
func TestHintsNameTheNamespace(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/queue"] = []nomadlike.QueueItem{{Position: 1, JobID: "train", Namespace: "nlp", User: "anonymous"}}
	f.answers["GET /v1/acl/token/self"] = failure{http.StatusBadRequest, "ACL support disabled"}
	r := f.run(t, "", "queue", "-namespace", "nlp", "-mine")
	if !strings.Contains(r.errOut, "muster job why -namespace nlp train") {
		t.Errorf("-mine without ACLs: %q, hint %q", r.out, r.errOut)
	}
	f.answers["GET /v1/queue"] = []nomadlike.QueueItem{{Position: 1, JobID: "a;c$(id)'", Namespace: "nlp", User: "anonymous"}}
	if r := f.run(t, "", "queue", "-namespace", "nlp"); !strings.Contains(r.errOut, `why -namespace nlp 'a;c$(id)'\'''`+"\n") {
		t.Errorf("a name that a shell would run: %q", r.errOut)
	}
	t.Setenv("MUSTER_NAMESPACE", "nlp")
	if got := inNamespace("nlp"); got != "" {
		t.Errorf("an option that the environment gives: %q", got)
	}
	if got := inNamespace("default"); got != "-namespace default " {
		t.Errorf("the namespace that is not the environment's: %q", got)
	}
}

// TestLabelsOfAnArrayAreItsIndices lists allocations as one plan makes them: all with one index, by random ID.
func TestLabelsOfAnArrayAreItsIndices(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/job/sweep"] = wire.Job{ID: ptr("sweep"), TaskGroups: []*wire.TaskGroup{{Name: ptr("g")}}}
	f.answers["GET /v1/job/sweep/gangs"] = []nomadlike.Gang{}
	f.answers["GET /v1/job/sweep/allocations"] = []*wire.AllocationListStub{
		{ID: "a", Name: "sweep.g[10]", TaskGroup: "g", CreateIndex: 7}, {ID: "b", Name: "sweep.g[0]", TaskGroup: "g", CreateIndex: 7},
		{ID: "old", Name: "sweep.g[2]", TaskGroup: "g", CreateIndex: 5}, {ID: "c", Name: "sweep.g[2]", TaskGroup: "g", CreateIndex: 7},
	}
	f.run(t, "", "version")
	e := &env{out: io.Discard, err: io.Discard, addr: f.URL}
	a, err := e.api()
	if err != nil {
		t.Fatal(err)
	}
	ms, err := e.members(t.Context(), a, &wire.JobListStub{ID: "sweep", Namespace: "default"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []ranked{{id: "b", member: 0}, {id: "c", member: 2}, {id: "a", member: 10}} {
		if len(ms) != 3 || ms[i] != want {
			t.Fatalf("the members are %+v", ms)
		}
	}
}

// TestTopOnItsTerminal: on a terminal top draws and looks again, as often as -every says; -once prints and ends.
func TestTopOnItsTerminal(t *testing.T) {
	f := newAgentFake(t)
	looked := make(chan time.Time, 100)
	answer := f.answers["GET /v1/top"]
	f.answers["GET /v1/top"] = func(*http.Request) any {
		select {
		case looked <- time.Now():
		default:
		}
		return answer
	}
	x := f.onTerminal(t, "top", "-every", "100ms")
	x.await("\x1b[?1049h")
	soon, last := 0, <-looked
	for range 4 {
		at := <-looked
		if at.Sub(last) < 1500*time.Millisecond { // every 2 s without the flag
			soon++
		}
		last = at
	}
	if soon == 0 {
		t.Error("it looks as rarely as without -every")
	}
	x.await("gpu-01")
	x.press("q")
	if code, out := x.end(); code != 0 {
		t.Errorf("exit status %d, %q", code, out)
	}
	if code, out := f.onTerminal(t, "top", "-once").end(); code != 0 || strings.Contains(out, "\x1b[?1049h") || !strings.Contains(out, "greet") {
		t.Errorf("-once: exit status %d, %q", code, out)
	}
}
