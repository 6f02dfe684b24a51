package server

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// reader makes a token with its own policy, which lets it read, and returns ways to take its rights away.
func reader(t *testing.T, s *Server, admin rpc.Header, name string) (h rpc.Header, loss map[string]func()) {
	t.Helper()
	policy := func(rules string) {
		t.Helper()
		call(t, s, methods.ACLPolicyUpsert, admin, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: name, Rules: rules}}})
	}
	policy(`namespace "default" { policy = "read" }`)
	role := call(t, s, methods.ACLRoleUpsert, admin, &methods.ACLRoleUpsertRequest{Role: &structs.ACLRole{Name: name, Policies: []string{name}}}).Role
	tok := call(t, s, methods.ACLTokenUpsert, admin, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Name: name, Roles: []structs.ACLTokenRole{{ID: role.ID}}}}).Token
	return rpc.Header{Token: tok.Secret.String(), Namespace: "default"}, map[string]func(){
		"a revoked token": func() {
			call(t, s, methods.ACLTokenDelete, admin, &methods.ACLTokenDeleteRequest{Accessors: []structs.AccessorID{tok.Accessor}})
		},
		"a changed policy": func() { policy(`namespace "other" { policy = "read" }`) },
		"a deleted role": func() {
			call(t, s, methods.ACLRoleDelete, admin, &methods.ACLRoleGetRequest{ID: role.ID})
		},
	}
}

// losses are the names of what reader returns.
var losses = []string{"a revoked token", "a changed policy", "a deleted role"}

// TestRightsOfWaitingCalls: a blocking query and an event stream that began with rights show nothing that was written after
// these rights were taken away, at the leader, at a follower, and through the session of an agent.
func TestRightsOfWaitingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		s, follower := c.servers[lead], (lead+1)%3
		admin := rpc.Header{Token: c.bootstrapACL(lead).String()}
		c.converge()
		pool, agent := nodeSide(c, follower, testNode(1))
		defer pool.Close()
		n := 0
		for where, to := range map[string]rpc.Caller{"leader": s.Caller(rpc.Peer{}), "follower": c.servers[follower].Caller(rpc.Peer{}), "agent": agent} {
			for _, what := range append(losses, "nothing") {
				n++
				name := fmt.Sprintf("%s at the %s", what, where)
				h, loss := reader(t, s, admin, fmt.Sprint("r", n))
				c.converge()
				job := fmt.Sprint("secret-", n)
				kept := what == "nothing"
				answers := make(chan error, 2)
				for _, stale := range []bool{false, true} {
					go func() {
						resp, err := rpc.Invoke(context.Background(), to, methods.JobGet, h, &methods.JobGetRequest{JobID: job, Query: methods.Query{Stale: stale, MinIndex: s.Published().Index, MaxWait: time.Minute}})
						if err == nil && (resp.Job != nil) != kept {
							err = fmt.Errorf("it was shown %v", resp.Job)
						} else if err != nil && structs.CodeOf(err) == structs.CodeDenied && !kept {
							err = nil
						}
						answers <- err
					}()
				}
				hs := h
				hs.Method = methods.EventStream.Name
				st, err := to.Open(t.Context(), hs, &methods.EventStreamRequest{Topics: map[string][]string{"Job": {job}}, Index: s.Published().Index})
				if err != nil {
					t.Fatal(err)
				}
				seen := make(chan bool, 1)
				go func() {
					for {
						var b methods.EventBatch
						if err := st.RecvMsg(&b); err != nil || len(b.Events) > 0 {
							seen <- err == nil
							return
						}
					}
				}()
				time.Sleep(100 * time.Millisecond)
				if !kept {
					loss[what]()
				}
				call(t, s, methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob(job, 1)})
				for range 2 {
					if err := <-answers; err != nil {
						t.Errorf("%s: a blocking query: %v", name, err)
					}
				}
				began := time.Now()
				if got := <-seen; got != kept {
					t.Errorf("%s: an event was shown: %v", name, got)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("%s: the stream ended after %s", name, took)
				}
				st.Close(nil)
			}
		}
	})
}

// TestRightsWhenNothingChanges: the answer of a blocking query that waited in vain is for callers with rights, too, and a
// query is not prolonged by the rights of others.
func TestRightsWhenNothingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(cfg *Config) { cfg.ACL, cfg.JoinKey = true, testJoinKey })
		root := call(t, s, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token
		admin := rpc.Header{Token: root.Secret.String()}
		call(t, s, methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob("j", 0)})
		lost, loss := reader(t, s, admin, "lost")
		kept, _ := reader(t, s, admin, "kept")
		wait := func(h rpc.Header) (took time.Duration, err error) {
			began := time.Now()
			_, err = callErr(s, methods.JobGet, h, &methods.JobGetRequest{JobID: "j", Query: methods.Query{MinIndex: s.Published().Index + 1000, MaxWait: 20 * time.Second}})
			return time.Since(began), err
		}
		go func() {
			time.Sleep(5 * time.Second)
			loss["a revoked token"]()
		}()
		if took, err := wait(lost); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("after %s: %v", took, err)
		}
		go func() {
			for i := range 19 {
				time.Sleep(time.Second)
				call(t, s, methods.ACLTokenUpsert, admin, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenManagement, Name: fmt.Sprint("t", i)}})
			}
		}()
		if took, err := wait(kept); err != nil || took != 20*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

// TestStaleReadsUseTheNewestRights: a follower whose state is old answers no stale read, and continues no event stream, of a
// caller who has lost rights since then. Without a leader it shows its state for a limited time.
func TestStaleReadsUseTheNewestRights(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	synctest.Test(t, func(t *testing.T) {
		c, held := newHeldCluster(t)
		lead := c.leader()
		follower := (lead + 1) % 3
		s := c.servers[lead]
		admin := rpc.Header{Token: c.bootstrapACL(lead).String()}
		call(t, s, methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob("j", 0)})
		pool, agent := nodeSide(c, follower, testNode(1))
		defer pool.Close()
		ways := map[string]rpc.Caller{"the follower": c.servers[follower].Caller(rpc.Peer{}), "an agent": agent}
		read := func(to rpc.Caller, h rpc.Header) error {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_, err := rpc.Invoke(ctx, to, methods.JobGet, h, &methods.JobGetRequest{JobID: "j", Query: methods.Query{Stale: true}})
			return err
		}
		kept, _ := reader(t, s, admin, "kept")
		for i, what := range losses {
			h, loss := reader(t, s, admin, fmt.Sprint("r", i))
			c.converge()
			streams := map[string]*rpc.Stream{}
			for way, to := range ways {
				if err := read(to, h); err != nil {
					t.Errorf("%s at %s, before: %v", what, way, err)
				}
				hs := h
				hs.Method = methods.EventStream.Name
				st, err := to.Open(t.Context(), hs, &methods.EventStreamRequest{Topics: map[string][]string{"Job": {"*"}}, Index: s.Published().Index})
				if err != nil {
					t.Fatal(err)
				}
				streams[way] = st
			}
			held[follower].Store(true)
			loss[what]()
			time.Sleep(2 * rightsAge)
			if snap := c.servers[follower].Published(); snap.Index >= s.Published().Index {
				t.Fatal("the follower does not lag")
			}
			for way, to := range ways {
				if err := read(to, h); structs.CodeOf(err) != structs.CodeDenied {
					t.Errorf("%s at %s: %v; want it denied", what, way, err)
				}
				if err := read(to, kept); err != nil {
					t.Errorf("another token at %s: %v", way, err)
				}
				began := time.Now()
				for range 5 { // of its heartbeats
					var b methods.EventBatch
					if err := streams[way].RecvMsg(&b); err != nil {
						break
					}
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("%s at %s: the stream ended after %s", what, way, took)
				}
			}
			held[follower].Store(false)
			c.converge()
		}

		// A server that is cut off cannot know who was revoked, and shows operators what it has.
		c.net.Isolate(hostName(follower))
		for range 2 {
			time.Sleep(20 * time.Minute)
			if err := read(ways["the follower"], kept); err != nil {
				t.Errorf("without a leader: %v", err)
			}
		}
	})
}

// TestTokenOfALaggingServer: a server that does not have a token in its state, and has no leader to ask, does not say that
// there is no such token. The caller would take that for the end of its rights.
func TestTokenOfALaggingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, held := newHeldCluster(t)
		lead := c.leader()
		follower := (lead + 1) % 3
		s := c.servers[lead]
		admin := rpc.Header{Token: c.bootstrapACL(lead).String()}
		call(t, s, methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob("j", 0)})
		c.converge()
		held[follower].Store(true)
		h, _ := reader(t, s, admin, "r")
		c.net.Isolate(hostName(follower))
		for _, wait := range []time.Duration{0, 15 * time.Second} { // at first the server knows its leader, but hears nothing of it
			time.Sleep(wait)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			_, err := rpc.Invoke(ctx, c.servers[follower].Caller(rpc.Peer{}), methods.JobGet, h, &methods.JobGetRequest{JobID: "j", Query: methods.Query{Stale: true}})
			cancel()
			if structs.CodeOf(err) != structs.CodeNoLeader {
				t.Errorf("after %v: a stale read with a token that the server does not have yet: %v; want %v", wait, err, structs.ErrNoLeader)
			}
			ctx, cancel = context.WithTimeout(context.Background(), 20*time.Second)
			agent := &methods.ACLAuthorizeRequest{What: "agent", Level: "read", Query: methods.Query{Stale: true}} // as for agent-info and metrics
			_, err = rpc.Invoke(ctx, c.servers[follower].Caller(rpc.Peer{}), methods.ACLAuthorize, admin, agent)
			if err != nil {
				t.Errorf("after %v: a token that the server has: %v", wait, err)
			}
			_, err = rpc.Invoke(ctx, c.servers[follower].Caller(rpc.Peer{}), methods.ACLAuthorize, h, agent)
			cancel()
			if structs.CodeOf(err) != structs.CodeNoLeader {
				t.Errorf("after %v: agent-info with such a token: %v; want %v", wait, err, structs.ErrNoLeader)
			}
		}
		held[follower].Store(false)
	})
}
