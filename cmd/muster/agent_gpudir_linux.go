package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// madeUpPrefix begins the name of a directory of simulated GPUs; the pid of its agent follows.
const madeUpPrefix = "muster-gpus-"

// madeUpDir creates a directory for the state of simulated GPUs, and removes those of killed agents.
func madeUpDir(base string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(base, madeUpPrefix+"*-*"))
	for _, dir := range old {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), madeUpPrefix), "-")
		n, err := strconv.Atoi(pid)
		if err != nil || n <= 1 || syscall.Kill(n, 0) != syscall.ESRCH {
			continue
		}
		st, err := os.Lstat(dir)
		if err != nil || !st.IsDir() {
			continue
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() {
			os.RemoveAll(dir)
		}
	}
	return os.MkdirTemp(base, madeUpPrefix+strconv.Itoa(os.Getpid())+"-*")
}
