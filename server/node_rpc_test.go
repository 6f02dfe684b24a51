package server

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// nodeSide connects as a node: one session, over which it also answers calls.
func nodeSide(c *cluster, to int, n *structs.Node) (*rpc.Pool, rpc.Caller) {
	reg := rpc.NewRegistry(nil, nil)
	rpc.Handle(reg, methods.ClientStats, func(_ context.Context, call *rpc.Call, req *methods.AllocNodeRequest) (*methods.AllocStatsResponse, error) {
		return &methods.AllocStatsResponse{Total: methods.TaskStats{Pids: 7}}, nil
	})
	rpc.Handle(reg, methods.ClientCheckpoint, func(_ context.Context, call *rpc.Call, req *methods.AllocNodeRequest) (*methods.CheckpointNotice, error) {
		return &methods.CheckpointNotice{Tasks: []string{"t"}, How: "signal SIGUSR1", At: 5}, nil
	})
	rpc.HandleStream(reg, methods.ClientLogs, func(_ context.Context, call *rpc.Call, req *methods.LogsRequest, st *rpc.Stream) error {
		for i := range 3 {
			if err := st.SendMsg(&methods.FSFrame{Data: fmt.Appendf(nil, "line %d", i)}); err != nil {
				return err
			}
		}
		return nil
	})
	for _, follow := range []func(*rpc.Registry){followed(methods.ClientExec), followed(methods.ClientForward), followed(methods.ClientMonitor)} {
		follow(reg)
	}
	h := c.net.Host("node-" + n.Name)
	pool := rpc.NewPool(rpc.PoolConfig{Dial: h.Dial, Registry: reg})
	return pool, pool.To(hostName(to) + ":4647")
}

// followed answers a stream method with an empty message a second, until the caller leaves.
func followed[Req any](m rpc.StreamMethod[Req]) func(*rpc.Registry) {
	return func(reg *rpc.Registry) {
		rpc.HandleStream(reg, m, func(ctx context.Context, _ *rpc.Call, _ *Req, st *rpc.Stream) error {
			for pause(ctx, time.Second) {
				if err := st.SendMsg(struct{}{}); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
}

func TestCallsReachNodesThroughAnyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		home := (lead + 1) % 3 // the server that the node is connected to
		n := testNode(1)
		pool, to := nodeSide(c, home, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n}); err != nil {
			t.Fatal(err)
		}
		auth := methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}
		if err := c.register(lead, "a"); err != nil {
			t.Fatal(err)
		}
		// The node learns about its allocation by a long poll of a follower.
		poll, err := rpc.Invoke(ctx, to, methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: auth, Query: methods.Query{MinIndex: 1, MaxWait: 20 * time.Second}})
		if err != nil || len(poll.Changed) != 1 || len(poll.Jobs) != 1 || len(poll.Refs) != 1 || poll.Cluster.IsZero() {
			t.Fatalf("poll: %+v, %v", poll, err)
		}
		alloc := poll.Changed[0]
		again, err := rpc.Invoke(ctx, to, methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: auth, Query: methods.Query{MinIndex: poll.Meta.Index, MaxWait: time.Second}})
		if err != nil || len(again.Changed) != 0 || len(again.Refs) != 1 {
			t.Fatalf("second poll: %+v, %v", again, err)
		}
		// Its observations are stored, if they are about its own allocations.
		obs := &methods.NodeObserveRequest{NodeAuth: auth, Updates: []structs.AllocObserved{{ID: alloc.ID, Client: structs.ClientRunning}}}
		if _, err := rpc.Invoke(ctx, to, methods.NodeObserve, rpc.Header{}, obs); err != nil {
			t.Fatal(err)
		}
		if a := c.servers[lead].Published().Snapshot.AllocByID(alloc.ID); a.Client != structs.ClientRunning {
			t.Fatalf("observed running, the state says %s", a.Client)
		}
		other := testNode(2)
		pool2, to2 := nodeSide(c, home, other)
		defer pool2.Close()
		if _, err := rpc.Invoke(ctx, to2, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: other}); err != nil {
			t.Fatal(err)
		}
		obs.NodeAuth = methods.NodeAuth{NodeID: other.ID, Secret: other.SecretID}
		if _, err := rpc.Invoke(ctx, to2, methods.NodeObserve, rpc.Header{}, obs); structs.CodeOf(err) != structs.CodeDenied {
			t.Fatalf("a node reported about another node's allocation: %v", err)
		}
		// Calls about the allocation are forwarded from every server.
		for i := range c.servers {
			from := c.servers[i].Caller(rpc.Peer{})
			st, err := rpc.Invoke(ctx, from, methods.ClientStats, rpc.Header{}, &methods.AllocNodeRequest{AllocID: alloc.ID})
			if err != nil || st.Total.Pids != 7 {
				t.Fatalf("stats through server %d: %+v, %v", i, st, err)
			}
			logs, err := rpc.OpenStream(ctx, from, methods.ClientLogs, rpc.Header{}, &methods.LogsRequest{AllocID: alloc.ID, Task: "t", Type: "stdout"})
			if err != nil {
				t.Fatal(err)
			}
			lines := 0
			for {
				var f methods.FSFrame
				if err := logs.RecvMsg(&f); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("logs through server %d: %v", i, err)
				}
				lines++
			}
			if lines != 3 {
				t.Fatalf("%d frames through server %d", lines, i)
			}
		}
		pool.Close()
		time.Sleep(time.Second)
		_, err = rpc.Invoke(ctx, c.servers[lead].Caller(rpc.Peer{}), methods.ClientStats, rpc.Header{}, &methods.AllocNodeRequest{AllocID: alloc.ID})
		if structs.CodeOf(err) != structs.CodeUnavailable {
			t.Fatalf("a call to a node that is gone: %v", err)
		}
	})
}

// A node that sends what it knows receives only changes, and everything after something was removed.
func TestPollTellsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		n := testNode(1)
		pool, to := nodeSide(c, (lead+1)%3, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n}); err != nil {
			t.Fatal(err)
		}
		auth := methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}
		last := &methods.NodePollResponse{}
		poll := func(what string, wait time.Duration, partial bool, refs, changed int) {
			t.Helper()
			resp, err := rpc.Invoke(ctx, to, methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{
				NodeAuth: auth, Known: last.Known, Query: methods.Query{MinIndex: last.Index, MaxWait: wait, Stale: true},
			})
			if err != nil || resp.Partial != partial || len(resp.Refs) != refs || len(resp.Changed) != changed {
				t.Fatalf("%s: %+v, %v; want partial %t, %d refs, %d in full", what, resp, err, partial, refs, changed)
			}
			last = resp
		}
		register := func(id string) {
			t.Helper()
			if err := c.register(lead, id); err != nil {
				t.Fatal(err)
			}
		}
		register("a")
		time.Sleep(time.Second)
		poll("the first", time.Second, false, 1, 1)
		a := last.Changed[0].ID
		register("b")
		poll("one more", 2*time.Second, true, 1, 1)
		b := last.Changed[0].ID
		if a == b {
			t.Fatal("the same allocation twice")
		}
		_, err := c.servers[lead].apply(ctx, replica.LaneUser, structs.Command{Body: &structs.JobDeregisterCommand{Namespace: "default", JobID: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		poll("one is to stop", 2*time.Second, true, 1, 1)
		obs := &methods.NodeObserveRequest{NodeAuth: auth, Updates: []structs.AllocObserved{{ID: a, Client: structs.ClientComplete}}}
		waiting := make(chan struct{})
		go func() {
			defer close(waiting)
			poll("its own report is no news", time.Second, true, 0, 0)
		}()
		time.Sleep(500 * time.Millisecond)
		if _, err := rpc.Invoke(ctx, to, methods.NodeObserve, rpc.Header{}, obs); err != nil {
			t.Fatal(err)
		}
		<-waiting
		if _, err := c.servers[lead].apply(ctx, replica.LaneUser, structs.Command{Body: &structs.CollectCommand{Allocs: []structs.AllocID{a}}}); err != nil {
			t.Fatal(err)
		}
		poll("one was collected", time.Second, false, 1, 0)
		if last.Refs[0].ID != b {
			t.Fatalf("%s is listed, not %s", last.Refs[0].ID, b)
		}
		poll("and no more", time.Second, true, 0, 0)
		register("c")
		poll("another one", 2*time.Second, true, 1, 1)
	})
}

func TestEventStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		open := func(req *methods.EventStreamRequest) *rpc.Stream {
			st, err := rpc.OpenStream(ctx, s.Caller(rpc.Peer{}), methods.EventStream, rpc.Header{Namespace: "*"}, req)
			if err != nil {
				t.Fatal(err)
			}
			var opened methods.EventBatch // reports that the stream is open
			if err := st.RecvMsg(&opened); err != nil || len(opened.Events) != 0 || opened.Gap {
				t.Fatalf("opening batch: %+v, %v", opened, err)
			}
			return st
		}
		jobs := open(&methods.EventStreamRequest{Topics: map[string][]string{"Job": {"a"}}})
		synctest.Wait()
		for _, id := range []string{"b", "a"} {
			call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(id, 1)})
		}
		var b methods.EventBatch
		if err := jobs.RecvMsg(&b); err != nil || len(b.Events) != 1 || b.Events[0].Key != "a" || b.Events[0].Type != "JobRegistered" || b.Events[0].Job == nil {
			t.Fatalf("first batch: %+v, %v", b, err)
		}
		// From an index that is still kept, all events arrive in order.
		all := open(&methods.EventStreamRequest{Index: 1})
		var last structs.Index
		seen := map[string]bool{}
		for !seen["Job/a"] || !seen["Job/b"] {
			var b methods.EventBatch
			if err := all.RecvMsg(&b); err != nil {
				t.Fatal(err)
			}
			if b.Gap || b.Index < last {
				t.Fatalf("batch %d after %d, gap %v", b.Index, last, b.Gap)
			}
			last = b.Index
			for _, e := range b.Events {
				seen[e.Topic+"/"+e.Key] = true
			}
		}
		// A heartbeat is sent when nothing happens.
		waitQuiet(s)
		began := time.Now()
		beat := open(&methods.EventStreamRequest{Topics: map[string][]string{"Node": {"*"}}})
		var hb methods.EventBatch
		if err := beat.RecvMsg(&hb); err != nil || len(hb.Events) != 0 || time.Since(began) > 2*endpoint.EventHeartbeat {
			t.Fatalf("heartbeat: %+v, %v after %s", hb, err, time.Since(began))
		}
		// Events that fell out of the ring are reported as a gap.
		s.ring.Feed(replica.Applied{Published: &replica.Published{Index: last}, Lost: true})
		gap := open(&methods.EventStreamRequest{Index: 1})
		var g methods.EventBatch
		if err := gap.RecvMsg(&g); err != nil || !g.Gap {
			t.Fatalf("batch after the ring moved on: %+v, %v", g, err)
		}
		st, err := rpc.OpenStream(ctx, s.Caller(rpc.Peer{}), methods.EventStream, rpc.Header{}, &methods.EventStreamRequest{Topics: map[string][]string{"Nonsense": nil}})
		if err == nil {
			_, err = st.Recv()
		}
		if structs.CodeOf(err) != structs.CodeInvalid {
			t.Fatalf("an unknown topic: %v", err)
		}
	})
}

// The stream of a deleted token ends within about a second.
func TestRevokedTokenLosesItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL, c.Dev, c.BootstrapExpect = true, false, 1 })
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		apply := func(body structs.CommandBody) {
			if _, err := s.apply(ctx, replica.LaneUser, structs.Command{Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		tok := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](), Type: "client", Policies: []string{"r"}}
		apply(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{{Name: "r", Rules: `namespace "default" { policy = "read" }`}}})
		apply(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}})
		st, err := rpc.OpenStream(ctx, s.Caller(rpc.Peer{}), methods.EventStream, rpc.Header{Token: tok.Secret.String()}, &methods.EventStreamRequest{Topics: map[string][]string{"Job": nil}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Recv(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		began := time.Now()
		apply(&structs.TokenDeleteCommand{Accessors: []structs.AccessorID{tok.Accessor}})
		if _, err := st.Recv(); structs.CodeOf(err) != structs.CodeDenied || time.Since(began) > 2*endpoint.EventReauth {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
	})
}

// TestJobCheckpoint: every server can ask the running work of a job to save its state. A job, group or rank that cannot
// be asked gives one error that says why; an allocation that cannot be reached has its own error in the answer.
func TestJobCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		n := testNode(1)
		pool, to := nodeSide(c, (lead+1)%3, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n}); err != nil {
			t.Fatal(err)
		}
		auth := methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}
		register := func(id string, change func(*structs.Job)) {
			t.Helper()
			j := apiJob(id, 2)
			change(j)
			if err := c.call(lead, func(ctx context.Context, to rpc.Caller) error {
				_, err := rpc.Invoke(ctx, to, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		register("gang", func(j *structs.Job) {
			j.Groups[0].Gang, j.Groups[0].Launch = &structs.Gang{}, &structs.Launch{Ranks: 2}
			j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1"}
		})
		register("plain", func(*structs.Job) {})
		register("quiet", func(j *structs.Job) { j.Groups[0].Checkpoint = &structs.Checkpoint{Dir: "/data"} })
		register("waits", func(j *structs.Job) {
			j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1"}
			j.Groups[0].Tasks[0].Resources.CPU = 1 << 30
		})
		obs := &methods.NodeObserveRequest{NodeAuth: auth}
		for at := time.Now(); len(obs.Updates) < 6; {
			poll, err := rpc.Invoke(ctx, to, methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: auth, Query: methods.Query{MinIndex: 1, MaxWait: time.Second}})
			if err != nil || time.Since(at) > time.Minute {
				t.Fatalf("%d allocations, %v", len(obs.Updates), err)
			}
			if obs.Updates = nil; len(poll.Changed) < 6 {
				time.Sleep(time.Second)
			}
			for _, a := range poll.Changed {
				obs.Updates = append(obs.Updates, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning})
			}
		}
		if _, err := rpc.Invoke(ctx, to, methods.NodeObserve, rpc.Header{}, obs); err != nil {
			t.Fatal(err)
		}
		rank := func(n int) *int { return &n }
		ask := func(i int, req *methods.JobCheckpointRequest) (*methods.JobCheckpointResponse, error) {
			return rpc.Invoke(ctx, c.servers[i].Caller(rpc.Peer{}), methods.JobCheckpoint, rpc.Header{}, req)
		}
		for i := range c.servers {
			resp, err := ask(i, &methods.JobCheckpointRequest{JobID: "gang"})
			if err != nil || len(resp.Allocs) != 2 {
				t.Fatalf("through server %d: %+v, %v", i, resp, err)
			}
			for k, a := range resp.Allocs {
				if a.Error != "" || a.Notice == nil || a.Notice.How != "signal SIGUSR1" || a.NodeRank != k {
					t.Errorf("through server %d: %+v", i, a)
				}
			}
		}
		for r, member := range []int{0, 0, 1, 1} {
			resp, err := ask(lead, &methods.JobCheckpointRequest{JobID: "gang", Rank: rank(r)})
			if err != nil || len(resp.Allocs) != 1 || resp.Allocs[0].NodeRank != member {
				t.Errorf("rank %d: %+v, %v", r, resp, err)
			}
		}
		for want, req := range map[string]*methods.JobCheckpointRequest{
			`job "plain" has no checkpoint block`:                  {JobID: "plain"},
			`block of group "g" does not say how to ask its tasks`: {JobID: "quiet"},
			`job "waits" has no running allocations`:               {JobID: "waits"},
			`job "gang" has no group "h"`:                          {JobID: "gang", Group: "h"},
			"the ranks are 0 to 3":                                 {JobID: "gang", Group: "g", Rank: rank(4)},
			`job "nobody" not found`:                               {JobID: "nobody"},
		} {
			if _, err := ask(lead, req); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v gives %v, want %q", req, err, want)
			}
		}
		pool.Close()
		time.Sleep(time.Second)
		resp, err := ask(lead, &methods.JobCheckpointRequest{JobID: "gang"})
		if err != nil || len(resp.Allocs) != 2 || resp.Allocs[0].Notice != nil || !strings.Contains(resp.Allocs[0].Error, "not connected") {
			t.Errorf("of a node that is gone: %+v, %v", resp, err)
		}
	})
}

// TestUnisolated: which calls need alloc-node-exec as well.
func TestUnisolated(t *testing.T) {
	a := &structs.Allocation{Group: "g", Job: &structs.Job{Groups: []*structs.Group{{
		Name: "g", Tasks: []*structs.Task{{Name: "inside", Driver: "exec"}, {Name: "loose", Driver: "raw_exec"}},
	}}}}
	tight := &structs.Allocation{Group: "g", Job: &structs.Job{Groups: []*structs.Group{{
		Name: "g", Tasks: []*structs.Task{{Name: "inside", Driver: "exec"}, {Name: "box", Driver: "docker"}},
	}}}}
	for _, c := range []struct {
		method string
		a      *structs.Allocation
		task   string
		want   string
	}{
		{methods.ClientExec.Name, a, "inside", ""},
		{methods.ClientExec.Name, a, "loose", "loose"},
		{methods.ClientExec.Name, a, "none", "none"},
		{methods.ClientExec.Name, &structs.Allocation{Group: "g"}, "inside", "inside"},
		{methods.ClientForward.Name, a, "", "loose"},
		{methods.ClientForward.Name, a, "inside", "loose"}, // the network is that of all tasks
		{methods.ClientForward.Name, tight, "", ""},
		{methods.ClientForward.Name, &structs.Allocation{Group: "g"}, "", "?"},
		{methods.ClientSignal.Name, a, "loose", ""},
	} {
		if got := unisolated(c.method, c.a, c.task); got != c.want {
			t.Errorf("%s into task %q: %q, want %q", c.method, c.task, got, c.want)
		}
	}
}
