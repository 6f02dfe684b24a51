package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

// forwards counts the calls that the servers of a cluster have forwarded.
func (c *cluster) forwards() (n int64) {
	for _, s := range c.servers {
		n += s.metrics.forwarded.Load()
	}
	return n
}

// bootstrapACL creates the first management token.
func (c *cluster) bootstrapACL(i int) structs.SecretID {
	c.t.Helper()
	return call(c.t, c.servers[i], methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token.Secret
}

// TestUnauthenticatedCallsAreNotForwarded calls every method of the table, through a follower and through the leader,
// as callers that cannot prove their identity.
func TestUnauthenticatedCallsAreNotForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := tlsSources(t, "server", "cli")
		c := newCluster(t, 3, func(_ int, cfg *Config) {
			cfg.ACL, cfg.TLSServer, cfg.TLSClient = true, src["server"].RPCServer(), src["server"].ClientTo
		})
		lead := c.leader()
		management := c.bootstrapACL(lead)
		pool := rpc.NewPool(rpc.PoolConfig{Dial: rpc.TLSDialer(c.net.Host("cli").Dial, src["cli"].Client)})
		defer pool.Close()
		node := testNode(1)
		body := map[string]any{"Node": node, "NodeID": node.ID, "Secret": node.SecretID, "Address": "s9:4647"}
		for _, through := range []int{(lead + 1) % 3, lead} {
			to := pool.To(hostName(through) + ":4647")
			for _, row := range methods.Table {
				if row.Need.Anonymous {
					continue
				}
				for who, token := range map[string]structs.SecretID{"no token": {}, "an unknown token": endpoint.NewID[structs.SecretID]()} {
					before := c.forwards()
					err := call1(to, row, token, body)
					if err == nil || structs.CodeOf(err) != structs.CodeDenied {
						t.Errorf("%s with %s: %v; want it denied", row.Name, who, err)
					}
					if n := c.forwards() - before; n != 0 {
						t.Errorf("%s with %s was forwarded %d times through server %d (leader %d)", row.Name, who, n, through, lead)
					}
				}
			}
		}
		// Check the counter: the same calls with a token are forwarded.
		before, rows := c.forwards(), int64(0)
		for _, row := range methods.Table {
			if row.Kind == methods.AtLeader && row.Need.Operator == "read" {
				rows++
				_ = call1(pool.To(hostName((lead+1)%3)+":4647"), row, management, body)
			}
		}
		if n := c.forwards() - before; rows == 0 || n != rows {
			t.Errorf("%d calls of a management token were forwarded, want %d", n, rows)
		}
	})
}

// newHeldCluster starts three servers with ACLs. A server applies nothing while it is held.
func newHeldCluster(t *testing.T) (c *cluster, held *[3]atomic.Bool) {
	t.Helper()
	held = new([3]atomic.Bool)
	return newCluster(t, 3, func(i int, cfg *Config) {
		cfg.ACL = true
		cfg.Testing.Replica.BeforeApply = func() {
			for held[i].Load() {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}), held
}

// TestFreshCallersOnLaggingFollower: a follower whose state lags serves a token and a node that it does not know yet,
// and still forwards nothing for strangers.
func TestFreshCallersOnLaggingFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held := newHeldCluster(t)
		lead := c.leader()
		follower := (lead + 1) % 3
		management := c.bootstrapACL(lead)
		c.converge()
		held[follower].Store(true)
		defer held[follower].Store(false)
		s, token := c.servers[follower], rpc.Header{Token: management.String()}
		fresh := call(t, c.servers[lead], methods.ACLTokenUpsert, token, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenManagement, Name: "fresh"}}).Token.Secret
		node := testNode(1)
		call(t, c.servers[lead], methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
		if s.Published().Snapshot.TokenBySecret(fresh) != nil || s.Published().Snapshot.NodeByID(node.ID) != nil {
			t.Fatal("the follower does not lag")
		}
		token.Token = fresh.String()
		call(t, s, methods.JobRegister, token, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		call(t, s, methods.JobGet, token, &methods.JobGetRequest{JobID: "a", Query: methods.Query{Stale: true}})
		auth := methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}
		call(t, s, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: auth, Status: structs.NodeReady})
		call(t, s, methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: auth})
		before := c.forwards()
		stranger := rpc.Header{Token: endpoint.NewID[structs.SecretID]().String()}
		for range 3 {
			_, err := rpc.Invoke(context.Background(), s.Caller(rpc.Peer{}), methods.JobRegister, stranger, &methods.JobRegisterRequest{Job: apiJob("b", 1)})
			if structs.CodeOf(err) != structs.CodeDenied {
				t.Errorf("a stranger's job: %v; want it denied", err)
			}
		}
		auth.Secret = endpoint.NewID[structs.SecretID]()
		_, err := rpc.Invoke(context.Background(), s.Caller(rpc.Peer{}), methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: auth})
		if structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("a node with a wrong secret: %v; want it denied", err)
		}
		if n := c.forwards() - before; n != 0 {
			t.Errorf("%d calls of strangers were forwarded", n)
		}
		// The number of questions to the leader is bounded.
		s.metrics.vouching.Add(vouchesMax)
		_, err = rpc.Invoke(context.Background(), s.Caller(rpc.Peer{}), methods.JobRegister, stranger, &methods.JobRegisterRequest{Job: apiJob("b", 1)})
		s.metrics.vouching.Add(-vouchesMax)
		if structs.CodeOf(err) != structs.CodeBusy {
			t.Errorf("a question beyond the limit: %v; want busy", err)
		}
		held[follower].Store(false)
		c.converge()
	})
}

// TestTokensOfAnotherRegion: a call for another region is refused here if no state could make it valid. A token that only
// the other region may know is checked there by the first server.
func TestTokensOfAnotherRegion(t *testing.T) {
	t.Run("by a join key", func(t *testing.T) { testTokensOfAnotherRegion(t, func(*Config) {}) })
	t.Run("by certificates", func(t *testing.T) {
		issue := sync.OnceValue(func() func(tlsutil.Role, string) *tlsutil.Source { return tlsAuthority(t) }) // in the bubble's time
		testTokensOfAnotherRegion(t, func(cfg *Config) {
			src := issue()("server", cfg.Region)
			cfg.TLSServer, cfg.TLSClient = src.RPCServer(), src.ClientTo
		})
	})
}

func testTokensOfAnotherRegion(t *testing.T, edit func(*Config)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, func(i int, cfg *Config) {
			cfg.ACL, cfg.BootstrapExpect = true, 1
			cfg.Region = []string{"east", "west"}[i]
			edit(cfg)
		})
		east, west := c.servers[0], c.servers[1]
		waitFor(t, 30*time.Second, "leaders", func() bool { return east.IsLeader() && west.IsLeader() })
		waitFor(t, 30*time.Second, "gossip", func() bool { return len(east.members.ServersOf("west")) == 1 })
		token := c.bootstrapACL(1)
		list := func(h rpc.Header) error {
			h.Region = "west"
			_, err := rpc.Invoke(context.Background(), east.Caller(rpc.Peer{}), methods.JobList, h, &methods.ListRequest{})
			return err
		}
		if err := list(rpc.Header{Token: token.String()}); err != nil {
			t.Fatalf("a token of the other region: %v", err)
		}
		before := c.forwards()
		for who, h := range map[string]rpc.Header{"no token": {}, "a malformed token": {Token: "x"}} {
			if err := list(h); structs.CodeOf(err) != structs.CodeDenied || c.forwards() != before {
				t.Errorf("%s: %v after %d forwards; want it denied here", who, err, c.forwards()-before)
			}
		}
		node := testNode(1)
		_, err := rpc.Invoke(context.Background(), east.Caller(rpc.Peer{}), methods.NodeRegister, rpc.Header{Region: "west"}, &methods.NodeRegisterRequest{Node: node})
		if structs.CodeOf(err) != structs.CodeDenied || c.forwards() != before {
			t.Errorf("a node of another region: %v; want it denied here", err)
		}
		if err := list(rpc.Header{Token: endpoint.NewID[structs.SecretID]().String()}); structs.CodeOf(err) != structs.CodeDenied || c.forwards() != before+1 {
			t.Errorf("an unknown token: %v after %d forwards; want it denied by the first server of the other region", err, c.forwards()-before)
		}
	})
}
