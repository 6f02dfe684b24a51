package jobspec

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitProcess ends the child with its parent.
func limitProcess(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// limitSelf limits address space, processor time and files of this process. Go reserves address space that it never
// uses, so the limit is relative to what the process has now.
func limitSelf() error {
	var pages uint64
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("measure the parser process: %w", err)
	}
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		return fmt.Errorf("measure the parser process: %w", err)
	}
	for _, l := range []struct {
		name  string
		what  int
		limit uint64
	}{
		{"address space", unix.RLIMIT_AS, pages*uint64(os.Getpagesize()) + childMemory},
		{"processor time", unix.RLIMIT_CPU, childCPU},
		{"core file", unix.RLIMIT_CORE, 0},
		{"file size", unix.RLIMIT_FSIZE, 0},
		{"open files", unix.RLIMIT_NOFILE, 32},
	} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.limit, Max: l.limit}); err != nil {
			return fmt.Errorf("limit the %s of the parser process: %w", l.name, err)
		}
	}
	return nil
}
