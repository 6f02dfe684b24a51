package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/server/archive"
)

func snapshotArchive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	state := []byte("the state")
	meta := &raft.SnapshotMeta{ID: "2-52-1", Index: 52, Term: 2, Version: 1, Size: int64(len(state))}
	if err := archive.Write(&b, meta, bytes.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSnapshot(t *testing.T) {
	f := newAgentFake(t)
	t.Chdir(t.TempDir())
	good := snapshotArchive(t)
	f.answers["GET /v1/operator/snapshot"] = string(good)
	f.answers["PUT /v1/operator/snapshot"] = nil
	if r := f.run(t, "", "operator", "snapshot", "save", "a.snap"); r.code != 0 || !strings.Contains(r.out, "index 52") {
		t.Fatalf(`%d %s%s; want r.code = 0, "index 52" in r.out`, r.code, r.out, r.errOut)
	}
	if r := f.run(t, "", "operator", "snapshot", "save", "a.snap"); r.code != 1 || !strings.Contains(r.errOut, "exists already") {
		t.Errorf("overwritten: %d %s", r.code, r.errOut)
	}
	if r := f.run(t, "", "operator", "snapshot", "inspect", "a.snap"); r.code != 0 || !strings.Contains(r.out, "Index   = 52") {
		t.Errorf(`%d %s%s; want r.code = 0, "Index   = 52" in r.out`, r.code, r.out, r.errOut)
	}
	if r := f.run(t, "", "operator", "snapshot", "restore", "-yes", "a.snap"); r.code != 0 || !strings.Contains(f.log(), "PUT /v1/operator/snapshot") {
		t.Errorf(`%d %s%s; want r.code = 0, "PUT /v1/operator/snapshot" in f.log()`, r.code, r.out, r.errOut)
	}
	// A part of an archive is neither kept nor sent.
	f.answers["GET /v1/operator/snapshot"] = string(good[:len(good)/2])
	if r := f.run(t, "", "operator", "snapshot", "save", "b.snap"); r.code != 1 {
		t.Errorf("half a snapshot was saved: %s", r.out)
	}
	left, err := filepath.Glob("*")
	if hidden, herr := filepath.Glob(".snapshot-*"); err != nil || herr != nil || !slices.Equal(left, []string{"a.snap"}) || len(hidden) > 0 {
		t.Errorf("left behind: %v %v", left, hidden)
	}
	if err := os.WriteFile("half.snap", good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	before := f.log()
	if r := f.run(t, "", "operator", "snapshot", "restore", "half.snap"); r.code != 1 || f.log() != before {
		t.Errorf("half a snapshot was sent: %s%s", r.out, r.errOut)
	}
}

// readInput reads what a command sends to the program that it runs; false at the end.
func readInput(ctx context.Context, ws *websocket.Conn) (in wire.ExecStreamingInput, ok bool) {
	_, b, err := ws.Read(ctx)
	if err != nil {
		return in, false
	}
	_ = json.Unmarshal(b, &in)
	return in, true
}

func TestExec(t *testing.T) {
	f := newAgentFake(t)
	var query string
	f.ws = func(r *http.Request, ws *websocket.Conn) {
		query = r.URL.RawQuery
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		var got []byte
		for {
			in, ok := readInput(ctx, ws)
			if !ok {
				return
			}
			if in.Stdin == nil {
				continue
			}
			got = append(got, in.Stdin.Data...)
			if in.Stdin.Close {
				break
			}
		}
		for _, out := range []wire.ExecStreamingOutput{
			{Stdout: &wire.ExecStreamingIO{Data: append([]byte("got "), got...)}}, {Stderr: &wire.ExecStreamingIO{Data: []byte("oops\n")}},
			{Exited: true, Result: &wire.ExecStreamingExitResult{ExitCode: 7}},
		} {
			b, _ := json.Marshal(out)
			if ws.Write(ctx, websocket.MessageText, b) != nil {
				return
			}
		}
		_, _, _ = ws.Read(ctx) // until the other side goes
	}
	r := f.run(t, "input", "alloc", "exec", "-i", "8ba85cef", "sh", "-c", "-x")
	if r.code != 7 || r.out != "got input" || r.errOut != "oops\n" {
		t.Errorf("exit status %d, stdout %q, stderr %q", r.code, r.out, r.errOut)
	}
	if want := `command=%5B%22sh%22%2C%22-c%22%2C%22-x%22%5D&namespace=default&task=greet&tty=false`; query != want {
		t.Errorf("query %s, want %s", query, want)
	}
	f.ws = func(_ *http.Request, ws *websocket.Conn) {
		ws.Close(websocket.StatusInternalError, "task is not running")
	}
	if r := f.run(t, "", "alloc", "exec", "8ba85cef", "true"); r.code != 1 || !strings.Contains(r.errOut, "task is not running") {
		t.Errorf(`%d %s; want r.code = 1, "task is not running" in r.errOut`, r.code, r.errOut)
	}
}

func TestTLS(t *testing.T) {
	f := newAgentFake(t)
	t.Chdir(t.TempDir())
	if r := f.run(t, "", "tls", "cert", "create", "-server"); r.code != 1 || !strings.Contains(r.errOut, "muster tls ca create") {
		t.Errorf("without a CA: %d %s", r.code, r.errOut)
	}
	for _, args := range []string{"tls ca create", "tls cert create -server", "tls cert create -server -region eu -additional-ipaddress 10.0.0.1", "tls cert create -client", "tls cert create -cli -days 3", "tls cert create -cli"} {
		if r := f.run(t, "", strings.Fields(args)...); r.code != 0 {
			t.Errorf("%s: %d %s; want 0", args, r.code, r.errOut)
		}
	}
	got, err := filepath.Glob("*.pem")
	want := []string{"eu-server-muster-key.pem", "eu-server-muster.pem", "global-cli-muster-1-key.pem", "global-cli-muster-1.pem", "global-cli-muster-key.pem", "global-cli-muster.pem",
		"global-client-muster-key.pem", "global-client-muster.pem", "global-server-muster-key.pem", "global-server-muster.pem", "muster-agent-ca-key.pem", "muster-agent-ca.pem"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, args := range []string{"tls ca create", "tls cert create", "tls cert create -server -cli", "tls cert create -server -days 0"} {
		if r := f.run(t, "", strings.Fields(args)...); r.code != 1 {
			t.Errorf("%s: exit status %d", args, r.code)
		}
	}
}

func TestDenied(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/jobs"] = failure{http.StatusForbidden, "Permission denied"}
	if r := f.run(t, "", "job", "status"); r.code != 1 || !strings.Contains(r.errOut, "No token was sent") {
		t.Errorf(`%d %s; want r.code = 1, "No token was sent" in r.errOut`, r.code, r.errOut)
	}
	if r := f.run(t, "", "job", "status", "-token", "x"); r.code != 1 || !strings.Contains(r.errOut, "muster acl token self") || strings.Contains(r.errOut, "No token") {
		t.Errorf("%d %s", r.code, r.errOut)
	}
}

// Ctrl-C ends the following, not the job, and says how to go on.
func TestDetach(t *testing.T) {
	f := newAgentFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	f.answers["GET /v1/evaluation/"+evalA] = func(*http.Request) any {
		if asked++; asked == 2 {
			cancel()
		}
		return &wire.Evaluation{ID: evalA, Status: "pending", TriggeredBy: "job-register", JobID: "example"}
	}
	f.answers["GET /v1/evaluation/"+evalA+"/allocations"] = []any{}
	var out, errOut bytes.Buffer
	t.Setenv("MUSTER_ADDR", f.URL)
	e := &env{in: strings.NewReader(jobSource), out: &out, err: &errOut, now: func() time.Time { return fixedNow }}
	code := e.main(ctx, []string{"muster", "job", "run", "-"})
	if code != 130 || !strings.Contains(errOut.String(), "muster job status example") {
		t.Errorf("exit status %d: %s", code, errOut.String())
	}
	if strings.Contains(f.log(), "DELETE") {
		t.Error("detaching stopped the job")
	}
}
