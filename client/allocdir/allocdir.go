// Package allocdir makes, shows and removes the directories of an allocation:
//
//	<root>/<alloc id>/alloc/{data,logs,tmp}      shared by the tasks
//	<root>/<alloc id>/<task>/{local,secrets,tmp} one task's own
//
// Nothing in here follows a symbolic link out of the allocation: tasks own the content of these directories and may put
// there whatever they like.
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

// slots bounds how many allocations' directories are made or removed at once: disks do not get faster by being asked more,
// and every one that waits for the disk keeps a thread. Allocations that have only just come have slots of their own, and
// few: of a thousand that come together the first could otherwise start its tasks only when the last has its directories.
var (
	slots  = make(chan struct{}, 16)
	builds = make(chan struct{}, 4)
)

func slot(in chan struct{}) (free func()) {
	in <- struct{}{}
	return func() { <-in }
}

// top is held while an entry of the directory of all allocations is made or removed. The kernel does one after the other
// anyway, and those who wait would spin.
var top sync.Mutex

// Dir is the directory of one allocation.
type Dir struct {
	Root string // absolute
}

// Task is the directories of one task, absolute.
type Task struct {
	Root    string
	Local   string
	Secrets string
}

// topDir is FS_TOPDIR_FL, the attribute T of chattr(1).
const topDir = 0x00020000

// Scatter tells the file system that what is below root, the directory of all allocations, belongs to many unrelated
// trees: an ext file system then puts each one's directories together, and different ones' apart. Without that it looks
// for free inodes where those of the last allocations were just given back, which costs more the more there were. It is
// advice: other file systems do not know it.
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

// New names the directory of an allocation below root, without making it.
func New(root, allocID string) *Dir { return &Dir{Root: filepath.Join(root, allocID)} }

// SharedDir is what the tasks share (NOMAD_ALLOC_DIR).
func (d *Dir) SharedDir() string { return filepath.Join(d.Root, Shared) }

// LogDir is where the tasks' logs are.
func (d *Dir) LogDir() string { return filepath.Join(d.Root, Shared, Logs) }

// Task gives the directories of a task, without making them.
func (d *Dir) Task(name string) Task {
	root := filepath.Join(d.Root, name)
	return Task{Root: root, Local: filepath.Join(root, Local), Secrets: filepath.Join(root, Secrets)}
}

// Build makes the shared directories. Building again changes nothing.
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

// Owner is who a task runs as; UID is -1 when that is the agent's own user.
type Owner struct{ UID, GID int }

// BuildTask makes a task's directories, owned by who. With tmpfs the secrets are on a memory file system of their own,
// if the agent may mount one; they never reach a disk then. Building again changes nothing but mounts what a reboot
// has unmounted.
func (d *Dir) BuildTask(name string, who Owner, tmpfs bool, secretsMiB int64) error {
	if name == Shared || name != filepath.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("a task cannot be called %q: its directory would be somebody else's", name)
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

// mkdir makes a directory with exactly this mode. What is there already must be a directory and not a link to one.
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
	return os.Chmod(path, mode) // whatever the umask is
}

// mountSecrets mounts a memory file system unless there is one. Without the right to mount, the plain directory stays.
func mountSecrets(path string, sizeMiB int64) {
	if isMount(path) {
		return
	}
	if sizeMiB <= 0 {
		sizeMiB = secretsDefaultMiB
	}
	flags := uintptr(unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV)
	// An error leaves the directory as it is: mode 0700, on disk.
	_ = unix.Mount("tmpfs", path, "tmpfs", flags, fmt.Sprintf("size=%dm,mode=0700", sizeMiB))
}

func isMount(path string) bool {
	var a, b unix.Stat_t
	if unix.Lstat(path, &a) != nil || unix.Lstat(filepath.Dir(path), &b) != nil {
		return false
	}
	return a.Dev != b.Dev
}

// Adopt moves the shared data of an earlier allocation, and with the same task names its local directories, into this
// one (ephemeral_disk with sticky). What cannot be moved stays where it is.
func (d *Dir) Adopt(prev *Dir, tasks []string) error {
	move := func(from, to string) error {
		if info, err := os.Lstat(from); err != nil || !info.IsDir() {
			return nil
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil // this allocation has content of its own already
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

// removeEmpty removes the directories of an allocation that has left nothing in them, as most have not. It stops where
// something is in the way. Every step is taken below an open directory: a task may have put links in the place of its own.
func (d *Dir) removeEmpty() error {
	root, err := openDir(unix.AT_FDCWD, d.Root)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	var buf [4096]byte // more than that is not an allocation's directory as it was made
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

// removeBelow removes one of the directories of an allocation, the one that is shared or a task's.
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

// openDir opens a directory, not a link to one.
func openDir(at int, path string) (int, error) {
	return unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// Unmount drops the secrets of a task and keeps everything else, for an allocation that has ended.
func (d *Dir) Unmount(task string) {
	if info, err := os.Lstat(d.Task(task).Root); err != nil || !info.IsDir() {
		return // a link may lead to another allocation
	}
	// What is no mount is refused.
	_ = unix.Unmount(d.Task(task).Secrets, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// Usage is how many bytes the allocation occupies on disk, secrets in memory left out. It stops counting at limit.
func (d *Dir) Usage(limit int64) (int64, error) {
	var sum int64
	err := filepath.WalkDir(d.Root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone while we looked, or not ours to read
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

// hidden reports whether a path below the allocation may not be shown: the secrets of a task.
func hidden(clean string) bool {
	parts := strings.Split(clean, "/")
	return len(parts) >= 2 && parts[0] != Shared && parts[1] == Secrets
}
