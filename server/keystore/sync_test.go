package keystore

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/fsync"
)

// TestFailedSyncOfAKey: a key that cannot be synced ends the process; one that cannot be written, because the disk is
// full, does not. Neither is counted as stored.
func TestFailedSyncOfAKey(t *testing.T) {
	key := make([]byte, keyBytes)
	for what, c := range map[string]struct {
		err   error
		exits int
	}{"sync": {fsync.Error("file", unix.ENOSPC), 1}, "write": {unix.ENOSPC, 0}} {
		var exits []string
		k, err := Open(Environment{DataDir: t.TempDir(), Log: hclog.NewNullLogger(), Exit: func(why string) { exits = append(exits, why) }})
		if err != nil {
			t.Fatal(err)
		}
		k.write = func(string, []byte) error { return c.err }
		if err := k.put(keyID(key), key); err == nil || len(exits) != c.exits || c.exits > 0 && !strings.Contains(exits[0], "could not be synced") {
			t.Errorf("%s: %v, the process ends with %q", what, err, exits)
		}
		if got, err := k.Get(keyID(key)); got != nil || err != nil {
			t.Errorf("%s: the key counts as stored: %v", what, err)
		}
	}
}
