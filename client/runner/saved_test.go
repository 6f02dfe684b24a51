package runner

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/nodump"
)

// TestLookLeavesAgentUndumpable: with a change of a thread's user the kernel makes the whole process dumpable as
// fs.suid_dumpable says. What that does where the sysctl is not 0, the test does itself; the look at a task of the same
// user changes nothing more.
func TestLookLeavesAgentUndumpable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root, who looks with others' rights")
	}
	var core unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_CORE, &core), nodump.Set()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0), unix.Setrlimit(unix.RLIMIT_CORE, &core)); err != nil {
			t.Error(err)
		}
	})
	dumpable := func() int {
		t.Helper()
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if dumpable() != 0 {
		t.Skip("not run: without CAP_SYS_PTRACE an agent stays dumpable")
	}
	root, err := openProcRoot(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer root.root.Close()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	answer := make(chan *found, 1)
	root.look(where{file: "/proc/self/status"}, answer)
	if f := <-answer; f == nil {
		t.Error("the look found no file")
	}
	if n := dumpable(); n != 0 {
		t.Errorf("after a look the process has PR_GET_DUMPABLE %d, want 0", n)
	}
}
