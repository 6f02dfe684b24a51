package cgroup

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestFreeze freezes a process that counts, thaws it, and kills it while it is frozen: in the control group that tasks
// get on this machine, and if that is cgroup2 next to version 1, in the freezer of version 1 too.
func TestFreeze(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	name := "test-" + filepath.Base(t.TempDir())
	m, err := Open(name)
	if err != nil {
		t.Skip("not run: " + err.Error())
	}
	t.Cleanup(m.Close)
	if !m.Layout.Freezes() {
		t.Fatalf("layout %+v cannot freeze", m.Layout)
	}
	t.Run(m.Layout.Version(), func(t *testing.T) { freezes(t, m) })
	if m.Layout.V2 == "" || m.Layout.V1["freezer"] == "" {
		t.Log("does not apply here: this machine has but one kind of freezer")
		return
	}
	old := &Manager{Layout: Layout{V1: m.Layout.V1}, scope: name}
	dir := old.dir(old.Layout.V1["freezer"])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Rmdir(dir) })
	t.Run("version 1", func(t *testing.T) { freezes(t, old) })
}

// TestFreezeWithoutFreezer uses version 1 without that controller: freezing fails, but thawing and ending a task do
// not.
func TestFreezeWithoutFreezer(t *testing.T) {
	dir := t.TempDir()
	g := Group{Main: dir, V1: map[string]string{"pids": dir}}
	if err := g.Freeze(true); err == nil {
		t.Error("it says that all stands still")
	}
	if err := g.Freeze(false); err != nil {
		t.Error(err)
	}
}

func freezes(t *testing.T, m *Manager) {
	g, err := m.Create("f", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Remove() })
	file := filepath.Join(t.TempDir(), "n")
	cmd := exec.Command("/bin/sh", "-c", `while :; do echo x >> "$0"; sleep 0.01; done`, file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	if err := os.WriteFile(filepath.Join(g.Main, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	lines := func() int {
		b, _ := os.ReadFile(file)
		return bytes.Count(b, []byte("x"))
	}
	counts := func() bool {
		first := lines()
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if lines() != first {
				return true
			}
		}
		return false
	}
	for range 2 { // doing it again succeeds
		if err := g.Freeze(true); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // a child that was not in the group when it was made
	if counts() {
		t.Error("it counts while it stands still")
	}
	for range 2 {
		if err := g.Freeze(false); err != nil {
			t.Fatal(err)
		}
	}
	if !counts() {
		t.Error("it does not go on")
	}
	if err := g.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := g.Freeze(false); err != nil {
		t.Errorf("letting go on what is gone: %v", err)
	}
	if g.Freeze(true) == nil {
		t.Error("a group that is gone was frozen")
	}
	if err := (Group{Main: "/x", V1: map[string]string{"pids": "/x"}}).Freeze(true); err == nil {
		t.Error("frozen without a freezer")
	}
}
