package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/structs"
)

// silent registers a node through a server, keeps the session and sends no heartbeats.
func (c *cluster) silent(i, server int) *structs.Node {
	c.t.Helper()
	n := testNode(i)
	h := c.net.Host(n.Name)
	pool := rpc.NewPool(rpc.PoolConfig{Dial: h.Dial, Registry: rpc.NewRegistry(nil, nil)})
	c.t.Cleanup(func() { pool.Close() })
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	to := pool.To(c.net.Host(hostName(server)).IP().String() + ":4647")
	if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n}); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// TestLateHeartbeats: a node whose heartbeats do not arrive stays ready while its agent answers on its session, whichever
// server has it, for the grace and no longer. It goes down when the agent answers no more. A server that does not say
// what it sees gives nodes one interval more.
func TestLateHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		follower, other := (lead+1)%3, (lead+2)%3
		s := c.servers[lead]
		status := func(n *structs.Node) structs.NodeStatus { return s.Published().Snapshot.NodeByID(n.ID).Status }
		atLeader, atFollower, cut := c.silent(1, lead), c.silent(2, follower), c.silent(3, follower)
		began := time.Now()
		for time.Since(began) < 45*time.Second {
			for _, n := range []*structs.Node{atLeader, atFollower, cut} {
				if got := status(n); got != structs.NodeReady {
					t.Fatalf("%s is %s after %s, though its agent answers", n.Name, got, time.Since(began))
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if m := s.nodes.Beats.Metrics(); m.Spared == 0 || m.Missed != 0 {
			t.Errorf("45 s without heartbeats: %+v", m)
		}
		c.net.Isolate(cut.Name)
		waitFor(t, beatIntervalAndMore, "the node whose agent answers no more to be down", func() bool { return status(cut) == structs.NodeDown })
		for _, n := range []*structs.Node{atLeader, atFollower} {
			waitFor(t, 30*time.Second, n.Name+" to be down", func() bool { return status(n) == structs.NodeDown })
		}
		if took := time.Since(began); took < 60*time.Second || took > 75*time.Second {
			t.Errorf("nodes without heartbeats are down after %s; their agents answered, so want the grace of 60s", took)
		}

		// A server that is cut off a moment ago has a session that it cannot speak about.
		unknown := c.silent(4, other)
		began = time.Now()
		time.Sleep(14 * time.Second)
		c.net.Partition([]string{hostName(other)}, []string{hostName(lead), hostName(follower)})
		waitFor(t, 40*time.Second, "the node of a server that is cut off to be down", func() bool { return status(unknown) == structs.NodeDown })
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("down after %s, though a server did not say what it sees", took)
		}
	})
}

// beatIntervalAndMore is the longest time until the servers look again at a node whose agent answered, with their question.
const beatIntervalAndMore = 13 * time.Second

// TestAskingKeepsTheNode: while the servers are asked whether the agent of a node answers, no other agent gets the node.
func TestAskingKeepsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		s := c.servers[lead]
		n := c.silent(1, (lead+1)%3)
		for began := time.Now(); time.Since(began) < 40*time.Second; time.Sleep(50 * time.Millisecond) {
			if got := s.nodes.Beats.Claim(n.ID, structs.StartID{7}); got == nodes.ClaimFree {
				t.Fatalf("the node is free after %s, though its agent answers", time.Since(began))
			}
		}
	})
}
