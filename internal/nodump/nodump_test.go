package nodump

import (
	"errors"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// how names, in the environment, what a child process does before it crashes.
const how = "NODUMP_TEST"

func TestMain(m *testing.M) {
	steps, child := os.LookupEnv(how)
	if !child {
		os.Exit(m.Run())
	}
	for _, s := range strings.Fields(steps) {
		var err error
		switch s {
		case "limit":
			err = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
		case "set":
			err = Set()
		case "user": // as a change of a thread's user does where fs.suid_dumpable is not 0
			err = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		case "keep":
			Keep()
		case "exec":
			err = unix.Exec("/bin/sh", []string{"sh", "-c", "kill -SEGV $$"}, nil)
		}
		if err != nil {
			panic(err)
		}
	}
	debug.SetTraceback("crash") // ends with SIGABRT
	panic("crash")
}

// TestSet: the kernel says of a process that a signal ended whether it wrote a core.
func TestSet(t *testing.T) {
	dumps := func(steps string) bool {
		t.Helper()
		cmd := exec.Command("/proc/self/exe")
		cmd.Dir, cmd.Env = t.TempDir(), []string{how + "=" + steps}
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
			t.Fatalf("%s: %v, want an end by a signal", steps, err)
		}
		return exit.Sys().(syscall.WaitStatus).CoreDump()
	}
	if !dumps("limit exec") {
		t.Skip("not run: this machine writes no cores")
	}
	if os.Geteuid() == 0 && dumps("set limit") {
		t.Error("a core is written where the limit was raised again, as handlers of cores need no limit")
	}
	if os.Geteuid() == 0 && !dumps("set limit user") {
		t.Error("a process that became dumpable again writes no core: that proves nothing")
	}
	if os.Geteuid() == 0 && dumps("set limit user keep") {
		t.Error("a core is written after a change of a thread's user")
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(pattern), "|") && dumps("limit set exec") {
		t.Error("a program that such a process executes writes a core without asking for it")
	}
	if !dumps("set limit exec") {
		t.Error("a program cannot have core files that its limit allows")
	}
}
