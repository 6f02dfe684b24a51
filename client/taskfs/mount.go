package taskfs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounted opens what is visible at a name: the root of a file system that is mounted there, or the directory itself.
func (d *Dir) mounted(name string) (_ *Dir, mount bool, err error) {
	if err := single(name); err != nil {
		return nil, false, wrap("open", name, err)
	}
	fd, err := retry(func() (int, error) { return unix.Openat(d.fd, name, dirFlags|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return nil, false, wrap("open", name, err)
	}
	sub := &Dir{fd, name}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(d.fd, &a), unix.Fstat(fd, &b)); err != nil {
		sub.Close()
		return nil, false, wrap("stat", name, err)
	}
	return sub, a.Dev != b.Dev, nil
}

// Memory opens the memory file system that MountMemory has mounted at a name, or the plain directory if none was.
func (d *Dir) Memory(name string) (*Dir, error) {
	sub, mount, err := d.mounted(name)
	if err != nil {
		return nil, err
	}
	if !mount { // a directory of the same file system may be bound there: Sub refuses it
		sub.Close()
		return d.Sub(name)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(sub.fd, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		sub.Close()
		return nil, wrap("open", name, ErrOutside)
	}
	return sub, nil
}

// MountMemory mounts a memory file system of that size on a directory, unless there is one. It is the agent's. It
// reports whether there is one now: the agent may not be permitted to mount.
func (d *Dir) MountMemory(name string, sizeMiB int64) bool {
	at, mount, err := d.mounted(name)
	if err != nil {
		return false
	}
	defer at.Close()
	if mount {
		return true
	}
	data := fmt.Sprintf("size=%dm,mode=0700", sizeMiB)
	return unix.Mount("tmpfs", procName(at.fd), "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, data) == nil
}

// IsMount reports whether a file system is mounted at a name.
func (d *Dir) IsMount(name string) bool {
	at, mount, err := d.mounted(name)
	if err != nil {
		return false
	}
	at.Close()
	return mount
}

// Unmount detaches the file system that is mounted at a name, if there is one.
func (d *Dir) Unmount(name string) error {
	if !d.IsMount(name) {
		return nil
	}
	return d.detach(name)
}

// detach detaches what is mounted at a name, which may be a file.
func (d *Dir) detach(name string) error {
	fd, err := retry(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		if err == unix.ENOENT {
			return nil
		}
		return wrap("unmount", name, err)
	}
	defer unix.Close(fd)
	// The kernel refuses what is not the root of a mount.
	return wrap("unmount", name, unix.Unmount(procName(fd), unix.MNT_DETACH))
}

// Bind shows the object at a place that only the agent may write to.
func (n *Node) Bind(place string) error {
	if err := unix.Mount(procName(n.fd), place, "", unix.MS_BIND, ""); err != nil {
		return wrap("mount", n.name, err)
	}
	return unix.Mount("", place, "", unix.MS_PRIVATE, "") // later mounts below the object must not appear below the place
}

// Listen creates a socket that every user who can reach it may connect to, in place of one of an earlier agent. The
// path of a socket has a limited length; the one here is short, however deep the directory is.
func (d *Dir) Listen(name string) (net.Listener, error) {
	if err := single(name); err != nil {
		return nil, wrap("listen", name, err)
	}
	path := procName(d.fd) + "/" + name
	l, err := net.Listen("unix", path)
	if errors.Is(err, unix.EADDRINUSE) { // left over from an earlier run or agent
		if err = d.Remove(name); err == nil {
			l, err = net.Listen("unix", path)
		}
	}
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then the descriptor may refer to another directory
	n, err := d.Node(name)
	if err != nil {
		l.Close()
		return nil, err
	}
	defer n.Close()
	if n.Mode().Type() != fs.ModeSocket || n.Links() != 1 {
		err = wrap("listen", name, errChanged)
	} else {
		err = unix.Chmod("/proc/self/fd/"+strconv.Itoa(n.fd), 0o666)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
