//go:build e2e

package dev

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// ended waits for the end of the program and checks its exit status and that its output has a text.
func (term *terminal) ended(code int, want string) {
	term.t.Helper()
	timer := time.AfterFunc(30*time.Second, func() { _ = term.cmd.Process.Kill() })
	defer timer.Stop()
	_ = term.cmd.Wait()
	harness.Eventually(term.t, 5*time.Second, "the end of the output", func() (bool, string) { return strings.Contains(term.text(), want), term.text() })
	if got := term.cmd.ProcessState.ExitCode(); got != code {
		term.t.Errorf("%s: exit code %d, want %d: %q", strings.Join(term.cmd.Args[1:], " "), got, code, term.text())
	}
}

// TestQuestionsOfACluster answers the questions of a bulk stop and of a drain at a terminal, watched at another.
func TestQuestionsOfACluster(t *testing.T) {
	s := startShell(t, "-dev-gpus=8xH100")
	for _, name := range []string{"sweep-a", "sweep-b"} {
		s.want(0, "", "run", "-detach", "-name", name, "-gpus", "H100:3", "-mem", "64", "--", "/bin/sleep", "1000")
		s.want(0, "", "job", "wait", "-for", "running", "-timeout", "30s", name)
	}
	env := []string{"MUSTER_ADDR=" + s.addr}
	watch := onTerminal(t, env, "job", "status", "-watch", "sweep-a")
	watch.press("", "\x1b[H\x1b[2J", "sweep-a", "running")

	const stop = "Stop 2 jobs of anonymous in namespace default, with 2 live allocations and 6 GPUs? [y/N] "
	for keys, want := range map[string]struct {
		code int
		says string
	}{"n\r": {0, "Nothing was done."}, "\x03": {130, "Nothing was done."}, "\x04": {1, "the question was not answered"}} {
		term := onTerminal(t, env, "job", "stop", "-name", "sweep-*")
		term.press("", "sweep-a", "sweep-b", stop)
		term.press(keys, want.says)
		term.ended(want.code, want.says)
	}
	s.want(1, "Nobody can be asked here: add -yes", "job", "stop", "-name", "sweep-*")
	s.want(1, "Nobody can be asked here: add -yes, as in\n  muster node drain -enable -self -yes", "node", "drain", "-enable", "-self")
	s.want(1, "as in\n  muster system gc -yes", "system", "gc")
	drain := onTerminal(t, env, "node", "drain", "-enable", "-self")
	drain.press("", "which has 2 live allocations with 6 GPUs of 2 jobs", "? [y/N] ")
	drain.press("\x03", "Nothing was done.")
	drain.ended(130, "Nothing was done.")
	s.want(0, "  eligible ", "node", "status")
	for _, name := range []string{"sweep-a", "sweep-b"} {
		s.want(0, " runs: 1 allocation", "job", "wait", "-for", "running", "-timeout", "1s", name)
	}

	term := onTerminal(t, env, "job", "stop", "-name", "sweep-*")
	term.press("", stop)
	term.press("y\r", "2 jobs stopped")
	term.ended(0, "2 jobs stopped")
	watch.ended(0, " stopped")
	drain = onTerminal(t, env, "node", "drain", "-enable", "-self")
	drain.press("", "? [y/N] ")
	drain.press("y\r", "All allocations on node")
	drain.ended(0, "All allocations on node")
	s.want(0, "  ineligible ", "node", "status")
}
