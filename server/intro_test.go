package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestIntroduction: with access control and without TLS, an agent registers for the first time by a token that an
// operator made, once, in time, and under the name and in the pool that the token is for. After that its secret
// suffices. The leader and a follower agree.
func TestIntroduction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		header := rpc.Header{Token: c.bootstrapACL(lead).String()}
		pool := rpc.NewPool(rpc.PoolConfig{Dial: c.net.Host("evil").Dial})
		defer pool.Close()
		next := 0
		agent := func(name string) *structs.Node {
			next++
			n := testNode(next)
			n.Name = name
			return n
		}
		register := func(at int, n *structs.Node, token string) error {
			_, err := rpc.Invoke(context.Background(), pool.To(hostName(at)+":4647"), methods.NodeRegister, rpc.Header{Inside: true}, &methods.NodeRegisterRequest{Node: n, Introduction: token})
			return err
		}
		introduce := func(req methods.NodeIntroduceRequest) string {
			t.Helper()
			return call(t, c.servers[(lead+2)%3], methods.NodeIntroduce, header, &req).Token
		}
		for _, at := range []int{lead, (lead + 1) % 3} {
			refused := func(what string, n *structs.Node, token, says string) {
				t.Helper()
				if err := register(at, n, token); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%s at server %d (leader %d): %v, want %q", what, at, lead, err, says)
				}
				if c.servers[lead].Published().Snapshot.NodeByID(n.ID) != nil {
					t.Errorf("%s: the node is registered", what)
				}
			}
			refused("no token", agent("a"), "", "`muster node intro create` makes one")
			refused("an invented token", agent("a"), "x", "never existed")
			token := introduce(methods.NodeIntroduceRequest{NodeName: "a"})
			refused("a token for another name", agent("b"), token, `is for node "a"`)
			first := agent("a")
			if err := register(at, first, token); err != nil {
				t.Errorf("a token for this name at server %d: %v", at, err)
			}
			refused("a used token", agent("a"), token, "was used")
			first.Class = "changed"
			for _, again := range []string{token, ""} {
				if err := register(at, first, again); err != nil {
					t.Errorf("a known node registers again: %v", err)
				}
			}
			refused("a token for another pool", agent("a"), introduce(methods.NodeIntroduceRequest{Pool: "training"}), `is for node pool "training"`)
			late := introduce(methods.NodeIntroduceRequest{TTL: time.Minute})
			time.Sleep(2 * time.Minute)
			refused("a late token", agent("a"), late, "expired")
		}
		// An agent in a server's process needs none.
		call(t, c.servers[(lead+1)%3], methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: agent("own")})
		// Only hashes are stored, and the next token removes those that have expired.
		token := introduce(methods.NodeIntroduceRequest{})
		n := 0
		for i := range state.Introductions.All(c.servers[lead].Published().Snapshot) {
			n++
			if len(i.Hash) != 64 || strings.Contains(i.Hash, token) {
				t.Errorf("the state has %q", i.Hash)
			}
		}
		if n != 3 { // for another pool, two of them, and the newest
			t.Errorf("%d introductions are kept, want 3", n)
		}
		for _, ttl := range []time.Duration{-1, time.Millisecond, 25 * time.Hour} {
			_, err := rpc.Invoke(context.Background(), c.servers[lead].Caller(rpc.Peer{}), methods.NodeIntroduce, header, &methods.NodeIntroduceRequest{TTL: ttl})
			if structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("a TTL of %s: %v", ttl, err)
			}
		}
	})
}

// TestDisabledACLsNameTheCure: who asks for tokens where there are none learns how there would be.
func TestDisabledACLsNameTheCure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		_, err := callErr(s, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{})
		if structs.CodeOf(err) != structs.CodeInvalid || !strings.HasPrefix(err.Error(), "ACL support disabled: set acl { enabled = true }") || !strings.Contains(err.Error(), "muster acl bootstrap") {
			t.Errorf("bootstrap: %v", err)
		}
		if _, err := callErr(s, methods.ACLTokenSelf, rpc.Header{}, &methods.EmptyRequest{}); err == nil || err.Error() != "ACL support disabled" { // Nomad's web interface compares
			t.Errorf("self: %v", err)
		}
	})
}
