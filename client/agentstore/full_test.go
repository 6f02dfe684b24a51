package agentstore

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskAtOpen has an agent that starts again on a disk that is full: what it knows stays where it is.
func TestFullDiskAtOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("does not apply here: only root may mount")
	}
	dir := t.TempDir()
	check(t, unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := mustOpen(t, t.TempDir())
	for i := range byte(20) {
		check(t, s.PutAlloc(alloc(i)))
		check(t, s.PutTask(alloc(i).ID, "t", &TaskRecord{Attempt: 7, Handle: make([]byte, 3000)}))
	}
	from := killed(t, filepath.Dir(s.path))
	for _, name := range []string{FileName, LogName} {
		b, err := os.ReadFile(filepath.Join(from, name))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	check(t, err)
	if _, err = io.CopyN(f, zeros{}, 1<<20); err == nil {
		t.Fatal("the disk is not full")
	}
	f.Close()
	d, moved, err := Open(dir)
	if err != nil || moved != "" {
		t.Fatalf("%v, moved to %q", err, moved)
	}
	got, err := d.Load()
	if err != nil || len(got.Allocs) != 20 || got.Allocs[3].Tasks["t"].Attempt != 7 {
		t.Errorf("on a full disk: %v %v", got, err)
	}
	large := &TaskRecord{Attempt: 8, Handle: make([]byte, 2<<20)}
	if err := d.PutTask(alloc(3).ID, "t", large); !noRoom(err) {
		t.Errorf("a change that has no room: %v", err)
	}
	if !noRoom(d.Close()) {
		t.Error("it was closed as if there were room")
	}
	check(t, os.Remove(filepath.Join(dir, "filler")))
	d, moved, err = Open(dir)
	check(t, err)
	got, err = d.Load()
	check(t, err)
	if moved != "" || len(got.Allocs) != 20 || got.Allocs[3].Tasks["t"].Attempt != 7 {
		t.Errorf("when there is room again: moved to %q, %v", moved, got)
	}
	check(t, d.PutTask(alloc(3).ID, "t", &TaskRecord{Attempt: 9}))
	check(t, d.Close())
	if got := loaded(t, dir); len(got) != 20 || got[alloc(3).ID] != 9 {
		t.Errorf("at the end: %v", got)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
