// Package taskfs creates, opens, owns and removes what is in directories that tasks may write to. The agent is root; a
// task may replace any name by a symbolic link, a hard link, a pipe or a device between two of the agent's calls. So
// nothing here goes by path:
//
//   - A Dir is an open directory. Names are looked up in it and below it, through no mount and no symbolic link (Follow
//     permits links that stay inside).
//   - A new object is created exclusively, and owned and given its mode through its descriptor.
//   - An existing object is first held as a Node, which opens nothing and so has no side effects. What it is, is read
//     from the descriptor, and it is opened, owned and mounted through the descriptor.
//
// ADR 0018 gives the reasons.
package taskfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is the user and group that an object shall have. A UID of -1 leaves the agent's own.
type Owner struct{ UID, GID int }

// Agent is the owner of what no task owns.
var Agent = Owner{UID: -1, GID: -1}

// tries limits how often an operation is repeated because a name has changed meanwhile. A task can always change it
// again; then the operation fails, which harms only that task.
const tries = 100

// Dir is an open directory. It must be closed once.
type Dir struct {
	fd   int
	name string // of the last component, for errors
}

// Open opens a directory whose parents only the agent may write to. The directory itself must not be a symbolic link.
func Open(path string) (*Dir, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(unix.AT_FDCWD, path, dirFlags|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd, filepath.Base(path)}, nil
}

// OpenWorking opens the working directory.
func OpenWorking() (*Dir, error) { return Open(".") }

// Close closes the directory.
func (d *Dir) Close() { unix.Close(d.fd) }

// Name returns the directory's name when it was opened.
func (d *Dir) Name() string { return d.name }

// File returns a new descriptor of the directory for a child process.
func (d *Dir) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.name), nil
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// How names are resolved.
const (
	// Strict resolves names below a directory, through no link and no mount.
	Strict = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
	// following: below the directory, through links that stay there.
	following = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
)

// hasOpenat2 reports whether the kernel (5.6) and the agent's own sandbox, if any, allow openat2. Tests replace it.
var hasOpenat2 = sync.OnceValue(func() bool {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
})

func retry[T any](call func() (T, error)) (T, error) {
	for {
		if out, err := call(); err != unix.EINTR {
			return out, err
		}
	}
}

// resolve opens a name below the directory.
func (d *Dir) resolve(name string, flags int, how uint64) (int, error) {
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return -1, unix.EINVAL
	}
	name = path.Clean(name)
	if !hasOpenat2() {
		return d.walk(name, flags)
	}
	open := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: how}
	for range tries {
		fd, err := retry(func() (int, error) { return unix.Openat2(d.fd, name, open) })
		if err != unix.EAGAIN { // a directory on the way was moved
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// walk is resolve for kernels without openat2. It follows no link at all.
func (d *Dir) walk(name string, flags int) (int, error) {
	var top, st unix.Stat_t
	if err := unix.Fstat(d.fd, &top); err != nil {
		return -1, err
	}
	at := d.fd
	parts := strings.Split(name, "/")
	for i, part := range parts {
		how := unix.O_PATH | unix.O_DIRECTORY
		if i == len(parts)-1 {
			how = flags
		}
		fd, err := retry(func() (int, error) { return unix.Openat(at, part, how|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
		if at != d.fd {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		switch err = unix.Fstat(fd, &st); {
		case err != nil:
		case st.Mode&unix.S_IFMT == unix.S_IFLNK && flags&unix.O_NOFOLLOW == 0:
			err = unix.ELOOP
		case st.Dev != top.Dev:
			err = unix.EXDEV
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		at = fd
	}
	return at, nil
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	switch err {
	case unix.ELOOP:
		err = errLink
	case unix.EXDEV:
		err = ErrOutside
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// ErrOutside is the error of a name that leads elsewhere.
var ErrOutside = errors.New("it leads out of its directory, or into another file system")

var (
	errLink    = errors.New("it is a symbolic link, or leads through one")
	errChanged = errors.New("it was replaced while the agent worked on it")
)

// single refuses names of more than one component.
func single(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return unix.EINVAL
	}
	return nil
}

// Sub opens a directory below this one.
func (d *Dir) Sub(name string) (*Dir, error) {
	fd, err := d.resolve(name, dirFlags, Strict)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	return &Dir{fd, path.Base(name)}, nil
}

// Make opens a directory, and creates it with exactly this mode if there is none.
func (d *Dir) Make(name string, mode fs.FileMode) (_ *Dir, made bool, err error) {
	if err := single(name); err != nil {
		return nil, false, wrap("mkdir", name, err)
	}
	err = unix.Mkdirat(d.fd, name, bits(mode))
	if err != nil && err != unix.EEXIST {
		return nil, false, wrap("mkdir", name, err)
	}
	made = err == nil
	sub, err := d.Sub(name)
	if err != nil || !made {
		return sub, false, err
	}
	info, err := sub.Info()
	if err == nil && info.Owner().UID != os.Geteuid() {
		err = wrap("mkdir", name, errChanged)
	}
	if err == nil && info.Mode()&settable != mode {
		err = sub.Chmod(mode) // the umask has taken a part
	}
	if err != nil {
		sub.Close()
		return nil, false, err
	}
	return sub, true, nil
}

// MakeNew creates a directory with a new name that begins like that, which only the agent may enter.
func (d *Dir) MakeNew(prefix string) (*Dir, error) {
	for range tries {
		sub, made, err := d.Make(prefix+strconv.FormatUint(rand.Uint64(), 36), 0o700)
		if err != nil || made {
			return sub, err
		}
		sub.Close()
	}
	return nil, wrap("mkdir", prefix, unix.EEXIST)
}

// MakeAll is Make for a path, with all directories on the way.
func (d *Dir) MakeAll(name string, mode fs.FileMode) (*Dir, error) {
	if !filepath.IsLocal(name) {
		return nil, wrap("mkdir", name, unix.EINVAL)
	}
	at := d
	for _, part := range strings.Split(path.Clean(name), "/") {
		var next *Dir
		var err error
		if part == "." {
			next, err = at.Sub(".")
		} else {
			next, _, err = at.Make(part, mode)
		}
		if at != d {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// Parent opens the directory that a path ends in, and creates what is missing on the way.
func (d *Dir) Parent(name string, mode fs.FileMode) (*Dir, string, error) {
	dir, base := path.Split(path.Clean(name))
	if err := single(base); err != nil {
		return nil, "", wrap("open", name, err)
	}
	if dir == "" {
		dir = "."
	}
	sub, err := d.MakeAll(dir, mode)
	return sub, base, err
}

// settable are the bits of a mode that Chmod sets.
const settable = fs.ModePerm | fs.ModeSticky | fs.ModeSetuid | fs.ModeSetgid

// special are the bits of a mode that are not permissions.
var special = [...]struct {
	bit  uint32
	mode fs.FileMode
}{{unix.S_ISVTX, fs.ModeSticky}, {unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}}

func bits(m fs.FileMode) uint32 {
	out := uint32(m.Perm())
	for _, b := range special {
		if m&b.mode != 0 {
			out |= b.bit
		}
	}
	return out
}

// Chmod sets the directory's mode.
func (d *Dir) Chmod(mode fs.FileMode) error {
	return wrap("chmod", d.name, unix.Fchmod(d.fd, bits(mode)))
}

// Own gives the directory, without its content, to a user.
func (d *Dir) Own(who Owner) error {
	if who.UID < 0 {
		return nil
	}
	return wrap("chown", d.name, unix.Fchown(d.fd, who.UID, who.GID))
}

// Create creates a file, which must not exist.
func (d *Dir) Create(name string, mode fs.FileMode, who Owner) (*os.File, error) {
	if err := single(name); err != nil {
		return nil, wrap("create", name, err)
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, wrap("create", name, err)
	}
	if who.UID >= 0 || who.GID >= 0 {
		err = unix.Fchown(fd, who.UID, who.GID)
	}
	if err == nil {
		err = unix.Fchmod(fd, bits(mode))
	}
	if err != nil {
		unix.Close(fd)
		return nil, wrap("create", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Replace writes a file atomically: no task sees half of it.
func (d *Dir) Replace(name string, content []byte, mode fs.FileMode, who Owner) error {
	next := name + ".muster-new"
	var f *os.File
	var err error
	for range tries {
		if err = d.Remove(next); err == nil {
			f, err = d.Create(next, mode, who)
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return d.Rename(next, d, name)
}

// Output opens a file for writing, at its end with the flag O_APPEND, and creates it if there is none. An existing file
// must be a plain one that has no other name: a hard link could lead to another user's file.
func (d *Dir) Output(name string, flag int) (*os.File, error) {
	if err := single(name); err != nil {
		return nil, wrap("open", name, err)
	}
	flag |= unix.O_WRONLY
	for range tries {
		fd, err := retry(func() (int, error) {
			return unix.Openat(d.fd, name, flag|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		})
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EEXIST {
			return nil, wrap("open", name, err)
		}
		f, err := d.Update(name, flag)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return nil, wrap("open", name, errChanged)
}

// Update opens an existing file for writing, under the same conditions as Output.
func (d *Dir) Update(name string, flag int) (*os.File, error) {
	n, err := d.Sole(name)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return n.Open(flag)
}

// looks is how often Sole looks for other names of a file.
const looks = 8

// unlinked waits until a removal of a name that is in progress has ended. The kernel first counts one name less and then
// takes the name away; a look in between, which lasts as long as the remover's processor is taken from it, would find the
// name with the count of the others. A rename of a name to itself changes nothing, and waits for the directory's lock.
func unlinked(dir int, name string) {
	_ = unix.Renameat2(dir, name, dir, name, unix.RENAME_NOREPLACE)
}

// Sole holds a plain file that has no other name. A hard link to another user's file also has one name if the task
// removes the link after it was opened, and before the names are counted. So names are counted several times, each time
// in a new look-up of the name: the task would have to hit each look within a fraction of a microsecond.
func (d *Dir) Sole(name string) (*Node, error) {
	if err := single(name); err != nil {
		return nil, wrap("open", name, err)
	}
	n, err := d.Node(name)
	if err != nil {
		return nil, err
	}
	if !n.Mode().IsRegular() {
		n.Close()
		return nil, wrap("open", name, ErrNotRegular)
	}
	var held, seen unix.Statx_t
	const what = unix.STATX_INO | unix.STATX_NLINK | unix.STATX_MNT_ID
	if err := unix.Statx(n.fd, "", unix.AT_EMPTY_PATH, what, &held); err != nil {
		n.Close()
		return nil, wrap("stat", name, err)
	}
	for range looks {
		unlinked(d.fd, name)
		err = unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW, what, &seen)
		switch {
		case err != nil:
		case seen.Ino != held.Ino || seen.Dev_major != held.Dev_major || seen.Dev_minor != held.Dev_minor:
			err = errChanged
		case seen.Mnt_id != held.Mnt_id: // the file itself, mounted here, has as many names as it has elsewhere
			err = errChanged
		case seen.Nlink != 1:
			err = fmt.Errorf("it has %d names; the agent changes only files with one", seen.Nlink)
		}
		if err != nil {
			n.Close()
			return nil, wrap("open", name, err)
		}
	}
	return n, nil
}

// Open opens a plain file with one name for reading.
func (d *Dir) Open(name string) (*os.File, error) {
	n, err := d.Sole(name)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return n.Open(unix.O_RDONLY)
}

// Stat describes what has a name in the directory: a symbolic link itself, and the root of what is mounted there.
func (d *Dir) Stat(name string) (Info, error) {
	info := Info{name: name}
	err := single(name)
	if err == nil {
		err = unix.Fstatat(d.fd, name, &info.st, unix.AT_SYMLINK_NOFOLLOW)
	}
	return info, wrap("stat", name, err)
}

// Info describes the directory itself.
func (d *Dir) Info() (Info, error) {
	i := Info{name: d.name}
	return i, wrap("stat", d.name, unix.Fstat(d.fd, &i.st))
}

// Rename moves an object of any kind into another directory, and replaces what has the new name there.
func (d *Dir) Rename(name string, to *Dir, next string) error {
	if err := errors.Join(single(name), single(next)); err != nil {
		return wrap("rename", name, unix.EINVAL)
	}
	if err := unix.Renameat(d.fd, name, to.fd, next); err != nil {
		return &fs.PathError{Op: "rename", Path: name, Err: err} // EXDEV has its usual meaning
	}
	return nil
}

// Symlink creates a symbolic link.
func (d *Dir) Symlink(target, name string, who Owner) error {
	if err := single(name); err != nil {
		return wrap("symlink", name, err)
	}
	if err := unix.Symlinkat(target, d.fd, name); err != nil || who.UID < 0 {
		return wrap("symlink", name, err)
	}
	n, err := d.Node(name)
	if err != nil {
		return err
	}
	defer n.Close()
	if n.Mode().Type() != fs.ModeSymlink || n.Owner().UID != os.Geteuid() {
		return wrap("symlink", name, errChanged)
	}
	return n.Own(who)
}

// Readlink returns where a symbolic link leads to.
func (d *Dir) Readlink(name string) (string, error) {
	if err := single(name); err != nil {
		return "", wrap("readlink", name, err)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, buf)
	if err != nil {
		return "", wrap("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// Remove removes a file or a link. Nothing to remove is no error.
func (d *Dir) Remove(name string) error {
	if err := single(name); err != nil {
		return wrap("remove", name, err)
	}
	if err := unix.Unlinkat(d.fd, name, 0); err != nil && err != unix.ENOENT {
		return wrap("remove", name, err)
	}
	return nil
}

// RemoveDir removes an empty directory. Nothing to remove is no error.
func (d *Dir) RemoveDir(name string) error {
	if err := single(name); err != nil {
		return wrap("remove", name, err)
	}
	if err := unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return wrap("remove", name, err)
	}
	return nil
}

// Node is an object of any kind, which is held but not opened. It must be closed.
type Node struct {
	Info
	fd    int
	names int // the most names that were counted
}

// Node holds an object below the directory. A symbolic link is held itself.
func (d *Dir) Node(name string) (*Node, error) {
	return d.node(name, unix.O_PATH|unix.O_NOFOLLOW, Strict)
}

// Follow holds the object that a name leads to, through symbolic links that stay below the directory. It counts names
// like Sole.
func (d *Dir) Follow(name string) (*Node, error) {
	n, err := d.node(name, unix.O_PATH, following)
	if err != nil || !n.Mode().IsRegular() {
		return n, err
	}
	for range looks {
		if at, err := os.Readlink(procName(n.fd)); err == nil {
			unlinked(unix.AT_FDCWD, at)
		}
		again, err := d.node(name, unix.O_PATH, following)
		if err == nil {
			if again.Close(); again.st.Ino != n.st.Ino || again.st.Dev != n.st.Dev {
				err = wrap("open", name, errChanged)
			}
		}
		if err != nil {
			n.Close()
			return nil, err
		}
		n.names = max(n.names, again.names)
	}
	return n, nil
}

func (d *Dir) node(name string, flags int, how uint64) (*Node, error) {
	fd, err := d.resolve(name, flags, how)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	n := &Node{Info: Info{name: path.Base(name)}, fd: fd}
	if err := unix.Fstat(fd, &n.st); err != nil {
		n.Close()
		return nil, wrap("stat", name, err)
	}
	n.names = n.Links()
	return n, nil
}

// Close lets the object go.
func (n *Node) Close() { unix.Close(n.fd) }

// ErrNotRegular is the error of opening something that is no plain file.
var ErrNotRegular = errors.New("not a regular file")

// Open opens a plain file. A file with several names that not all users may read is refused: where the kernel does not
// protect hard links, one of the names may have been given to another user's file.
func (n *Node) Open(flag int) (*os.File, error) {
	if !n.Mode().IsRegular() {
		return nil, wrap("open", n.name, ErrNotRegular)
	}
	if n.names > 1 && n.Mode().Perm()&0o004 == 0 {
		return nil, wrap("open", n.name, fmt.Errorf("it has %d names and is not readable by all users", n.names))
	}
	// O_NONBLOCK: a task that has a lease on the file must not make the agent wait.
	fd, err := retry(func() (int, error) { return unix.Open(procName(n.fd), flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, wrap("open", n.name, err)
	}
	return os.NewFile(uintptr(fd), n.name), nil
}

// Dir opens a directory.
func (n *Node) Dir() (*Dir, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(n.fd, ".", dirFlags, 0) })
	if err != nil {
		return nil, wrap("open", n.name, err)
	}
	return &Dir{fd, n.name}, nil
}

// Own gives the object to a user.
func (n *Node) Own(who Owner) error {
	return wrap("chown", n.name, unix.Fchownat(n.fd, "", who.UID, who.GID, unix.AT_EMPTY_PATH))
}

// Beneath returns the object's present name relative to a directory, or "" if it is not below it.
func (n *Node) Beneath(d *Dir) string {
	top, err1 := os.Readlink(procName(d.fd))
	at, err2 := os.Readlink(procName(n.fd))
	rel, err3 := filepath.Rel(top, at)
	if errors.Join(err1, err2, err3) != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return rel
}

// Is reports whether this is the object of an open file.
func (n *Node) Is(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Dev == n.st.Dev && st.Ino == n.st.Ino
}

// procName is a path to what a descriptor of this process refers to, which no rename can change.
func procName(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Info describes an object. It implements fs.FileInfo.
type Info struct {
	name string
	st   unix.Stat_t
}

// Name implements fs.FileInfo.
func (i Info) Name() string { return i.name }

// Size implements fs.FileInfo.
func (i Info) Size() int64 { return i.st.Size }

// ModTime implements fs.FileInfo.
func (i Info) ModTime() time.Time { return time.Unix(i.st.Mtim.Unix()) }

// IsDir implements fs.FileInfo.
func (i Info) IsDir() bool { return i.st.Mode&unix.S_IFMT == unix.S_IFDIR }

// Sys implements fs.FileInfo.
func (i Info) Sys() any { return nil }

// Owner returns the object's user and group.
func (i Info) Owner() Owner { return Owner{int(i.st.Uid), int(i.st.Gid)} }

// Links returns the number of the object's names.
func (i Info) Links() int { return int(i.st.Nlink) }

// Inode returns a number that no other object of the file system has at the same time.
func (i Info) Inode() uint64 { return i.st.Ino }

// Blocks returns the bytes that the object occupies.
func (i Info) Blocks() int64 { return i.st.Blocks * 512 }

// Mode implements fs.FileInfo.
func (i Info) Mode() fs.FileMode {
	m := fs.FileMode(i.st.Mode & 0o777)
	for _, b := range special {
		if i.st.Mode&b.bit != 0 {
			m |= b.mode
		}
	}
	switch i.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	return m
}
