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
