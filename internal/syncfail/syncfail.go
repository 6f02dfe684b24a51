// Package syncfail breaks the syncs of a process's open files, for tests. Writes go on to succeed.
package syncfail

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Break replaces every regular file below dir that this process has open for writing by /dev/null, which takes writes
// and refuses syncs: fsync and fdatasync fail at the lowest level, for every library. It returns their names.
func Break(t testing.TB, dir string) (names []string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || !strings.HasPrefix(name, dir+"/") {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		var st unix.Stat_t
		if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY || unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if err := unix.Dup3(null, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(name))
	}
	if len(names) == 0 {
		t.Fatalf("no file below %s is open for writing", dir)
	}
	return names
}
