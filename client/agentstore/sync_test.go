package agentstore

import (
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/syncfail"
)

// TestFailedSync: once a sync has failed nothing is acknowledged, the agent is notified once, and the next one finds
// what was acknowledged before.
func TestFailedSync(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	notified := make(chan error, 10)
	s.OnFailedSync = func(err error) { notified <- err }
	check(t, s.PutAlloc(alloc(1)))
	_, err := s.Load() // the database has its final size
	check(t, err)
	check(t, s.PutTask(alloc(1).ID, "t", &TaskRecord{Attempt: 7}))
	kept := killed(t, dir)
	syncfail.Break(t, dir)
	for range 2 {
		if err := s.PutTask(alloc(1).ID, "t", &TaskRecord{Attempt: 8}); !fsync.Failed(err) {
			t.Errorf("acknowledged, or another error: %v", err)
		}
	}
	if err := s.PutAlloc(alloc(2)); !fsync.Failed(err) {
		t.Errorf("a later change: %v", err)
	}
	if len(notified) != 1 {
		t.Errorf("the agent is notified %d times", len(notified))
	}
	if err := s.Close(); !fsync.Failed(err) {
		t.Errorf("closed as if all was well: %v", err)
	}
	if got := loaded(t, filepath.Clean(kept)); len(got) != 1 || got[alloc(1).ID] != 7 {
		t.Errorf("the next agent finds %v", got)
	}
}
