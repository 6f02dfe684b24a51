package runner

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/client/allocdir"
)

// TestSocketOfTask makes the socket, also where an earlier one is left, and follows no link on the way to it or in its place.
func TestSocketOfTask(t *testing.T) {
	alloc := filepath.Join(t.TempDir(), "a1")
	dir := filepath.Join(alloc, "t", allocdir.Secrets)
	outside := t.TempDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := listen(&allocdir.Dir{Root: alloc}, "t")
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(filepath.Join(dir, apiSocket))
		if err != nil || st.Mode() != os.ModeSocket|0o666 {
			t.Errorf("the socket: %v, %v", st.Mode(), err)
		}
		c, err := net.Dial("unix", filepath.Join(dir, apiSocket))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Close()
		if _, err := os.Lstat(filepath.Join(dir, apiSocket)); err != nil {
			t.Error("closing removed the socket, whose directory may be another one by then")
		}
	}
	file := filepath.Join(outside, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, apiSocket))
	if err := os.Symlink(file, filepath.Join(dir, apiSocket)); err != nil {
		t.Fatal(err)
	}
	if l, err := listen(&allocdir.Dir{Root: alloc}, "t"); err != nil { // the link is an earlier socket's place
		t.Error(err)
	} else {
		l.Close()
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("what a link led to was opened to everybody: %v, %v", st.Mode(), err)
	}
	for _, link := range []string{dir, filepath.Dir(dir)} {
		if err := os.RemoveAll(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, link); err != nil {
			t.Fatal(err)
		}
		if l, err := listen(&allocdir.Dir{Root: alloc}, "t"); err == nil {
			t.Errorf("a link at %s was followed", link)
			l.Close()
		}
	}
}
