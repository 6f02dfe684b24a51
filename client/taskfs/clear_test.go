package taskfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClear removes what the kernel lists in several parts: files, links, and directories with something in them.
func TestClear(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.MkdirAll(filepath.Join(outside, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	const each = 400
	for i := range each {
		long := strings.Repeat("n", 200) + fmt.Sprint(i)
		deep := filepath.Join(root, "dir"+long, "a", "b")
		err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(filepath.Join(deep, "file"), nil, 0o644), os.Mkdir(filepath.Join(root, "empty"+long), 0o755),
			os.WriteFile(filepath.Join(root, "file"+long), nil, 0o644), os.Symlink(outside, filepath.Join(root, "link"+long)))
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if names, err := d.Names(0); err != nil || len(names) != 4*each {
		t.Errorf("%d names (%v), want %d", len(names), err, 4*each)
	}
	if err := d.Clear(); err != nil {
		t.Error(err)
	}
	if names, err := d.Names(0); err != nil || len(names) != 0 {
		t.Errorf("%d names (%v) after everything was removed, want 0", len(names), err)
	}
	if _, err := os.Stat(filepath.Join(outside, "empty")); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
}

// TestUnlinkOfAnotherKind removes entries that are no longer what they were when the directory was read.
func TestUnlinkOfAnotherKind(t *testing.T) {
	root := t.TempDir()
	d, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, dir := range []bool{false, true} {
		err := errors.Join(os.WriteFile(filepath.Join(root, "file"), nil, 0o644), os.Symlink("/", filepath.Join(root, "link")), os.Mkdir(filepath.Join(root, "dir"), 0o755))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"file", "link", "dir", "absent"} {
			if err := d.unlink(entry{name, dir}); err != nil {
				t.Errorf("%s, seen as a directory %t: %v", name, dir, err)
			}
			if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, seen as a directory %t, is still there: %v", name, dir, err)
			}
		}
	}
}

// TestNamesOfARemovedDirectory lists a directory that is removed meanwhile.
func TestNamesOfARemovedDirectory(t *testing.T) {
	root := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	err = d.rest(func(e entry) error { return errors.New("an entry " + e.name) })
	if err != nil {
		t.Error(err)
	}
}
