package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

func root(t *testing.T) (*taskfs.Dir, string) {
	t.Helper()
	dir := t.TempDir()
	r, err := taskfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestOffsetsAcrossFiles(t *testing.T) {
	r, dir := root(t)
	write(t, dir, "a.stdout.2", "abc")
	write(t, dir, "a.stdout.3", "")
	write(t, dir, "a.stdout.4", "defg")
	write(t, dir, "a.stdout.x", "no")
	for _, c := range []struct {
		origin string
		off    int64
		limit  int64
		want   string
	}{
		{Start, 0, 0, "abcdefg"}, {Start, 2, 0, "cdefg"}, {Start, 3, 0, "defg"}, {Start, 5, 0, "fg"}, {Start, 99, 0, ""},
		{End, 0, 0, ""}, {End, 2, 0, "fg"}, {End, 4, 0, "defg"}, {End, 5, 0, "cdefg"}, {End, 99, 0, "abcdefg"}, {"", 1, 4, "bcde"},
	} {
		t.Run(fmt.Sprintf("origin=%q off=%v", c.origin, c.off), func(t *testing.T) {
			var got bytes.Buffer
			err := Log(t.Context(), r, "a.stdout", Options{Origin: c.origin, Offset: c.off, Limit: c.limit}, func(f Frame) error { got.Write(f.Data); return nil })
			if err != nil || got.String() != c.want {
				t.Errorf("%s %d limit %d: %q, %v; want %q", c.origin, c.off, c.limit, got.String(), err, c.want)
			}
		})
	}
	if err := Log(t.Context(), r, "none", Options{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing log: %v", err)
	}
	if err := Log(t.Context(), r, "../a", Options{}, nil); err == nil {
		t.Error("a name with a directory was accepted")
	}
	if err := Log(t.Context(), r, "a.stdout", Options{Origin: "middle"}, nil); err == nil {
		t.Error("a bad origin was accepted")
	}
}

func TestFollowAcrossRotation(t *testing.T) {
	r, dir := root(t)
	done := make(chan struct{})
	var want bytes.Buffer
	go func() {
		defer close(done)
		for i := range 40 {
			for j := range 50 {
				line := fmt.Sprintf("file %d line %d\n", i, j)
				want.WriteString(line)
				write(t, dir, fmt.Sprintf("a.stdout.%d", i), line)
			}
		}
	}()
	var got bytes.Buffer
	if err := Log(t.Context(), r, "a.stdout", Options{Follow: true, Done: done}, func(f Frame) error { got.Write(f.Data); return nil }); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Fatalf("read %d bytes, want %d", got.Len(), want.Len())
	}
}

func TestGapIsReported(t *testing.T) {
	r, dir := root(t)
	write(t, dir, "a.stdout.0", "old")
	var seen []string
	err := Log(t.Context(), r, "a.stdout", Options{}, func(f Frame) error {
		seen = append(seen, string(f.Data)+f.Event)
		if string(f.Data) == "old" {
			write(t, dir, "a.stdout.5", "new")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The rotation came after the look for a next file: not a follower, it ends at what it saw.
	if len(seen) != 1 {
		t.Fatalf("saw %q", seen)
	}
	seen = nil
	if err := Log(t.Context(), r, "a.stdout", Options{}, func(f Frame) error { seen = append(seen, string(f.Data)+f.Event); return nil }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(seen) != "[old file deleted new]" {
		t.Fatalf("saw %q", seen)
	}
}

func TestNothingLeadsOut(t *testing.T) {
	r, dir := root(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Symlink(secret, filepath.Join(dir, "a.stdout.0"))
	emit := func(Frame) error { t.Error("read through a link"); return nil }
	if err := Log(t.Context(), r, "a.stdout", Options{}, emit); err == nil {
		t.Error("a link out of the directory was followed")
	}
	for _, name := range []string{"../secret", secret, "a.stdout.0", "."} {
		if _, err := r.Open(name); err == nil {
			t.Errorf("%q was opened", name)
		}
	}
}

func TestFollowFile(t *testing.T) {
	r, dir := root(t)
	write(t, dir, "f", "one")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []string
	open, err := r.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	leads := func() bool {
		n, err := r.Node("f")
		if err != nil {
			return false
		}
		defer n.Close()
		return n.Is(open)
	}
	err = File(ctx, Source{File: open, Name: "f", Leads: leads}, Options{Follow: true, Origin: End, Offset: 2}, func(f Frame) error {
		seen = append(seen, string(f.Data)+f.Event)
		switch len(seen) {
		case 1:
			write(t, dir, "f", "two")
		case 2:
			return os.Truncate(filepath.Join(dir, "f"), 0)
		case 3:
			return os.Remove(filepath.Join(dir, "f"))
		}
		return nil
	})
	if err != nil || fmt.Sprint(seen) != "[ne two file truncated file deleted]" {
		t.Fatalf("saw %q, %v", seen, err)
	}
}
