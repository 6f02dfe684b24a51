package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// elections returns how often servers began to lead.
func (c *cluster) elections() (n int64) {
	for _, s := range c.servers {
		n += s.lead.gains.Load()
	}
	return n
}

// A leader that stalls again and again, longer each time than a silence that would replace it in a quiet cluster, keeps
// leadership. Where nothing has stalled for a while, a dead leader is replaced within 700 ms.
func TestStalledLeaderKeepsLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		before := c.elections()
		stall := func(times int, d time.Duration) {
			for range times {
				c.net.Isolate(hostName(lead))
				time.Sleep(d)
				c.net.Heal()
				time.Sleep(time.Second)
			}
		}
		stall(3, replica.QuietDefault*2/3)
		stall(5, replica.QuietDefault*2)
		if now := c.leader(); now != lead || c.elections() != before {
			t.Errorf("%d elections because the leader stalled", c.elections()-before)
		}
		time.Sleep(15 * time.Second)
		killed := time.Now()
		c.net.Kill(hostName(lead))
		next := c.leader(lead)
		took := time.Since(killed)
		t.Logf("server %d leads %s after the death of a leader in a quiet cluster", next, took)
		if took > 700*time.Millisecond {
			t.Errorf("a dead leader was replaced after %s, although nothing had stalled for 15 s; want 700 ms", took)
		}
	})
}

// A silent leader is replaced by raft itself when the servers cannot agree soon because of earlier stalls.
func TestStalledClusterReplacesDeadLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		c.net.Isolate(hostName(lead))
		time.Sleep(replica.QuietDefault * 9 / 10)
		c.net.Heal()
		time.Sleep(time.Second)
		killed := time.Now()
		c.net.Kill(hostName(lead))
		c.leader(lead)
		if took := time.Since(killed); took > 3*replica.HeartbeatDefault {
			t.Errorf("a dead leader was replaced after %s; want %s", took, 3*replica.HeartbeatDefault)
		}
	})
}

// Heartbeats are answered while a follower writes: a slow disk of all followers does not end a term.
func TestSlowFollowersHearHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow [3]atomic.Int64
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Testing.Replica.StoreLogs = func() error { time.Sleep(time.Duration(slow[i].Load())); return nil }
		})
		lead := c.leader()
		c.converge()
		before := c.elections()
		for i := range slow {
			if i != lead {
				slow[i].Store(int64(3 * time.Second))
			}
		}
		for _, id := range []string{"a", "b"} {
			if err := c.register(lead, id); err != nil {
				t.Error(err)
			}
		}
		if n := c.elections(); n != before {
			t.Errorf("%d elections while followers wrote for 3 s", n-before)
		}
		for i := range slow {
			slow[i].Store(0)
		}
	})
}

// The services of a leader that loses its network end within 100 ms although a pass computes for seconds.
func TestServicesEndInAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passing atomic.Int64
		c := newCluster(t, 3, func(_ int, cfg *Config) {
			cfg.Testing.Decide.BeforeSchedule = func(scheduler.Input) {
				passing.Add(1)
				time.Sleep(5 * time.Second)
				passing.Add(-1)
			}
		})
		lead := c.leader()
		if err := c.register(lead, "a"); err != nil {
			t.Fatal(err)
		}
		for passing.Load() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		s := c.servers[lead]
		s.lead.ended.Store(-1) // until they have ended
		c.net.Isolate(hostName(lead))
		for s.replica.IsRaftLeader() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		if passing.Load() == 0 {
			t.Fatal("the pass ended before leadership did: the test shows nothing")
		}
		if ended := s.lead.ended.Load(); ended < 0 {
			t.Error("the services have not ended 100 ms after leadership was lost")
		}
		c.net.Heal()
	})
}

// A heartbeat through a follower is answered although more calls are in progress than one session takes.
func TestHeartbeatsPassOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held [3]atomic.Bool
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Testing.Replica.BeforeApply = func() {
				for held[i].Load() {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
		lead := c.leader()
		node := testNode(1)
		call(t, c.servers[lead], methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
		c.converge()
		follower := c.servers[(lead+1)%3]
		held[lead].Store(true)
		ctx, cancel := context.WithCancel(context.Background())
		for i := range rpc.DefaultMaxStreams + 100 {
			go func() {
				_, _ = rpc.Invoke(ctx, follower.Caller(rpc.Peer{}), methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(fmt.Sprint("j", i), 1)})
			}()
		}
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		bctx, done := context.WithTimeout(ctx, 3*time.Second)
		_, err := rpc.Invoke(bctx, follower.Caller(rpc.Peer{}), methods.NodeHeartbeat, rpc.Header{},
			&methods.NodeHeartbeatRequest{NodeAuth: methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}, Status: structs.NodeReady})
		if took := time.Since(began); err != nil || took > 100*time.Millisecond {
			t.Errorf("a heartbeat beside %d calls: %v after %s", rpc.DefaultMaxStreams, err, took)
		}
		done()
		cancel()
		held[lead].Store(false)
	})
}

// A node whose heartbeats were late by as long as the server itself did not run is not down.
func TestStallsOfTheServerGiveNodesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		node := testNode(1)
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
		auth := methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}
		beat := func() time.Duration {
			return call(t, s, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: auth, Status: structs.NodeReady}).HeartbeatTTL
		}
		ttl := beat()
		for range 30 { // the watch reports both, and the second counts, because it contains the first
			s.stalled(replica.StallProcess, 200*time.Millisecond)
			s.stalled(replica.StallQueue, 200*time.Millisecond)
		}
		time.Sleep(ttl + 10*time.Second)
		if n := s.Published().Snapshot.NodeByID(node.ID); n.Status != structs.NodeReady {
			t.Errorf("the node is %s after %s, 6 s of which the server did not run", n.Status, ttl+10*time.Second)
		}
		time.Sleep(3 * time.Second)
		if n := s.Published().Snapshot.NodeByID(node.ID); n.Status != structs.NodeDown {
			t.Errorf("the node is %s; want it down", n.Status)
		}
	})
}
