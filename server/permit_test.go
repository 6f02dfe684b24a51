package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestAgentCallsUseTheNewestState: calls that nodes and agents answer are decided by the leader, so that a follower whose
// state is old admits no caller by a token that was revoked or a policy that was changed, and knows new tokens. Every such
// method of the table is called through the follower to which the node is connected.
func TestAgentCallsUseTheNewestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held := newHeldCluster(t)
		lead := c.leader()
		follower := (lead + 1) % 3
		management := c.bootstrapACL(lead)
		admin := rpc.Header{Token: management.String()}
		all := "namespace \"default\" {\n  policy = \"write\"\n  capabilities = [\"alloc-node-exec\"]\n}\nnode { policy = \"write\" }\nagent { policy = \"write\" }"
		policy := func(name, rules string) {
			t.Helper()
			call(t, c.servers[lead], methods.ACLPolicyUpsert, admin, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: name, Rules: rules}}})
		}
		token := func(policy string) *structs.ACLToken {
			t.Helper()
			return call(t, c.servers[lead], methods.ACLTokenUpsert, admin, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Name: policy, Policies: []string{policy}}}).Token
		}
		policy("stays", all)
		policy("changes", all)
		stays, revoked, changed := token("stays"), token("stays"), token("changes")

		n := testNode(1)
		introduced := call(t, c.servers[lead], methods.NodeIntroduce, admin, &methods.NodeIntroduceRequest{}).Token
		pool, to := nodeSide(c, follower, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n, Introduction: introduced}); err != nil {
			t.Fatal(err)
		}
		call(t, c.servers[lead], methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		waitFor(t, time.Minute, "a placement", func() bool { return len(c.servers[lead].Published().Snapshot.AllocsByNode(n.ID)) == 1 })
		alloc := c.servers[lead].Published().Snapshot.AllocsByNode(n.ID)[0]
		c.converge()

		s := c.servers[follower]
		try := func(row methods.Row, secret structs.SecretID) error {
			return call1(s.Caller(rpc.Peer{}), row, secret, map[string]any{"AllocID": alloc.ID, "NodeID": n.ID, "Task": "t"})
		}
		permitted := func(err error) bool { return err == nil || structs.CodeOf(err) != structs.CodeDenied }
		rows := 0
		each := func(what string, secret structs.SecretID, want bool) {
			t.Helper()
			for _, row := range methods.Table {
				if row.Side == methods.SideServer {
					continue
				}
				rows++
				if err := try(row, secret); permitted(err) != want {
					t.Errorf("%s with %s: %v; want it permitted: %v", row.Name, what, err, want)
				}
			}
		}
		for what, tok := range map[string]*structs.ACLToken{"a token": stays, "a token before it is revoked": revoked, "a token before its policy changes": changed} {
			each(what, tok.Secret, true)
		}

		held[follower].Store(true)
		defer held[follower].Store(false)
		call(t, c.servers[lead], methods.ACLTokenDelete, admin, &methods.ACLTokenDeleteRequest{Accessors: []structs.AccessorID{revoked.Accessor}})
		policy("changes", `namespace "default" { policy = "read" }`)
		fresh := token("stays")
		if snap := s.Published().Snapshot; snap.TokenBySecret(revoked.Secret) == nil || snap.TokenBySecret(fresh.Secret) != nil {
			t.Fatal("the follower does not lag")
		}
		each("a revoked token", revoked.Secret, false)
		each("a token that the follower does not know yet", fresh.Secret, true)
		for _, row := range []string{methods.ClientExec.Name, methods.ClientForward.Name, methods.ClientRestart.Name, methods.ClientSignal.Name, methods.ClientGCAll.Name, methods.ClientMonitor.Name} {
			if err := try(*methods.Find(row), changed.Secret); permitted(err) {
				t.Errorf("%s with a policy that was taken away: %v", row, err)
			}
		}
		if _, err := rpc.Invoke(ctx, s.Caller(rpc.Peer{}), methods.ClientStats, rpc.Header{Token: fresh.Secret.String()}, &methods.AllocNodeRequest{AllocID: alloc.ID}); err != nil {
			t.Errorf("stats with a fresh token: %v", err)
		}
		// The number of questions to the leader is bounded.
		s.metrics.permitting.Add(permitsMax)
		err := try(*methods.Find(methods.ClientStats.Name), stays.Secret)
		s.metrics.permitting.Add(-permitsMax)
		if structs.CodeOf(err) != structs.CodeBusy {
			t.Errorf("a question beyond the limit: %v; want busy", err)
		}
		held[follower].Store(false)
		c.converge()

		// Nothing is permitted where no leader can be asked: at a follower without a leader, and at a leader that may have
		// been deposed.
		c.net.Isolate(hostName(lead))
		c.net.Isolate(hostName(follower))
		for _, at := range []int{lead, follower} {
			_, err := rpc.Invoke(ctx, c.servers[at].Caller(rpc.Peer{}), methods.ClientStats, rpc.Header{Token: stays.Secret.String()}, &methods.AllocNodeRequest{AllocID: alloc.ID})
			if structs.CodeOf(err) != structs.CodeNoLeader {
				t.Errorf("server %d of a minority: %v; want no leader", at, err)
			}
		}
		t.Logf("%d calls", rows)
	})
}

// TestStreamsEndWithTheRight: exec sessions, forwarded connections and followed logs that are open end within 5 seconds when
// their token is deleted or its policy is changed, with the reason, through every server. Others continue.
func TestStreamsEndWithTheRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		admin := rpc.Header{Token: c.bootstrapACL(lead).String()}
		const rules = "namespace \"default\" {\n  policy = \"write\"\n  capabilities = [\"alloc-node-exec\"]\n}\nnode { policy = \"write\" }\nagent { policy = \"write\" }"
		policy := func(name, rules string) {
			t.Helper()
			call(t, c.servers[lead], methods.ACLPolicyUpsert, admin, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: name, Rules: rules}}})
		}
		token := func(policy string) *structs.ACLToken {
			t.Helper()
			return call(t, c.servers[lead], methods.ACLTokenUpsert, admin, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Name: policy, Policies: []string{policy}}}).Token
		}
		policy("stays", rules)
		policy("changes", rules)
		stays, revoked, changed := token("stays"), token("stays"), token("changes")

		n := testNode(1)
		introduced := call(t, c.servers[lead], methods.NodeIntroduce, admin, &methods.NodeIntroduceRequest{}).Token
		pool, to := nodeSide(c, (lead+1)%3, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n, Introduction: introduced}); err != nil {
			t.Fatal(err)
		}
		call(t, c.servers[lead], methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		waitFor(t, time.Minute, "a placement", func() bool { return len(c.servers[lead].Published().Snapshot.AllocsByNode(n.ID)) == 1 })
		alloc := c.servers[lead].Published().Snapshot.AllocsByNode(n.ID)[0]
		c.converge()

		type opened struct {
			what string
			ends bool
			err  chan error
			last atomic.Pointer[time.Time] // of its last message
			at   time.Time                 // of its end
		}
		var all []*opened
		for server := range c.servers {
			for _, method := range []string{methods.ClientExec.Name, methods.ClientForward.Name, methods.ClientMonitor.Name} {
				for what, tok := range map[string]*structs.ACLToken{"deleted": revoked, "changed": changed, "kept": stays} {
					body, err := rpc.Encode(map[string]any{"AllocID": alloc.ID, "NodeID": n.ID, "Task": "t"})
					if err != nil {
						t.Fatal(err)
					}
					st, err := c.servers[server].Caller(rpc.Peer{}).Open(ctx, rpc.Header{Method: method, Token: tok.Secret.String()}, rpc.Raw(body))
					if err != nil {
						t.Fatal(err)
					}
					defer st.Close(nil)
					o := &opened{what: what + ", " + method, ends: what != "kept", err: make(chan error, 1)}
					all = append(all, o)
					go func() {
						for {
							_, err := st.Recv()
							if err != nil {
								o.at = time.Now()
								o.err <- err
								return
							}
							now := time.Now()
							o.last.Store(&now)
						}
					}()
				}
			}
		}
		time.Sleep(20 * time.Second)
		for _, o := range all {
			if o.last.Load() == nil || len(o.err) > 0 {
				t.Errorf("%s: it does not run", o.what)
			}
		}
		call(t, c.servers[lead], methods.ACLTokenDelete, admin, &methods.ACLTokenDeleteRequest{Accessors: []structs.AccessorID{revoked.Accessor}})
		policy("changes", `namespace "default" { policy = "read" }`)
		began := time.Now()
		time.Sleep(5 * time.Second)
		for _, o := range all {
			switch {
			case len(o.err) > 0 != o.ends:
				t.Errorf("%s: it has ended: %v, want %v", o.what, len(o.err) > 0, o.ends)
			case o.ends:
				if err := <-o.err; structs.CodeOf(err) != structs.CodeDenied || !strings.Contains(err.Error(), "taken away") || o.at.Sub(began) > 5*time.Second {
					t.Errorf("%s: it ended after %s with %v", o.what, o.at.Sub(began), err)
				}
			case time.Since(*o.last.Load()) > 2*time.Second:
				t.Errorf("%s: nothing has come since %s", o.what, o.last.Load())
			}
		}
	})
}
