// Package allocdir creates, shows and removes the directories of an allocation:
//
//	<root>/<alloc id>/alloc/{data,logs,tmp}      shared by the tasks
//	<root>/<alloc id>/<task>/{local,secrets,tmp} one task's own
//
// No function follows a symbolic link out of the allocation: tasks own the content of these directories and may put
// anything there.
package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Names of the directories.
const (
	Shared  = "alloc"
	Data    = "data"
	Logs    = "logs"
	Tmp     = "tmp"
	Local   = "local"
	Secrets = "secrets"
)

// secretsDefaultMiB is the size of the memory file system that holds a task's secrets.
const secretsDefaultMiB = 1

// slots limits how many allocations' directories are created or removed at once: a disk gets no faster with more
// requests, and each waiting one occupies a thread. builds is a smaller limit for allocations that have just arrived:
// otherwise the first of a thousand could start its tasks only when the last has its directories.
var (
	slots  = make(chan struct{}, 16)
	builds = make(chan struct{}, 4)
)

func slot(in chan struct{}) (free func()) {
	in <- struct{}{}
	return func() { <-in }
}

// top is held while an entry of the directory of all allocations is created or removed. The kernel serializes these
// operations anyway, and its waiters would spin.
var top sync.Mutex

// Dir is the directory of one allocation.
type Dir struct {
	Root string // absolute
}

// Task holds the directories of one task, absolute.
type Task struct {
	Root    string
	Local   string
	Secrets string
}

// topDir is FS_TOPDIR_FL, the attribute T of chattr(1).
const topDir = 0x00020000

// Scatter advises an ext file system that the trees below root, the directory of all allocations, are unrelated: it
// then keeps each one's directories together and different ones apart. Otherwise it searches for free inodes where
// those of the last allocations were just freed, which costs more the more there were. Other file systems ignore the
// advice.
func Scatter(root string) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.EXT4_SUPER_MAGIC {
		return
	}
	if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|topDir))
	}
}

// New returns the directory of an allocation below root, without creating it.
func New(root, allocID string) *Dir { return &Dir{Root: filepath.Join(root, allocID)} }

// SharedDir returns the directory that the tasks share (NOMAD_ALLOC_DIR).
func (d *Dir) SharedDir() string { return filepath.Join(d.Root, Shared) }

// LogDir returns the directory of the tasks' logs.
func (d *Dir) LogDir() string { return filepath.Join(d.Root, Shared, Logs) }

// Task returns the directories of a task, without creating them.
func (d *Dir) Task(name string) Task {
	root := filepath.Join(d.Root, name)
	return Task{Root: root, Local: filepath.Join(root, Local), Secrets: filepath.Join(root, Secrets)}
}

// Build creates the shared directories. Repeating it changes nothing.
func (d *Dir) Build() error {
	defer slot(builds)()
	top.Lock()
	err := mkdir(d.Root, 0o755)
	top.Unlock()
	if err != nil {
		return fmt.Errorf("make the allocation's directory: %w", err)
	}
	for _, p := range []struct {
		path string
		mode os.FileMode
	}{
		{d.SharedDir(), 0o755},
		{filepath.Join(d.SharedDir(), Data), 0o777 | os.ModeSticky},
		{d.LogDir(), 0o755},
		{filepath.Join(d.SharedDir(), Tmp), 0o777 | os.ModeSticky},
	} {
		if err := mkdir(p.path, p.mode); err != nil {
			return fmt.Errorf("make the allocation's directory: %w", err)
		}
	}
	return nil
}

// Owner is the user that a task runs as; UID is -1 for the agent's own user.
type Owner struct{ UID, GID int }

// BuildTask creates a task's directories, owned by who. With tmpfs the secrets are on their own memory file system, if
// the agent may mount one, and never reach a disk. Repeating it only mounts what a reboot has unmounted.
func (d *Dir) BuildTask(name string, who Owner, tmpfs bool, secretsMiB int64) error {
	if name == Shared || name != filepath.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("a task cannot be called %q: another directory of the allocation has that name", name)
	}
	defer slot(slots)()
	t := d.Task(name)
	for _, p := range []struct {
		path string
		mode os.FileMode
		own  bool
	}{
		{t.Root, 0o755, true},
		{t.Local, 0o755, true},
		{filepath.Join(t.Root, Tmp), 0o777 | os.ModeSticky, false},
		{t.Secrets, 0o700, true},
	} {
		if err := mkdir(p.path, p.mode); err != nil {
			return fmt.Errorf("make the directory of task %q: %w", name, err)
		}
		if p.path == t.Secrets && tmpfs {
			mountSecrets(t.Secrets, secretsMiB)
		}
		if p.own && who.UID >= 0 {
			if err := os.Lchown(p.path, who.UID, who.GID); err != nil {
				return fmt.Errorf("give the directory of task %q to its user: %w", name, err)
			}
		}
	}
	return nil
}

// mkdir creates a directory with exactly this mode. An existing path must be a directory and not a link to one.
func mkdir(path string, mode os.FileMode) error {
	err := os.Mkdir(path, mode.Perm())
	if errors.Is(err, fs.ErrExist) {
		info, serr := os.Lstat(path)
		if serr != nil {
			return serr
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is in the way: it is not a directory", path)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, mode) // independent of the umask
}

// mountSecrets mounts a memory file system unless there is one. Without the right to mount, the plain directory is
// used.
func mountSecrets(path string, sizeMiB int64) {
	if isMount(path) {
		return
	}
	if sizeMiB <= 0 {
		sizeMiB = secretsDefaultMiB
	}
	flags := uintptr(unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV)
	// On error the directory stays on disk, with mode 0700.
	_ = unix.Mount("tmpfs", path, "tmpfs", flags, fmt.Sprintf("size=%dm,mode=0700", sizeMiB))
}

func isMount(path string) bool {
	var a, b unix.Stat_t
	if unix.Lstat(path, &a) != nil || unix.Lstat(filepath.Dir(path), &b) != nil {
		return false
	}
	return a.Dev != b.Dev
}

// Adopt moves the shared data of an earlier allocation, and the local directories of tasks with the same names, into
// this one (ephemeral_disk with sticky). What cannot be moved stays where it is.
func (d *Dir) Adopt(prev *Dir, tasks []string) error {
	move := func(from, to string) error {
		if info, err := os.Lstat(from); err != nil || !info.IsDir() {
			return nil
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil // the allocation has its own content already
		}
		if err := os.Rename(from, to); err != nil {
			return fmt.Errorf("take over %s: %w", from, err)
		}
		return nil
	}
	err := move(filepath.Join(prev.SharedDir(), Data), filepath.Join(d.SharedDir(), Data))
	for _, t := range tasks {
		err = errors.Join(err, move(prev.Task(t).Local, d.Task(t).Local))
	}
	return err
}

// Destroy unmounts and removes everything.
func (d *Dir) Destroy() error {
	defer slot(slots)()
	if d.removeEmpty() == nil {
		return nil
	}
	entries, err := os.ReadDir(d.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if s := filepath.Join(d.Root, e.Name(), Secrets); e.IsDir() && e.Name() != Shared && isMount(s) {
			if err := unix.Unmount(s, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s: %w", s, err)
			}
		}
	}
	return os.RemoveAll(d.Root)
}

// removeEmpty removes the directories of an allocation that has left nothing in them, as most do. It stops at the first
// obstacle. Every step is relative to an open directory: a task may have replaced its directories by links.
func (d *Dir) removeEmpty() error {
	root, err := openDir(unix.AT_FDCWD, d.Root)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	var buf [4096]byte // a larger directory has entries that are not the agent's
	n, err := unix.ReadDirent(root, buf[:])
	if err != nil {
		return err
	}
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	for _, name := range names {
		if err := removeBelow(root, name); err != nil {
			return err
		}
	}
	top.Lock()
	defer top.Unlock()
	return unix.Rmdir(d.Root)
}

// removeBelow removes a task's directory, or the shared one.
func removeBelow(top int, name string) error {
	dir, err := openDir(top, name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	below := [...]string{Local, Tmp, Secrets}
	if name == Shared {
		below = [...]string{Data, Logs, Tmp}
	}
	for _, b := range below {
		if err := unix.Unlinkat(dir, b, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
			return err
		}
	}
	return unix.Unlinkat(top, name, unix.AT_REMOVEDIR)
}

// openDir opens a directory, refusing a link to one.
func openDir(at int, path string) (int, error) {
	return unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// Unmount drops a task's secrets and keeps everything else, after the allocation has ended.
func (d *Dir) Unmount(task string) {
	if info, err := os.Lstat(d.Task(task).Root); err != nil || !info.IsDir() {
		return // a link could lead to another allocation
	}
	// The kernel refuses a path that is not a mount.
	_ = unix.Unmount(d.Task(task).Secrets, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// Usage returns the bytes that the allocation occupies on disk, without secrets in memory. It stops counting at limit.
func (d *Dir) Usage(limit int64) (int64, error) {
	var sum int64
	err := filepath.WalkDir(d.Root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile, or not readable by the agent
		}
		if e.IsDir() {
			if e.Name() == Secrets && isMount(path) {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			sum += st.Blocks * 512
		}
		if sum > limit {
			return fs.SkipAll
		}
		return nil
	})
	return sum, err
}

// hidden reports whether a path below the allocation must not be shown: the secrets of a task.
func hidden(clean string) bool {
	parts := strings.Split(clean, "/")
	return len(parts) >= 2 && parts[0] != Shared && parts[1] == Secrets
}
