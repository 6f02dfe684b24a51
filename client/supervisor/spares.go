package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/supervisor/launch"
)

// Limits of spares: number and size of the files that are kept. A file that fits into one block is reused without ever
// being freed.
const (
	sparesMax    = 128
	spareSizeMax = 4096
)

// spares are the files of destroyed tasks, kept for reuse. A file system may be slow to free inodes and blocks, and to
// allocate them again soon after: ext4 without a journal checks every inode freed in the last seconds, and ext4 mounted
// with discard notifies the device of every block and waits.
type spares struct {
	dir string

	mu   sync.Mutex
	free []string // paths; guarded by mu
	made int      // guarded by mu
}

// openSpares prepares the directory. Files that an earlier supervisor left in it belong to no task any more.
func openSpares(dir string) (*spares, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range old {
		os.Remove(filepath.Join(dir, e.Name()))
	}
	return &spares{dir: dir}, nil
}

// open creates the file of a task, which must not exist, and opens it for writing. Its content cannot be mistaken for a
// state: of a spare file only the former exit record is left, until the caller overwrites it.
func (s *spares) open(path string) (int, error) {
	s.mu.Lock()
	spare := ""
	if n := len(s.free); n > 0 {
		spare, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	if spare != "" {
		if fd, err := unix.Open(spare, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
			err = unix.Ftruncate(fd, launch.RecordSize)
			if err == nil {
				err = unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
			}
			if err == nil {
				return fd, nil
			}
			unix.Close(fd)
		}
		os.Remove(spare)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("make task state: %w", err)
	}
	return fd, nil
}

// put removes the file of a task. keep means that no process has it open, so that it may be reused.
func (s *spares) put(path string, keep bool) error {
	var st unix.Stat_t
	if keep && unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size <= spareSizeMax {
		s.mu.Lock()
		to := ""
		if len(s.free) < sparesMax {
			s.made++
			to = filepath.Join(s.dir, strconv.Itoa(s.made))
		}
		s.mu.Unlock()
		if to != "" && unix.Rename(path, to) == nil {
			s.mu.Lock()
			s.free = append(s.free, to)
			s.mu.Unlock()
			return nil
		}
	}
	return unix.Unlink(path)
}
