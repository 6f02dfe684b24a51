package raftlog

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// oldLog leaves the log of an older version in a directory.
func oldLog(t *testing.T, dir string, entries int) {
	t.Helper()
	b, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, "raft.db"), MsgpackUseNewTimeFormat: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range entries {
		if err := b.StoreLog(&raft.Log{Index: uint64(i) + 100, Term: 7, Data: []byte{byte(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetUint64([]byte("CurrentTerm"), 7); err != nil {
		t.Fatal(err)
	}
	if err := b.Set([]byte("LastVoteCand"), []byte("me")); err != nil {
		t.Fatal(err)
	}
}

func wantTakenOver(t *testing.T, dir string, entries int) {
	t.Helper()
	l, err := Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if entries > 0 {
		first, err1 := l.FirstIndex()
		last, err2 := l.LastIndex()
		if first != 100 || last != 99+uint64(entries) || err1 != nil || err2 != nil {
			t.Fatalf("the log is from %d to %d (%v, %v), want 100 to %d", first, last, err1, err2, 99+entries)
		}
		var e raft.Log
		if err := l.GetLog(last, &e); err != nil || e.Term != 7 || len(e.Data) != 1 || e.Data[0] != byte(entries-1) {
			t.Fatalf("entry %d is %+v, %v", last, e, err)
		}
	}
	if term, err := l.GetUint64([]byte("CurrentTerm")); term != 7 || err != nil {
		t.Fatalf("the term is %d, %v; want 7", term, err)
	}
	if who, err := l.Get([]byte("LastVoteCand")); string(who) != "me" || err != nil {
		t.Fatalf("the vote went to %q, %v", who, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "raft.db")); err == nil {
		t.Fatal("the old log is still there; another start would take it over again")
	}
}

func TestOlderLogIsTakenOver(t *testing.T) {
	for _, entries := range []int{0, 1, 300} {
		dir := t.TempDir()
		oldLog(t, dir, entries)
		wantTakenOver(t, dir, entries)
		wantTakenOver(t, dir, entries) // and stays
	}
}

// A server may die at any point of the takeover.
// TestDamagedOlderLog: a branch page of the old file leads back to itself.
func TestDamagedOlderLog(t *testing.T) {
	dir := t.TempDir()
	oldLog(t, dir, 300)
	path := filepath.Join(dir, "raft.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size, found := os.Getpagesize(), false
	for id := 2; id < len(b)/size; id++ {
		p := b[id*size:]
		if p[8] == 1 && p[9] == 0 { // a branch page
			binary.LittleEndian.PutUint64(p[24:], uint64(id))
			found = true
		}
	}
	if !found {
		t.Fatal("the file has no branch page")
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("the damaged log was taken over: %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(b) {
		t.Errorf("the damaged file is not as it was: %v", err)
	}
}

func TestTakeoverThatWasCutShort(t *testing.T) {
	dir := t.TempDir()
	oldLog(t, dir, 20)
	if err := os.MkdirAll(filepath.Join(dir, "wal.new"), 0o700); err != nil { // a copy that was begun
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "wal.new", "wal-meta.db"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantTakenOver(t, dir, 20)

	if err := os.Rename(filepath.Join(dir, "wal"), filepath.Join(dir, "wal.new")); err != nil { // complete, not yet named
		t.Fatal(err)
	}
	wantTakenOver(t, dir, 20)

	oldLog(t, dir, 5) // an older version ran afterwards
	if _, err := Open(dir, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "older version ran") {
		t.Fatalf("got %v, want a refusal: nobody can tell which log counts", err)
	}
}

func TestRaftLogOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "another process holds it") {
		t.Fatalf("got %v, want to hear that the log is in use", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// The log goes on over many of its files, and what was written is read back after it was opened again.
func TestRaftLogOverManyFiles(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	const n = 40
	for i := range n {
		data[0] = byte(i)
		if err := l.StoreLogs([]*raft.Log{{Index: uint64(i) + 1, Term: 1, Data: append([]byte(nil), data...)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if len(files) < 3 {
		t.Fatalf("the log is in %d files; want 3 or more", len(files))
	}
	if l, err = Open(dir, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range n {
		var e raft.Log
		if err := l.GetLog(uint64(i)+1, &e); err != nil || len(e.Data) != 1<<20 || e.Data[0] != byte(i) {
			t.Fatalf("entry %d: %v", i+1, err)
		}
	}
	var _ raft.MonotonicLogStore = l
	if !(&watchdog{LogStore: l}).IsMonotonic() {
		t.Fatal("the watchdog hides that the log refuses gaps; raft would leave one after a snapshot")
	}
}
