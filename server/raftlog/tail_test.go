package raftlog

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// fullStore refuses entries while its disk is full.
type fullStore struct {
	raft.LogStore
	full bool
}

func (s *fullStore) StoreLogs(es []*raft.Log) error {
	if s.full {
		return errPower
	}
	return s.LogStore.StoreLogs(es)
}

// TestTailOfAFullDisk: entries whose replacement could not be stored stay readable, as raft believes that they are there,
// until they are replaced or raft adds to them.
func TestTailOfAFullDisk(t *testing.T) {
	const change = "the servers change"
	run := func(term uint64, indexes ...uint64) (es []*raft.Log) {
		for _, i := range indexes {
			es = append(es, &raft.Log{Index: i, Term: term})
		}
		return es
	}
	for _, c := range []struct {
		name string
		then func(w raft.LogStore) error // after entries 4 and 5 were removed, and what replaces them could not be stored
		want string                      // terms of the entries, or change
	}{
		{"it is replaced later", func(w raft.LogStore) error {
			return errors.Join(w.DeleteRange(4, 5), w.StoreLogs(run(2, 4)))
		}, "[1 1 1 2]"},
		{"a part is replaced", func(w raft.LogStore) error {
			return errors.Join(w.DeleteRange(5, 5), w.StoreLogs(run(3, 5, 6)))
		}, "[1 1 1 1 3 3]"},
		{"more of the log is replaced", func(w raft.LogStore) error {
			return errors.Join(w.DeleteRange(3, 5), w.StoreLogs(run(3, 3)))
		}, "[1 1 3]"},
		{"raft adds to it", func(w raft.LogStore) error { return w.StoreLogs(run(2, 6, 7)) }, "[1 1 1 1 1 2 2]"},
		{"the log begins anew after a snapshot", func(w raft.LogStore) error {
			last, err := w.LastIndex()
			return errors.Join(err, w.DeleteRange(1, last), w.StoreLogs(run(2, last+1)))
		}, "[2]"},
		{change, func(w raft.LogStore) error { return w.StoreLogs(run(2, 6)) }, "[1 1 1 1 1 2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, o Options) {
				dir := memoryDir(t)
				l := mustOpen(t, dir, o)
				disk, exits := &fullStore{LogStore: l}, 0
				w := Watch(disk, new(Health), time.Minute, func(string) { exits++ })
				first := run(1, 1, 2, 3, 4, 5)
				if c.name == change {
					first[4].Type = raft.LogConfiguration
				}
				if err := errors.Join(w.StoreLogs(first), w.DeleteRange(4, 5)); err != nil {
					t.Fatal(err)
				}
				disk.full = true
				for range 2 {
					if err := w.StoreLogs(run(2, 4, 5, 6)); !errors.Is(err, errPower) {
						t.Fatal(err)
					}
					if got := terms(t, w); got != "[1 1 1 1 1]" {
						t.Fatalf("the disk is full, and the log has the terms %s", got)
					}
					if err := w.DeleteRange(4, 5); err != nil {
						t.Fatal(err)
					}
				}
				disk.full = false
				if err := c.then(w); (err != nil) != (c.name == change) || (exits > 0) != (c.name == change) {
					t.Fatalf("%v, %d exits", err, exits)
				}
				got := terms(t, w)
				mustClose(t, l)
				l = mustOpen(t, dir, o)
				defer l.Close()
				if stored := terms(t, l); got != c.want || stored != c.want {
					t.Errorf("the log has the terms %s, and %s when it is opened again; want %s", got, stored, c.want)
				}
			})
		})
	}
}

// terms returns the terms of all entries.
func terms(t *testing.T, l raft.LogStore) string {
	t.Helper()
	first, err := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for i := first; i <= last && i > 0; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		out = append(out, e.Term)
	}
	return fmt.Sprint(out)
}
