//go:build e2e

package docker

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/muster-sched/muster/e2e/harness"
)

// silent stops and kills the agent of a container with stop_on_client_after: the container ends without the agent, and
// does not start again when the agent is back; its replacement does.
func (n *node) silent(t *testing.T) {
	for _, c := range []struct {
		name       string
		begin, end func()
	}{
		{"stopped", func() { n.agent.Signal(syscall.SIGSTOP) }, func() { n.agent.Signal(syscall.SIGCONT) }},
		{"killed", n.agent.Kill9, n.start},
	} {
		job := "silent-" + c.name
		n.run(t, job, "service", "kill_timeout = \"1s\"\n"+box("count", "1"), "disconnect {\n stop_on_client_after = \"3s\"\n}")
		old := n.alloc(t, job, "running")
		runs := func() bool {
			return slices.ContainsFunc(n.containers(t, old.ID), func(c container.Summary) bool { return c.State == "running" })
		}
		c.begin()
		took := harness.Eventually(t, 30*time.Second, "the container to end without the agent", func() (bool, string) { return !runs(), "" })
		t.Logf("agent %s: the container ended after %s", c.name, took.Round(time.Millisecond))
		c.end()
		harness.Eventually(t, 60*time.Second, "a replacement to run", func() (bool, string) {
			if runs() {
				t.Fatalf("agent %s: the container runs again", c.name)
			}
			as, err := n.api.Allocs(job)
			return err == nil && slices.ContainsFunc(as, func(a harness.Alloc) bool { return a.ID != old.ID && a.ClientStatus == "running" }), fmt.Sprint(as, err)
		})
		as, err := n.api.Allocs(job)
		if err != nil || !slices.ContainsFunc(as, func(a harness.Alloc) bool { return a.ID == old.ID && a.ClientStatus == "lost" }) {
			t.Errorf("agent %s: the old allocation is not lost: %v %v", c.name, as, err)
		}
	}
}

// says returns a condition for harness.Eventually: the events of a job's running allocation have a text.
func (n *node) says(t *testing.T, job, text string) func() (bool, string) {
	return func() (bool, string) {
		all := events(n.alloc(t, job, "running"))
		return strings.Contains(all, text), all
	}
}
