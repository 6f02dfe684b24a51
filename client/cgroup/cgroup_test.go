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
		t.Errorf("%q", got)
	}
}
