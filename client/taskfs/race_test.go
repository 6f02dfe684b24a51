package taskfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/client/taskfs/swap"
)

var nobody = taskfs.Owner{UID: 65534, GID: 65534}

// with opens a directory, calls do and closes it.
func with(dir *taskfs.Dir, err error, do func(*taskfs.Dir) error) error {
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}

func ignore[T io.Closer](c T, err error) error {
	if err == nil {
		c.Close()
	}
	return err
}

// operations work on the name "x", below which there may be "y".
var operations = map[string]func(d *taskfs.Dir) ([]byte, error){
	"make": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, _, err := d.Make("x", 0o777|fs.ModeSticky)
		return nil, with(sub, err, func(s *taskfs.Dir) error { return errors.Join(s.Own(nobody), s.Chmod(0o777)) })
	},
	"make all": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, err := d.MakeAll("x/y/z", 0o755)
		return nil, with(sub, err, func(s *taskfs.Dir) error { return s.Own(nobody) })
	},
	"create": func(d *taskfs.Dir) ([]byte, error) {
		err := d.RemoveAll("x")
		return nil, errors.Join(err, ignore(d.Create("x", 0o666, nobody)))
	},
	"replace": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		return nil, d.Replace("x", []byte("new"), 0o666, nobody)
	},
	"output": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		f, err := d.Output("x", unix.O_APPEND)
		if err != nil {
			return nil, err
		}
		_, err = f.WriteString("output")
		return nil, errors.Join(err, f.Close())
	},
	"update": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		f, err := d.Update("x", unix.O_RDWR)
		if err != nil {
			return nil, err
		}
		_, err = f.WriteAt([]byte("update"), 0)
		return nil, errors.Join(err, f.Close())
	},
	"open": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		f, err := d.Open("x")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(f)
	},
	"follow": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		n, err := d.Follow("x/file")
		if err != nil {
			n, err = d.Follow("x")
		}
		if err != nil {
			return nil, err
		}
		defer n.Close()
		f, err := n.Open(os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(f)
	},
	"list": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, _, err := d.Make("x", 0o755)
		return nil, with(sub, err, func(s *taskfs.Dir) error {
			names, err := s.Names(0)
			for _, name := range names {
				if name == "file" {
					return errors.New("the victim's directory was listed")
				}
			}
			return err
		})
	},
	"rename": func(d *taskfs.Dir) ([]byte, error) {
		err := errors.Join(ignore(d.Create("from", 0o600, taskfs.Agent)), d.Rename("from", d, "x"))
		return nil, errors.Join(err, d.RemoveAll("from"))
	},
	"symlink": func(d *taskfs.Dir) ([]byte, error) {
		return nil, errors.Join(d.RemoveAll("x"), d.Symlink("elsewhere", "x", nobody))
	},
	"remove all": func(d *taskfs.Dir) ([]byte, error) {
		sub, err := d.MakeAll("x/y/z", 0o755)
		return nil, errors.Join(ignoreDir(sub, err), d.RemoveAll("x"))
	},
	"clear": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x") // what a task left there may be no directory
		sub, err := d.MakeAll("x/y/z", 0o755)
		if err := ignoreDir(sub, err); err != nil {
			return nil, err
		}
		sub, err = d.Sub("x")
		return nil, with(sub, err, func(s *taskfs.Dir) error { return s.Clear() })
	},
	"memory": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, _, err := d.Make("x", 0o700)
		if err := ignoreDir(sub, err); err != nil {
			return nil, err
		}
		if !d.MountMemory("x", 1) {
			return nil, errors.New("not mounted")
		}
		sub, err = d.Memory("x")
		return nil, errors.Join(err, d.Unmount("x"), ignoreDir(sub, err))
	},
	"listen": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		l, err := d.Listen("x")
		return nil, ignore[net.Listener](l, err)
	},
	"walk": func(d *taskfs.Dir) ([]byte, error) {
		return nil, d.Walk(func(in *taskfs.Dir, info taskfs.Info) error {
			n, err := in.Sole(info.Name())
			if err != nil {
				return nil
			}
			defer n.Close()
			return n.Own(nobody)
		})
	},
	"make new": func(d *taskfs.Dir) ([]byte, error) {
		sub, err := d.MakeNew("x")
		return nil, with(sub, err, func(s *taskfs.Dir) error { return errors.Join(s.Own(nobody), d.RemoveAll(s.Name())) })
	},
	"sub": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, err := d.MakeAll("x/y", 0o755)
		if err := ignoreDir(sub, err); err != nil {
			return nil, err
		}
		sub, err = d.Sub("x/y")
		return nil, with(sub, err, func(s *taskfs.Dir) error { return errors.Join(s.Own(nobody), s.Chmod(0o777)) })
	},
	"parent": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		in, name, err := d.Parent("x/y/file", 0o755)
		return nil, with(in, err, func(in *taskfs.Dir) error { return in.Replace(name, []byte("new"), 0o666, nobody) })
	},
	"remove dir": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.RemoveAll("x")
		sub, _, err := d.Make("x", 0o755)
		return nil, errors.Join(ignoreDir(sub, err), d.RemoveDir("x"))
	},
	"remove": func(d *taskfs.Dir) ([]byte, error) {
		return nil, errors.Join(d.Replace("x", []byte("mine"), 0o644, taskfs.Agent), d.Remove("x"))
	},
	"look": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		if target, err := d.Readlink("x"); err == nil {
			return []byte(target), nil
		}
		info, err := d.Stat("x")
		if err == nil && info.Size() == int64(len(swap.Secret)) {
			err = errors.New("it is as long as the victim") // a hard link to it, which a task may make
		}
		d.IsMount("x")
		return nil, err
	},
	"bind": func(d *taskfs.Dir) ([]byte, error) {
		_ = d.Replace("x", []byte("mine"), 0o644, taskfs.Agent)
		n, err := d.Node("x")
		if err != nil {
			return nil, err
		}
		defer n.Close()
		if n.Mode().IsRegular() && n.Links() != 1 || !n.Mode().IsRegular() {
			return nil, errors.New("it is another file")
		}
		place, err := os.CreateTemp("", "muster-swap-place-")
		if err != nil {
			return nil, err
		}
		place.Close()
		defer os.Remove(place.Name())
		if err := n.Bind(place.Name()); err != nil {
			return nil, err
		}
		defer func() { _ = unix.Unmount(place.Name(), unix.MNT_DETACH) }()
		return os.ReadFile(place.Name())
	},
}

// calm are the methods of directories and nodes that look up no name.
var calm = []string{"Close", "Name", "File", "Info", "Is", "Dir", "Beneath", "Links", "Inode", "Blocks", "Owner", "Size", "ModTime", "IsDir", "Sys", "Mode"}

// TestRacesCoverOperations: each method that looks up a name is one of the operations that tasks race with.
func TestRacesCoverOperations(t *testing.T) {
	suite, err := os.ReadFile("race_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[*taskfs.Dir](), reflect.TypeFor[*taskfs.Node]()} {
		for m := range kind.Methods() {
			if !slices.Contains(calm, m.Name) && !bytes.Contains(suite, []byte("."+m.Name+"(")) {
				t.Errorf("no operation of TestRaces calls %s of %s: add one, so that tasks race with it", m.Name, kind)
			}
		}
	}
}

func ignoreDir(d *taskfs.Dir, err error) error {
	if err == nil {
		d.Close()
	}
	return err
}

// TestRaces lets a task replace the names that each operation works on. What lies outside of its directory stays.
func TestRaces(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			g := swap.New(t)
			d, err := taskfs.Open(g.Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			g.Race([]string{"x", "x", "x/y", "from"}, func() ([]byte, error) { return op(d) })
		})
	}
}

// TestRacesFindPaths checks the suite itself: an agent that goes by path loses each of these races.
func TestRacesFindPaths(t *testing.T) {
	for name, op := range map[string]func(path string){
		"chown": func(path string) { _ = os.Chown(path, nobody.UID, nobody.GID) },
		"a directory for temporary files": func(path string) { // as it was made for each start of a task
			_ = os.Mkdir(path, 0o777)
			if st, err := os.Lstat(path); err == nil && st.IsDir() {
				_ = os.Chmod(path, 0o777|fs.ModeSticky)
			}
		},
		"a log": func(path string) {
			if f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NONBLOCK, 0o644); err == nil {
				_, _ = f.WriteString("output")
				f.Close()
			}
		},
		"a mount": func(path string) {
			_ = os.Mkdir(path, 0o700)
			_ = unix.Mount("tmpfs", path, "tmpfs", 0, "size=1m")
			_ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := swap.New(t)
			rounds := 0
			g.During([]string{"x"}, func() {
				for end := time.Now().Add(time.Minute); time.Now().Before(end) && g.Damage() == ""; rounds++ {
					op(filepath.Join(g.Dir, "x"))
				}
			})
			if g.Damage() == "" {
				t.Error("nothing outside was changed in a minute; the suite would not find an agent that goes by path")
			}
			t.Logf("lost after %d rounds", rounds)
		})
	}
}
