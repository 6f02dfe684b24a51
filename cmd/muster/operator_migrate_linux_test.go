package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/server/raftlog"
)

func TestMigrateBackend(t *testing.T) {
	f := newAgentFake(t)
	data := t.TempDir()
	dir := filepath.Join(data, "server", "raft")
	want := func(code int, text string, args ...string) {
		t.Helper()
		r := f.run(t, "", append([]string{"operator", "raft", "migrate-backend"}, args...)...)
		if r.code != code || !strings.Contains(r.out+r.errOut, text) {
			t.Errorf("%q: exit %d, %s%s; want %d and %q", args, r.code, r.out, r.errOut, code, text)
		}
	}
	want(1, "there is no raft log in", data)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := raftlog.Open(dir, raftlog.Options{}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(20) {
		if err := l.StoreLog(&raft.Log{Index: i + 1, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	want(1, "is a server running", "-to", "boltdb", data)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want(1, "want wal or boltdb", "-to", "sqlite", data)
	want(1, "want 1 to 1024", "-wal-segment-size", "0", data)
	want(1, "takes one argument", "-to", "boltdb")
	want(0, "holds a log of backend wal already", data)
	f.tty = true
	want(1, "[y/N]", "-to", "boltdb", data) // no answer
	want(0, "Converted 20 entries from wal to boltdb", "-to", "boltdb", "-force", data)
	f.tty = false
	want(0, "holds a log of backend boltdb already", "-to", "boltdb", data)
	want(0, "Converted 20 entries from boltdb to wal", "-wal-segment-size", "2", dir)
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if st, err := os.Stat(files[0]); err != nil || st.Size() != 2<<20 {
		t.Errorf("the file of the log has %d bytes, %v; want 2 MiB", st.Size(), err)
	}
}
