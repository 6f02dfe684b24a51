package taskfs

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// batch is how many names of a directory are read at once.
const batch = 1024

// each calls fn with the names in the directory, in the order of the file system. It ends with fn's first error.
func (d *Dir) each(fn func(name string) error) error {
	fd, err := unix.Openat(d.fd, ".", dirFlags, 0) // a new descriptor has its own position
	if err != nil {
		return wrap("read", d.name, err)
	}
	f := os.NewFile(uintptr(fd), d.name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(batch) // without a stat of each
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errEnough ends each.
var errEnough = errors.New("enough")

// Names returns the names in the directory, at most that many; 0 is no limit.
func (d *Dir) Names(most int) ([]string, error) {
	var out []string
	err := d.each(func(name string) error {
		if most > 0 && len(out) >= most {
			return errEnough
		}
		out = append(out, name)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

// Walk calls fn for everything below the directory, with the directory that holds it. What disappears meanwhile, is on
// another file system or lies deeper than a path can say is left out. fs.SkipAll ends it.
func (d *Dir) Walk(fn func(in *Dir, info Info) error) error {
	next := []string{"."}
	for len(next) > 0 {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		in, err := d.Sub(name)
		if err != nil {
			continue
		}
		err = in.each(func(child string) error {
			info := Info{name: child}
			if unix.Fstatat(in.fd, child, &info.st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				return nil
			}
			if info.IsDir() {
				next = append(next, path.Join(name, child))
			}
			return fn(in, info)
		})
		in.Close()
		if errors.Is(err, fs.SkipAll) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveAll removes an object and everything below it.
//
// Recursion would hold a descriptor for each level, and a task can make more levels than there are descriptors. So a
// directory that is not empty is moved up, next to the one that is being removed, and is removed after it. File systems
// that are mounted on the way are detached.
func (d *Dir) RemoveAll(name string) error {
	if err := single(name); err != nil {
		return wrap("remove", name, err)
	}
	todo := []string{name}
	up := func(from *Dir, child string) error {
		for range tries {
			next := ".muster-removed." + strconv.FormatUint(rand.Uint64(), 36)
			err := unix.Renameat(from.fd, child, d.fd, next)
			switch err {
			case nil:
				todo = append(todo, next)
				return nil
			case unix.EBUSY:
				if err := from.detach(child); err != nil {
					return err
				}
			case unix.ENOENT:
				return nil
			case unix.EEXIST, unix.ENOTEMPTY, unix.ENOTDIR: // left by an interrupted call, or put there by a task
			default:
				return wrap("remove", child, err)
			}
		}
		return wrap("remove", child, errChanged)
	}
	for len(todo) > 0 {
		last := len(todo) - 1
		next := todo[last]
		todo = todo[:last]
		if err := d.removeOne(next, up); err != nil {
			return err
		}
	}
	return nil
}

// removeOne removes an object. up takes directories in it that are not empty.
func (d *Dir) removeOne(name string, up func(from *Dir, child string) error) error {
	for range tries {
		err := d.unlink(name)
		if err != unix.ENOTEMPTY && err != unix.EEXIST {
			return wrap("remove", name, err)
		}
		sub, err := d.Sub(name)
		if err != nil {
			continue // replaced by something else
		}
		err = sub.each(func(child string) error {
			err := sub.unlink(child)
			if err == unix.ENOTEMPTY || err == unix.EEXIST {
				return up(sub, child)
			}
			return wrap("remove", child, err)
		})
		sub.Close()
		if err != nil {
			return err
		}
	}
	return wrap("remove", name, errChanged)
}

// unlink removes a file, a link or an empty directory, after what is mounted there.
func (d *Dir) unlink(name string) error {
	for range tries {
		err := unix.Unlinkat(d.fd, name, 0)
		if err == unix.EISDIR || err == unix.EPERM {
			err = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		}
		switch err {
		case unix.ENOENT:
			return nil
		case unix.ENOTDIR: // replaced between the two calls
		case unix.EBUSY:
			if err := d.detach(name); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return unix.EBUSY
}
