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

// TestHintsNameTheNamespace checks that a printed command reaches the object that it is about.
func TestHintsNameTheNamespace(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/queue"] = []nomadlike.QueueItem{{Position: 1, JobID: "train", Namespace: "nlp", User: "anonymous"}}
	f.answers["GET /v1/acl/token/self"] = failure{http.StatusBadRequest, "ACL support disabled"}
	r := f.run(t, "", "queue", "-namespace", "nlp", "-mine")
	if !strings.Contains(r.errOut, "muster job why -namespace nlp train") {
		t.Errorf("-mine without ACLs: %q, hint %q", r.out, r.errOut)
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
