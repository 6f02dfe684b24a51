//go:build e2e

// Package limits runs tasks that try to exceed their limits next to a task that must not notice.
package limits

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// node is one agent that is server and client.
type node struct {
	t               *testing.T
	api             *harness.API
	proc            *harness.Proc
	dir, data, addr string
	attributes      map[string]string
	mhz             int // of a core
	jobs            int
}

// nofile is the agent's limit of open files of a task.
const nofile = 4000

func start(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.NotRun(t, "limits need root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-limits-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := lib.Compile("-static", "-o", filepath.Join(dir, "hog"), filepath.Join("src", "hog.c")); errors.Is(err, lib.ErrNoCompiler) {
		harness.NotRun(t, "no C compiler for the hogs")
	} else if err != nil {
		t.Fatal(err)
	}
	http := harness.FreePort(t)
	n := &node{t: t, dir: dir, data: filepath.Join(dir, "data"), addr: fmt.Sprintf("http://127.0.0.1:%d", http)}
	conf := filepath.Join(dir, "agent.hcl")
	text := fmt.Sprintf("name = \"one\"\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\nclient {\n  enabled = true\n}\nplugin \"exec\" {\n  config {\n    nofile = %d\n  }\n}\n",
		n.data, http, harness.FreePort(t), harness.FreePort(t), nofile)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.proc = harness.Start(t, nil, "agent", nil, "agent", "-config", conf)
	n.api = harness.NewAPI(t, nil, "", n.addr)
	harness.Eventually(t, 30*time.Second, "the node to be ready", func() (bool, string) {
		var ns []struct{ ID, Status string }
		err := n.api.Call("GET", "/v1/nodes", nil, &ns)
		if err != nil || len(ns) != 1 || ns[0].Status != "ready" {
			return false, fmt.Sprint(ns, err)
		}
		var full struct{ Attributes map[string]string }
		err = n.api.Call("GET", "/v1/node/"+ns[0].ID, nil, &full)
		n.attributes = full.Attributes
		t.Logf("control groups: %s, devices: %s", full.Attributes["driver.exec.cgroup"], full.Attributes["driver.exec.devices"])
		return err == nil, fmt.Sprint(err)
	})
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, m := range regexp.MustCompile(`(?m)^cpu MHz\s*:\s*(\d+)`).FindAllStringSubmatch(string(b), -1) {
			v, _ := strconv.Atoi(m[1])
			n.mhz = max(n.mhz, v)
		}
	}
	return n
}

// task is one hog with its resources.
type task struct {
	name, config, resources string // config and resources are HCL
	args                    []string
}

// run submits a job of one group.
func (n *node) run(t *testing.T, name string, diskMB int, tasks ...task) string {
	t.Helper()
	n.jobs++
	id := fmt.Sprintf("%s-%d", name, n.jobs)
	var b strings.Builder
	fmt.Fprintf(&b, "job %q {\n  type = \"batch\"\n  group \"g\" {\n    ephemeral_disk {\n      size = %d\n    }\n    reschedule {\n      attempts  = 0\n      unlimited = false\n    }\n    restart {\n      attempts = 0\n      mode     = \"fail\"\n    }\n", id, diskMB)
	for _, tk := range tasks {
		fmt.Fprintf(&b, "    task %q {\n      driver = \"exec\"\n      logs {\n        max_files     = 1\n        max_file_size = 2\n      }\n      config {\n        command = \"%s/hog\"\n        args    = [\"%s\"]\n        %s\n      }\n      resources {\n        %s\n      }\n    }\n",
			tk.name, n.dir, strings.Join(tk.args, `", "`), tk.config, tk.resources)
	}
	b.WriteString("  }\n}\n")
	path := filepath.Join(n.dir, "job.hcl")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(harness.Bin(t), "job", "run", "-detach", path)
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+n.addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("job run: %v\n%s\n%s", err, out, b.String())
	}
	return id
}

// until waits until the job's only allocation is in one of these states.
func (n *node) until(t *testing.T, id string, limit time.Duration, states ...string) harness.Alloc {
	t.Helper()
	var a harness.Alloc
	harness.Eventually(t, limit, fmt.Sprintf("%s to be one of %v", id, states), func() (bool, string) {
		as, err := n.api.Allocs(id)
		if err != nil || len(as) != 1 {
			return false, fmt.Sprint(len(as), err)
		}
		a = as[0]
		return slices.Contains(states, a.ClientStatus), a.ClientStatus + " " + events(a)
	})
	return a
}

func events(a harness.Alloc) string {
	var s []string
	for name, st := range a.TaskStates {
		for _, e := range st.Events {
			s = append(s, fmt.Sprintf("%s: %s: %s", name, e.Type, e.DisplayMessage))
		}
	}
	slices.Sort(s)
	return strings.Join(s, "; ")
}

// said returns the last number that a hog printed after a word, 0 for none.
func (n *node) said(t *testing.T, a harness.Alloc, task, word string) int {
	t.Helper()
	last := 0
	for _, m := range regexp.MustCompile(`(?m)^`+word+` (\d+)$`).FindAllStringSubmatch(n.log(t, a, task), -1) {
		last, _ = strconv.Atoi(m[1])
	}
	return last
}

func (n *node) log(t *testing.T, a harness.Alloc, task string) string {
	t.Helper()
	var text string
	if err := n.api.Call("GET", "/v1/client/fs/logs/"+a.ID+"?task="+task+"&type=stdout&plain=true&origin=start", nil, &text); err != nil {
		t.Fatalf("log of %s: %v", a.Name, err)
	}
	return text
}

// within5 checks a limit from both sides.
func within5(t *testing.T, what string, got, limit int) {
	t.Helper()
	t.Logf("%s: %d of %d (%.1f %%)", what, got, limit, 100*float64(got)/float64(limit))
	if got*100 > limit*105 || got*100 < limit*95 {
		t.Errorf("%s: %d, the limit is %d", what, got, limit)
	}
}

// TestLimits lets hogs loose one after the other. A neighbour does a millisecond of work every 10 ms all the time.
func TestLimits(t *testing.T) {
	n := start(t)
	const small = "cpu    = 50\n        memory = 32"
	cpu := 300
	if n.mhz > 0 {
		cpu = n.mhz / 2
	}
	neighbour := n.run(t, "neighbour", 10, task{name: "beat", args: []string{"beat"}, resources: fmt.Sprintf("cpu = %d\n        memory = 32", cpu/2)})
	beat := n.until(t, neighbour, 30*time.Second, "running")
	rss := memoryOf(n.proc.Pid())

	t.Run("cpu", func(t *testing.T) {
		if n.mhz == 0 {
			t.Skip("does not apply here: the speed of the cores is not known, so cpu_hard_limit is not offered")
		}
		limit := cpu * 1000 / n.mhz
		least := 0
		for try := 1; ; try++ {
			id := n.run(t, "cpu", 10, task{name: "hog", args: []string{"cpu", "4", "4"}, config: "cpu_hard_limit = true", resources: fmt.Sprintf("cpu = %d\n        memory = 32", cpu)})
			got := n.said(t, n.until(t, id, 60*time.Second, "complete"), "hog", "cpu")
			t.Logf("try %d: 4 processes with a limit of %d thousandths of a core had %d", try, limit, got)
			if got*100 > limit*105 {
				t.Errorf("4 processes had %d thousandths of a core, the limit is %d", got, limit)
			}
			least = max(least, got)
			if least*100 >= limit*95 || try == 3 {
				break
			}
		}
		switch busy := load(); {
		case least*100 >= limit*95:
		case busy > 2*float64(runtime.NumCPU()): // a busy machine gives less than the limit
			t.Logf("not judged from below: %.0f processes want to run", busy)
		default:
			t.Errorf("in 3 tries the task had %d thousandths of a core at most, its limit is %d", least, limit)
		}
	})
	t.Run("shares", func(t *testing.T) {
		// Three to one, on processors that both want whole.
		procs := strconv.Itoa(runtime.NumCPU())
		id := n.run(t, "shares", 10,
			task{name: "much", args: []string{"cpu", procs, "5"}, resources: fmt.Sprintf("cpu = %d\n        memory = 32", 3*cpu/4)},
			task{name: "little", args: []string{"cpu", procs, "5"}, resources: fmt.Sprintf("cpu = %d\n        memory = 32", cpu/4)})
		a := n.until(t, id, 60*time.Second, "complete")
		much, little := n.said(t, a, "much", "cpu"), n.said(t, a, "little", "cpu")
		t.Logf("shares of 3 to 1 got %d and %d thousandths of a core, %.2f to 1", much, little, float64(much)/float64(max(little, 1)))
		if much < little*3/2 {
			t.Errorf("shares of 3 to 1 got %d and %d thousandths of a core", much, little)
		}
	})
	t.Run("cores", func(t *testing.T) {
		if n.attributes["cpu.reservablecores"] == "0" {
			t.Skip("does not apply here: the kernel cannot pin tasks to cores")
		}
		id := n.run(t, "cores", 10, task{name: "hog", args: []string{"cpu", "4", "3"}, resources: "cores = 1\n        memory = 32"})
		if got := n.said(t, n.until(t, id, 60*time.Second, "complete"), "hog", "cpu"); got > 1050 || got < 1 { // on a busy machine it gets little of it
			t.Errorf("4 processes on one core had %d thousandths of a core", got)
		} else {
			t.Logf("4 processes on one core had %d thousandths of it", got)
		}
	})
	t.Run("memory", func(t *testing.T) {
		// Two tasks of one allocation: the one that ran out is named, the other is not.
		id := n.run(t, "mem", 10,
			task{name: "hog", args: []string{"mem", "4000"}, resources: "cpu = 50\n        memory = 64"},
			task{name: "calm", args: []string{"mem", "20"}, resources: "cpu = 50\n        memory = 64"})
		a := n.until(t, id, 60*time.Second, "failed")
		within5(t, "MiB of memory", n.said(t, a, "hog", "mem"), 64)
		for name, st := range a.TaskStates {
			oom := slices.ContainsFunc(st.Events, func(e event) bool { return strings.Contains(e.DisplayMessage, "OOM Killed") })
			if oom != (name == "hog") {
				t.Errorf("task %s: out of memory is %t: %s", name, oom, events(a))
			}
		}
	})
	t.Run("memory of a child", func(t *testing.T) {
		// The main process survives its child and exits with 1: the kernel's kill is reported all the same.
		id := n.run(t, "childmem", 10, task{name: "hog", args: []string{"child", "4000"}, resources: "cpu = 50\n        memory = 64"})
		a := n.until(t, id, 60*time.Second, "failed")
		if !strings.Contains(events(a), "OOM Killed") {
			t.Errorf("no event says that memory was short: %s", events(a))
		}
	})
	t.Run("processes", func(t *testing.T) {
		id := n.run(t, "pids", 10, task{name: "hog", args: []string{"pids"}, config: "pids_limit = 60", resources: small})
		within5(t, "processes", n.said(t, n.until(t, id, 60*time.Second, "complete"), "hog", "pids"), 60)
	})
	t.Run("open files", func(t *testing.T) {
		for limit, config := range map[int]string{nofile: "", 200: "nofile_limit = 200"} {
			id := n.run(t, "fds", 10, task{name: "hog", args: []string{"fds"}, config: config, resources: small})
			within5(t, "open files", n.said(t, n.until(t, id, 60*time.Second, "complete"), "hog", "fds"), limit)
		}
	})
	t.Run("more open files than allowed", func(t *testing.T) {
		id := n.run(t, "fds", 10, task{name: "hog", args: []string{"fds"}, config: fmt.Sprintf("nofile_limit = %d", nofile+1), resources: small})
		if a := n.until(t, id, 60*time.Second, "failed"); !strings.Contains(events(a), "nofile_limit") {
			t.Errorf("the reason is not reported: %s", events(a))
		}
	})
	t.Run("disk", func(t *testing.T) {
		id := n.run(t, "disk", 60, task{name: "hog", args: []string{"file", "local/fill", "1000"}, resources: "cpu = 50\n        memory = 64"})
		began := time.Now()
		a := n.until(t, id, 60*time.Second, "failed")
		if !strings.Contains(events(a), "ephemeral_disk") {
			t.Errorf("no event says that the disk was too small: %s", events(a))
		}
		t.Logf("stopped %s after its submission at %d MiB of 60", time.Since(began).Round(100*time.Millisecond), n.said(t, a, "hog", "file"))
	})

	// What the neighbour notices. The measurements depend on the machine's other load, so they are judged only if the
	// neighbour was steady before (its p99 of several windows within 15 %), and by the best of three tries; a neighbour
	// that has to share a processor must only keep running.
	t.Run("neighbours", func(t *testing.T) {
		const room = "cpu    = 50\n        memory = 400"
		for _, h := range []struct {
			name string
			task task
		}{
			{"cpu hog with a hard limit", task{args: []string{"cpu", "4", "9"}, config: "cpu_hard_limit = true", resources: fmt.Sprintf("cpu = %d\n        memory = 32", cpu)}},
			{"cpu hog without", task{args: []string{"cpu", "4", "9"}, resources: small}},
			{"fork bomb", task{args: []string{"bomb", "9"}, config: "pids_limit = 200", resources: room}},
			{"descriptors", task{args: []string{"fdbomb", "100", "9"}, resources: room}},
		} {
			t.Run(h.name, func(t *testing.T) {
				if strings.Contains(h.task.config, "hard") && n.mhz == 0 {
					t.Skip("does not apply here: the speed of the cores is not known")
				}
				h.task.name = "hog"
				for try := 1; try <= 3; try++ {
					before := len(beats(n.log(t, beat, "beat")))
					time.Sleep(5 * time.Second)
					quiet := beats(n.log(t, beat, "beat"))[before:]
					steady := len(quiet) > 1 && slices.Max(quiet)*100 <= slices.Min(quiet)*115
					id := n.run(t, "neighbours", 10, h.task)
					n.until(t, id, 30*time.Second, "running", "complete", "failed")
					from := len(beats(n.log(t, beat, "beat"))) + 1 // the first is partly before
					a := n.until(t, id, 60*time.Second, "complete", "failed")
					if a.ClientStatus != "complete" {
						t.Errorf("the hog did not reach its end: %s", events(a))
					}
					var during []int
					harness.Eventually(t, 30*time.Second, "the neighbour to go on", func() (bool, string) {
						during = beats(n.log(t, beat, "beat"))
						return len(during) > from, fmt.Sprint(during, from)
					})
					if len(quiet) == 0 {
						t.Logf("try %d: the machine was too busy for a figure", try)
						break
					}
					worse := float64(median(during[from:]))/float64(median(quiet)) - 1
					t.Logf("try %d: p99 of the neighbour %d us alone, %d us beside it (%+.0f %%); steady before: %t", try, median(quiet), median(during[from:]), 100*worse, steady)
					if worse <= 0.2 || !steady {
						break
					}
				}
			})
		}
	})

	// A neighbour that owns a core next to hogs that want every core. The test judges the processors on which each
	// process may run, for every process of the hogs; the neighbours' delays are printed only, as the machine has other
	// work.
	t.Run("a neighbour with a core of its own", func(t *testing.T) {
		if runtime.NumCPU() < 2 {
			t.Skip("does not apply here: there is one core")
		}
		id := n.run(t, "owner", 10, task{name: "beat", args: []string{"beat"}, resources: "cores = 1\n        memory = 32"})
		owner := n.until(t, id, 30*time.Second, "running")
		harness.Eventually(t, 30*time.Second, "the owner to say something", func() (bool, string) {
			return len(beats(n.log(t, owner, "beat"))) > 2, n.log(t, owner, "beat")
		})
		quiet := beats(n.log(t, owner, "beat"))
		for _, h := range []task{
			{args: []string{"cpu", "4", "9"}, resources: small},
			{args: []string{"bomb", "9"}, config: "pids_limit = 200", resources: "cpu    = 50\n        memory = 400"},
		} {
			h.name = "hog"
			hog := n.run(t, "neighbours", 10, h)
			a := n.until(t, hog, 30*time.Second, "running", "complete", "failed")
			from, shared := len(beats(n.log(t, owner, "beat")))+1, len(beats(n.log(t, beat, "beat")))+1
			seen := map[string]int{} // processes looked at, by allocation
			for a.ClientStatus == "running" {
				procs := processors(n.data)
				own := procs[owner.ID]
				if len(own) != 1 || len(own[0]) != 1 {
					t.Fatalf("%s: the owner may run on %v, not on one core", h.args[0], own)
				}
				for alloc, sets := range procs {
					seen[alloc] += len(sets)
					if alloc != owner.ID && slices.ContainsFunc(sets, func(set []int) bool { return slices.Contains(set, own[0][0]) }) {
						t.Fatalf("%s: processes of allocation %.8s may run on %v, core %d is another's own", h.args[0], alloc, sets, own[0][0])
					}
				}
				time.Sleep(200 * time.Millisecond)
				if as, err := n.api.Allocs(hog); err != nil || len(as) != 1 {
					t.Fatal(as, err)
				} else {
					a = as[0]
				}
			}
			if a.ClientStatus != "complete" || seen[a.ID] < 10 || seen[owner.ID] == 0 || len(seen) < 3 {
				t.Errorf("%s: the hog ended %s (%s), looked at were %v processes", h.args[0], a.ClientStatus, events(a), seen)
			}
			mine, theirs := beats(n.log(t, owner, "beat")), beats(n.log(t, beat, "beat"))
			if len(mine) > from && len(theirs) > shared {
				alone, beside := median(quiet[1:]), median(mine[from:])
				t.Logf("%s: p99 of the owner %d us alone, %d us beside it (%+.0f %%); of the neighbour that shares %d us; %d looks at processes of the hog",
					h.args[0], alone, beside, 100*(float64(beside)/float64(alone)-1), median(theirs[shared:]), seen[a.ID])
			}
		}
		if err := n.api.Call("DELETE", "/v1/job/"+id, nil, nil); err != nil {
			t.Fatal(err)
		}
	})

	if as, err := n.api.Allocs(neighbour); err != nil || len(as) != 1 || as[0].ClientStatus != "running" || as[0].TaskStates["beat"].Restarts != 0 {
		t.Errorf("the neighbour was harmed: %+v %v", as, err)
	}
	if dead, err := n.proc.Exited(); dead {
		t.Fatalf("the agent ended: %v", err)
	}
	t.Logf("the agent: %d MiB before, %d MiB after", rss, memoryOf(n.proc.Pid()))
	if err := n.api.Call("DELETE", "/v1/job/"+neighbour, nil, nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "nothing to be left", func() (bool, string) {
		left, mounts := harness.Tasks(n.data), harness.Mounts(n.data)
		return len(left)+len(mounts) == 0, fmt.Sprint(left, mounts)
	})
}

type event = struct {
	Type, DisplayMessage string
	ExitCode             int
	Time                 int64
}

// processors returns the sets of processors that the live processes of the tasks below a directory may run on, by allocation.
func processors(dir string) map[string][][]int {
	out := map[string][][]int{}
	procs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range procs {
		env, err := os.ReadFile(f)
		m := regexp.MustCompile(`(?:^|\x00)NOMAD_ALLOC_ID=([^\x00]+)`).FindSubmatch(env)
		if err != nil || m == nil || !strings.Contains(string(env), "NOMAD_ALLOC_DIR="+dir) {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "status"))
		var set []int
		if l := regexp.MustCompile(`(?m)^Cpus_allowed_list:\s*(\S+)`).FindSubmatch(status); l != nil {
			for part := range strings.SplitSeq(string(l[1]), ",") {
				lo, hi, many := strings.Cut(part, "-")
				first, _ := strconv.Atoi(lo)
				last := first
				if many {
					last, _ = strconv.Atoi(hi)
				}
				for c := first; c <= last; c++ {
					set = append(set, c)
				}
			}
			out[string(m[1])] = append(out[string(m[1])], set)
		}
	}
	return out
}

// beats returns the p99 of each two seconds of the neighbour, in us.
func beats(log string) []int {
	var out []int
	for _, m := range regexp.MustCompile(`(?m)^beat \d+ (\d+) \d+$`).FindAllStringSubmatch(log, -1) {
		v, _ := strconv.Atoi(m[1])
		out = append(out, v)
	}
	return out
}

// load returns how many processes want to run, over the last minute.
func load() float64 {
	b, _ := os.ReadFile("/proc/loadavg")
	v, _ := strconv.ParseFloat(strings.Fields(string(b) + " 0")[0], 64)
	return v
}

func median(list []int) int {
	s := slices.Sorted(slices.Values(list))
	return s[len(s)/2]
}

// memoryOf returns what a process occupies, in MiB.
func memoryOf(pid int) int {
	st, _ := procfile.StatOf(pid) // one that has ended occupies nothing
	return int(st.RSS >> 20)
}
