package raftlog

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/syncfail"
)

// TestFailedSyncEndsTheProcess: a write whose sync fails ends the process, for every file and error. Before,
// only an error that the wal library calls sealed did.
func TestFailedSyncEndsTheProcess(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		for what, write := range map[string]func(raft.LogStore, raft.StableStore) error{
			"entries": func(l raft.LogStore, _ raft.StableStore) error {
				return l.StoreLogs([]*raft.Log{{Index: 3, Term: 1, Data: []byte("x")}})
			},
			"the end of a snapshot": func(l raft.LogStore, _ raft.StableStore) error { return l.DeleteRange(1, 1) },
			"the term":              func(_ raft.LogStore, s raft.StableStore) error { return s.SetUint64([]byte("CurrentTerm"), 7) },
			"the vote":              func(_ raft.LogStore, s raft.StableStore) error { return s.Set([]byte("LastVoteCand"), []byte("a")) },
		} {
			t.Run(string(backend)+", "+what, func(t *testing.T) {
				dir := t.TempDir()
				log, err := Open(dir, Options{Backend: backend}, hclog.NewNullLogger())
				if err != nil {
					t.Fatal(err)
				}
				defer log.Close()
				var exits []string
				exit := func(why string) { exits = append(exits, why) }
				entries, stable := Watch(log, &Health{}, time.Minute, exit), Patient(log, &Health{}, time.Minute, exit)
				if err := entries.StoreLogs([]*raft.Log{{Index: 1, Term: 1}, {Index: 2, Term: 1}}); err != nil {
					t.Fatal(err)
				}
				if err := stable.SetUint64([]byte("CurrentTerm"), 6); err != nil || len(exits) > 0 {
					t.Fatal(err, exits)
				}
				names := syncfail.Break(t, dir)
				began := time.Now()
				if err := write(entries, stable); err == nil {
					t.Errorf("acknowledged, although no sync of %v succeeds", names)
				}
				if len(exits) != 1 || !strings.Contains(exits[0], "could not be synced") || time.Since(began) > 10*time.Second {
					t.Errorf("the process ends %d times, after %s: %q", len(exits), time.Since(began), exits)
				}
			})
		}
	}
}
