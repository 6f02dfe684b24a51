//go:build e2e

// Package restart kills agents under live tasks, again and again.
package restart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

const tasks = 20

// rounds of kill -9 of the agent alone; MUSTER_E2E_ROUNDS changes it.
func rounds(t *testing.T) int {
	if v := os.Getenv("MUSTER_E2E_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 50
}

// TestRestart runs 20 tasks that count aloud, kills the agent with -9 and starts it again 50 times, then agent and
// supervisor together: no task is lost, orphaned or started twice, and no line of their logs is missing.
func TestRestart(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	data := filepath.Join(dir, "data")
	conf := filepath.Join(dir, "agent.hcl")
	text := fmt.Sprintf(`
name      = "one"
data_dir  = %q
bind_addr = "127.0.0.1"
ports {
  http = 24646
  rpc  = 24647
  serf = 24648
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled = true
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`, data)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	api := harness.NewAPI(t, nil, "", "http://127.0.0.1:24646")
	var agent *harness.Proc
	start := func() {
		agent = harness.Start(t, nil, "agent", nil, "agent", "-config", conf)
		harness.Eventually(t, 30*time.Second, "the agent to answer", func() (bool, string) {
			if dead, err := agent.Exited(); dead {
				t.Fatalf("agent ended: %v\n%s", err, agent.Log.Tail(30))
			}
			var ns []struct{ Status string }
			err := api.Call("GET", "/v1/nodes", nil, &ns)
			return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(ns, err)
		})
	}
	start()
	job := map[string]any{"Job": map[string]any{
		"ID": "count", "Name": "count", "Type": "service", "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": tasks,
			"Tasks": []any{map[string]any{
				"Name": "t", "Driver": "raw_exec",
				"Config":    map[string]any{"command": "/bin/sh", "args": []string{"-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.05; done"}},
				"Resources": map[string]any{"CPU": 10, "MemoryMB": 10},
				"LogConfig": map[string]any{"MaxFiles": 10, "MaxFileSizeMB": 1},
			}},
		}},
	}}
	if err := api.Call("PUT", "/v1/jobs", job, nil); err != nil {
		t.Fatal(err)
	}
	var allocs []harness.Alloc
	allRunning := func(d time.Duration) {
		t.Helper()
		harness.Eventually(t, d, "20 running", func() (bool, string) {
			var err error
			allocs, err = api.Allocs("count")
			return err == nil && harness.Count(allocs, "running") == tasks, fmt.Sprint(len(allocs), err)
		})
	}
	allRunning(30 * time.Second)
	before := harness.Tasks(data)
	if len(before) != tasks {
		t.Fatalf("want %d live tasks, have %d: %v", tasks, len(before), before)
	}
	check := func(when string) {
		t.Helper()
		now := map[string]harness.Task{}
		live := harness.Tasks(data)
		for _, tk := range live {
			if prev, ok := now[tk.AllocID]; ok {
				t.Fatalf("%s: allocation %s runs twice: %+v and %+v", when, tk.AllocID, prev, tk)
			}
			now[tk.AllocID] = tk
		}
		for _, tk := range before {
			if n := now[tk.AllocID]; n.Pid != tk.Pid || n.Start != tk.Start {
				t.Fatalf("%s: task of %s was lost: %+v, now %+v", when, tk.AllocID, tk, n)
			}
		}
		if len(live) != tasks {
			t.Fatalf("%s: %d live tasks, want %d: orphans", when, len(live), tasks)
		}
	}
	n := rounds(t)
	for i := range n {
		time.Sleep(time.Duration(i%7) * 15 * time.Millisecond) // kill at different instants of the start
		agent.Kill9()
		check(fmt.Sprintf("dead, round %d", i))
		start()
		check(fmt.Sprintf("round %d", i))
	}
	allRunning(20 * time.Second)
	for _, a := range allocs {
		if a.TaskStates["t"].Restarts != 0 {
			t.Errorf("%s was restarted %d times", a.Name, a.TaskStates["t"].Restarts)
		}
	}
	t.Logf("%d kills of the agent: %d tasks, 0 lost, 0 orphaned, 0 duplicated", n, tasks)

	for i := range 5 {
		agent.Kill9()
		killed := killSupervisor(t, data)
		start()
		check(fmt.Sprintf("agent and supervisor, round %d (supervisor pid %d)", i, killed))
	}
	allRunning(20 * time.Second)
	t.Logf("5 kills of agent and supervisor together: %d tasks, 0 lost, 0 orphaned, 0 duplicated", tasks)

	lines := 0
	for _, a := range allocs {
		lines += checkLog(t, api, a, 50)
	}
	t.Logf("%d log lines of %d tasks, none missing, none twice", lines, tasks)

	// The end is known too: stop the job, and nothing is left.
	if err := api.Call("DELETE", "/v1/job/count", nil, nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "all stopped", func() (bool, string) {
		as, err := api.Allocs("count")
		return err == nil && harness.Count(as, "complete") == tasks && len(harness.Tasks(data)) == 0, fmt.Sprint(len(harness.Tasks(data)), err)
	})
}

// killSupervisor kills the supervisor of a data directory.
func killSupervisor(t *testing.T, data string) int {
	t.Helper()
	pids := supervisors(data)
	if len(pids) == 0 {
		t.Fatal("no supervisor process found")
	}
	for _, pid := range pids {
		p, _ := os.FindProcess(pid)
		_ = p.Kill()
	}
	return pids[0]
}

// supervisors returns the processes whose command line names the data directory and says supervisor.
func supervisors(data string) []int {
	var pids []int
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), data) || !strings.Contains(string(b), "supervisor") {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

var lineRE = regexp.MustCompile(`^line (\d+)$`)

// checkLog reads a task's whole log over HTTP and checks that it counts without a gap, to some number at least.
func checkLog(t *testing.T, api *harness.API, a harness.Alloc, least int) int {
	t.Helper()
	var text string
	if err := api.Call("GET", "/v1/client/fs/logs/"+a.ID+"?task=t&type=stdout&plain=true&origin=start", nil, &text); err != nil {
		t.Fatalf("logs of %s: %v", a.Name, err)
	}
	want := 1
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		m := lineRE.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("%s: line %q, want line %d", a.Name, l, want)
		}
		if n, _ := strconv.Atoi(m[1]); n != want {
			t.Fatalf("%s: log jumps to %d, want %d", a.Name, n, want)
		}
		want++
	}
	if want < least {
		t.Fatalf("%s: only %d lines", a.Name, want)
	}
	return want - 1
}
