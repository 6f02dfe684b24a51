package client

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// suspend suspends an allocation, or resumes it, as the servers would.
func suspend(srv *clientfake.Server, id structs.AllocID, on bool) {
	srv.Change(id, func(a *structs.Allocation) {
		*a = *a.Suspend(on, "op", map[bool]string{true: "a leak"}[on], structs.LogTimeOf(time.Now()))
	})
}

func waitStill(t *testing.T, srv *clientfake.Server, id structs.AllocID, on bool) {
	t.Helper()
	srv.Wait(t, map[bool]string{true: "it to stand still", false: "it to go on"}[on], func() bool { return (srv.Alloc(id).Frozen != 0) == on })
}

// content gives what a file says, "" while there is none.
func content(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// moves reports whether the number that a task keeps writing changes within a second.
func moves(path string) bool {
	first := content(path)
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if content(path) != first {
			return true
		}
	}
	return false
}

// TestSuspendOutlivesAgent suspends real processes: all tasks stay frozen when the agent is killed and restarted, are
// resumed by an agent that was down at the time of the request, and get the signal to end.
func TestSuspendOutlivesAgent(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	addr, _ := listen(t, srv)
	agent := func() *exec.Cmd { return startAgent(t, dir, addr) }
	kill := func(cmd *exec.Cmd) {
		cmd.Process.Kill()
		cmd.Wait()
	}
	cmd := agent()
	node := onlyNode(t, srv)
	if got := srv.Node(node).Attributes[structs.SuspendAttribute("raw_exec")]; got != "1" {
		t.Fatalf(`the node does not say that its tasks can be suspended: got %q, want "1"`, got)
	}
	main, side := filepath.Join(dir, "main"), filepath.Join(dir, "side")
	count := func(file string) string {
		return "trap 'echo term >> " + file + ".end; exit 0' TERM; i=0; while :; do i=$((i+1)); echo $i > " + file + ".new; mv " + file + ".new " + file + "; sleep 0.02; done"
	}
	job := clientfake.Job("svc", structs.JobBatch, sh("main", count(main)), sh("side", count(side)))
	job.Groups[0].Tasks[1].Lifecycle = &structs.Lifecycle{Hook: "prestart", Sidecar: true}
	id := srv.Place(node, job)
	srv.WaitStatus(t, id, structs.ClientRunning)
	srv.Wait(t, "both to count", func() bool { return content(main) != "" && content(side) != "" })
	still := func(when string, want bool) {
		t.Helper()
		if moves(main) == want || moves(side) == want {
			t.Errorf("%s: main counts: %v, side counts: %v; want the opposite", when, moves(main), moves(side))
		}
	}

	suspend(srv, id, true)
	waitStill(t, srv, id, true)
	still("suspended", true)
	kill(cmd)
	still("without an agent", true)
	cmd = agent()
	srv.Wait(t, "a report of the new agent", func() bool {
		list := srv.Seen(id)
		return len(list) > 0 && list[len(list)-1].Frozen != 0
	})
	still("with another agent", true)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for what, err := range map[string]error{
		"signal":  invokeErr(ctx, srv, node, methods.ClientSignal, &methods.AllocSignalRequest{AllocID: id, Signal: "SIGUSR1"}),
		"restart": invokeErr(ctx, srv, node, methods.ClientRestart, &methods.AllocRestartRequest{AllocID: id}),
	} {
		if err == nil || !strings.Contains(err.Error(), "is suspended (by op)") {
			t.Errorf(`%s: %v; want an error, "is suspended (by op)" in it`, what, err)
		}
	}

	kill(cmd)
	suspend(srv, id, false) // no agent is running
	still("before an agent knows", true)
	cmd = agent()
	waitStill(t, srv, id, false)
	still("resumed", false)
	st := srv.Alloc(id).TaskStates.Get("main")
	if got := eventTypes(st); !strings.Contains(got, "Suspended") || !strings.Contains(got, "Resumed") || st.Restarts != 0 {
		t.Errorf("events %s, %d restarts", got, st.Restarts)
	}

	suspend(srv, id, true)
	waitStill(t, srv, id, true)
	srv.Stop(id)
	srv.WaitStatus(t, id, structs.ClientComplete)
	if content(main+".end") != "term" || content(side+".end") != "term" {
		t.Errorf("the handlers of SIGTERM wrote %q and %q", content(main+".end"), content(side+".end"))
	}
	kill(cmd)
}

func invokeErr[Req, Resp any](ctx context.Context, srv *clientfake.Server, node structs.NodeID, m rpc.Method[Req, Resp], req *Req) error {
	_, err := rpc.Invoke(ctx, srv.Back(node), m, rpc.Header{}, req)
	return err
}

// TestSuspendedTime checks the clocks of a suspended allocation: its wall-clock limit does not expire while it is
// suspended, and does after it is resumed; the exit of a killed process is noticed; a start waits.
func TestSuspendedTime(t *testing.T) {
	srv, cfg := processNode(t)
	c := start(t, srv, cfg)
	job := clientfake.Job("limited", structs.JobBatch, sh("main", "while :; do sleep 0.05; done"))
	const limit = 3 * time.Second
	job.Runtime.Limit = limit
	id := srv.Place(c.ID(), job)
	srv.WaitStatus(t, id, structs.ClientRunning)
	suspend(srv, id, true)
	waitStill(t, srv, id, true)

	once := clientfake.Job("killed", structs.JobBatch, sh("main", "while :; do sleep 0.05; done"))
	once.Groups[0].Restart = structs.Restart{Mode: "fail"}
	killed := srv.Place(c.ID(), once)
	srv.WaitStatus(t, killed, structs.ClientRunning)
	suspend(srv, killed, true)
	waitStill(t, srv, killed, true)
	sup, err := supervisor.Open(filepath.Join(filepath.Dir(cfg.Storage.DataDir), "supervisor"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	list, err := sup.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if strings.HasPrefix(s.ID, killed.String()) {
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := srv.WaitStatus(t, killed, structs.ClientFailed).TaskStates.Get("main"); !strings.Contains(eventTypes(st), "Terminated") {
		t.Errorf("events of a process that was killed while it stood still: %s", eventTypes(st))
	}

	waiting := srv.Place(c.ID(), clientfake.Job("waiting", structs.JobBatch, sh("main", "exit 0")), func(a *structs.Allocation) {
		a.Suspension = &structs.Suspension{Since: structs.LogTimeOf(time.Now()), By: "op"}
	})
	srv.Wait(t, "the agent to have seen it", func() bool { return len(srv.Seen(waiting)) > 0 })

	since := srv.Alloc(id).Suspension.Since.Time()
	time.Sleep(time.Until(since.Add(limit + 500*time.Millisecond)))
	if a := srv.Alloc(id); a.Client != structs.ClientRunning {
		t.Fatalf("it is %s (%s): the limit came while it stood still", a.Client, a.ClientDesc)
	}
	if a := srv.Alloc(waiting); a.StartedAt != 0 {
		t.Errorf("a suspended allocation started: %+v", a.TaskStates.Get("main"))
	}
	suspend(srv, id, false)
	suspend(srv, waiting, false)
	srv.WaitStatus(t, waiting, structs.ClientComplete)
	a := srv.WaitStatus(t, id, structs.ClientFailed)
	if !strings.Contains(a.ClientDesc, "wall-clock limit") || a.Ran() < limit-100*time.Millisecond {
		t.Errorf("it ended after %s: %s", a.Ran(), a.ClientDesc)
	}
}
