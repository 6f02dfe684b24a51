package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"

	"github.com/muster-sched/muster/internal/smalldisk"
)

func mustOpenLog(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// entryOf is the entry that belongs at an index.
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

// newestFile is the file that the log writes to.
func newestFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	return files[len(files)-1]
}

func patch(t *testing.T, path string, at int64, b []byte) (was []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	was = make([]byte, len(b))
	if _, err := f.ReadAt(was, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	return was
}

// A bit that flips on the disk is found, or does no harm. Nothing that was told is forgotten silently; only the last write
// looks the same whether it was torn by a crash or damaged later.
func TestRaftLogDamage(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLog(t, dir)
	const size, batches, each = 24, 12, 3
	var ends []int64 // of each write in the file
	path := newestFile(t, dir)
	for b := range uint64(batches) {
		store(t, l, size, b*each+1, b*each+each)
		path = newestFile(t, dir)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, int64(len(bytes.TrimRight(whole, "\x00"))+7)&^7)
	}
	l.Close()
	const last = batches * each
	refused, shorter := 0, 0
	file, meta := readAll(t, path), readAll(t, filepath.Join(dir, "wal", recordName))
	for at := range ends[batches-1] { // the look at the file alone, at every bit
		for bit := range 8 {
			b := bytes.Clone(file[:ends[batches-1]+64])
			b[at] ^= 1 << bit
			if commits, _, stop := readFrames(b); commits < batches-1 && !wholeWriteBehind(b) {
				t.Fatalf("bit %d of byte %d is damaged: read to %d, %d of %d writes, and nothing seems lost", bit, at, stop, commits, batches)
			}
		}
	}
	for at := int64(0); at < ends[batches-1]; at += 29 {
		for _, flip := range []byte{0x01, 0x80} {
			was := patch(t, path, at, []byte{0})
			patch(t, path, at, []byte{was[0] ^ flip})
			l, err := Open(dir, hclog.NewNullLogger())
			switch {
			case errors.Is(err, types.ErrCorrupt) && strings.Contains(err.Error(), "remove-peer"):
				refused++
			case err != nil:
				t.Errorf("byte %d: %v, want to hear what to do", at, err)
			default:
				if err := wantEntries(l, size, last); err != nil {
					if at < ends[batches-2] {
						t.Errorf("byte %d of %d, the last write begins at %d: opened, and %v", at, ends[batches-1], ends[batches-2], err)
					} else if err := wantEntries(l, size, last-each); err != nil {
						t.Errorf("byte %d, in the last write: opened, and %v", at, err)
					}
					shorter++
				}
				l.Close()
			}
			patch(t, path, at, was)
			if head := file[:ends[batches-1]]; !bytes.Equal(patch(t, path, 0, head), head) { // copied, as the damage made it look full
				if err := errors.Join(os.WriteFile(path, file, 0o600), os.WriteFile(filepath.Join(dir, "wal", recordName), meta, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if refused == 0 || shorter == 0 {
		t.Errorf("%d refused, %d opened without the last write: the test damages nothing", refused, shorter)
	}
	l = mustOpenLog(t, dir)
	if err := wantEntries(l, size, last); err != nil {
		t.Error("after all was repaired: ", err)
	}
	l.Close()
	for _, bytes := range []int64{ends[batches-1] - 8, ends[4], ends[4] - 11, 40} { // a file that lost its end
		if err := os.Truncate(path, bytes); err != nil {
			t.Fatal(err)
		}
		if bytes == 40 {
			break // one that never had a whole write is what a crash leaves
		}
		if _, err := Open(dir, hclog.NewNullLogger()); !errors.Is(err, types.ErrCorrupt) {
			t.Errorf("cut at %d: %v", bytes, err)
		}
	}
	l = mustOpenLog(t, dir)
	store(t, l, size, 1, 5)
	l.Close()
	if err := os.Remove(filepath.Join(dir, "wal", recordName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, hclog.NewNullLogger()); !errors.Is(err, types.ErrCorrupt) {
		t.Errorf("without its record: %v; it would have begun an empty log", err)
	}
}

// A write that a power cut tore at any point is gone, or whole; the log goes on behind it.
func TestTornWrite(t *testing.T) {
	for cut := int64(0); cut < 160; cut += 24 {
		for _, rest := range []byte{0, 0xa5} {
			dir := t.TempDir()
			l := mustOpenLog(t, dir)
			store(t, l, 24, 1, 4)
			path := newestFile(t, dir)
			begin := int64(len(bytes.TrimRight(readAll(t, path), "\x00"))+7) &^ 7
			store(t, l, 24, 5, 6)
			end := int64(len(bytes.TrimRight(readAll(t, path), "\x00"))+7) &^ 7
			l.Close()
			if begin+cut >= end {
				return
			}
			patch(t, path, begin+cut, bytes.Repeat([]byte{rest}, int(end-begin-cut)))
			l = mustOpenLog(t, dir)
			if err := wantEntries(l, 24, 4); err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			store(t, l, 24, 5, 9)
			l.Close()
			l = mustOpenLog(t, dir)
			if err := wantEntries(l, 24, 9); err != nil {
				t.Fatalf("cut at %d, went on: %v", cut, err)
			}
			l.Close()
		}
	}
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A server may die between the write that fills a file and the record of the next file, and that write may be torn.
func TestCrashAtTheEndOfAFile(t *testing.T) {
	for _, torn := range []string{"", "commit", "index"} {
		dir := t.TempDir()
		l := mustOpenLog(t, dir)
		const size = 1 << 20
		var meta []byte
		path, last := newestFile(t, dir), uint64(0)
		for newestFile(t, dir) == path {
			meta = readAll(t, filepath.Join(dir, "wal", recordName))
			last++
			store(t, l, size, last, last)
			if last == 1 {
				path = newestFile(t, dir)
			}
			l.WAL.DeleteRange(math.MaxUint64, math.MaxUint64) // waits for the next file, if one is being made
		}
		if err := l.SetUint64([]byte("CurrentTerm"), 9); err != nil {
			t.Fatal(err)
		}
		l.Close()
		if err := os.Remove(newestFile(t, dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "wal", recordName), meta, 0o600); err != nil {
			t.Fatal(err)
		}
		end := int64(len(bytes.TrimRight(readAll(t, path), "\x00"))+7) &^ 7
		switch torn {
		case "commit":
			patch(t, path, end-8, make([]byte, 8))
		case "index":
			patch(t, path, end-24, make([]byte, 16))
		}
		if torn != "" {
			last--
		}
		for range 2 {
			l = mustOpenLog(t, dir)
			if err := wantEntries(l, size, last); err != nil {
				t.Fatalf("torn %q: %v", torn, err)
			}
			last++
			store(t, l, size, last, last)
			l.Close()
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "wal.*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What raft removes from the end stays removed, and what is before it can be read after a start.
func TestEndOfLogIsReplaced(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLog(t, dir)
	store(t, l, 24, 1, 20)
	for i := uint64(19); i > 5; i -= 3 {
		if err := l.DeleteRange(i, i+1); err != nil {
			t.Fatal(err)
		}
		l.Close()
		l = mustOpenLog(t, dir)
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
}

// A log on a full disk refuses entries, keeps what it has, stores a vote, and goes on by itself when there is room.
func TestFullDiskOfTheLog(t *testing.T) {
	dir, fill, free := smalldisk.Mount(t, 96<<20)
	l := mustOpenLog(t, dir)
	const size = 1 << 20
	last := uint64(0)
	write := func() error {
		err := l.StoreLogs([]*raft.Log{entryOf(last+1, size)})
		if err == nil {
			last++
		}
		return err
	}
	for range 5 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 {
		fill()
		var err error
		for i := 0; err == nil; i++ {
			if err = write(); i > 100 {
				t.Fatal("the disk does not fill up")
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("round %d: %v, want to hear that the disk is full", round, err)
		}
		if err := l.SetUint64([]byte("CurrentTerm"), uint64(round)+5); err != nil {
			t.Errorf("round %d: the term could not be stored: %v", round, err)
		}
		if err := wantEntries(l, size, last); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round == 1 { // started anew on the full disk
			l.Close()
			l = mustOpenLog(t, dir)
			if err := wantEntries(l, size, last); err != nil {
				t.Fatal(err)
			}
		}
		free()
		for range 3 {
			if err := write(); err != nil {
				t.Fatalf("round %d: there is room again: %v", round, err)
			}
		}
	}
	l.Close()
	l = mustOpenLog(t, dir)
	defer l.Close()
	if err := wantEntries(l, size, last); err != nil {
		t.Fatal(err)
	}
	if term, err := l.GetUint64([]byte("CurrentTerm")); term != 6 || err != nil {
		t.Errorf("the term is %d, %v", term, err)
	}
}
