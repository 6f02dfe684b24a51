package server

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// writeMany writes at least n log entries.
func writeMany(t *testing.T, s *Server, n int) {
	t.Helper()
	var last *replica.Proposal
	for i := range n {
		last = s.replica.Propose(replica.LanePriority, structs.Command{Body: &structs.NamespaceUpsertCommand{
			Namespaces: []*structs.Namespace{{Name: "ns", Description: strings.Repeat("x", i%7)}},
		}})
	}
	<-last.Done()
	if _, err := last.Result(); err != nil {
		t.Fatal(err)
	}
}

func TestServersCompareStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exits := make(chan string, 3)
		var wrong [3]atomic.Bool
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Exit = func(why string) { exits <- hostName(i) + ": " + why }
			cfg.Testing.Replica.AfterHash = func(hash *[32]byte) {
				if wrong[i].Load() {
					hash[0] ^= 1
				}
			}
		})
		lead := c.leader()
		writeMany(t, c.servers[lead], 2500)
		c.converge()
		time.Sleep(3 * replica.HashCheckInterval)
		want := c.servers[0].replica.Hashes().Marks
		if len(want) < 2 {
			t.Fatalf("%d marks after 2,500 entries", len(want))
		}
		for _, s := range c.servers {
			for i, m := range s.replica.Hashes().Marks {
				if m != want[i] {
					t.Fatalf("mark %d is %+v on one server and %+v on another", i, want[i], m)
				}
			}
			if got := s.replica.Quarantined(); got != "" {
				t.Fatalf(`a server distrusts itself although all agree: got %q, want ""`, got)
			}
		}
		// The leader's state diverges: it hands leadership over, answers no calls, and ends.
		wrong[lead].Store(true)
		writeMany(t, c.servers[lead], 1000)
		time.Sleep(4 * replica.HashCheckInterval)
		select {
		case why := <-exits:
			if !strings.HasPrefix(why, hostName(lead)+": ") || !strings.Contains(why, "differs") {
				t.Fatalf("exit: %s", why)
			}
		default:
			t.Fatal("the server whose state differs did not end")
		}
		if now := c.leader(); now == lead {
			t.Fatal("the server whose state differs still leads")
		}
		if err := c.register((lead+1)%3, "still-works"); err != nil {
			t.Fatal(err)
		}
		if err := c.register(lead, "refused"); structs.CodeOf(err) != structs.CodeUnavailable {
			t.Fatalf("a server in quarantine answered: %v", err)
		}
		select {
		case why := <-exits:
			t.Fatalf("a second server ended: %s", why)
		default:
		}
	})
}

func TestSnapshotByBytes(t *testing.T) {
	s, stop := diskServer(t, t.TempDir(), func(c *Config) { c.Raft.SnapshotBytes, c.Raft.SnapshotEvery = 64<<10, 100*time.Millisecond })
	defer stop()
	writeMany(t, s, 2000)
	waitFor(t, 10*time.Second, "snapshot", func() bool { return s.replica.Stats().Snapshots > 0 })
	waitFor(t, 10*time.Second, "count from zero", func() bool { return s.replica.Stats().LogBytes < 64<<10 })
}
