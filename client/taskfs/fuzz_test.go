package taskfs

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzNames gives any name to the operations on a task's files: none of them reads or changes a file outside.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "a/b", "..", "../victim", "/etc/passwd", "out/victim", "a/../../victim", ".", "", "a\x00b", "loop", "./a", "a//b"} {
		f.Add(s)
	}
	top := f.TempDir()
	victim := filepath.Join(top, "victim")
	if err := os.WriteFile(victim, []byte("whole"), 0o640); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		in, err := os.MkdirTemp(top, "in")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(in)
		for link, to := range map[string]string{"out": "..", "loop": "loop", "abs": victim} {
			if err := os.Symlink(to, filepath.Join(in, link)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if file, err := d.Open(name); err == nil {
			b := make([]byte, 8)
			if n, _ := file.Read(b); string(b[:n]) == "whole" {
				t.Errorf("%q was read outside", name)
			}
			file.Close()
		}
		if file, err := d.Create(name, 0o600, Agent); err == nil {
			file.WriteString("made")
			file.Close()
		}
		_ = d.Replace(name, []byte("replaced"), 0o600, Agent)
		if sub, err := d.MakeAll(name, 0o700); err == nil {
			sub.Close()
		}
		if file, err := d.Output(name, os.O_CREATE|os.O_APPEND); err == nil {
			file.WriteString("more")
			file.Close()
		}
		_ = d.Symlink("x", name, Agent)
		_ = d.Remove(name)
		_ = d.RemoveDir(name)
		if list, err := os.ReadDir(top); err != nil || len(list) != 2 {
			t.Errorf("%q made or removed a file outside: %v, %v", name, list, err)
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "whole" {
			t.Errorf("%q changed a file outside: %q, %v", name, b, err)
		}
	})
}
