package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/nomadlike/wire"
)

func TestVersionFlag(t *testing.T) {
	if r := newAgentFake(t).run(t, "", "-version"); r.code != 0 || r.out != version.String()+"\n" {
		t.Errorf("exit status %d, %q", r.code, r.out)
	}
}

// TestRestoreAsks: on a terminal a restore waits for an answer, unless -yes is given.
func TestRestoreAsks(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.snap", snapshotArchive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags string
		sent  bool
	}{{"", false}, {"-yes", true}} {
		f := newAgentFake(t)
		f.tty = true
		f.answers["PUT /v1/operator/snapshot"] = nil
		r := f.run(t, "n\n", append(strings.Fields("operator snapshot restore a.snap"), strings.Fields(c.flags)...)...)
		if sent := strings.Contains(f.log(), "PUT"); r.code != 0 || sent != c.sent || strings.Contains(r.errOut, "[y/N]") == c.sent {
			t.Errorf("%q: exit status %d, sent: %t, %q", c.flags, r.code, sent, r.errOut)
		}
	}
}

// TestRestoreSaysHowFarItIs: a terminal shows how much of the file has been sent; then the servers are named that do not have
// the state yet.
func TestRestoreSaysHowFarItIs(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.snap", snapshotArchive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newAgentFake(t)
	f.answers["PUT /v1/operator/snapshot"] = nil // at index 42
	looks := 0
	f.answers["GET /v1/operator/autopilot/health"] = func(*http.Request) any {
		looks++
		h := &wire.OperatorHealthReply{Servers: []wire.ServerHealth{{Name: "s1", SerfStatus: "alive", LastIndex: 42}, {Name: "s2", SerfStatus: "alive", LastIndex: 40}, {Name: "s3", SerfStatus: "failed", LastIndex: 12}}}
		if looks > 2 {
			h.Servers[1].LastIndex = 43
		}
		return h
	}
	code, out := f.onTerminal(t, "operator", "snapshot", "restore", "-yes", "a.snap").end()
	at := 0
	for _, want := range []string{"[##############################] 100%", " sent; the leader checks and restores it", "Snapshot restored in", "1 of 3 servers have the restored state; waiting for s2\r\n", "2 of 3 servers have the restored state\r\n"} {
		i := strings.Index(out[at:], want)
		if i < 0 {
			t.Fatalf("exit status %d, no %q in its place: %q", code, want, out)
		}
		at += i
	}
	if code != 0 || strings.Count(out, "waiting for") != 1 {
		t.Errorf("exit status %d: %q", code, out)
	}
	f.answers["GET /v1/operator/autopilot/health"] = failure{http.StatusForbidden, "Permission denied"}
	if r := f.run(t, "", "operator", "snapshot", "restore", "-yes", "a.snap"); r.code != 0 || !strings.Contains(r.errOut, "The tokens in force are those of the snapshot") || strings.Contains(r.errOut, "\x1b") {
		t.Errorf("a token that the snapshot does not have: exit status %d, %q", r.code, r.errOut)
	}
}

// TestRestartWaits: -batch-wait is the least time between the end of a batch and the next.
func TestRestartWaits(t *testing.T) {
	f := newAgentFake(t)
	restarting(f, 2)
	var looked, asked time.Time
	look := f.answers["GET /v1/job/web/allocations"].(func(*http.Request) any)
	f.answers["GET /v1/job/web/allocations"] = func(r *http.Request) any {
		if asked.IsZero() {
			looked = time.Now()
		}
		return look(r)
	}
	second := "PUT /v1/client/allocation/8ba85cef-1111-4ccc-8ccc-00000000000b/restart"
	ask := f.answers[second].(func(*http.Request) any)
	f.answers[second] = func(r *http.Request) any { asked = time.Now(); return ask(r) }
	const pause = 200 * time.Millisecond
	if r := f.run(t, "", "job", "restart", "-batch-wait", pause.String(), "web"); r.code != 0 || asked.Sub(looked) < pause {
		t.Errorf("exit status %d, the second batch began %s after the first had ended: %s", r.code, asked.Sub(looked), r.errOut)
	}
}

// TestRunWaits: with -wait a submission whose work finds no place is followed until there is one.
func TestRunWaits(t *testing.T) {
	for flags, code := range map[string]int{"": exitNotPlaced, "-wait": 0} {
		f := newAgentFake(t)
		looks := 0
		f.answers["PUT /v1/jobs"] = map[string]any{"EvalID": evalB}
		f.answers["GET /v1/job/train/summary"] = func(*http.Request) any {
			looks++
			return &wire.JobSummary{Summary: map[string]wire.TaskGroupSummary{"work": {Queued: max(0, 3-looks)}}}
		}
		f.answers["GET /v1/job/train/allocations"] = []*wire.AllocationListStub{{ID: allocA, JobID: "train", TaskGroup: "work", ClientStatus: "running", DesiredStatus: "run"}}
		r := f.run(t, jobSource, append([]string{"job", "run", "-"}, strings.Fields(flags)...)...)
		if r.code != code || (looks == 4) != (code == 0) { // the fourth confirms that nothing came in between
			t.Errorf("%q: exit status %d after %d looks at what waits; want %d\n%s%s", flags, r.code, looks, code, r.out, r.errOut)
		}
	}
}

// TestExecPassesStdin: a command reads what is typed here, unless -i is switched off.
func TestExecPassesStdin(t *testing.T) {
	for args, want := range map[string]string{"job exec pair cat": "input", "job exec -i=false pair cat": "", "alloc exec 8ba85cef cat": "input", "alloc exec -i=false 8ba85cef cat": ""} {
		f := newAgentFake(t)
		for line, answer := range ranksOf() {
			f.answers[line] = answer
		}
		got := make(chan string, 1)
		f.ws = func(r *http.Request, ws *websocket.Conn) {
			var text []byte
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			for {
				in, ok := readInput(ctx, ws)
				if !ok || in.Stdin != nil && in.Stdin.Close {
					break
				}
				if in.Stdin != nil {
					text = append(text, in.Stdin.Data...)
				}
			}
			got <- string(text)
			_ = ws.Write(ctx, websocket.MessageText, []byte(`{"exited":true,"result":{"exit_code":0}}`))
			_, _, _ = ws.Read(ctx) // until the other side goes
		}
		if r := f.run(t, "input", strings.Fields(args)...); r.code != 0 {
			t.Errorf("%s: exit status %d, %s", args, r.code, r.errOut)
		}
		if text := <-got; text != want {
			t.Errorf("%s: the command read %q, want %q", args, text, want)
		}
	}
}

// TestRshEntersTheTask: rsh enters the task that -task names, and else the one that has the name of the task it runs in.
func TestRshEntersTheTask(t *testing.T) {
	for k, v := range map[string]string{"JOB_ID": "pair", "GROUP_NAME": "g", "GANG_ID": "x", "ALLOC_ID": allocB, "TASK_NAME": "greet", "UNIX_ADDR": ""} {
		t.Setenv("MUSTER_"+k, v)
	}
	for flags, want := range map[string]string{"": "task=greet", "-task side": "task=side"} {
		f := newAgentFake(t)
		for line, answer := range ranksOf() {
			f.answers[line] = answer
		}
		for line, answer := range twoTasks() {
			f.answers[line] = answer
		}
		f.run(t, "", append(append([]string{"rsh"}, strings.Fields(flags)...), "10.0.0.1", "true")...)
		if !strings.Contains(f.log(), want) {
			t.Errorf("%q: asked %s; want %q", flags, f.log(), want)
		}
	}
}

// TestForwardFlags: port-forward listens at the address of -listen, and its connections end with the task of -task.
func TestForwardFlags(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: 127.0.0.2 is an address of this machine on Linux")
	}
	f := newAgentFake(t)
	f.run(t, "", "version") // clears the environment's own settings
	t.Setenv("MUSTER_ADDR", f.URL)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	queries := make(chan string, 1)
	f.ws = func(r *http.Request, ws *websocket.Conn) {
		queries <- r.URL.RawQuery
		_, _, _ = ws.Read(r.Context()) // until the other side goes
	}
	out := &untilLine{line: "Forwarding ", then: cancel}
	e := &env{in: strings.NewReader(""), out: out, err: &bytes.Buffer{}, now: func() time.Time { return fixedNow }}
	code := e.main(ctx, strings.Fields("muster alloc port-forward -listen 127.0.0.2 -task greet 8ba85cef 0:http"))
	if query := <-queries; code != 0 || !strings.Contains(out.String(), "Forwarding 127.0.0.2:") || !strings.Contains(query, "task=greet") {
		t.Errorf("exit status %d, %q, asked %q", code, out.String(), query)
	}
}

// untilLine is an output that calls then once a text has been written.
type untilLine struct {
	bytes.Buffer
	line string
	then func()
}

func (u *untilLine) Write(b []byte) (int, error) {
	n, err := u.Buffer.Write(b)
	if strings.Contains(u.String(), u.line) {
		u.then()
	}
	return n, err
}
