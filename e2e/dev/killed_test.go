//go:build e2e

package dev

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestKilledAgentLeavesNothing kills a dev agent with -9 while an isolated task, a plain one and one without a network
// run. No agent could find them again: they end, and the directory, its mounts and the control groups go.
func TestKilledAgentLeavesNothing(t *testing.T) {
	s := startShell(t)
	at, dir := regexp.MustCompile(`Data +(\S+) \(removed at the end`), ""
	harness.Eventually(t, 10*time.Second, "the agent to say where its data is", func() (bool, string) {
		m := at.FindStringSubmatch(s.proc.Log.String()) // it may answer before it says so
		if m != nil {
			dir = m[1]
		}
		return m != nil, s.proc.Log.String()
	})
	t.Cleanup(func() {
		harness.KillBelow(t, dir)
		_ = os.RemoveAll(dir)
	})
	tasks := 2
	alone := ""
	if os.Geteuid() == 0 {
		tasks, alone = 3, `
  group "alone" {
    network { mode = "none" }
    task "main" {
      driver = "exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
    }
  }`
	}
	job := s.file("left.hcl", fmt.Sprintf(`
job "left" {
  group "exec" {
    task "main" {
      driver = "exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
    }
  }
  group "raw" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap '' TERM HUP; sleep 600 & wait"]
      }
    }
  }%s
}
`, alone))
	if out, errOut, code := s.run("job", "run", "-detach", job); code != 0 {
		t.Fatalf("%s%s", out, errOut)
	}
	harness.Eventually(t, 30*time.Second, "the tasks to run", func() (bool, string) {
		list := harness.Tasks(dir)
		return len(list) == tasks, fmt.Sprint(list, s.proc.Log.Tail(20))
	})
	groups := map[string]bool{} // the agent's, in every hierarchy
	for _, g := range harness.Groups(dir) {
		groups[filepath.Dir(g)] = true
	}
	if mounts := harness.Mounts(dir); os.Geteuid() == 0 && (len(groups) == 0 || len(mounts) == 0) {
		t.Fatalf("the tasks have control groups %v and mounts %v: there is nothing to be removed", groups, mounts)
	}
	s.proc.Kill9()
	harness.Eventually(t, 20*time.Second, "nothing to be left", func() (bool, string) {
		left := harness.Mounts(dir)
		if _, err := os.Lstat(dir); err == nil {
			left = append(left, dir)
		}
		for g := range groups {
			if _, err := os.Lstat(g); err == nil {
				left = append(left, g)
			}
		}
		for _, tk := range harness.Tasks(dir) {
			left = append(left, fmt.Sprintf("task %d", tk.Pid))
		}
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			if b, _ := os.ReadFile(p); bytes.Contains(b, []byte("supervisor\x00-dir\x00"+dir)) {
				left = append(left, p)
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}
