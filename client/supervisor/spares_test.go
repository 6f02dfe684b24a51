package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/client/supervisor/launch"
)

// TestSpares: a file that served another task reveals nothing of it, at any point at which its supervisor is killed.
func TestSpares(t *testing.T) {
	dir := t.TempDir()
	files, err := openSpares(filepath.Join(dir, "spare"))
	if err != nil {
		t.Fatal(err)
	}
	path := func(id string) string { return filepath.Join(dir, id) }
	old := &task{path: path("old"), mem: memory{ID: "old"}}
	if err := os.WriteFile(old.path, bytes.Repeat([]byte{7}, launch.RecordSize), 0o600); err != nil {
		t.Fatal(err)
	}
	old.exit = Exit{Code: 3}
	for range 5 {
		if err := old.append(line{Memory: &old.mem, Result: &old.exit}); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.put(old.path, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old.path); !os.IsNotExist(err) {
		t.Fatalf("the file of a destroyed task is still there: %v", err)
	}
	// Killed right after the file got its name: no state, so nothing is taken up.
	fd, err := files.open(path("new"))
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "new")
	defer f.Close()
	if len(files.free) != 0 {
		t.Errorf("the spare was not used: got %v, want 0", len(files.free))
	}
	if m, result, err := load(path("new")); err == nil || result != nil {
		t.Errorf("a spare was taken for a state: %+v %+v", m, result)
	}
	if _, err := files.open(path("new")); err == nil {
		t.Error("the file of a living task was given out again")
	}
	// One that has grown, or may still be open elsewhere, is removed.
	big := path("big")
	if err := os.WriteFile(big, make([]byte, spareSizeMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for p, keep := range map[string]bool{big: true, path("new"): false} {
		if err := files.put(p, keep); err != nil || len(files.free) != 0 {
			t.Errorf("%s: %v, kept: %v", p, err, files.free)
		}
	}
	// What a killed supervisor kept is cleaned up by the next.
	if err := os.WriteFile(filepath.Join(dir, "spare", "1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openSpares(filepath.Join(dir, "spare")); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "spare")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestReuse runs tasks one after the other through the same file: each has its own exit and its own logs, and a task that
// says nothing has no log files.
func TestReuse(t *testing.T) {
	s := newSup(t)
	for i, script := range []string{"exit 3", "echo hi", "exit 4", "echo no >&2; exit 5"} {
		spec := s.spec([]string{"a", "b", "c", "d"}[i], script)
		spec.Stdout.Base, spec.Stderr.Base = filepath.Join(s.logs, spec.ID+".out"), filepath.Join(s.logs, spec.ID+".err")
		s.start(spec)
		e := s.wait(spec.ID)
		if want := []int{3, 0, 4, 5}[i]; e.Code != want {
			t.Errorf("task %d exited with %+v, want %d", i, e, want)
		}
		if err := s.Destroy(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		for j, base := range []string{spec.Stdout.Base, spec.Stderr.Base} {
			_, err := os.Stat(base + ".0")
			if wrote := i == 1 && j == 0 || i == 3 && j == 1; wrote != (err == nil) {
				t.Errorf("task %d, stream %d: %v", i, j, err)
			}
		}
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir(), "spare")); len(left) != 1 {
		t.Errorf("%d spare files, want one that all have used", len(left))
	}
}
