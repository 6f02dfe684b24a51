package taskfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) (*Dir, string) {
	t.Helper()
	path := t.TempDir()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, path
}

// TestLookUps resolves names with openat2, and as on a kernel that lacks it.
func TestLookUps(t *testing.T) {
	outside := t.TempDir()
	for name, has := range map[string]bool{"with openat2": true, "without openat2": false} {
		t.Run(name, func(t *testing.T) {
			was := hasOpenat2
			defer func() { hasOpenat2 = was }()
			hasOpenat2 = func() bool { return has }
			d, path := open(t)
			in := func(name string) string { return filepath.Join(path, name) }
			err := errors.Join(os.MkdirAll(in("a/b"), 0o755), os.WriteFile(in("a/b/file"), []byte("text"), 0o644), os.Symlink(outside, in("out")),
				os.Symlink("a", in("inside")), os.Symlink("file", in("a/b/link")), os.Link(in("a/b/file"), in("hard")), unix.Mkfifo(in("pipe"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			for name, ok := range map[string]bool{
				"a": true, "a/b": true, ".": true, "a/../a/b": true, "out": false, "inside": false, "inside/b": false, "..": false, "a/../..": false, "/": false,
				"": false, "a/b/file": false, "none": false, "a\x00": false,
			} {
				sub, err := d.Sub(name)
				if (err == nil) != ok {
					t.Errorf("directory %q: %v, want success %t", name, err, ok)
				}
				if err == nil {
					sub.Close()
				}
			}
			for name, ok := range map[string]bool{"a/b/link": has, "inside/b/file": has, "a/b/file": true, "out": false, "out/x": false, "pipe": true} {
				n, err := d.Follow(name)
				if (err == nil) != ok {
					t.Errorf("following %q: %v, want success %t", name, err, ok)
				}
				if err == nil {
					n.Close()
				}
			}
			for _, name := range []string{"hard", "pipe", "a", "out"} {
				if f, err := d.Output(name, 0); err == nil {
					t.Errorf("%s was opened for writing", name)
					f.Close()
				}
			}
			if err := os.Remove(in("hard")); err != nil {
				t.Fatal(err)
			}
			if b, err := d.Sub("a/b"); err != nil {
				t.Error(err)
			} else {
				defer b.Close()
				f, err := b.Output("file", unix.O_APPEND)
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.WriteString(" more")
				if text, rerr := os.ReadFile(in("a/b/file")); errors.Join(err, rerr, f.Close()) != nil || string(text) != "text more" {
					t.Errorf("%q %v %v", text, err, rerr)
				}
			}
		})
	}
}

// TestHardLinks: one of a file's names may have been given to another user's file. So a file with several is read by what
// follows links only if every user may read it, and by nothing else; it is never written to.
func TestHardLinks(t *testing.T) {
	for mode, read := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		d, path := open(t)
		file, name := filepath.Join(path, "another user's"), filepath.Join(path, "x")
		if err := errors.Join(os.WriteFile(file, []byte("text"), mode), os.Link(file, name), os.Symlink("x", filepath.Join(path, "link"))); err != nil {
			t.Fatal(err)
		}
		for _, x := range []string{"x", "link"} {
			n, err := d.Follow(x)
			if err != nil && x == "link" && !hasOpenat2() {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if f, err := n.Open(os.O_RDONLY); (err == nil) != read {
				t.Errorf("%s followed with mode %o: %v, want success %t", x, mode, err, read)
			} else if err == nil {
				f.Close()
			}
			n.Close()
		}
		for what, do := range map[string]func(string, int) (*os.File, error){"output": d.Output, "update": d.Update, "open": func(name string, _ int) (*os.File, error) { return d.Open(name) }} {
			if f, err := do("x", unix.O_RDWR); err == nil {
				t.Errorf("%s: it was opened with mode %o", what, mode)
				f.Close()
			}
		}
	}
}

// TestMemoryOfTheAgent: secrets are written to a memory file system or a plain directory, and to nothing else that is
// mounted at their place.
func TestMemoryOfTheAgent(t *testing.T) {
	d, path := open(t)
	if err := os.Mkdir(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", filepath.Join(path, "x"), "proc", 0, ""); err != nil {
		t.Skipf("not run: cannot mount: %v", err)
	}
	defer d.RemoveAll("x")
	if sub, err := d.Memory("x"); !errors.Is(err, ErrOutside) {
		t.Errorf("another file system was opened: %v", err)
		if err == nil {
			sub.Close()
		}
	}
	if err := d.Unmount("x"); err != nil || !d.MountMemory("x", 1) {
		t.Fatalf("not mounted: %v", err)
	}
	sub, err := d.Memory("x")
	if err != nil {
		t.Fatal(err)
	}
	sub.Close()
}

// TestMakeIgnoresTheUmask gives new directories and files exactly their modes, and leaves old ones.
func TestMakeIgnoresTheUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	d, path := open(t)
	for range 2 {
		sub, _, err := d.Make("dir", 0o777|fs.ModeSticky)
		if err != nil {
			t.Fatal(err)
		}
		sub.Close()
		if st, err := os.Lstat(filepath.Join(path, "dir")); err != nil || st.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("mode %v, %v", st.Mode(), err)
		}
	}
	if err := d.Replace("file", []byte("a"), 0o664, Agent); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(filepath.Join(path, "file")); err != nil || st.Mode() != 0o664 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := os.Chmod(filepath.Join(path, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if sub, made, err := d.Make("dir", 0o755); err != nil || made {
		t.Errorf("made again: %t, %v", made, err)
	} else {
		sub.Close()
	}
	if st, _ := os.Lstat(filepath.Join(path, "dir")); st.Mode().Perm() != 0o700 {
		t.Errorf("an existing directory has the mode %v", st.Mode())
	}
}

// TestRemoveAllDeep removes more levels than the process may have descriptors, and longer paths than the kernel takes.
func TestRemoveAllDeep(t *testing.T) {
	const levels = 3000
	d, path := open(t)
	at, err := d.Sub(".")
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		next, _, err := at.Make(strings.Repeat("d", 20), 0o755)
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = next
	}
	if err := at.Replace("file", nil, 0o644, Agent); err != nil {
		t.Fatal(err)
	}
	at.Close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveAll(strings.Repeat("d", 20)); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(path); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
