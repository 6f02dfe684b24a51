package main

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// console is the command in its own process, on a pseudo terminal that controls it: keys such as Ctrl-C are signals.
type console struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	mu     sync.Mutex
	out    strings.Builder
	grew   chan struct{} // has a value after new output
	over   chan struct{} // closed after the last
}

func (f *agentFake) onTerminal(t *testing.T, args ...string) *console {
	t.Helper()
	return attach(t, f.command(t, args...))
}

// attach runs a command at a terminal, except for the streams that it has already.
func attach(t *testing.T, cmd *exec.Cmd) *console {
	t.Helper()
	x := &console{t: t, cmd: cmd, grew: make(chan struct{}, 1), over: make(chan struct{})}
	master, err := pty.StartWithSize(x.cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	x.master = master
	go func() {
		defer close(x.over)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf) // fails when the process has ended
			x.mu.Lock()
			x.out.Write(buf[:n])
			x.mu.Unlock()
			select {
			case x.grew <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		<-x.over
		_ = master.Close()
	})
	return x
}

// command is a command line in its own process, with the fake as its agent.
func (f *agentFake) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asCommand, "MUSTER_ADDR="+f.URL, "TERM=xterm-256color", "NO_COLOR=")
	return cmd
}

func (x *console) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

// await waits until the command has written a text.
func (x *console) await(want string) {
	x.t.Helper()
	limit := time.After(20 * time.Second)
	for !strings.Contains(x.text(), want) {
		select {
		case <-x.grew:
		case <-limit:
			x.t.Fatalf("it does not write %q but %q", want, x.text())
		}
	}
}

func (x *console) press(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.master, keys); err != nil {
		x.t.Fatal(err)
	}
}

// end waits for the end of the command and returns its exit status and all that it wrote.
func (x *console) end() (int, string) {
	x.t.Helper()
	select {
	case <-x.over:
	case <-time.After(20 * time.Second):
		x.t.Fatalf("it does not end: %q", x.text())
	}
	err := x.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		x.t.Fatal(err)
	}
	return x.cmd.ProcessState.ExitCode(), x.text()
}

// question is a command line that asks before it acts.
type question struct {
	args, flag string // flag leaves out the question
	ask        string // part of the question
	sent       string // the request that it is about
	refuses    bool   // where there is no terminal
	user       string // the caller, who submitted the jobs; "": carol, while alice and bob did
}

var questions = []question{
	{args: "job stop -purge -detach example", flag: "-yes", ask: `Stop and forget job "example" of me in namespace "default", with 2 live allocations and 9 GPUs?`, sent: "DELETE /v1/job/example", user: "me"},
	{args: "job stop -purge -detach example", flag: "-yes", ask: `Stop and forget job "example" of alice in namespace "default", with 2 live allocations and 9 GPUs?`, sent: "DELETE /v1/job/example", refuses: true},
	{args: "job stop -detach example", flag: "-yes", ask: `Stop job "example" of alice in namespace "default", with 2 live allocations and 9 GPUs?`, sent: "DELETE /v1/job/example", refuses: true},
	{args: "job stop -detach exam", flag: "-yes", ask: `Stop job "example" of me in namespace "default", with 2 live allocations and 9 GPUs?`, sent: "DELETE /v1/job/example", user: "me", refuses: true},
	{args: "job stop -name *a*", flag: "-yes", ask: "Stop 2 jobs of alice (1), bob (1) in namespace default, with 2 live allocations and 9 GPUs?", sent: "DELETE /v1/job/example", refuses: true},
	{args: "job restart example", flag: "-yes", ask: `Restart 2 allocations of job "example" in namespace "default", of alice, which hold 9 GPUs?`, sent: "PUT /v1/client/allocation/" + allocA + "/restart", refuses: true},
	{args: "job restart example", flag: "-yes", ask: `Restart 2 allocations of job "example" in namespace "default", of me, which hold 9 GPUs?`, sent: "PUT /v1/client/allocation/" + allocA + "/restart", user: "me"},
	{args: "node drain -enable -detach 46f1c6c4", flag: "-yes", ask: `Drain node "gpu-01" (46f1c6c4), which has 1 live allocation with 1 GPU of 1 job (alice)?`, sent: "PUT /v1/node/" + nodeA + "/drain", refuses: true},
	{args: "node purge 46f1c6c4", flag: "-yes", ask: `Forget node "gpu-01" (46f1c6c4, ready), which has 1 live allocation with 1 GPU of 1 job (alice)?`, sent: "PUT /v1/node/" + nodeA + "/purge", refuses: true},
	{args: "eval delete 26cfc69e", flag: "-yes", ask: "Delete 26cfc69e?", sent: "DELETE /v1/evaluations", refuses: true},
	{args: "operator raft remove-peer -peer-id x", flag: "-yes", ask: `Take server "x" out of raft?`, sent: "DELETE /v1/operator/raft/peer", refuses: true},
	{args: "operator snapshot restore a.snap", flag: "-yes", ask: "Everything written since is lost.", sent: "PUT /v1/operator/snapshot", refuses: true},
	{args: "operator upgrade finish", flag: "-yes", ask: "No server can go back to the release before.", sent: "PUT /v1/operator/upgrade/finish", refuses: true},
	{args: "system gc", flag: "-yes", ask: "Remove 2 jobs that ended, with their allocations, and 2 nodes that are down, of all namespaces?", sent: "PUT /v1/system/gc", refuses: true},
}

// asked is a fake whose job of two allocations holds nine GPUs.
func asked(t *testing.T, user string) *agentFake {
	f := newAgentFake(t)
	jobs := []*wire.JobListStub{{ID: "example", Namespace: "default", Status: "running", User: "alice"}, {ID: "train", Namespace: "default", Status: "pending", User: "bob"}}
	gpus := func(n int) *wire.AllocatedResources {
		return &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Devices: []*wire.AllocatedDeviceResource{{DeviceIDs: make([]string, n)}}}}}
	}
	stub := func(id string, n int) *wire.AllocationListStub {
		return &wire.AllocationListStub{ID: id, Name: "example.g[0]", JobID: "example", Namespace: "default", ClientStatus: "running", DesiredStatus: "run", AllocatedResources: gpus(n),
			TaskStates: map[string]*wire.TaskState{"t": {State: "running", Restarts: 1}}}
	}
	allocs := []*wire.AllocationListStub{stub(allocA, 8), stub(allocB, 1)}
	f.answers["GET /v1/acl/token/self"] = map[string]any{"Name": cmp.Or(user, "carol")}
	if user != "" {
		for _, j := range jobs {
			j.User = user
		}
	}
	f.answers["GET /v1/jobs"], f.answers["GET /v1/allocations"], f.answers["GET /v1/job/example/allocations"] = jobPrefix(jobs...), allocs, allocs
	f.answers["DELETE /v1/job/example"], f.answers["DELETE /v1/job/train"] = &wire.JobDeregisterResponse{}, &wire.JobDeregisterResponse{}
	f.answers["PUT /v1/client/allocation/"+allocA+"/restart"] = failure{500, "enough of the test"} // what follows takes its time
	f.answers["PUT /v1/client/allocation/"+allocB+"/restart"] = failure{500, "enough of the test"}
	f.answers["PUT /v1/operator/snapshot"] = nil
	return f
}

// TestQuestionsOnATerminal puts each question to a person at a terminal. Only a yes lets the command act, and without a
// terminal it acts on what is the user's own, and refuses anything else with the command line to type.
func TestQuestionsOnATerminal(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.snap", snapshotArchive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, q := range questions {
		t.Run(q.args, func(t *testing.T) {
			line := strings.Fields(q.args)
			answer := func(keys, says string, want int) {
				t.Helper()
				f := asked(t, q.user)
				x := f.onTerminal(t, line...)
				x.await("[y/N] ")
				x.press(keys)
				code, out := x.end()
				if sent := strings.Contains(f.log(), q.sent); !strings.Contains(out, q.ask) || sent != (says == "") || says != "" && (code != want || !strings.Contains(out, says)) {
					t.Errorf("%q: exit status %d, want %d and %q; asked %q\n%s", keys, code, want, says, f.log(), out)
				}
			}
			answer("y\n", "", 0)
			piped := asked(t, q.user)
			cmd := piped.command(t, line...)
			cmd.Stdout = new(bytes.Buffer)
			x := attach(t, cmd)
			x.await("[y/N] ")
			x.press("n\n")
			if _, out := x.end(); strings.Contains(piped.log(), q.sent) || !strings.Contains(out, "Nothing was done.") {
				t.Errorf("with its output in a pipe it is not asked: asked %q\n%s", piped.log(), out)
			}
			answer("n\n", "Nothing was done.", exitOK)
			if i%3 == 2 { // one function reads the answers of all
				answer("\n", "Nothing was done.", exitOK)
				answer("\x03", "Nothing was done.", exitInterrupted)
				answer("\x04", "Nothing was done: the question was not answered.", exitError)
			}
			f := asked(t, q.user)
			f.tty = true
			if r := f.run(t, "", append(line, q.flag)...); !strings.Contains(f.log(), q.sent) || strings.Contains(r.errOut, "[y/N]") {
				t.Errorf("%s: asked %q\n%s", q.flag, f.log(), r.errOut)
			}
			f = asked(t, q.user)
			r := f.run(t, "", line...)
			if refused := r.code == exitError && strings.Contains(r.errOut, q.ask) && strings.Contains(r.errOut, "Nobody can be asked here: add -yes, as in\n  muster "+quoted(line)+" -yes\n"); refused != q.refuses || refused == strings.Contains(f.log(), q.sent) || strings.Contains(r.errOut, "[y/N]") {
				t.Errorf("without a terminal: exit status %d, asked %q\n%s", r.code, f.log(), r.errOut)
			}
		})
	}
}

func quoted(line []string) string {
	words := []string{}
	for _, w := range line {
		words = append(words, word(w))
	}
	return strings.Join(words, " ")
}

// TestEmptyNodeNeedsNoYes: a node on which nothing runs is drained without -yes where there is no terminal.
func TestEmptyNodeNeedsNoYes(t *testing.T) {
	f := asked(t, "")
	f.answers["GET /v1/node/"+nodeA+"/allocations"] = []any{}
	if r := f.run(t, "", "node", "drain", "-enable", "-detach", "46f1c6c4"); r.code != 0 || !strings.Contains(f.log(), "/drain") {
		t.Errorf("%d %s", r.code, r.errOut)
	}
}

// TestRefusalHidesToken: the command line to type is shown without the token in it.
func TestRefusalHidesToken(t *testing.T) {
	for _, line := range [][]string{{"-token=s3cret", "system", "gc"}, {"system", "gc", "-token", "s3cret"}} {
		if r := asked(t, "").run(t, "", line...); r.code != exitError || !strings.Contains(r.errOut, "  muster system gc -yes\n") || strings.Contains(r.errOut, "s3cret") {
			t.Errorf("%d %s", r.code, r.errOut)
		}
	}
}

// TestEveryQuestionIsTried: what can be left out with a flag is a question, and has a row.
func TestEveryQuestionIsTried(t *testing.T) {
	tried := map[string]bool{} // by long text, which aliases share
	root := newRoot(&env{out: io.Discard, err: io.Discard})
	for _, q := range questions {
		c, _, err := root.Find(strings.Fields(q.args))
		if err != nil {
			t.Fatal(err)
		}
		tried[c.Long] = true
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Usage, "do not ask") && !tried[c.Long] && c.Name() != "migrate-backend" { // that one: TestMigrateBackend
				t.Errorf("%s asks: add a row to questions", c.CommandPath())
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// TestWatchRedrawsOnATerminal: each new state takes the place of the state before, and nothing is drawn when nothing has
// changed.
func TestWatchRedrawsOnATerminal(t *testing.T) {
	const clear = "\x1b[H\x1b[2J\x1b[3J"
	f := newAgentFake(t)
	var status atomic.Value
	status.Store("pending")
	looks := make(chan struct{}, 1)
	f.answers["GET /v1/jobs"] = func(*http.Request) any {
		select {
		case looks <- struct{}{}:
		default:
		}
		return []*wire.JobListStub{{ID: "train", Name: "train", Namespace: "default", Type: "batch", Status: status.Load().(string), Priority: 50, SubmitTime: 1}}
	}
	x := f.onTerminal(t, "job", "status", "-watch")
	x.await("pending")
	for range 4 { // a look reads the list twice: two more looks
		<-looks
	}
	if got := x.text(); !strings.HasPrefix(got, clear) || strings.Count(got, clear) != 1 || strings.Contains(got, "running") {
		t.Errorf("before the change: %q", got)
	}
	status.Store("running")
	x.await("running")
	x.press("\x03")
	code, got := x.end()
	last := got[strings.LastIndex(got, clear):]
	if code != 0 || strings.Count(got, clear) != 2 || !strings.Contains(last, "train") || strings.Contains(last, "pending") {
		t.Errorf("after the change: exit status %d, %q", code, got)
	}

	f.answers["GET /v1/job/train"] = &wire.Job{ID: ptr("train"), Name: ptr("train"), Type: ptr("batch"), Priority: ptr(50), Status: ptr("running"), SubmitTime: ptr(int64(1))}
	x = f.onTerminal(t, "job", "status", "-watch", "train")
	x.await("Summary")
	status.Store("dead")
	if code, got := x.end(); code != 0 || !strings.HasPrefix(got, clear) {
		t.Errorf("one job that ends: exit status %d, %q", code, got)
	}
}
