package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// agentOf is an agent of a node, as the servers see it: one start of it at a place.
type agentOf struct {
	c    *cluster
	node structs.Node
}

func (a *agentOf) auth() methods.NodeAuth {
	return methods.NodeAuth{NodeID: a.node.ID, Secret: a.node.SecretID, Start: a.node.Start}
}

// register returns the code of the answer, "" for success.
func (a *agentOf) register(at int) structs.ErrorCode {
	n := a.node
	_, err := rpc.Invoke(context.Background(), a.c.servers[at].Caller(rpc.Peer{}), methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: &n})
	return codeOf(err)
}

func (a *agentOf) beat(at int) structs.ErrorCode {
	_, err := rpc.Invoke(context.Background(), a.c.servers[at].Caller(rpc.Peer{}), methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: a.auth(), Status: structs.NodeReady})
	return codeOf(err)
}

func (a *agentOf) poll(at int) structs.ErrorCode {
	_, err := rpc.Invoke(context.Background(), a.c.servers[at].Caller(rpc.Peer{}), methods.NodePoll, rpc.Header{}, &methods.NodePollRequest{NodeAuth: a.auth()})
	return codeOf(err)
}

func (a *agentOf) observe(at int) structs.ErrorCode {
	_, err := rpc.Invoke(context.Background(), a.c.servers[at].Caller(rpc.Peer{}), methods.NodeObserve, rpc.Header{}, &methods.NodeObserveRequest{NodeAuth: a.auth()})
	return codeOf(err)
}

func codeOf(err error) structs.ErrorCode {
	if err == nil {
		return ""
	}
	return structs.CodeOf(err)
}

// TestTwoAgentsOfOneNode: of two agents with the id and secret of one node, the one that sends heartbeats keeps the node,
// until it is silent. The calls of the other are refused, at the leader and at a follower.
func TestTwoAgentsOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		follower := (lead + 1) % 3
		want := func(what string, got, want structs.ErrorCode) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		first := &agentOf{c, *testNode(1)}
		first.node.Start, first.node.Place = structs.StartID{1}, "here"
		copied := &agentOf{c, first.node}
		copied.node.Start, copied.node.Place = structs.StartID{2}, "there"

		want("the first agent registers", first.register(lead), "")
		want("it is alive", first.beat(lead), "")
		c.converge()
		for range 2 {
			want("a copy registers while the first may live", copied.register(follower), structs.CodeBusy)
		}
		for _, at := range []int{lead, follower} {
			want("a copy's heartbeat", copied.beat(at), structs.CodeFenced)
			want("a copy's poll", copied.poll(at), structs.CodeFenced)
			want("a copy's report", copied.observe(at), structs.CodeFenced)
			want("the first agent's poll", first.poll(at), "")
		}
		time.Sleep(5 * time.Second)
		want("the first agent's heartbeat", first.beat(follower), "")
		want("a copy registers while the first lives", copied.register(lead), structs.CodeFenced)
		want("the first agent registers again", first.register(lead), "")

		// The agent is restarted at its place: at once.
		again := &agentOf{c, first.node}
		again.node.Start = structs.StartID{3}
		want("a restarted agent registers", again.register(lead), "")
		want("its heartbeat", again.beat(lead), "")
		want("its poll, at a follower that may lag", again.poll(follower), "")
		want("the heartbeat of the agent before it", first.beat(lead), structs.CodeFenced)

		// The machine is gone: after a heartbeat interval the copy may have the node.
		copied.node.Start = structs.StartID{4}
		want("another copy registers", copied.register(lead), structs.CodeBusy)
		waitFor(t, time.Minute, "the missed heartbeat", func() bool {
			return c.servers[lead].Published().Snapshot.NodeByID(first.node.ID).Status == structs.NodeDown
		})
		want("it registers after that", copied.register(lead), "")
		want("its heartbeat", copied.beat(lead), "")
		want("the heartbeat of the machine that was gone", again.beat(lead), structs.CodeFenced)
		want("its registration", again.register(lead), structs.CodeBusy)
		time.Sleep(5 * time.Second)
		want("the copy's heartbeat", copied.beat(lead), "")
		want("its second registration", again.register(lead), structs.CodeFenced)
	})
}

// TestFenceAfterElection: a new leader does not know when the agents were heard, so that a copy waits for a whole
// interval, and the agent that lives keeps the node.
func TestFenceAfterElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		first := &agentOf{c, *testNode(1)}
		first.node.Start, first.node.Place = structs.StartID{1}, "here"
		copied := &agentOf{c, first.node}
		copied.node.Start, copied.node.Place = structs.StartID{2}, "there"
		if code := first.register(lead); code != "" {
			t.Fatal(code)
		}
		c.converge()
		c.stops[lead]()
		next := c.leader(lead)
		if code := copied.register(next); code != structs.CodeBusy {
			t.Errorf("a copy registers at a new leader: %q, want busy", code)
		}
		if code := first.beat(next); code != "" {
			t.Errorf("the heartbeat of the agent that lives: %q", code)
		}
		if code := copied.register(next); code != structs.CodeFenced {
			t.Errorf("a copy registers again: %q, want fenced", code)
		}
	})
}

// TestRefusingNodeIsMarked: a node whose agent obeys no answer is not ready, with the reason, and gets no work; one of
// another cluster does not even become ready for a moment.
func TestRefusingNodeIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		s := c.servers[c.leader()]
		node := testNode(1)
		state := func() *structs.Node { return s.Published().Snapshot.NodeByID(node.ID) }
		beat := func(status structs.NodeStatus, refuses string) {
			t.Helper()
			call(t, s, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}, Status: status, Refuses: refuses})
		}
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node, Cluster: structs.ClusterID{9}})
		if n := state(); n.Status != structs.NodeInit {
			t.Fatalf("a node of another cluster is %s after its registration", n.Status)
		}
		beat(structs.NodeInit, "it belongs to cluster 9")
		at := state().ModifyIndex
		beat(structs.NodeInit, "it belongs to cluster 9")
		n := state()
		if n.Status != structs.NodeInit || !strings.Contains(n.StatusDesc, "it belongs to cluster 9") || n.ModifyIndex != at {
			t.Errorf("the node is %s (%q), changed at %d and %d", n.Status, n.StatusDesc, at, n.ModifyIndex)
		}
		if e := n.Events[len(n.Events)-1]; !strings.Contains(e.Message, "it belongs to cluster 9") {
			t.Errorf("its newest event is %q", e.Message)
		}
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
		time.Sleep(5 * time.Second)
		for a := range s.Published().Snapshot.AllocsOf(node.ID) {
			t.Errorf("allocation %s was placed on a node that refuses", a.ID)
		}
		beat(structs.NodeReady, "")
		time.Sleep(5 * time.Second)
		placed := 0
		for range s.Published().Snapshot.AllocsOf(node.ID) {
			placed++
		}
		if n := state(); n.Status != structs.NodeReady || n.StatusDesc != "" || placed != 1 {
			t.Errorf("after it obeys again the node is %s (%q) with %d allocations", n.Status, n.StatusDesc, placed)
		}
		beat(structs.NodeInit, "it lost its way") // while it is ready
		if n := state(); n.Status != structs.NodeInit {
			t.Errorf("a ready node that refuses is %s", n.Status)
		}
	})
}
