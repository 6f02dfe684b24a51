package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/smalldisk"
)

// directions are the possible migrations.
var directions = []struct{ from, to Backend }{{WAL, BoltDB}, {BoltDB, WAL}}

func eachDirection(t *testing.T, f func(t *testing.T, from, to Options)) {
	for _, d := range directions {
		t.Run(fmt.Sprintf("%s_to_%s", d.from, d.to), func(t *testing.T) {
			f(t, Options{Backend: d.from, SegmentBytes: 64 << 10}, Options{Backend: d.to, SegmentBytes: 64 << 10})
		})
	}
}

// firstEntry is the index at which the logs of these tests begin, as after a snapshot.
const firstEntry = 100

// written makes the log of a stopped server and returns its data_dir.
func written(t *testing.T, o Options, entries, size int) string {
	t.Helper()
	data := memoryDir(t)
	dir := filepath.Join(data, "server", "raft")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, dir, o)
	var es []*raft.Log
	for i := range uint64(entries) {
		e := entryOf(firstEntry+i, size)
		e.AppendedAt = time.Unix(1_700_000_000, int64(i))
		if i%3 == 0 {
			e.Extensions = []byte("more")
		}
		es = append(es, e)
	}
	if len(es) > 0 {
		if err := l.StoreLogs(es); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.SetUint64([]byte("CurrentTerm"), 7), l.SetUint64([]byte("LastVoteTerm"), 6), l.Set([]byte("LastVoteCand"), []byte("me"))); err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	return data
}

// wantWritten checks that the log is what written made.
func wantWritten(t *testing.T, data string, o Options, entries, size int) {
	t.Helper()
	l := mustOpen(t, filepath.Join(data, "server", "raft"), o)
	defer l.Close()
	first, last, err := l.bounds()
	if entries > 0 && (first != firstEntry || last != firstEntry-1+uint64(entries)) || entries == 0 && last != 0 || err != nil {
		t.Fatalf("the log is from %d to %d, %v; want %d entries from %d", first, last, err, entries, firstEntry)
	}
	for i := range uint64(entries) {
		var e raft.Log
		if err := l.GetLog(firstEntry+i, &e); err != nil {
			t.Fatal(err)
		}
		want := entryOf(firstEntry+i, size)
		if e.Term != want.Term || string(e.Data) != string(want.Data) || !e.AppendedAt.Equal(time.Unix(1_700_000_000, int64(i))) || (i%3 == 0) != (string(e.Extensions) == "more") {
			t.Fatalf("entry %d is %+v", firstEntry+i, e)
		}
	}
	for key, want := range map[string]uint64{"CurrentTerm": 7, "LastVoteTerm": 6} {
		if n, err := l.GetUint64([]byte(key)); n != want || err != nil {
			t.Errorf("%s is %d, %v; want %d", key, n, err, want)
		}
	}
	if who, err := l.Get([]byte("LastVoteCand")); string(who) != "me" || err != nil {
		t.Errorf("the vote is %q, %v; want me", who, err)
	}
}

func TestMigrate(t *testing.T) {
	eachDirection(t, func(t *testing.T, from, to Options) {
		for _, entries := range []int{0, 1, 300} {
			t.Run(fmt.Sprintf("%d_entries", entries), func(t *testing.T) {
				data := written(t, from, entries, 24)
				m, err := Migrate(data, to, hclog.NewNullLogger(), nil)
				if err != nil || m.From != from.Backend || m.Entries != uint64(entries) || !exists(m.Backup) {
					t.Fatalf("migrated: %+v, %v", m, err)
				}
				wantWritten(t, data, to, entries, 24)
				again, err := Migrate(data, to, hclog.NewNullLogger(), nil)
				if err != nil || again.From != to.Backend || again.Backup != "" {
					t.Errorf("repeated: %+v, %v; want nothing to do", again, err)
				}
				if _, err := Open(m.Dir, from, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "migrate-backend -to "+string(from.Backend)) {
					t.Errorf("opened as the old backend: %v", err)
				}
				for range 2 { // back and forth, over the previous backups
					for _, o := range []Options{from, to} {
						if _, err := Migrate(m.Dir, o, hclog.NewNullLogger(), nil); err != nil {
							t.Fatal(err)
						}
						wantWritten(t, data, o, entries, 24)
					}
				}
			})
		}
	})
}

// TestMigrationInterrupted: after a crash at any step, no start loses anything, and another attempt completes the
// migration.
func TestMigrationInterrupted(t *testing.T) {
	eachDirection(t, func(t *testing.T, from, to Options) {
		data := written(t, from, 50, 24)
		dir := filepath.Join(data, "server", "raft")
		old, path := filepath.Join(dir, string(from.Backend)), filepath.Join(dir, string(to.Backend))
		if err := os.CopyFS(filepath.Join(dir, "begun"), os.DirFS(old)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "begun"), path+".tmp"); err != nil { // a copy that was begun
			t.Fatal(err)
		}
		wantWritten(t, data, from, 50, 24)
		if exists(path + ".tmp") {
			t.Error("the incomplete copy was left behind")
		}
		m, err := Migrate(data, to, hclog.NewNullLogger(), nil)
		if err != nil {
			t.Fatal(err)
		}
		steps := func(pairs ...string) {
			t.Helper()
			for i := 0; i < len(pairs); i += 2 {
				if err := os.Rename(pairs[i], pairs[i+1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		steps(path, path+".new") // the old log is renamed, the copy does not have its name yet
		wantWritten(t, data, to, 50, 24)
		steps(path, path+".new")
		if _, err := Open(dir, from, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "migrate-backend") {
			t.Errorf("opened as the old backend: %v; want a refusal", err)
		}
		wantWritten(t, data, to, 50, 24)
		steps(path, path+".new", m.Backup, old) // the copy is complete, the old log still in use
		wantWritten(t, data, from, 50, 24)
		if exists(path + ".new") {
			t.Error("a copy that was not put in place was left behind")
		}
		if _, err := Migrate(data, to, hclog.NewNullLogger(), nil); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(old, os.DirFS(m.Backup)); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{from, to} {
			if _, err := Open(dir, o, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "logs of both backends") {
				t.Errorf("with both logs: %v, want a refusal", err)
			}
		}
		if err := errors.Join(os.RemoveAll(old), os.RemoveAll(path)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, to, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), m.Backup) {
			t.Errorf("with nothing but a backup: %v, want a refusal that names it", err)
		}
		steps(m.Backup, old) // as the error advises
		wantWritten(t, data, from, 50, 24)
	})
}

func TestMigrateRefuses(t *testing.T) {
	eachDirection(t, func(t *testing.T, from, to Options) {
		if _, err := Migrate(t.TempDir(), to, hclog.NewNullLogger(), nil); err == nil || !strings.Contains(err.Error(), "there is no raft log in") {
			t.Errorf("an empty directory: %v", err)
		}
		hidden := filepath.Join(t.TempDir(), "loop")
		if err := os.Symlink(hidden, hidden); err != nil {
			t.Fatal(err)
		}
		if _, err := Migrate(hidden, to, hclog.NewNullLogger(), nil); !errors.Is(err, syscall.ELOOP) {
			t.Errorf("a directory that cannot be looked into: %v", err)
		}
		data := written(t, from, 50, 24)
		dir := filepath.Join(data, "server", "raft")
		if _, err := Migrate(data, Options{Backend: "sqlite"}, hclog.NewNullLogger(), nil); err == nil || !strings.Contains(err.Error(), "want wal or boltdb") {
			t.Errorf("an unknown backend: %v", err)
		}
		l := mustOpen(t, dir, from)
		if _, err := Migrate(data, to, hclog.NewNullLogger(), nil); err == nil || !strings.Contains(err.Error(), "is a server running") {
			t.Errorf("the log of a running server: %v", err)
		}
		mustClose(t, l)
		path := filepath.Join(dir, string(from.Backend), recordName)
		patch(t, path, 9, []byte{0xff})
		patch(t, path, copyBytes+9, []byte{0xff})
		if _, err := Migrate(data, to, hclog.NewNullLogger(), nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("a damaged log: %v", err)
		}
		if exists(filepath.Join(dir, string(to.Backend))) {
			t.Error("a damaged log was converted")
		}
	})
}

// TestMigrateOnAFullDisk: the log stays in use, and the next attempt succeeds once there is room.
func TestMigrateOnAFullDisk(t *testing.T) {
	eachDirection(t, func(t *testing.T, from, to Options) {
		disk, fill, free := smalldisk.Mount(t, 64<<20)
		data := written(t, from, 300, 64<<10)
		if err := os.CopyFS(disk, os.DirFS(data)); err != nil {
			t.Fatal(err)
		}
		fill()
		if _, err := Migrate(disk, to, hclog.NewNullLogger(), nil); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("on a full disk: %v, want %v", err, syscall.ENOSPC)
		}
		wantWritten(t, disk, from, 300, 64<<10)
		free()
		if _, err := Migrate(disk, to, hclog.NewNullLogger(), nil); err != nil {
			t.Fatal(err)
		}
		wantWritten(t, disk, to, 300, 64<<10)
	})
}
