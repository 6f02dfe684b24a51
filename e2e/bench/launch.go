package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/client/supervisor"
)

const (
	launchTasks   = 2000
	launchRunning = 300
)

// launcher is a node whose tasks are real: exec, with control groups and namespaces.
type launcher struct {
	*cluster
	agent *exec.Cmd
	dir   string
	debug int // port of the client's profiles
}

// runLaunch starts and ends short tasks on one machine with one server and one client, each a separate process, and
// measures the cost of long ones.
func runLaunch(bin string, quick bool) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "launch: not run: the exec driver needs root")
		return
	}
	tasks, long := launchTasks, launchRunning
	if quick {
		tasks, long = 200, 50
	}
	l := newLauncher(bin)
	defer l.stop()
	cmd := "make bench-launch"
	l.finish("warm", 50, "/bin/true")
	l.profileAgent(15 * time.Second)
	before, sup := l.spent(), l.supervisor()
	took := l.finish("launch", tasks, "/bin/true")
	rate := float64(tasks) / took.Seconds()
	spent := l.spent()
	for i := range spent {
		spent[i] -= before[i]
	}
	row(fmt.Sprintf("%d tasks (true, exec driver, control groups) submitted, run and finished", tasks), fmt.Sprintf("%.0f a second", rate), ">= 400/s", "Slurm 80/s", cmd)
	us := func(s float64) float64 { return s * 1e6 / float64(tasks) }
	row("processor time of one such task", fmt.Sprintf("%.0f us (server %.0f, client %.0f, supervisor %.0f, launchers and tasks %.0f)", us(spent[0]+spent[1]+spent[2]+spent[3]), us(spent[0]), us(spent[1]), us(spent[2]), us(spent[3])), "-", "-", cmd)

	time.Sleep(3 * time.Second)
	agent, super := pss(l.agent.Process.Pid), pss(sup)
	l.submit("long", long, "/bin/sleep", "100000")
	l.until(60*time.Second, fmt.Sprintf("%d running tasks", long), func() bool { return l.summary("long").Running == long })
	time.Sleep(5 * time.Second)
	launchers := 0.0
	for _, pid := range l.launchers() {
		launchers += pss(pid)
	}
	n := float64(long)
	agent, super, launchers = (pss(l.agent.Process.Pid)-agent)/n, (pss(sup)-super)/n, launchers/n
	row("memory beside a running task", fmt.Sprintf("%.0f KiB (agent %.0f, supervisor %.0f, launcher %.0f)", agent+super+launchers, agent, super, launchers), "<= 2 MiB", "-", cmd)
}

func newLauncher(bin string) *launcher {
	dir, err := os.MkdirTemp("/var/tmp", "muster-launch-") // not below a directory that only root may enter
	if err != nil {
		fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		fatal(err)
	}
	l := &launcher{cluster: newCluster(bin, 1), dir: dir, debug: freePort()}
	conf := filepath.Join(dir, "client.hcl")
	// The node advertises more than it has: the benchmark measures how fast tasks start, not how many fit.
	text := fmt.Sprintf("name = \"client\"\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nlog_level = \"WARN\"\nenable_debug = true\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\nclient {\n  enabled = true\n  servers = [\"127.0.0.1:%d\"]\n  cpu_total_compute = 1000000\n  memory_total_mb = 1000000\n  disk_total_mb = 1000000\n}\n",
		filepath.Join(dir, "client"), l.debug, freePort(), freePort(), l.ports[0][1])
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		fatal(err)
	}
	l.agent = exec.Command(bin, "agent", "-config", conf)
	log, err := os.Create(filepath.Join(dir, "client.log"))
	if err != nil {
		fatal(err)
	}
	defer log.Close()
	l.agent.Stdout, l.agent.Stderr = log, log
	l.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.agent.Start(); err != nil {
		fatal(err)
	}
	l.until(30*time.Second, "the node to be ready", func() bool {
		var ns []struct{ Status string }
		return l.call("GET", "/v1/nodes", nil, &ns) == nil && len(ns) == 1 && ns[0].Status == "ready"
	})
	return l
}

// stop ends the tasks first: they outlive their agent.
func (l *launcher) stop() {
	_ = l.call("DELETE", "/v1/job/long?purge=true", nil, nil)
	l.until(60*time.Second, "the tasks to end", func() bool { return len(l.launchers()) == 0 })
	l.until(60*time.Second, "their secrets to be unmounted", func() bool {
		b, _ := os.ReadFile("/proc/self/mounts")
		return !strings.Contains(string(b), " "+l.dir+"/")
	})
	_ = l.agent.Process.Signal(syscall.SIGTERM)
	_ = l.agent.Wait()
	if l.supervisor() > 0 { // it goes with its control groups
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		sup, err := supervisor.Open(filepath.Join(l.dir, "client", "supervisor"), "")
		if err == nil {
			err = sup.Shutdown(ctx)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: end the supervisor:", err)
		}
	}
	l.close()
	_ = os.RemoveAll(l.dir)
}

func (l *launcher) submit(id string, count int, command string, args ...string) {
	b, err := json.Marshal(map[string]any{"Job": map[string]any{
		"ID": id, "Name": id, "Type": "batch", "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": count, "EphemeralDisk": map[string]any{"SizeMB": 10},
			"Tasks": []any{map[string]any{"Name": "t", "Driver": "exec", "LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1}, "Config": map[string]any{"command": command, "args": args}, "Resources": map[string]any{"CPU": 20, "MemoryMB": 16}}},
		}},
	}})
	if err != nil {
		fatal(err)
	}
	if err := l.call("PUT", "/v1/jobs", b, nil); err != nil {
		fatal("submit", id, ":", err)
	}
}

type groupSummary struct{ Complete, Running, Failed, Lost int }

func (l *launcher) summary(id string) groupSummary {
	var s struct{ Summary map[string]groupSummary }
	_ = l.call("GET", "/v1/job/"+id+"/summary", nil, &s)
	return s.Summary["g"]
}

// finish runs so many tasks to their end.
func (l *launcher) finish(id string, count int, command string) time.Duration {
	start := time.Now()
	l.submit(id, count, command)
	l.untilWithin(3*time.Minute, 50*time.Millisecond, fmt.Sprintf("%d finished tasks", count), func() bool {
		s := l.summary(id)
		if s.Failed+s.Lost > 0 {
			fatal(s.Failed, "tasks failed,", s.Lost, "were lost")
		}
		return s.Complete == count
	})
	return time.Since(start)
}

// spent returns the processor time, in seconds, of server, client, supervisor, and of what the supervisor has waited for.
func (l *launcher) spent() [4]float64 {
	var out [4]float64
	for i, pid := range []int{l.procs[0].Process.Pid, l.agent.Process.Pid, l.supervisor()} {
		out[i], _ = procUsage(pid)
	}
	st, _ := procfile.StatOf(l.supervisor())
	out[3] = st.ChildCPU.Seconds()
	return out
}

func (l *launcher) supervisor() int {
	for _, pid := range pidsOf(l.dir, "supervisor") {
		return pid
	}
	return 0
}

// launchers returns the children of the supervisor.
func (l *launcher) launchers() []int {
	var out []int
	super := l.supervisor()
	for _, pid := range pidsNamed("muster-launch") {
		if st, err := procfile.StatOf(pid); err == nil && st.Parent == super {
			out = append(out, pid)
		}
	}
	return out
}

// pidsOf finds processes by a directory and a word in their command line.
func pidsOf(dir, word string) []int {
	var out []int
	for _, pid := range pidsNamed(word) {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(cmd), dir) {
			out = append(out, pid)
		}
	}
	return out
}

func pidsNamed(word string) []int {
	var out []int
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), word) {
			if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil && pid != os.Getpid() {
				out = append(out, pid)
			}
		}
	}
	return out
}

// pss returns the memory of a process in KiB, what it shares divided among those that share it.
func pss(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			v, _ := strconv.ParseFloat(f[1], 64)
			return v
		}
	}
	return 0
}

// profileAgent profiles server and client for a while, if profiles are wanted.
func (l *launcher) profileAgent(d time.Duration) {
	if profiles == "" {
		return
	}
	for who, url := range map[string]string{"server": l.url(0, ""), "client": fmt.Sprintf("http://127.0.0.1:%d", l.debug)} {
		go func() {
			hc := &http.Client{Timeout: d + 30*time.Second}
			resp, err := hc.Get(fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", url, int(d.Seconds())))
			if err != nil {
				fmt.Fprintln(os.Stderr, "bench: profile:", err)
				return
			}
			defer resp.Body.Close()
			var b bytes.Buffer
			_, _ = b.ReadFrom(resp.Body)
			_ = os.WriteFile(filepath.Join(profiles, "launch-"+who+".pprof"), b.Bytes(), 0o600)
		}()
	}
}
