package server

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFullDiskWhileTheLogIsReplaced: a leader that was cut off returns with an entry that the next leader lacks. It must
// remove the entry and store others, but its disk is full. Once there is room, it agrees with the others again.
func TestFullDiskWhileTheLogIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full [3]atomic.Bool
		var failed atomic.Int64
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Testing.Replica.StoreLogs = func() error {
				if full[i].Load() {
					failed.Add(1)
					return errors.New("no space left on device")
				}
				return nil
			}
		})
		old := c.leader()
		c.converge()
		c.net.Isolate(hostName(old))
		go func() { _ = c.register(old, "lost") }() // the outcome is unknown
		next := c.leader(old)
		if err := c.register(next, "kept"); err != nil {
			t.Fatal(err)
		}
		full[old].Store(true)
		c.net.Heal()
		waitFor(t, time.Minute, "a write that fails", func() bool { return failed.Load() > 0 })
		time.Sleep(10 * time.Second)
		full[old].Store(false)
		c.converge()
		if !c.has(old, "kept") || c.has(old, "lost") {
			t.Error("the server that was cut off lacks the job that was kept, or has the one that was lost")
		}
	})
}
