package taskfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// entry is what has a name in a directory, as it was when the directory was read.
type entry struct {
	name string
	dir  bool // it is a directory; false also where the file system does not say
}

// lists are buffers for the kernel's lists of entries.
var lists = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// each calls fn with the entries of the directory, in the order of the file system. It ends with fn's first error.
func (d *Dir) each(fn func(entry) error) error {
	again, err := unix.Openat(d.fd, ".", dirFlags, 0) // a new descriptor has its own position
	if err != nil {
		return wrap("read", d.name, err)
	}
	defer unix.Close(again)
	return (&Dir{again, d.name}).rest(fn)
}

// rest is each from the position of the directory's own descriptor on. It makes fewer system calls than os.File, which
// also leaves out what kind an entry is.
func (d *Dir) rest(fn func(entry) error) error {
	buf := lists.Get().(*[8 << 10]byte)
	defer lists.Put(buf)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(d.fd, buf[:]) })
		if err != nil && err != unix.ENOENT { // ENOENT: the directory has been removed
			return wrap("read", d.name, err)
		}
		if n <= 0 {
			return nil
		}
		for at := 0; at < n; {
			// struct linux_dirent64: inode, position, length of the record, kind, name
			const length, kind, name = 16, 18, 19
			record := buf[at : at+int(binary.NativeEndian.Uint16(buf[at+length:]))]
			at += len(record)
			text, _, _ := bytes.Cut(record[name:], []byte{0})
			if s := string(text); s != "." && s != ".." {
				if err := fn(entry{s, record[kind] == unix.DT_DIR}); err != nil {
					return err
				}
			}
		}
	}
}

// errEnough ends each.
var errEnough = errors.New("enough")

// Names returns the names in the directory, at most that many; 0 is no limit.
func (d *Dir) Names(most int) ([]string, error) {
	var out []string
	err := d.each(func(e entry) error {
		if most > 0 && len(out) >= most {
			return errEnough
		}
		out = append(out, e.name)
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
		err = in.rest(func(child entry) error {
			info := Info{name: child.name}
			if unix.Fstatat(in.fd, child.name, &info.st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				return nil
			}
			if info.IsDir() {
				next = append(next, path.Join(name, child.name))
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
	return d.removeAll(entry{name: name})
}

// Clear removes everything in the directory as RemoveAll does. It continues after an error.
func (d *Dir) Clear() error {
	var all []entry
	err := d.each(func(e entry) error {
		all = append(all, e)
		return nil
	})
	for _, e := range all {
		err = errors.Join(err, d.removeAll(e))
	}
	return err
}

func (d *Dir) removeAll(e entry) error {
	todo := []entry{e}
	up := func(from *Dir, child string) error {
		for range tries {
			next := ".muster-removed." + strconv.FormatUint(rand.Uint64(), 36)
			err := unix.Renameat(from.fd, child, d.fd, next)
			switch err {
			case nil:
				todo = append(todo, entry{next, true})
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
func (d *Dir) removeOne(e entry, up func(from *Dir, child string) error) error {
	for range tries {
		err := d.unlink(e)
		if err != unix.ENOTEMPTY && err != unix.EEXIST {
			return wrap("remove", e.name, err)
		}
		e.dir = true
		sub, err := d.Sub(e.name)
		if err != nil {
			continue // replaced by something else
		}
		err = sub.rest(func(child entry) error {
			err := sub.unlink(child)
			if err == unix.ENOTEMPTY || err == unix.EEXIST {
				return up(sub, child.name)
			}
			return wrap("remove", child.name, err)
		})
		sub.Close()
		if err != nil {
			return err
		}
	}
	return wrap("remove", e.name, errChanged)
}

// unlink removes a file, a link or an empty directory, after what is mounted there. What kind the entry was only decides
// which call comes first: it may have been replaced.
func (d *Dir) unlink(e entry) error {
	name, dir := e.name, e.dir
	for range tries {
		var err error = unix.EISDIR
		if !dir {
			err = unix.Unlinkat(d.fd, name, 0)
		}
		if dir = false; err == unix.EISDIR || err == unix.EPERM {
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
