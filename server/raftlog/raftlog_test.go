package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// variants are the ways to store a log. Files of the wal backend are small, so that a log has several.
var variants = []struct {
	name string
	o    Options
}{
	{"wal", Options{Backend: WAL, SegmentBytes: 64 << 10}},
	{"boltdb", Options{Backend: BoltDB}},
	{"boltdb_no_freelist_sync", Options{Backend: BoltDB, NoFreelistSync: true}},
}

// each runs a test for every way to store a log.
func each(t *testing.T, f func(t *testing.T, o Options)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { f(t, v.o) })
	}
}

// memoryDir returns a directory in memory, where syncs cost nothing, for tests that open and write logs many times.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "raftlog")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mustOpen(t *testing.T, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustClose(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantRefused opens a log that must be refused as damaged, with advice.
func wantRefused(t *testing.T, dir string, o Options, why string) {
	t.Helper()
	l, err := Open(dir, o, hclog.NewNullLogger())
	if err == nil {
		l.Close()
	}
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "remove-peer") {
		t.Errorf("%s: opened with %v, want a refusal that says what to do", why, err)
	}
}

// entryOf returns the entry that belongs at an index.
func entryOf(index uint64, size int) *raft.Log {
	data := bytes.Repeat([]byte{byte(index), byte(index >> 8)}, size/2)
	return &raft.Log{Index: index, Term: 3, Type: raft.LogCommand, Data: data}
}

func store(t *testing.T, l *Log, size int, from, to uint64) {
	t.Helper()
	var ls []*raft.Log
	for i := from; i <= to; i++ {
		ls = append(ls, entryOf(i, size))
	}
	if err := l.StoreLogs(ls); err != nil {
		t.Fatal(err)
	}
}

// wantEntries checks that the log has exactly the right entries up to an index.
func wantEntries(l *Log, size int, last uint64) error {
	if got, err := l.LastIndex(); got != last || err != nil {
		return fmt.Errorf("the last entry is %d, %v; want %d", got, err, last)
	}
	for i := uint64(1); i <= last; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if want := entryOf(i, size); e.Term != 3 || !bytes.Equal(e.Data, want.Data) || e.Extensions != nil {
			return fmt.Errorf("entry %d is wrong", i)
		}
	}
	return nil
}

// saved reads all files below a directory, and returns a function that restores them.
func saved(t *testing.T, dir string) (restore func()) {
	t.Helper()
	type file struct {
		bytes   []byte
		written time.Time
	}
	files := map[string]*file{}
	walk := func(visit func(path string, st os.FileInfo)) {
		t.Helper()
		if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				st, err := d.Info()
				if err != nil {
					return err
				}
				visit(path, st)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	walk(func(path string, st os.FileInfo) { files[path] = &file{readFile(t, path), st.ModTime()} })
	return func() {
		t.Helper()
		same := map[string]bool{}
		walk(func(path string, st os.FileInfo) {
			if f := files[path]; f == nil {
				os.Remove(path)
			} else {
				same[path] = f.written.Equal(st.ModTime()) && st.Size() == int64(len(f.bytes))
			}
		})
		for path, f := range files {
			if same[path] {
				continue
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, f.bytes, 0o600), os.Chtimes(path, f.written, f.written)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLogOfAnotherProcess(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		l := mustOpen(t, dir, o)
		if _, err := Open(dir, o, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "another process holds it") {
			t.Fatalf("got %v, want to hear that the log is in use", err)
		}
		mustClose(t, l)
		mustClose(t, mustOpen(t, dir, o))
		if err := l.GetLog(1, &raft.Log{}); !errors.Is(err, ErrClosed) {
			t.Errorf("reading a closed log: got %v, want %v", err, ErrClosed)
		}
	})
}

// TestLargeLog: the log extends over many files or pages, and can be read back after it was opened again.
func TestLargeLog(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		o.SegmentBytes = 0
		l := mustOpen(t, dir, o)
		data := make([]byte, 1<<20)
		const n = 40
		for i := range n {
			data[0] = byte(i)
			if err := l.StoreLogs([]*raft.Log{{Index: uint64(i) + 1, Term: 1, Data: bytes.Clone(data)}}); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, l)
		if files, _ := filepath.Glob(filepath.Join(dir, "wal", "*.wal")); o.Backend == WAL && len(files) < 3 {
			t.Fatalf("the log is in %d files; want 3 or more", len(files))
		}
		l = mustOpen(t, dir, o)
		defer l.Close()
		for i := range n {
			var e raft.Log
			if err := l.GetLog(uint64(i)+1, &e); err != nil || len(e.Data) != 1<<20 || e.Data[0] != byte(i) {
				t.Fatalf("entry %d: %v", i+1, err)
			}
		}
		if !(Watch(l, new(Health), 0, nil).(raft.MonotonicLogStore)).IsMonotonic() {
			t.Fatal("the watchdog hides that the log refuses gaps; raft would leave one after a snapshot")
		}
		if err := l.StoreLogs([]*raft.Log{{Index: n + 2}}); err == nil {
			t.Error("the log took an entry that leaves a gap")
		}
		if err := l.DeleteRange(1, n); err != nil { // as raft does before it continues after a snapshot
			t.Fatal(err)
		}
		store(t, l, 24, 1000, 1010)
		if first, last, err := l.bounds(); first != 1000 || last != 1010 || err != nil {
			t.Errorf("the log is from %d to %d, %v; want 1000 to 1010", first, last, err)
		}
	})
}

// TestTermAndVote: values survive a restart, and one that was never stored is empty.
func TestTermAndVote(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		l := mustOpen(t, dir, o)
		if n, err := l.GetUint64([]byte("CurrentTerm")); n != 0 || err != nil {
			t.Errorf("the term of a new log is %d, %v; want 0", n, err)
		}
		if b, err := l.Get([]byte("LastVoteCand")); b != nil || err != nil {
			t.Errorf("the vote of a new log is %q, %v; want none", b, err)
		}
		if err := errors.Join(l.SetUint64([]byte("CurrentTerm"), 7), l.Set([]byte("LastVoteCand"), []byte("me"))); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		l = mustOpen(t, dir, o)
		defer l.Close()
		if n, err := l.GetUint64([]byte("CurrentTerm")); n != 7 || err != nil {
			t.Errorf("the term is %d, %v; want 7", n, err)
		}
		if b, err := l.Get([]byte("LastVoteCand")); string(b) != "me" || err != nil {
			t.Errorf("the vote is %q, %v; want me", b, err)
		}
	})
}

// TestEndOfLogIsReplaced: what raft removes from the end stays removed, and what is before it can be read after a
// restart.
func TestEndOfLogIsReplaced(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		l := mustOpen(t, dir, o)
		store(t, l, 24, 1, 20)
		for i := uint64(19); i > 5; i -= 3 {
			if err := l.DeleteRange(i, i+1); err != nil {
				t.Fatal(err)
			}
			l.Close()
			l = mustOpen(t, dir, o)
			if err := wantEntries(l, 24, i-1); err != nil {
				t.Fatal(err)
			}
			if i > 6 {
				if err := l.DeleteRange(i-2, i-1); err != nil {
					t.Fatal(err)
				}
				store(t, l, 24, i-2, i-2)
			}
		}
		l.Close()
	})
}

// TestOtherBackend: a server never creates an empty log next to the log of the other backend.
func TestOtherBackend(t *testing.T) {
	for _, c := range []struct{ have, want Backend }{{WAL, BoltDB}, {BoltDB, WAL}} {
		t.Run(string(c.have), func(t *testing.T) {
			dir := memoryDir(t)
			mustClose(t, mustOpen(t, dir, Options{Backend: c.have}))
			command := fmt.Sprintf("muster operator raft migrate-backend -to %s %s", c.want, dir)
			if _, err := Open(dir, Options{Backend: c.want}, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), command) {
				t.Errorf("opened as %s: %v; want to hear of %q", c.want, err, command)
			}
			if exists(filepath.Join(dir, string(c.want))) {
				t.Error("a second log was begun")
			}
			mustClose(t, mustOpen(t, dir, Options{Backend: c.have}))
		})
	}
}

// TestNoFreelistSync: the option leaves the list of free pages out of the file, and can be changed.
func TestNoFreelistSync(t *testing.T) {
	dir := memoryDir(t)
	for _, none := range []bool{false, true, false} {
		o := Options{Backend: BoltDB, NoFreelistSync: none}
		l := mustOpen(t, dir, o)
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		store(t, l, 24, last+1, last+10)
		mustClose(t, l)
		b := readFile(t, filepath.Join(dir, "boltdb", boltName))
		newest := 0 // the meta page of the later transaction
		if page := os.Getpagesize(); binary.LittleEndian.Uint64(b[page+64:]) > binary.LittleEndian.Uint64(b[64:]) {
			newest = page
		}
		if got := binary.LittleEndian.Uint64(b[newest+48:]) == math.MaxUint64; got != none {
			t.Errorf("no_freelist_sync %v: the file lacks the list: %v", none, got)
		}
	}
}

// TestModes: only the owner may read the log, also one that an older release wrote.
func TestModes(t *testing.T) {
	each(t, func(t *testing.T, o Options) {
		dir := memoryDir(t)
		check := func(when string) (files []string) {
			t.Helper()
			err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				info, err := e.Info()
				if err == nil && info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %s has mode %v", when, path, info.Mode())
				}
				files = append(files, path)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return files
		}
		mustClose(t, mustOpen(t, dir, o))
		files := check("new")
		if o.Backend != WAL {
			return
		}
		for _, path := range files {
			if strings.HasSuffix(path, ".wal") {
				if err := os.Chmod(path, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustClose(t, mustOpen(t, dir, o))
		check("opened again")
	})
}
