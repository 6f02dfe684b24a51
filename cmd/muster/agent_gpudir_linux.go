package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-sched/muster/client/allocdir"
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

// forTasks returns the directory from which tasks use the fake driver libraries in libs: libs itself, or a copy in dir where tasks do not
// see libs. Tasks of the driver exec have a /tmp of their own, and run as a user who may enter only what everybody may.
func forTasks(libs, dir string) (string, error) {
	real, err := filepath.EvalSymlinks(libs)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(real, "/tmp/") && allocdir.Barred(filepath.Join(real, "x")) == "" {
		return libs, nil
	}
	to := filepath.Join(dir, "lib")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"libnvidia-ml.so.1", "libcuda.so.1", "gpu-user"} {
		b, err := os.ReadFile(filepath.Join(real, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o755); err != nil {
			return "", err
		}
	}
	for _, p := range []string{to, filepath.Join(to, "libnvidia-ml.so.1"), filepath.Join(to, "libcuda.so.1"), filepath.Join(to, "gpu-user")} {
		if err := os.Chmod(p, 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) { // the agent's umask may be narrow
			return "", err
		}
	}
	return to, nil
}
