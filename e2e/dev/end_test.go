//go:build e2e

package dev

import (
	"os"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// end interrupts a dev agent as a user would and checks what it announced at the start: its directory is removed, with
// supervisor, tasks and mounts.
func end(t *testing.T, agent *harness.Proc) {
	t.Helper()
	m := regexp.MustCompile(`Data +(\S+) \(removed at the end`).FindStringSubmatch(agent.Log.String())
	if m == nil {
		t.Errorf("the agent does not say where its data is:\n%s", agent.Log.String())
		return
	}
	t.Cleanup(func() {
		harness.KillBelow(t, m[1])
		_ = os.RemoveAll(m[1])
	})
	agent.Signal(syscall.SIGINT)
	_ = agent.WaitExit(60 * time.Second)
	if _, err := os.Stat(m[1]); err == nil || len(harness.Mounts(m[1])) > 0 || len(harness.Tasks(m[1])) > 0 {
		t.Errorf("%s is still there: %v, mounts %v, tasks %v", m[1], err, harness.Mounts(m[1]), harness.Tasks(m[1]))
	}
}
