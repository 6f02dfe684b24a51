//go:build e2e

package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestStatOf looks at processes while they are reaped: none passes for a live one without a parent.
func TestStatOf(t *testing.T) {
	reaped := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		cmd := exec.Command("/bin/true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = cmd.Wait() }()
		for gone := false; !gone; {
			st, live := statOf(cmd.Process.Pid)
			gone = st.State == 0
			if live && st.Parent != os.Getpid() {
				t.Fatalf("a child of %d is live in state %c with parent %d", os.Getpid(), st.State, st.Parent)
			}
			if !gone && st.Parent == 0 {
				reaped++
			}
		}
	}
	t.Logf("%d looks met a process that was being reaped", reaped)
}

// TestKillBelowEndsLaunchers: a launcher whose supervisor is gone has only an open file to be known by.
func TestKillBelowEndsLaunchers(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	start := func(dir string) *exec.Cmd {
		f, err := os.Create(filepath.Join(dir, "record"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd := exec.Command("/bin/sleep", "600")
		cmd.Args[0], cmd.Env, cmd.ExtraFiles = "muster-launch", []string{}, []*os.File{f}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	mineCmd, otherCmd := start(mine), start(other)
	KillBelow(t, mine)
	if err := mineCmd.Wait(); err == nil {
		t.Error("the launcher ended by itself")
	}
	if err := otherCmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a launcher of another directory was ended: %v", err)
	}
}
