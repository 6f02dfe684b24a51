package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestGroupLife(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	m, err := Open("test-" + filepath.Base(t.TempDir()))
	if err != nil {
		t.Skip("not run: " + err.Error())
	}
	t.Cleanup(m.Close)
	g, err := m.Create("a", Limits{CPUShares: 100, MemoryBytes: 32 << 20, PidsMax: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Remove() })
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if g.V2 {
		d, err := os.Open(g.Main)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(d.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !g.V2 {
		if err := os.WriteFile(filepath.Join(g.Main, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			t.Skip("not run: cannot join a version 1 group from here")
		}
	}
	if !g.Has(cmd.Process.Pid) || g.Has(os.Getpid()) {
		t.Error("Has is wrong")
	}
	if pids, err := g.Procs(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("processes %v, %v", pids, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := g.Kill(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("removing twice: %v", err)
	}
	if pids, err := g.Procs(); err != nil || len(pids) != 0 {
		t.Errorf("a group that is gone has processes %v, %v", pids, err)
	}
}

// TestVersion2Files writes the limits into a directory that stands for a cgroup2 leaf with every controller, and reads
// its figures, as the kernel's documentation (cgroup-v2.rst) words them.
func TestVersion2Files(t *testing.T) {
	m := &Manager{Layout: Layout{V2: t.TempDir(), V2Controllers: []string{"cpu", "memory", "pids", "cpuset"}}, scope: "s"}
	if err := os.MkdirAll(m.dir(m.Layout.V2), 0o755); err != nil {
		t.Fatal(err)
	}
	g, err := m.Create("a", Limits{CPUShares: 1024, CPUQuota: 1500, Cores: []int{0, 2}, MemoryBytes: 64 << 20, MemoryLow: 32 << 20, PidsMax: 10})
	if err != nil {
		t.Fatal(err)
	}
	if !g.V2 || len(g.V1) != 0 || len(g.JoinFiles()) != 0 {
		t.Errorf("group %+v, joined by %v", g, g.JoinFiles())
	}
	for file, want := range map[string]string{
		"cpu.weight": "39", "cpu.max": "150000 100000", "cpuset.cpus": "0,2", "memory.max": "67108864", "memory.low": "33554432", "memory.swap.max": "0", "pids.max": "10",
	} {
		t.Run(file, func(t *testing.T) {
			if b, err := os.ReadFile(filepath.Join(g.Main, file)); err != nil || string(b) != want {
				t.Errorf("%s is %q (%v), want %q", file, b, err, want)
			}
		})
	}
	for file, text := range map[string]string{
		"memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\n", "memory.current": "1000\n", "memory.peak": "2000\n", "memory.swap.current": "3\n",
		"memory.stat": "anon 600\nfile 400\n", "cpu.stat": "usage_usec 30\nuser_usec 20\nsystem_usec 10\nthrottled_usec 5\n", "pids.current": "4\n", "cgroup.procs": "11\n12\n",
	} {
		t.Run(file, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(g.Main, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	if n := g.OOMKills(); n != 1 {
		t.Errorf("%d processes killed for want of memory", n)
	}
	u, err := g.Usage()
	want := Usage{CPU: 30e3, User: 20e3, System: 10e3, Throttled: 5e3, Memory: 1000, MaxMemory: 2000, RSS: 600, Cache: 400, Swap: 3, MemoryLimit: 64 << 20, HasMemory: true, Pids: 4}
	if err != nil || u != want {
		t.Errorf("usage %+v, %v, want %+v", u, err, want)
	}
}

func TestLayoutNamesItsVersion(t *testing.T) {
	for want, l := range map[string]Layout{
		"none": {}, "v1": {V1: map[string]string{"pids": "/x"}}, "v2": {V2: "/y", V2Controllers: []string{"pids"}}, "hybrid": {V2: "/y", V1: map[string]string{"pids": "/x"}},
	} {
		if got := l.Version(); got != want {
			t.Errorf("%+v is %q, want %q", l, got, want)
		}
		if l.Has("pids") != (want != "none") || l.Has("memory") {
			t.Errorf("%s: controllers are wrong", want)
		}
	}
	if got := unescape(`/a\040b`); got != "/a b" {
		t.Errorf(`%q; want "/a b"`, got)
	}
}
