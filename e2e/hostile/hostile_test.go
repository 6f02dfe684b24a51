//go:build e2e

package hostile

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestHostile throws every case at one agent.
func TestHostile(t *testing.T) {
	v := startVictim(t)
	pid := v.proc.Pid()
	v.warm(t)
	rss, goroutines := v.use(t)
	v.spent(t)
	begin, slow := time.Now(), slowClients(t)
	for _, g := range []struct {
		name string
		run  func(*testing.T, *victim)
	}{
		{"job files", testJobFiles},
		{"dispatch", testDispatch},
		{"http", testHTTP},
		{"raw http", testRawHTTP},
		{"command line", testCommandLine},
		{"archives", testArchives},
		{"agents", testAgents},
		{"ports", testPorts},
		{"sandbox", testSandbox},
		{"raw_exec off", testRawExecOff},
	} {
		t.Run(g.name, func(t *testing.T) { g.run(t, v) })
	}
	t.Run("slow clients", func(t *testing.T) { cut(t, slow, begin) })
	v.forget(t)
	if v.proc.Pid() != pid {
		t.Fatal("not the same process")
	}
	var r uint64
	var g int
	harness.Eventually(t, 90*time.Second, "memory and goroutines back where they were", func() (bool, string) {
		r, g = v.use(t)
		return r < rss+rssSlack && g <= goroutines+8, fmt.Sprintf("rss %d MiB, was %d; goroutines %d, were %d", r>>20, rss>>20, g, goroutines)
	})
	t.Logf("the dearest case took %s of the agent's processor time: %s", v.dearest, v.which)
	t.Logf("%d cases; rss %d MiB -> %d MiB, goroutines %d -> %d", v.n, rss>>20, r>>20, goroutines, g)
}

// warm makes the agent do once what it does in the cases, so that the baseline is an agent at work.
func (v *victim) warm(t *testing.T) {
	for range 20 {
		v.muster(nil, "job", "status")
		v.alive(t)
	}
	v.n, v.dearest = 0, 0
}

// forget purges every job, and waits until no task runs.
func (v *victim) forget(t *testing.T) {
	t.Helper()
	var jobs []struct{ ID, Namespace string }
	if err := v.api.Call("GET", "/v1/jobs?namespace=*", nil, &jobs); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		v.purge(t, j.ID)
	}
	harness.Eventually(t, 20*time.Second, "no task to run", func() (bool, string) {
		left := harness.Tasks(v.dir)
		return len(left) == 0, fmt.Sprint(left)
	})
}
