package supervisor

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
)

// TestOwnedCores: while a task owns a core, no other task with limits may run on it, whether it was started before or
// after, and regardless of which process is killed; afterwards they may again.
func TestOwnedCores(t *testing.T) {
	s := newSup(t)
	l, err := cgroup.Detect()
	if err != nil || !l.Has("cpuset") || runtime.NumCPU() < 2 {
		t.Skip("not run: needs two cores and the cpuset controller")
	}
	run := func(id string, cores ...int) int {
		spec := s.spec(id, "exec sleep 300")
		spec.Limits = cgroup.Limits{CPUShares: 100, Cores: cores}
		return s.start(spec).PID
	}
	allowed := func(pid int) string {
		b, _ := procfile.Of(pid, "status")
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				return strings.TrimSpace(v)
			}
		}
		return "none"
	}
	before := run("before")
	all := allowed(before)
	if !strings.HasPrefix(all, "0-") {
		t.Skipf("not run: this process may run on cores %s only", all)
	}
	rest := "1"
	if n := runtime.NumCPU(); n > 2 {
		rest = "1" + strings.TrimPrefix(all, "0")
	}
	check := func(when string, pid int, want string) {
		t.Helper()
		within(t, 5*time.Second, when, func() bool { return allowed(pid) == want })
	}
	owner := run("owner", 0)
	after := run("after")
	check("the owner has its core", owner, "0")
	check("a task from before leaves it", before, rest)
	check("a task from after stays off", after, rest)
	s.killSupervisor()
	later := run("later")
	check("after a kill, too", later, rest)
	check("and for those that ran", before, rest)
	if err := s.Destroy(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	check("the core is given back", before, all)
	check("to all", later, all)
	// An owner that ends while there is no supervisor.
	owner = run("owner2", 0)
	check("taken again", before, rest)
	s.killSupervisor()
	if err := s.Destroy(t.Context(), "owner2"); err != nil {
		t.Fatal(err)
	}
	check("given back again", after, all)
}
