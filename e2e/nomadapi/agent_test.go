package nomadapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// agent is one muster process with its own configuration.
type agent struct {
	*api.Client
	addr string
	log  *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs the binary under test with `agent -dev` and the settings given, and waits until jobs can be placed.
func start(t *testing.T, settings map[string]any) *agent {
	t.Helper()
	bin := os.Getenv("MUSTER_BIN")
	if bin == "" {
		t.Skip("not run: MUSTER_BIN names no binary (make nomad-api sets it)")
	}
	dir := t.TempDir()
	ports := freePorts(t, 3)
	conf := map[string]any{
		"name": "contract", "log_level": "WARN",
		"ports":  map[string]int{"http": ports[0], "rpc": ports[1], "serf": ports[2]},
		"client": map[string]any{"enabled": true, "meta": map[string]string{"rack": "r1"}},
	}
	for k, v := range settings {
		conf[k] = v
	}
	b, err := json.Marshal(conf)
	ok(t, err)
	file := filepath.Join(dir, "agent.json")
	ok(t, os.WriteFile(file, b, 0o600))

	a := &agent{addr: "http://127.0.0.1:" + strconv.Itoa(ports[0]), log: &syncBuffer{}}
	cmd := exec.Command(bin, "agent", "-dev", "-config", file)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir) // where a dev agent keeps its data, and what it removes at its end
	cmd.Stdout, cmd.Stderr = a.log, a.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	ok(t, cmd.Start())
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // a dev agent takes its tasks along
		select {
		case <-exited:
		case <-time.After(15 * time.Second):
			t.Error("the agent did not end within 15 s of an interrupt")
			_ = cmd.Process.Kill()
			<-exited
		}
		killBelow(dir)
		if t.Failed() {
			t.Logf("---- the agent's output\n%s", a.log.String())
		}
	})
	if a.Client, err = api.NewClient(&api.Config{Address: a.addr}); err != nil {
		t.Fatal(err)
	}
	return a
}

// killBelow ends what names a folder in its command line: supervisors and tasks that a failed test left.
func killBelow(dir string) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(b, []byte(dir)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// ready waits until the agent's node takes work, and gives it.
func (a *agent) ready(t *testing.T) *api.NodeListStub {
	t.Helper()
	var n *api.NodeListStub
	eventually(t, "a ready node", func() error {
		nodes, _, err := a.Nodes().List(nil)
		if err != nil {
			return err
		}
		if len(nodes) != 1 || nodes[0].Status != "ready" {
			return fmt.Errorf("%d nodes", len(nodes))
		}
		n = nodes[0]
		return nil
	})
	return n
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ok(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func check(t testing.TB, good bool, format string, args ...any) {
	t.Helper()
	if !good {
		t.Errorf(format, args...)
	}
}

// eventually polls until f is content, for at most 20 s.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// status returns the HTTP status that an error of the client carries, 0 for none.
func status(err error) int {
	if u, is := err.(api.UnexpectedResponseError); is {
		return u.StatusCode()
	}
	return 0
}

func ptr[T any](v T) *T { return &v }

// shell is a job of one group whose task runs a shell script under raw_exec.
func shell(id, kind, script string) *api.Job {
	task := api.NewTask("main", "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.Resources = &api.Resources{CPU: ptr(20), MemoryMB: ptr(16)}
	task.KillTimeout, task.LogConfig = ptr(time.Second), &api.LogConfig{MaxFiles: ptr(2), MaxFileSizeMB: ptr(2)}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: ptr(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: ptr(2), Interval: ptr(time.Minute), Delay: ptr(50 * time.Millisecond), Mode: ptr("fail")}
	return &api.Job{ID: ptr(id), Name: ptr(id), Type: ptr(kind), Datacenters: []string{"dc1"}, TaskGroups: []*api.TaskGroup{group}}
}

// run registers a job and waits until one allocation has a client status; it gives that allocation.
func (a *agent) run(t *testing.T, job *api.Job, want string) *api.Allocation {
	t.Helper()
	resp, wm, err := a.Jobs().Register(job, nil)
	ok(t, err)
	check(t, wm.LastIndex > 0, "write index of a registration is 0")
	check(t, resp.EvalID != "" && resp.JobModifyIndex > 0, "registration answered %+v", resp)
	return a.wait(t, *job.ID, want)
}

func (a *agent) wait(t *testing.T, jobID, want string) *api.Allocation {
	t.Helper()
	var id string
	eventually(t, "an allocation of "+jobID+" that is "+want, func() error {
		stubs, _, err := a.Jobs().Allocations(jobID, true, nil)
		if err != nil {
			return err
		}
		state := ""
		for _, s := range stubs {
			state += s.ClientStatus + " "
			if s.ClientStatus == want {
				id = s.ID
				return nil
			}
		}
		return fmt.Errorf("allocations are: %s", state)
	})
	alloc, _, err := a.Allocations().Info(id, nil)
	ok(t, err)
	return alloc
}
