package server

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestTokensAndClocks: the wall clock of one server, two years ahead or behind, since its start or from one moment to
// the next, neither locks a valid token out nor lets an expired one in, at that server or any other.
func TestTokensAndClocks(t *testing.T) {
	const years = 2 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		var off [3]atomic.Int64
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.ACL = true
			cfg.Now = func() time.Time { return time.Now().Add(time.Duration(off[i].Load())) }
		})
		lead := c.servers[c.leader()]
		token := func(ttl time.Duration) *structs.ACLToken {
			tok := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](),
				Type: structs.TokenManagement, ExpiresAt: structs.LogTimeOf(time.Now().Add(ttl))}
			if _, err := lead.apply(t.Context(), replica.LaneUser, structs.Command{Body: &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}}}); err != nil {
				t.Fatal(err)
			}
			return tok
		}
		valid, short := token(72*time.Hour), token(time.Second)
		time.Sleep(30 * time.Second) // an idle cluster: the newest entry is older than the end of the short token
		try := func(i int, tok *structs.ACLToken) error {
			return c.call(i, func(ctx context.Context, to rpc.Caller) error {
				_, err := rpc.Invoke(ctx, to, methods.JobList, rpc.Header{Token: tok.Secret.String()}, &methods.ListRequest{Query: methods.Query{Stale: true}})
				return err
			})
		}
		check := func(when string) {
			t.Helper()
			for i, s := range c.servers {
				if err := try(i, valid); err != nil {
					t.Errorf("%s: server %d refuses a valid token: %v", when, i, err)
				}
				if err := try(i, short); structs.CodeOf(err) != structs.CodeDenied {
					t.Fatalf("%s: server %d answers an expired token with %v", when, i, err)
				}
				if d := s.replica.Now().Time().Sub(time.Now()); d < -10*time.Second || d > 10*time.Second {
					t.Errorf("%s: the agreed time of server %d is off by %s", when, i, d)
				}
			}
		}
		check("at the start")
		for i := range c.servers {
			for _, by := range []time.Duration{years, -years} {
				off[i].Store(int64(by))
				check("just after the jump")
				time.Sleep(30 * time.Second)
				check("after the servers have compared clocks")
				if i == c.leader() {
					continue
				}
				c.stops[i]() // its log is in memory: it comes back with nothing, and a wrong clock
				time.Sleep(time.Second)
				c.start(i)
				waitFor(t, time.Minute, "the restarted server", func() bool {
					return c.servers[i].Published().Snapshot.TokenBySecret(valid.Secret) != nil && c.servers[i].replica.Clock().Agreed()
				})
				check("after a restart")
			}
			off[i].Store(0)
			time.Sleep(30 * time.Second)
		}
		if log := lead.Published().Time.Time(); log.Sub(time.Now()) > time.Minute {
			t.Errorf("log time is %s, two years ahead", log)
		}
	})
}
