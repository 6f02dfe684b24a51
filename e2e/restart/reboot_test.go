//go:build e2e

package restart

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// machine is one agent that is server and client.
type machine struct {
	t         *testing.T
	api       *harness.API
	dir, data string
	agent     *harness.Proc
	more      string // of the configuration
	ports     [3]int
	host      *harness.Host // nil: this machine's own network
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-restart-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, data: filepath.Join(dir, "data"), ports: [3]int{harness.FreePort(t), harness.FreePort(t), harness.FreePort(t)}}
	m.api = harness.NewAPI(t, nil, "", fmt.Sprintf("http://127.0.0.1:%d", m.ports[0]))
	return m
}

func (m *machine) start() {
	m.t.Helper()
	conf := filepath.Join(m.dir, "agent.hcl")
	text := fmt.Sprintf("name = \"one\"\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n%s",
		m.data, m.ports[0], m.ports[1], m.ports[2], m.more)
	if !strings.Contains(m.more, "client {") {
		text += "client {\n  enabled = true\n}\n"
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.agent = harness.Start(m.t, m.host, "agent", nil, "agent", "-config", conf)
	harness.Eventually(m.t, 30*time.Second, "the node to be ready", func() (bool, string) {
		if dead, err := m.agent.Exited(); dead {
			m.t.Fatalf("agent ended: %v\n%s", err, m.agent.Log.Tail(30))
		}
		var ns []struct{ Status string }
		err := m.api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready" && strings.Contains(m.agent.Log.String(), "node registered"), fmt.Sprint(ns, err)
	})
}

// submit runs a shell script under a policy that forgives nothing.
func (m *machine) submit(id, kind, driver, script string, count int) {
	m.t.Helper()
	job := map[string]any{"Job": map[string]any{
		"ID": id, "Name": id, "Type": kind, "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": count, "EphemeralDisk": map[string]any{"SizeMB": 10},
			"RestartPolicy": map[string]any{"Attempts": 0, "Mode": "fail"}, "ReschedulePolicy": map[string]any{"Attempts": 0, "Unlimited": false},
			"Tasks": []any{map[string]any{
				"Name": "t", "Driver": driver, "Config": map[string]any{"command": "/bin/sh", "args": []string{"-c", script}},
				"Resources": map[string]any{"CPU": 10, "MemoryMB": 16}, "LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1},
			}},
		}},
	}}
	if err := m.api.Call("PUT", "/v1/jobs", job, nil); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) until(id, status string, n int) []harness.Alloc {
	m.t.Helper()
	var as []harness.Alloc
	harness.Eventually(m.t, 40*time.Second, fmt.Sprintf("%d of %s to be %s", n, id, status), func() (bool, string) {
		var err error
		as, err = m.api.Allocs(id)
		return err == nil && harness.Count(as, status) == n, fmt.Sprintf("%+v %v", as, err)
	})
	return as
}

// TestRestartReboot simulates a reboot: every process of agent and tasks is killed before it can report anything, and
// the kernel's boot id is a different one afterwards. Work that ran runs again, although its policy allows no restart,
// as the same allocations, each once; work that had ended stays ended.
func TestRestartReboot(t *testing.T) {
	m := newMachine(t)
	boot := filepath.Join(m.dir, "boot_id")
	wrapper := filepath.Join(m.dir, "muster")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s /proc/sys/kernel/random/boot_id && exec %s \"$@\"' sh \"$@\"\n", boot, harness.Bin(t))
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_BIN", wrapper)
	newBoot := func(n int) {
		if err := os.WriteFile(boot, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	newBoot(1)
	m.start()
	ran := filepath.Join(m.dir, "ran")
	m.submit("web", "service", "exec", "exec sleep 100000", 3)
	m.submit("train", "batch", "raw_exec", "echo train >> "+ran+"; exec sleep 100000", 2)
	m.submit("done", "batch", "raw_exec", "echo done >> "+ran, 1)
	before := map[string]bool{}
	for _, a := range append(m.until("web", "running", 3), m.until("train", "running", 2)...) {
		before[a.ID] = true
	}
	m.until("done", "complete", 1)

	m.agent.Kill9()
	super := supervisors(m.data)
	var launchers []int
	procs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range procs {
		b, _ := os.ReadFile(f)
		if s := string(b); strings.Contains(s, "(muster-launch)") {
			if fields := strings.Fields(s[strings.LastIndex(s, ")")+1:]); len(super) == 1 && fields[1] == strconv.Itoa(super[0]) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
				launchers = append(launchers, pid)
			}
		}
	}
	if len(super) != 1 || len(launchers) != 5 {
		t.Fatalf("supervisors %v, launchers %v", super, launchers)
	}
	for _, pid := range append(super, launchers...) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	harness.KillBelow(t, m.data)
	newBoot(2)
	m.start()
	for job, n := range map[string]int{"web": 3, "train": 2} {
		harness.Eventually(t, 40*time.Second, job+" to run again", func() (bool, string) {
			as, err := m.api.Allocs(job)
			ok := err == nil && len(as) == n
			for _, a := range as {
				st, told := a.TaskStates["t"], false
				for _, e := range st.Events {
					told = told || strings.Contains(e.DisplayMessage, "The node was restarted")
				}
				ok = ok && before[a.ID] && a.ClientStatus == "running" && st.State == "running" && st.Restarts == 1 && told
			}
			return ok, fmt.Sprintf("%+v %v", as, err)
		})
	}
	harness.Eventually(t, 20*time.Second, "five tasks, each once", func() (bool, string) {
		seen := map[string]int{}
		for _, tk := range harness.Tasks(m.data) {
			seen[tk.AllocID]++
		}
		ok := len(seen) == len(before)
		for id, n := range seen {
			ok = ok && n == 1 && before[id]
		}
		return ok, fmt.Sprint(seen)
	})
	b, _ := os.ReadFile(ran)
	if text := string(b); strings.Count(text, "done") != 1 || strings.Count(text, "train") != 4 {
		t.Errorf("ran %q", text)
	}
}

// TestRestartShutdown: an agent that is asked to end leaves its tasks running, unless its configuration makes it leave
// the cluster; with drain_on_shutdown its work may move first.
func TestRestartShutdown(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.submit("web", "service", "exec", "trap 'exit 0' TERM; while :; do sleep 0.1; done", 3)
	m.until("web", "running", 3)
	tasks := func() map[string]string {
		out := map[string]string{}
		for _, tk := range harness.Tasks(m.data) {
			out[tk.AllocID] = fmt.Sprint(tk.Pid, tk.Start)
		}
		return out
	}
	before := tasks()
	m.agent.Signal(syscall.SIGTERM)
	if err := m.agent.WaitExit(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	if now := tasks(); len(now) != 3 || fmt.Sprint(now) != fmt.Sprint(before) {
		t.Fatalf("the tasks are %v after the agent's end, they were %v", now, before)
	}
	m.more = "leave_on_terminate = true\nclient {\n  enabled = true\n  drain_on_shutdown {\n    deadline = \"2s\"\n  }\n}\n"
	m.start()
	if now := tasks(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Fatalf("the tasks are %v with the next agent, they were %v", now, before)
	}
	m.agent.Signal(syscall.SIGTERM)
	if err := m.agent.WaitExit(60 * time.Second); err != nil {
		t.Fatal(err)
	}
	if now := tasks(); len(now) != 0 {
		t.Errorf("tasks %v run on a node that has left the cluster", now)
	}
	if g := harness.Mounts(m.data); len(g) != 0 {
		t.Errorf("mounts %v are left", g)
	}
}
