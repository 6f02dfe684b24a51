package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestMadeUpDir: the directories of killed agents are removed, those of running agents and of other programs stay.
func TestMadeUpDir(t *testing.T) {
	base := t.TempDir()
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	stay := map[string]bool{
		madeUpPrefix + strconv.Itoa(cmd.Process.Pid) + "-1": false,
		madeUpPrefix + strconv.Itoa(os.Getpid()) + "-2":     true,
		madeUpPrefix + "old":                                true,
		madeUpPrefix + "x-y":                                true,
		madeUpPrefix + "1-one":                              true,
	}
	for name := range stay {
		if err := os.MkdirAll(filepath.Join(base, name, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := madeUpDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	for name, want := range stay {
		if _, err := os.Stat(filepath.Join(base, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it to stay: %t", name, err, want)
		}
	}
}

// TestForTasks: tasks that have a /tmp of their own, or that may not enter the directories above, get a copy of the fake libraries.
func TestForTasks(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "muster-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	tmp, err := os.MkdirTemp("/tmp", "muster-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	open, barred := filepath.Join(dir, "open"), filepath.Join(dir, "barred")
	for _, libs := range []string{open, barred, tmp} {
		for _, err := range []error{os.MkdirAll(libs, 0o755), os.Chmod(libs, 0o755), os.WriteFile(filepath.Join(libs, "libnvidia-ml.so.1"), []byte("nvml"), 0o600),
			os.WriteFile(filepath.Join(libs, "gpu-user"), []byte("user"), 0o700)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := forTasks(open, filepath.Join(dir, "state")); err != nil || got != open {
		t.Errorf("libraries that tasks see: %q, %v; want %q", got, err, open)
	}
	if err := os.Chmod(barred, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, libs := range []string{barred, tmp} {
		got, err := forTasks(libs, filepath.Join(dir, "state"))
		if want := filepath.Join(dir, "state", "lib"); err != nil || got != want {
			t.Fatalf("%s: %q, %v; want a copy in %q", libs, got, err, want)
		}
		for _, name := range []string{"libnvidia-ml.so.1", "gpu-user"} {
			st, err := os.Stat(filepath.Join(got, name))
			if err != nil || st.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v, %v; want mode 0755", name, st, err)
			}
		}
	}
}
