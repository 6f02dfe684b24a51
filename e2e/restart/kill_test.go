//go:build e2e

package restart

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// Of the tasks that live through all kills, those with a whole GPU and those with a share of one.
const (
	wholeGPUs = 4
	shares    = 4
)

// killNode is a server, and a client whose GPUs are fake ones that stay the same while agents come and go.
type killNode struct {
	t                *testing.T
	api              *harness.API
	dir, addr, data  string
	libs, state, ran string
	agent            *harness.Proc
	startAgent       func()
	started          time.Time // of the agent that runs now
}

// kills is how often the agent is killed; COUNT replaces it.
const kills = 100

// TestKill kills the agent of a node with -9 at random instants of its life (kills times, or COUNT) under 20 tasks, 8
// of which have GPUs, while short jobs come and others are stopped: no task is lost, orphaned or doubled; no other
// process is killed; no GPU is granted twice; and at the end control groups, mounts and the supervisor's descriptors
// are as before.
func TestKill(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	count, seed := kills, uint64(time.Now().UnixNano())
	for name, set := range map[string]func(uint64){"COUNT": func(v uint64) { count = int(v) }, "SEED": func(v uint64) { seed = v }} {
		if s := os.Getenv(name); s != "" {
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatalf("%s=%q: %v", name, s, err)
			}
			set(v)
		}
	}
	t.Logf("%d kills, SEED=%d", count, seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	n := newKillNode(t)

	// Processes of others, two of which look like ours: one by its name and arguments, one by its environment.
	foreign := []*exec.Cmd{exec.Command("sleep", "100000"), exec.Command("tail", "-f", "/dev/null"), exec.Command("sleep", "100000")}
	foreign[1].Args[0] = "muster-launch"
	foreign[2].Env = []string{"NOMAD_ALLOC_ID=00000000-0000-0000-0000-000000000000", "NOMAD_TASK_NAME=t"}
	for _, f := range foreign {
		f.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := f.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Process.Kill(); _ = f.Wait() }()
	}

	n.startAgent()
	n.ready(20 * time.Second)
	n.submit(t, "plain", "service", tasks-wholeGPUs-shares, "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.25; done", "")
	gpu := fmt.Sprintf("(echo init; echo ctx 0; echo alloc %d; exec sleep 100000) | %s/user", 512<<20, n.dir)
	n.submit(t, "whole", "service", wholeGPUs, gpu, "gpu { count = 1 }")
	n.submit(t, "share", "service", shares, gpu, "gpu { memory = \"18GiB\" }")
	long := map[string]bool{"plain": true, "whole": true, "share": true}
	busy := time.Now()
	before := map[string]harness.Task{} // by allocation
	var all []harness.Alloc
	harness.Eventually(t, 60*time.Second, "the 20 tasks to run", func() (bool, string) {
		all = all[:0]
		for job := range long {
			as, err := n.api.Allocs(job)
			if err != nil {
				return false, err.Error()
			}
			all = append(all, as...)
		}
		return harness.Count(all, "running") == tasks, fmt.Sprint(harness.Count(all, "running"), " of ", len(all))
	})
	for _, tk := range harness.Tasks(n.data) {
		before[tk.AllocID] = tk
	}
	if len(before) != tasks {
		t.Fatalf("%d live tasks, want %d", len(before), tasks)
	}
	gpus := n.grants(all)
	descriptors := openFiles(supervisorPid(t, n.data))

	// alive checks from the outside, whether an agent lives or not: the same 20 processes, each once.
	alive := func(when string) {
		t.Helper()
		seen := map[string]int{}
		for _, tk := range harness.Tasks(n.data) {
			seen[tk.AllocID+tk.Task]++
			if seen[tk.AllocID+tk.Task] > 1 {
				t.Fatalf("%s: allocation %s runs twice", when, tk.AllocID)
			}
			if was, ok := before[tk.AllocID]; ok && (was.Pid != tk.Pid || was.Start != tk.Start) {
				t.Fatalf("%s: the task of %s is %+v, it was %+v", when, tk.AllocID, tk, was)
			}
		}
		for id, was := range before {
			if seen[id+was.Task] == 0 {
				t.Fatalf("%s: the task of %s is lost: %+v", when, id, was)
			}
		}
		for i, f := range foreign {
			if st, err := procfile.StatOf(f.Process.Pid); err != nil || st.State == 'Z' {
				t.Fatalf("%s: process %d of somebody else (%q) was killed", when, i, f.Args)
			}
		}
	}
	var taken []time.Duration // from the start of an agent until its node is ready with all its tasks
	short, stopped := 0, 0    // jobs that come and end, and jobs that are stopped
	began := time.Now()
	for i := range count {
		if i%5 == 0 {
			n.submit(t, fmt.Sprintf("short-%d", short), "batch", 3, "echo $NOMAD_ALLOC_ID >> "+n.ran, "")
			n.submit(t, fmt.Sprintf("one-gpu-%d", short), "batch", 1,
				fmt.Sprintf("l=%s/lock-$CUDA_VISIBLE_DEVICES; mkdir $l || echo twice >> %s; echo $NOMAD_ALLOC_ID >> %s; sleep 0.05; rmdir $l", filepath.Dir(n.ran), n.ran, n.ran), "gpu { count = 1 }")
			short++
			n.submit(t, fmt.Sprintf("stopped-%d", stopped), "service", 2, "sleep 100000", "")
			stopped++
			if stopped > 1 {
				n.stop(fmt.Sprintf("stopped-%d", stopped-2))
			}
		}
		if i%5 == 4 {
			n.ready(30 * time.Second)
			taken = append(taken, time.Since(n.started))
		}
		// Most kills come while the agent starts and takes up its tasks, some long after.
		at := time.Duration(rnd.ExpFloat64() * float64(150*time.Millisecond))
		time.Sleep(min(at, 2*time.Second))
		n.agent.Kill9()
		alive(fmt.Sprintf("kill %d, %s after its start", i+1, at.Round(time.Millisecond)))
		n.startAgent()
	}
	took := time.Since(began)
	n.ready(30 * time.Second)
	alive("at the end")

	// The servers agree: the same allocations run, nothing was restarted, nothing replaced, every GPU as it was granted.
	all = all[:0]
	for job := range long {
		as, err := n.api.Allocs(job)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range as {
			if _, known := before[a.ID]; !known || a.ClientStatus != "running" || a.TaskStates["t"].Restarts != 0 {
				t.Errorf("allocation %s of %s is %s after %d restarts (known: %t): %s", a.ID, job, a.ClientStatus, a.TaskStates["t"].Restarts, known, a.ClientDescription)
			}
		}
		all = append(all, as...)
	}
	if now := n.grants(all); fmt.Sprint(now) != fmt.Sprint(gpus) {
		t.Errorf("GPUs are granted as %v, they were as %v", now, gpus)
	}
	lines := 0
	for _, a := range all {
		if a.JobID == "plain" {
			lines += checkLog(t, n.api, a, 5)
		}
	}
	// Every short task ran exactly once, and no two on one GPU at a time.
	want := map[string]bool{}
	harness.Eventually(t, 120*time.Second, "the short jobs to end", func() (bool, string) {
		clear(want)
		for i := range short {
			for _, job := range []string{fmt.Sprintf("short-%d", i), fmt.Sprintf("one-gpu-%d", i)} {
				as, err := n.api.Allocs(job)
				if err != nil || len(as) == 0 || harness.Count(as, "complete") != len(as) {
					return false, fmt.Sprintf("%s: %v %+v", job, err, as)
				}
				for _, a := range as {
					want[a.ID] = true
				}
			}
		}
		return len(want) == 4*short, fmt.Sprintf("%d allocations, want %d", len(want), 4*short)
	})
	b, err := os.ReadFile(n.ran)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, id := range strings.Fields(string(b)) {
		times[id]++
	}
	if times["twice"] > 0 {
		t.Errorf("%d tasks found their GPU in use by another", times["twice"])
	}
	delete(times, "twice")
	for id := range want {
		if times[id] != 1 {
			t.Errorf("the short task of %s ran %d times", id, times[id])
		}
	}
	if len(times) != len(want) {
		t.Errorf("%d short tasks ran, %d were asked for", len(times), len(want))
	}
	t.Logf("%d kills in %s: %d tasks (%d with GPUs) and %d log lines whole; %d short and %d stopped tasks: 0 lost, 0 orphaned, 0 duplicated, 0 foreign kills, no GPU twice",
		count, took.Round(time.Second), tasks, wholeGPUs+shares, lines, len(want), 2*stopped)
	if slices.Sort(taken); len(taken) > 0 {
		t.Logf("%d agents that were left alone took their tasks up: p50 %s, p99 %s after their start", len(taken), taken[len(taken)/2].Round(time.Millisecond), taken[len(taken)*99/100].Round(time.Millisecond))
	}

	// Back to where everything began.
	super := supervisorPid(t, n.data)
	harness.Eventually(t, 20*time.Second, "the supervisor to close what it opened", func() (bool, string) {
		left := len(harness.Tasks(n.data)) - 2 // the last job that is stopped
		have := openFiles(super)
		return have <= descriptors+8*left+4, fmt.Sprintf("%d descriptors, %d at the beginning, %d tasks more", have, descriptors, left-tasks)
	})
	time.Sleep(4 * time.Second) // an agent must live long enough to look at its GPUs once
	held := time.Since(busy)
	for job := range long {
		n.stop(job)
	}
	n.stop(fmt.Sprintf("stopped-%d", stopped-1))
	harness.Eventually(t, 60*time.Second, "nothing to run", func() (bool, string) {
		left := harness.Tasks(n.data)
		return len(left) == 0, fmt.Sprint(left)
	})
	harness.Eventually(t, 20*time.Second, "control groups, mounts and helpers to go", func() (bool, string) {
		groups, mounts, helpers := harness.Groups(n.data), harness.Mounts(n.data), n.helpers()
		groups = slices.DeleteFunc(groups, func(g string) bool { return strings.HasPrefix(filepath.Base(g), ".") }) // the supervisor's own
		return len(groups)+len(mounts) == 0 && helpers <= 1, fmt.Sprintf("groups %v, mounts %v, %d processes that look at GPUs", groups, mounts, helpers)
	})
	n.booked(map[string]int64{"whole": wholeGPUs, "share": shares}, 512, held)
	if s, err := (&fakegpu.File{Path: n.state}).Read(); err != nil {
		t.Error(err)
	} else if len(s.GPUs) != wholeGPUs+2 {
		t.Errorf("the fake driver has %d GPUs", len(s.GPUs))
	}
}

// booked checks what the books say of GPUs that were used through all kills: tasks of each job, each of which held so many
// MiB all the time.
func (n *killNode) booked(jobs map[string]int64, mib int64, held time.Duration) {
	n.t.Helper()
	var records []struct {
		JobID  string
		GPUUse *struct{ PeakMiB, MiBSeconds int64 }
	}
	harness.Eventually(n.t, 20*time.Second, "the jobs with GPUs to be in the books", func() (bool, string) {
		if err := n.api.Call("GET", "/v1/acct", nil, &records); err != nil {
			return false, err.Error()
		}
		found := 0
		for _, r := range records {
			if jobs[r.JobID] > 0 {
				found++
			}
		}
		return found == len(jobs), fmt.Sprint(found)
	})
	for _, r := range records {
		if count := jobs[r.JobID]; count > 0 {
			want := count * mib * int64(held/time.Millisecond) / 1000
			if u := r.GPUUse; u == nil || u.MiBSeconds < want*9/10 || u.MiBSeconds > want*11/10 || u.PeakMiB < mib || u.PeakMiB > 2*mib {
				n.t.Errorf("%d tasks of %s held %d MiB for %s, %d MiB-seconds: the books say %+v", count, r.JobID, mib, held.Round(time.Second), want, u)
			} else {
				n.t.Logf("GPU memory over time of %s through all kills: %d MiB-seconds, %d by the clock", r.JobID, u.MiBSeconds, want)
			}
		}
	}
}

func newKillNode(t *testing.T) *killNode {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "muster-kill-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	n := &killNode{t: t, dir: dir, data: filepath.Join(dir, "client"), libs: filepath.Join(dir, "lib"), state: filepath.Join(dir, "gpus", "state")}
	out := filepath.Join(dir, "out")
	n.ran = filepath.Join(out, "ran")
	for _, d := range []string{dir, out, filepath.Dir(n.state)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d, 0o777); err != nil { // tasks of other users write there
			t.Fatal(err)
		}
	}
	if err := lib.Build(n.libs); errors.Is(err, lib.ErrNoCompiler) {
		harness.NotRun(t, "no C compiler for the fake driver libraries")
	} else if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	if err := lib.Sources(src); err != nil {
		t.Fatal(err)
	}
	if err := lib.Compile("-o", filepath.Join(dir, "user"), filepath.Join(src, "user.c"), filepath.Join(n.libs, lib.CUDA)); err != nil {
		t.Fatal(err)
	}
	s, err := fakegpu.New(fmt.Sprintf("%dxH100", wholeGPUs+2), "kill")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fakegpu.Create(n.state, s); err != nil {
		t.Fatal(err)
	}
	http, rpc := harness.FreePort(t), harness.FreePort(t)
	n.addr = fmt.Sprintf("http://127.0.0.1:%d", http)
	conf := func(name, text string, ports ...any) string {
		path := filepath.Join(dir, name+".hcl")
		text = fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n", append([]any{name, filepath.Join(dir, name)}, ports...)...) + text
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	server := conf("server", "server {\n  enabled = true\n  bootstrap_expect = 1\n}\n", http, rpc, harness.FreePort(t))
	client := conf("client", fmt.Sprintf("client {\n  enabled = true\n  servers = [\"127.0.0.1:%d\"]\n}\nplugin \"nvidia\" {\n  config {\n    library = %q\n  }\n}\n", rpc, filepath.Join(n.libs, lib.NVML)),
		harness.FreePort(t), harness.FreePort(t), harness.FreePort(t))
	harness.Start(t, nil, "server", nil, "agent", "-config", server)
	n.api = harness.NewAPI(t, nil, "", n.addr)
	n.startAgent = func() {
		n.started = time.Now()
		n.agent = harness.Start(t, nil, "client", []string{fakegpu.Env + "=" + n.state}, "agent", "-config", client)
	}
	harness.Eventually(t, 30*time.Second, "the server to lead", func() (bool, string) {
		var s string
		err := n.api.Call("GET", "/v1/status/leader", nil, &s)
		return err == nil && s != "", fmt.Sprint(s, err)
	})
	return n
}

// ready waits until the agent that runs now has registered, and has all its GPUs.
func (n *killNode) ready(limit time.Duration) {
	n.t.Helper()
	harness.Eventually(n.t, limit, "the node to be ready", func() (bool, string) {
		if dead, err := n.agent.Exited(); dead {
			n.t.Fatalf("the agent ended by itself: %v\n%s", err, n.agent.Log.Tail(30))
		}
		if !strings.Contains(n.agent.Log.String(), "registered") {
			return false, n.agent.Log.Tail(5)
		}
		var nodes []struct{ Status, SchedulingEligibility string }
		err := n.api.Call("GET", "/v1/nodes", nil, &nodes)
		return err == nil && len(nodes) == 1 && nodes[0].Status == "ready", fmt.Sprintf("%+v %v", nodes, err)
	})
}

func (n *killNode) submit(t *testing.T, job, kind string, count int, script, gpu string) {
	t.Helper()
	text := fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    count = %d
    ephemeral_disk {
      size = 10
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = "exec"
      logs {
        max_files     = 2
        max_file_size = 4
      }
      env {
        LD_LIBRARY_PATH      = %q
        MUSTER_FAKEGPU_STATE = %q
      }
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 10
        memory = 16
        %s
      }
    }
  }
}
`, job, kind, count, n.libs, n.state, script, gpu)
	path := filepath.Join(n.dir, "job.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(harness.Bin(t), "job", "run", "-detach", path)
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+n.addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("job run %s: %v\n%s", job, err, out)
	}
}

func (n *killNode) stop(job string) {
	n.t.Helper()
	if err := n.api.Call("DELETE", "/v1/job/"+job, nil, nil); err != nil {
		n.t.Fatalf("stop %s: %v", job, err)
	}
}

// grants returns the GPUs of allocations, "" for none, and checks that no GPU is granted more than once, or more of it than
// there is.
func (n *killNode) grants(as []harness.Alloc) map[string]string {
	n.t.Helper()
	out, taken := map[string]string{}, map[string]int{} // quarters of a GPU
	for _, a := range as {
		var full struct {
			AllocatedResources struct {
				Tasks map[string]struct {
					Devices []struct{ DeviceIDs []string }
				}
			}
		}
		if err := n.api.Call("GET", "/v1/allocation/"+a.ID, nil, &full); err != nil {
			n.t.Fatal(err)
		}
		for _, d := range full.AllocatedResources.Tasks["t"].Devices {
			for _, id := range d.DeviceIDs {
				out[a.ID] += id
				taken[id] += map[string]int{"whole": 4, "share": 1}[a.JobID]
			}
		}
		if (a.JobID == "plain") != (out[a.ID] == "") {
			n.t.Errorf("allocation %s of %s has GPU %q", a.ID, a.JobID, out[a.ID])
		}
	}
	for id, q := range taken {
		if q > 4 {
			n.t.Errorf("GPU %s is granted twice", id)
		}
	}
	return out
}

// helpers counts the processes of agents that look at GPUs.
func (n *killNode) helpers() int {
	count := 0
	procs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range procs {
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		env, _ := os.ReadFile(f)
		if slices.Contains(strings.Split(string(cmd), "\x00"), "gpu-probe") && strings.Contains(string(env), n.state) {
			count++
		}
	}
	return count
}

func supervisorPid(t *testing.T, data string) int {
	t.Helper()
	pids := supervisors(data)
	if len(pids) != 1 {
		t.Fatalf("%d supervisors, want one: %v", len(pids), pids)
	}
	return pids[0]
}

func openFiles(pid int) int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(list)
}
