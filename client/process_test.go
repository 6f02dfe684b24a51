package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/rawexec"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/ranks"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// agentEnv makes the test binary an agent: "<data dir> <server address>".
const agentEnv = "MUSTER_TEST_CLIENT"

func TestMain(m *testing.M) {
	supervisor.MaybeRun()
	ranks.MaybeRun()
	artifact.MaybeRunChild()
	if v := os.Getenv(agentEnv); v != "" {
		dir, addr, _ := strings.Cut(v, " ")
		fmt.Fprintln(os.Stderr, agentMain(dir, addr))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// agentMain is a real agent with raw_exec.
func agentMain(dir, addr string) error {
	cfg, sup, err := processConfig(dir)
	if err != nil {
		return err
	}
	defer sup.Close()
	cfg.Connect = Dial(DialConfig{Servers: []string{addr}})
	c, err := New(cfg)
	if err != nil {
		return err
	}
	return c.Run(context.Background())
}

// processNode is a server, and the configuration of a node of it that runs real processes.
func processNode(t *testing.T) (*clientfake.Server, Config) {
	t.Helper()
	cfg, sup, err := processConfig(scratch(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sup.Close() })
	srv := clientfake.New()
	cfg.Connect = InProcess(srv.InProcess)
	return srv, cfg
}

func processConfig(dir string) (Config, *supervisor.Client, error) {
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		return Config{}, nil, err
	}
	drivers := driver.NewSet(rawexec.New(rawexec.Options{Supervisor: sup, Enabled: true}))
	return Config{
		Node:    NodeConfig{Name: "n1"},
		Storage: StorageConfig{DataDir: filepath.Join(dir, "data")},
		Host:    HostConfig{Drivers: drivers, Supervisor: Supervised(sup), Fingerprinters: machine(fingerprint.Options{Drivers: drivers})},
	}, sup, nil
}

// scratch is a directory that is gone, with everything that ran there, after the test.
func scratch(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-client-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := sup.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		sup.Close()
		if mounts := mountsBelow(t, dir); len(mounts) > 0 {
			for _, m := range mounts {
				syscall.Unmount(m, syscall.MNT_DETACH)
			}
			t.Logf("unmounted what running allocations had: %d", len(mounts))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			out = append(out, f[1])
		}
	}
	return out
}

func sh(name, script string) *structs.Task {
	b, _ := json.Marshal(map[string]any{"command": "/bin/sh", "args": []string{"-c", script}})
	return clientfake.Task(name, "raw_exec", string(b))
}

func TestRealTask(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	cfg, sup, err := processConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	cfg.Connect = InProcess(srv.InProcess)
	cfg.Node.Meta = map[string]string{"rack": "r7"}
	a := start(t, srv, cfg)

	job := clientfake.Job("env", structs.JobBatch, sh("main", `env; echo 'arg ${meta.rack} ${NOMAD_TASK_NAME} ${attr.nope}' >&2; cat local/in/payload.txt; echo secret > $NOMAD_SECRETS_DIR/token; echo shared > $NOMAD_ALLOC_DIR/data/f; pwd; echo all-said; sleep 300`))
	main := job.Groups[0].Tasks[0]
	main.Env = map[string]string{"WHERE": "${node.datacenter}-${meta.rack}", "NOMAD_ALLOC_ID": "mine", "odd-name": "x"}
	main.Meta = map[string]string{"owner": "me"}
	main.DispatchPayload = "in/payload.txt"
	job.Payload = []byte("the payload\n")
	id := srv.Place(a.ID(), job, func(al *structs.Allocation) {
		al.Ports = []structs.PortGrant{{Label: "http", Value: 21234, To: 8080}, {Label: "db", Value: 21235}}
		al.NameIndex = 3
	})
	srv.WaitStatus(t, id, structs.ClientRunning)
	back := srv.Back(a.ID())
	ctx := context.Background()

	out := readLog(t, back, id, "stdout", func(s string) bool { return strings.Contains(s, "\nall-said\n") })
	for _, want := range []string{
		"NOMAD_ALLOC_ID=" + id.String(), "MUSTER_ALLOC_ID=" + id.String(), "NOMAD_ALLOC_INDEX=3", "NOMAD_ALLOC_NAME=env.g[3]",
		"NOMAD_TASK_NAME=main", "NOMAD_GROUP_NAME=g", "NOMAD_JOB_ID=env", "NOMAD_JOB_NAME=env", "NOMAD_DC=dc1", "NOMAD_REGION=global", "NOMAD_NAMESPACE=default",
		"NOMAD_CPU_LIMIT=100", "NOMAD_MEMORY_LIMIT=64", "NOMAD_META_owner=me", "NOMAD_META_OWNER=me", "WHERE=dc1-r7", "odd_name=x",
		"NOMAD_PORT_http=8080", "NOMAD_HOST_PORT_http=21234", "NOMAD_ADDR_http=192.0.2.7:21234", "NOMAD_IP_http=192.0.2.7", "NOMAD_ADDR_db=192.0.2.7:21235", "NOMAD_PORT_db=21235",
		"CUDA_VISIBLE_DEVICES=", "the payload",
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("the task's output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
	if e := readLog(t, back, id, "stderr", func(s string) bool { return strings.HasSuffix(s, "\n") }); e != "arg r7 main ${attr.nope}\n" {
		t.Errorf("stderr is %q", e)
	}

	t.Run("files", func(t *testing.T) {
		list, err := rpc.Invoke(ctx, back, methods.ClientFSList, rpc.Header{}, &methods.FSRequest{AllocID: id, Path: "/"})
		if err != nil || len(list.Files) != 2 || list.Files[0].Name != "alloc" || list.Files[1].Name != "main" || !list.Files[0].IsDir {
			t.Fatalf("list: %v, %+v", err, list)
		}
		stat, err := rpc.Invoke(ctx, back, methods.ClientFSStat, rpc.Header{}, &methods.FSRequest{AllocID: id, Path: "alloc/data/f"})
		if err != nil || stat.Info.Size != 7 || !strings.HasPrefix(stat.Info.ContentType, "text/plain") {
			t.Errorf("stat: %v, %+v", err, stat)
		}
		got, err := readStream(ctx, back, methods.ClientFSStream, &methods.FSStreamRequest{AllocID: id, Path: "alloc/data/f", Offset: 2, Limit: 3})
		if err != nil || got != "are" {
			t.Errorf("read: %v, %q", err, got)
		}
		for path, want := range map[string]structs.ErrorCode{
			"main/secrets/token": structs.CodeDenied, "main/secrets": structs.CodeDenied, "../../../../etc/passwd": structs.CodeInvalid,
			"nowhere": structs.CodeNotFound, "alloc/data": structs.CodeInvalid, "": structs.CodeInvalid,
		} {
			t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
				if _, err := readStream(ctx, back, methods.ClientFSStream, &methods.FSStreamRequest{AllocID: id, Path: path}); structs.CodeOf(err) != want || err == nil {
					t.Errorf("reading %q: %v, want %s", path, err, want)
				}
			})
		}
	})
	t.Run("exec", func(t *testing.T) {
		st, err := rpc.OpenStream(ctx, back, methods.ClientExec, rpc.Header{}, &methods.ExecRequest{AllocID: id, Task: "main", Command: []string{"/bin/sh", "-c", "cat; echo err >&2; exit 3"}})
		if err != nil {
			t.Fatal(err)
		}
		st.SendMsg(&methods.ExecFrame{Stdin: []byte("hello")})
		st.SendMsg(&methods.ExecFrame{StdinClose: true})
		var stdout, stderr string
		code := -1
		for {
			var f methods.ExecFrame
			if err := st.RecvMsg(&f); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
			stdout += string(f.Stdout)
			stderr += string(f.Stderr)
			if f.Exited {
				code = f.ExitCode
			}
		}
		st.Close(nil)
		if stdout != "hello" || stderr != "err\n" || code != 3 {
			t.Errorf("exec said %q and %q and exited with %d", stdout, stderr, code)
		}
	})
	t.Run("stats", func(t *testing.T) {
		s, err := rpc.Invoke(ctx, back, methods.ClientStats, rpc.Header{}, &methods.AllocNodeRequest{AllocID: id})
		if err != nil || len(s.Tasks) != 1 || s.Tasks["main"].Time == 0 {
			t.Errorf("stats: %v, %+v", err, s)
		}
		h, err := rpc.Invoke(ctx, back, methods.ClientHostStats, rpc.Header{}, &methods.AllocNodeRequest{NodeID: a.ID()})
		if err != nil || h.MemTotal == 0 || len(h.CPU) == 0 || h.AllocDir.Size == 0 || h.Uptime == 0 {
			t.Errorf("host stats: %v, %+v", err, h)
		}
	})
	srv.Stop(id)
	srv.WaitStatus(t, id, structs.ClientComplete)
	if m := mountsBelow(t, dir); len(m) != 0 {
		t.Errorf("mounts are left: %v", m)
	}
	if got := readLog(t, back, id, "stdout", func(s string) bool { return true }); got != out {
		t.Errorf("the log changed after the task's end: got %v, want %v", got, out)
	}
}

func TestTooMuchDisk(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	cfg, sup, err := processConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	cfg.Connect = InProcess(srv.InProcess)
	cfg.GC.Interval = 100 * time.Millisecond
	a := start(t, srv, cfg)
	big := srv.Place(a.ID(), clientfake.Job("big", structs.JobService, sh("main", `dd if=/dev/zero of=local/f bs=1M count=12 2>/dev/null; sleep 300`)))
	small := srv.Place(a.ID(), clientfake.Job("small", structs.JobService, sh("main", `dd if=/dev/zero of=local/f bs=1M count=5 2>/dev/null; sleep 300`)))
	al := srv.WaitStatus(t, big, structs.ClientFailed)
	st := al.TaskStates.Get("main")
	if !st.Failed || !strings.Contains(eventTypes(st), "Disk Resources Exceeded") || !strings.Contains(al.ClientDesc, "10 MiB") {
		t.Errorf("it ended as %q with events %s", al.ClientDesc, eventTypes(st))
	}
	if srv.WaitStatus(t, small, structs.ClientRunning); a.Alloc(small).Final() != nil {
		t.Error("an allocation within its limit was ended")
	}
	srv.Stop(small)
	srv.WaitStatus(t, small, structs.ClientComplete)
}

// readStream reads a stream of frames to its end.
func readStream[Req any](ctx context.Context, c rpc.Caller, m rpc.StreamMethod[Req], req *Req) (string, error) {
	st, err := rpc.OpenStream(ctx, c, m, rpc.Header{}, req)
	if err != nil {
		return "", err
	}
	defer st.Close(nil)
	var b bytes.Buffer
	for {
		var f methods.FSFrame
		if err := st.RecvMsg(&f); err == io.EOF {
			return b.String(), nil
		} else if err != nil {
			return b.String(), err
		}
		b.Write(f.Data)
	}
}

// readLog follows a log until it satisfies enough.
func readLog(t *testing.T, c rpc.Caller, id structs.AllocID, typ string, enough func(string) bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	st, err := rpc.OpenStream(ctx, c, methods.ClientLogs, rpc.Header{}, &methods.LogsRequest{AllocID: id, Task: "main", Type: typ, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close(nil)
	var b strings.Builder
	for {
		var f methods.FSFrame
		if err := st.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return b.String() // the task has ended
			}
			t.Fatalf("log %s: %v after %q", typ, err, b.String())
		}
		b.Write(f.Data)
		if enough(b.String()) {
			return b.String()
		}
	}
}

// TestAgentKilled kills a real agent with kill -9 twenty times while tasks start, run and end, and once removes its
// state as well. No task may be lost, started twice or run again.
func TestAgentKilled(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	addr, _ := listen(t, srv)
	proof := filepath.Join(dir, "proof")
	if err := os.Mkdir(proof, 0o755); err != nil {
		t.Fatal(err)
	}
	agent := func() *exec.Cmd { return startAgent(t, dir, addr) }
	cmd := agent()
	node := onlyNode(t, srv)
	// Each start of a task leaves a line.
	line := func(name string) string { return "echo $$ >> " + filepath.Join(proof, name) }
	svc := srv.Place(node, clientfake.Job("svc", structs.JobService, sh("main", line("svc")+"; while :; do sleep 0.1; done")))
	srv.WaitStatus(t, svc, structs.ClientRunning)
	started := srv.Alloc(svc).TaskStates.Get("main").StartedAt
	batch := map[string]structs.AllocID{}
	for i := range 20 {
		for k := range 2 {
			name := fmt.Sprintf("b%d-%d", i, k)
			batch[name] = srv.Place(node, clientfake.Job(name, structs.JobBatch, sh("main", line(name)+"; sleep 0."+strconv.Itoa(k))))
		}
		// Kill at a different moment each time: before the poll, in the start, while it runs, at the end.
		deadline := time.NewTimer(time.Duration(i%7) * 12 * time.Millisecond)
		<-deadline.C
		cmd.Process.Kill()
		cmd.Wait()
		if i == 10 { // the disk was lost as well, but not the tasks
			if err := os.Remove(filepath.Join(dir, "data", agentstore.FileName)); err != nil {
				t.Fatal(err)
			}
		}
		cmd = agent()
	}
	for name, id := range batch {
		al := srv.WaitStatus(t, id, structs.ClientComplete)
		if st := al.TaskStates.Get("main"); st.Failed || st.Restarts != 0 {
			t.Errorf("%s: %+v", name, st)
		}
		if n := lines1(t, filepath.Join(proof, name)); n != 1 {
			t.Errorf("%s was started %d times", name, n)
		}
	}
	srv.WaitStatus(t, svc, structs.ClientRunning)
	if st := srv.Alloc(svc).TaskStates.Get("main"); st.StartedAt != started || st.Restarts != 0 {
		t.Errorf("the service was started at %v, now %v with %d restarts", started.Time(), st.StartedAt.Time(), st.Restarts)
	}
	if n := lines1(t, filepath.Join(proof, "svc")); n != 1 {
		t.Errorf("the service was started %d times", n)
	}
	srv.Stop(svc)
	srv.WaitStatus(t, svc, structs.ClientComplete)
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	srv.Wait(t, "the supervisor to have no task left", func() bool {
		list, err := sup.List(context.Background())
		return err == nil && len(list) == 0
	})
	cmd.Process.Kill()
	cmd.Wait()
}

// TestStopOfUnknownStart: tasks run of whose starts the agent that comes back knows nothing but that they were asked for. They are stopped
// before it could ask the driver again, and none is left without an allocation.
func TestStopOfUnknownStart(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	addr, _ := listen(t, srv)
	cmd := startAgent(t, dir, addr)
	node := onlyNode(t, srv)
	var ids []structs.AllocID
	for i := range 12 {
		name := fmt.Sprintf("svc%d", i)
		ids = append(ids, srv.Place(node, clientfake.Job(name, structs.JobService, sh("main", "sleep 1000"))))
	}
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientRunning)
	}
	cmd.Process.Kill()
	cmd.Wait()
	// Without its state the agent finds the ids of what runs, as after a death between a start and its record.
	if err := os.Remove(filepath.Join(dir, "data", agentstore.FileName)); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		srv.Stop(id)
	}
	cmd = startAgent(t, dir, addr)
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientComplete)
	}
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	list, err := sup.List(context.Background())
	if err != nil || slices.ContainsFunc(list, func(s supervisor.Status) bool { return !s.Ended }) {
		t.Errorf("all allocations have ended, and these tasks run: %+v (%v)", list, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

func lines1(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

// startAgent starts this test program as an agent in a separate process, with its state in dir.
func startAgent(t *testing.T, dir, addr string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentEnv+"="+dir+" "+addr)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // if the test ended early
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// onlyNode waits for the one node that registers.
func onlyNode(t *testing.T, srv *clientfake.Server) (node structs.NodeID) {
	t.Helper()
	srv.Wait(t, "the agent", func() bool {
		for _, id := range srv.Nodes() {
			node = id
		}
		return !node.IsZero()
	})
	return node
}
