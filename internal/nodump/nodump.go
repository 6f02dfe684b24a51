// Package nodump keeps the memory of processes that hold secrets out of core dumps.
package nodump

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Set makes this process one that the kernel writes no core of: to no file and, if it is root's, to no handler either
// (core(5), prctl(2) PR_SET_DUMPABLE; the files in /proc of another user's process that is not dumpable are closed to its
// children, which start tasks by them). Programs that it executes are dumpable again; their core files are limited to
// nothing unless they raise the limit, which its hard limit leaves to them.
//
// Without CAP_SYS_PTRACE, as in most containers, a process that is not dumpable could not start tasks either: then only core
// files are limited.
func Set() error {
	if os.Geteuid() == 0 && mayTrace() {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("exclude this process from core dumps: %w", err)
		}
		set.Store(true)
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return fmt.Errorf("read the limit of core files: %w", err)
	}
	l.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return fmt.Errorf("limit core files: %w", err)
	}
	return nil
}

var set atomic.Bool // this process is not dumpable

// Keep repeats what Set did, after a thread has changed its user for a while: with that the kernel makes the whole process
// dumpable as the sysctl fs.suid_dumpable says (prctl(2), PR_SET_DUMPABLE).
func Keep() {
	if set.Load() {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // it fails only for other values
	}
}

// mayTrace reports whether this process has CAP_SYS_PTRACE.
func mayTrace() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) == nil && d[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}
