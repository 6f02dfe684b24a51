// Package allocdir creates, shows and removes the directories of an allocation:
//
//	<root>/<alloc id>/alloc/{data,logs,tmp}      shared by the tasks
//	<root>/<alloc id>/<task>/{local,secrets,tmp} one task's own
//
// Tasks own the content of these directories and may put anything there, so the agent works on them through package
// taskfs. The paths here are for tasks, drivers and messages.
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

	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
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

// Barred returns the first directory above path that only its owner and group may enter, or "". Tasks that run as other users cannot
// reach by name what is below it, such as their HOME.
func Barred(path string) string {
	dir := "/"
	for part := range strings.SplitSeq(filepath.Dir(filepath.Clean(path)), "/") {
		dir = filepath.Join(dir, part)
		if st, err := os.Stat(dir); err != nil || st.Mode()&0o001 == 0 {
			return dir
		}
	}
	return ""
}

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

// Open opens the allocation's directory.
func (d *Dir) Open() (*taskfs.Dir, error) {
	root, err := taskfs.Open(d.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, structs.Errorf(structs.CodeNotFound, "the allocation's directory %s is gone from this node", filepath.Base(d.Root))
	}
	return root, err
}

// Part opens the part of the allocation that a relative path is in: the shared directory, a task's, or a task's
// secrets, which may be another file system. It returns the rest of the path. No link in one part leads to
// another.
func (d *Dir) Part(path string) (*taskfs.Dir, string, error) {
	first, rest, _ := strings.Cut(filepath.Clean(path), "/")
	root, err := d.Open()
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	part, err := root.Sub(first)
	if err != nil {
		return nil, "", err
	}
	if second, below, _ := strings.Cut(rest, "/"); second == Secrets && first != Shared {
		defer part.Close()
		secrets, err := part.Memory(Secrets)
		return secrets, filepath.Clean(below), err
	}
	return part, filepath.Clean(rest), nil
}

// Find holds what a path leads to, through links that stay in its part of the allocation.
func (d *Dir) Find(path string) (*taskfs.Node, error) {
	part, rest, err := d.Part(path)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	return part.Follow(rest)
}

// Real returns where Find finds an object now, relative to the allocation. A task may move it at any moment: this is for
// messages and for agents that may not mount.
func (d *Dir) Real(path string) (string, error) {
	n, err := d.Find(path)
	if err != nil {
		return "", err
	}
	defer n.Close()
	root, err := d.Open()
	if err != nil {
		return "", err
	}
	defer root.Close()
	if at := n.Beneath(root); at != "" {
		return at, nil
	}
	return filepath.Clean(path), nil // secrets in memory
}

// Create opens a file's part of the allocation as Part does, then its directory, which is created if it is missing.
func (d *Dir) Create(path string) (*taskfs.Dir, string, error) {
	part, rest, err := d.Part(path)
	if err != nil {
		return nil, "", err
	}
	defer part.Close()
	return part.Parent(rest, 0o755)
}

// MakeDir opens a directory in a part of the allocation, and creates what is missing of it.
func (d *Dir) MakeDir(path string) (*taskfs.Dir, error) {
	part, rest, err := d.Part(path)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	return part.MakeAll(rest, 0o755)
}

// Private opens a directory of the agent's own, and creates it if it is missing. Its name begins with a dot, as no
// task's does, so that tasks cannot write to it.
func (d *Dir) Private(path string, mode fs.FileMode) (*taskfs.Dir, error) {
	root, err := d.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.MakeAll(path, mode)
}

// place is a directory that the agent creates.
type place struct {
	name  string
	mode  fs.FileMode
	owner taskfs.Owner
	fixed bool // while it is the agent's, it gets its mode back
}

// public is a directory in which every task may create files.
func public(name string) place {
	return place{name, 0o777 | fs.ModeSticky, taskfs.Agent, true}
}

// build creates a directory in another one.
func (p place) build(in *taskfs.Dir) (*taskfs.Dir, error) {
	dir, made, err := in.Make(p.name, p.mode)
	if err != nil {
		return nil, err
	}
	if made {
		err = dir.Own(p.owner)
	} else {
		err = p.restore(dir)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// restore gives a directory that exists its owner and mode back.
func (p place) restore(dir *taskfs.Dir) error {
	info, err := dir.Info()
	if err == nil && p.fixed && info.Owner().UID == os.Geteuid() && info.Mode() != p.mode|fs.ModeDir {
		err = dir.Chmod(p.mode)
	}
	if err == nil && info.Owner() != p.owner {
		err = dir.Own(p.owner)
	}
	return err
}

// buildAll is build for several directories, which are closed again.
func buildAll(in *taskfs.Dir, places ...place) error {
	for _, p := range places {
		dir, err := p.build(in)
		if err != nil {
			return err
		}
		dir.Close()
	}
	return nil
}

// Build creates the shared directories. Repeating it changes nothing.
func (d *Dir) Build() error {
	defer slot(builds)()
	if err := d.build(); err != nil {
		return fmt.Errorf("make the allocation's directory: %w", err)
	}
	return nil
}

func (d *Dir) build() error {
	all, err := taskfs.Open(filepath.Dir(d.Root))
	if err != nil {
		return err
	}
	defer all.Close()
	top.Lock()
	root, err := place{name: filepath.Base(d.Root), mode: 0o755, owner: taskfs.Agent}.build(all)
	top.Unlock()
	if err != nil {
		return err
	}
	defer root.Close()
	shared, err := place{name: Shared, mode: 0o755, owner: taskfs.Agent}.build(root)
	if err != nil {
		return err
	}
	defer shared.Close()
	return buildAll(shared, public(Data), place{name: Logs, mode: 0o755, owner: taskfs.Agent}, public(Tmp))
}

// TaskSpec says how a task's directories are created.
type TaskSpec struct {
	Owner taskfs.Owner // the user that the task runs as
	// Apart: the task sees its directories in another root, as any user. The directory around them keeps other users of
	// the machine out.
	Apart bool
	// Memory: secrets are in a memory file system, if the agent may mount one, and never reach a disk.
	Memory     bool
	SecretsMiB int64 // size of that file system; 0 is secretsDefaultMiB
}

// BuildTask creates a task's directories. Repeating it mounts what a reboot has unmounted and restores owners.
func (d *Dir) BuildTask(name string, s TaskSpec) error {
	if err := structs.CheckTaskName(name); err != nil {
		return fmt.Errorf("task %q: %w", name, err)
	}
	defer slot(slots)()
	if err := d.buildTask(name, s); err != nil {
		return fmt.Errorf("make the directories of task %q: %w", name, err)
	}
	return nil
}

func (d *Dir) buildTask(name string, s TaskSpec) error {
	alloc, err := d.Open()
	if err != nil {
		return err
	}
	defer alloc.Close()
	top, local, secrets := place{name, 0o755, s.Owner, false}, place{Local, 0o755, s.Owner, false}, place{Secrets, 0o700, s.Owner, false}
	if s.Apart {
		top = place{name, 0o700, taskfs.Agent, true}
		if s.Owner.UID < 0 {
			local, secrets = place{Local, 0o777, s.Owner, true}, place{Secrets, 0o777, s.Owner, true}
		}
	}
	task, err := top.build(alloc)
	if err != nil {
		return err
	}
	defer task.Close()
	if err := buildAll(task, local, public(Tmp)); err != nil {
		return err
	}
	if !s.Memory {
		return buildAll(task, secrets)
	}
	if !task.IsMount(Secrets) {
		if err := buildAll(task, place{name: Secrets, mode: 0o700, owner: taskfs.Agent}); err != nil {
			return err
		}
	}
	size := s.SecretsMiB
	if size <= 0 {
		size = secretsDefaultMiB
	}
	// Without the right to mount, the plain directory is used.
	if !task.MountMemory(Secrets, size) {
		return buildAll(task, secrets)
	}
	dir, err := task.Memory(Secrets)
	if err != nil {
		return err
	}
	defer dir.Close()
	return errors.Join(dir.Chmod(secrets.mode), dir.Own(secrets.owner))
}

// Adopt moves the shared data of an earlier allocation, and the local directories of tasks with the same names, into
// this one (ephemeral_disk with sticky). What cannot be moved stays where it is.
func (d *Dir) Adopt(prev *Dir, tasks []string) error {
	to, err := d.Open()
	if err != nil {
		return err
	}
	defer to.Close()
	from, err := prev.Open()
	if structs.CodeOf(err) == structs.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	move := func(dir, name string) error {
		src, err := from.Sub(dir)
		if err != nil {
			return nil
		}
		defer src.Close()
		dst, _, err := to.Make(dir, 0o755)
		if err != nil {
			return err
		}
		defer dst.Close()
		if info, err := src.Stat(name); err != nil || !info.IsDir() || dst.RemoveDir(name) != nil {
			return nil // there is nothing, or the allocation has its own content already
		}
		if err := src.Rename(name, dst, name); err != nil {
			return fmt.Errorf("take over %s of %s: %w", name, dir, err)
		}
		return nil
	}
	err = move(Shared, Data)
	for _, t := range tasks {
		err = errors.Join(err, move(t, Local))
	}
	return err
}

// Destroy unmounts and removes everything.
func (d *Dir) Destroy() error {
	defer slot(slots)()
	all, err := taskfs.Open(filepath.Dir(d.Root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer all.Close()
	name := filepath.Base(d.Root)
	root, err := all.Sub(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Clear(); err != nil {
		return err
	}
	top.Lock()
	defer top.Unlock()
	return all.RemoveDir(name)
}

// Unmount drops a task's secrets and keeps everything else, after the allocation has ended.
func (d *Dir) Unmount(task string) {
	root, err := d.Open()
	if err != nil {
		return
	}
	defer root.Close()
	dir, err := root.Sub(task)
	if err != nil {
		return
	}
	defer dir.Close()
	_ = dir.Unmount(Secrets) // nothing may be mounted
}

// Usage returns the bytes that the allocation occupies on disk, without secrets in memory. It stops counting at limit.
func (d *Dir) Usage(limit int64) (int64, error) {
	root, err := d.Open()
	if err != nil {
		return 0, nil
	}
	defer root.Close()
	var sum int64
	err = root.Walk(func(_ *taskfs.Dir, info taskfs.Info) error {
		if !info.IsDir() {
			sum += info.Blocks()
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
