package replica

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/syncfail"
)

// TestFailedSyncOfASnapshot: a snapshot that cannot be synced ends the process.
func TestFailedSyncOfASnapshot(t *testing.T) {
	dir := t.TempDir()
	var exits []string
	s, err := openSnapshots(dir, hclog.NewNullLogger(), func(why string) { exits = append(exits, why) })
	if err != nil {
		t.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("")
	write := func(fail bool) error {
		t.Helper()
		sink, err := s.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{}, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte("state")); err != nil {
			t.Fatal(err)
		}
		if fail {
			syncfail.Break(t, dir)
		}
		return sink.Close()
	}
	if err := write(false); err != nil || len(exits) > 0 {
		t.Fatal(err, exits)
	}
	if err := write(true); err == nil || len(exits) != 1 || !strings.Contains(exits[0], "could not be synced") {
		t.Errorf("%v, the process ends with %q", err, exits)
	}
}
