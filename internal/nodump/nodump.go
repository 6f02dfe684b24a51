// Package nodump keeps the memory of processes that hold secrets out of core dumps.
package nodump

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Set makes this process one that the kernel writes no core of: to no file and, if it is root's, to no handler either
// (core(5), prctl(2) PR_SET_DUMPABLE; the files in /proc of another user's process that is not dumpable are closed to its
// children, which start tasks by them). Programs that it executes are dumpable again; their core files are limited to
// nothing unless they raise the limit, which its hard limit leaves to them.
func Set() error {
	if os.Geteuid() == 0 {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("exclude this process from core dumps: %w", err)
		}
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
