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
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestMissedHeartbeat: a silent node is down within 20 s and its work runs elsewhere. When it sends heartbeats again it
// is ready.
func TestMissedHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		register(t, s, passJob("web", 6, nil))
		waitFor(t, 5*time.Second, "web", func() bool { return running(s, "web") == 6 })
		time.Sleep(2 * time.Minute)
		if m := s.nodes.Beats.Metrics(); m.Missed != 0 || m.Beats < 60 {
			t.Fatalf("two quiet minutes: %+v", m)
		}
		index := s.Published().Index
		time.Sleep(2 * time.Minute)
		if s.Published().Index != index {
			t.Errorf("heartbeats wrote %d entries to the log", s.Published().Index-index)
		}
		busy := live(s, "web")[0].NodeID
		f.set(func() { f.dead[busy] = true })
		began := time.Now()
		waitFor(t, 20*time.Second, "node down", func() bool {
			return s.Published().Snapshot.NodeByID(busy).Status == structs.NodeDown
		})
		waitFor(t, 5*time.Second, "replacements", func() bool { return running(s, "web") == 6 })
		t.Logf("down and replaced after %s", time.Since(began))
		for _, a := range s.Published().Snapshot.AllocsByNode(busy) {
			if !a.ClientTerminal() {
				t.Errorf("allocation %s on the dead node is %s", a.ID, a.Client)
			}
		}
	})
}

// TestReportsKeepNodesUp: a node whose heartbeats do not arrive, because they are late behind its reports or lost, does not go
// down while other calls of it come, refused or not. When they stop, it does.
func TestReportsKeepNodesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		id := f.nodes[0].ID
		f.set(func() { f.dead[id] = true }) // no heartbeats
		status := func() structs.NodeStatus { return s.Published().Snapshot.NodeByID(id).Status }
		nobodys := []structs.AllocObserved{{ID: structs.AllocID{9}, Client: "nonsense"}}
		for range 24 {
			_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{Local: true}), methods.NodeObserve, rpc.Header{},
				&methods.NodeObserveRequest{NodeAuth: methods.NodeAuth{NodeID: id, Secret: f.nodes[0].SecretID, Start: f.nodes[0].Start}, Updates: nobodys})
			if structs.CodeOf(err) != structs.CodeInvalid {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if got := status(); got != structs.NodeReady {
				t.Fatalf("a node that reports is %s", got)
			}
		}
		waitFor(t, 20*time.Second, "node down", func() bool { return status() == structs.NodeDown })
	})
}

// TestReportsFromTheFuture: an agent whose clock is a day ahead does not make its work start, or end, in the future.
func TestReportsFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		n := f.nodes[0]
		f.set(func() { f.dead[n.ID] = true }) // its own reports would come first
		register(t, s, passJob("web", 1, nil))
		waitFor(t, 5*time.Second, "a placement", func() bool { return len(live(s, "web")) == 1 })
		a, ahead := live(s, "web")[0], structs.LogTimeOf(time.Now().Add(24*time.Hour))
		for _, u := range []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: ahead}, {ID: a.ID, Client: structs.ClientComplete, StartedAt: ahead, FinishedAt: ahead}} {
			time.Sleep(time.Second)
			if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{Local: true}), methods.NodeObserve, rpc.Header{}, &methods.NodeObserveRequest{
				NodeAuth: methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID, Start: n.Start}, Updates: []structs.AllocObserved{u}}); err != nil {
				t.Fatal(err)
			}
		}
		if a = s.Published().Snapshot.AllocByID(a.ID); a.StartedAt == 0 || a.StartedAt > s.replica.Now() || a.FinishedAt.Sub(a.StartedAt).Round(100*time.Millisecond) != time.Second {
			t.Errorf("started at %v and ended at %v; it is %v", a.StartedAt, a.FinishedAt, s.replica.Now())
		}
	})
}

// TestStalledLeaderBlamesNobody: while the leader's own goroutines wait for their turn, it handles no heartbeats, and no node
// goes down for it, however long that takes in sum. Afterwards a silent node does.
func TestStalledLeaderBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.set(func() { f.dead[f.nodes[0].ID], f.dead[f.nodes[1].ID] = true, true })
		for range 150 {
			time.Sleep(400 * time.Millisecond)
			s.stalled(replica.StallQueue, 350*time.Millisecond)
		}
		if m := s.nodes.Beats.Metrics(); m.Missed != 0 {
			t.Errorf("%d of 2 nodes went down while the leader was starved for seven eighths of the time", m.Missed)
		}
		waitFor(t, 20*time.Second, "nodes down", func() bool { return s.nodes.Beats.Metrics().Missed == 2 })
	})
}

// TestPausedLeaderBlamesNobody: a leader that did not run for a while, so that it heard no heartbeats, gives nodes more time, also if
// it is a write that it notices first and not its timer.
func TestPausedLeaderBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passed atomic.Int64
		s := testServer(t, func(c *Config) {
			c.Testing.Steady = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		})
		f := newFleet(t, one(s), 3)
		for i, by := range []time.Duration{20 * time.Second, time.Hour, 24 * time.Hour, time.Minute} {
			time.Sleep(3 * time.Second)
			passed.Add(int64(by))
			if i%2 == 0 {
				register(t, s, passJob(fmt.Sprint("job-", i), 0, nil))
			}
			time.Sleep(time.Minute)
		}
		if m := s.nodes.Beats.Metrics(); m.Missed != 0 || m.Stalls != 4 {
			t.Errorf("%d nodes went down and %d pauses were noticed; want none and 4", m.Missed, m.Stalls)
		}
		f.set(func() { f.dead[f.nodes[0].ID] = true })
		waitFor(t, 20*time.Second, "dead node noticed", func() bool { return s.nodes.Beats.Metrics().Missed == 1 })
	})
}

// TestClockJumps (I8): when the wall clock of the leader jumps, no healthy node goes down, and a dead one still does: heartbeats
// are not timed by that clock. Writes in the instant of a jump wake their timers.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var off atomic.Int64
		s := testServer(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) } })
		f := newFleet(t, one(s), 3)
		register(t, s, passJob("web", 3, nil))
		waitFor(t, 5*time.Second, "web", func() bool { return running(s, "web") == 3 })
		const hour, years = time.Hour, 2 * 365 * 24 * time.Hour
		for i, x := range []struct{ by, stays time.Duration }{
			{hour, 3 * time.Minute}, {hour + years, 3 * time.Minute}, {0, 3 * time.Minute},
			{-hour, 8 * time.Second}, {0, time.Minute}, {-years, 8 * time.Second}, {0, time.Minute}, {years, 8 * time.Second}, {0, time.Minute},
		} {
			off.Store(int64(x.by))
			register(t, s, passJob(fmt.Sprint("job-", i), 0, nil))
			time.Sleep(x.stays)
			for n := range s.Published().Snapshot.Nodes() {
				if n.Status != structs.NodeReady {
					t.Fatalf("node %s is %s %s after jump %d of the clock, to %s from the time", n.Name, n.Status, x.stays, i, x.by)
				}
			}
		}
		f.set(func() { f.dead[f.nodes[0].ID] = true })
		waitFor(t, time.Minute, "dead node noticed", func() bool {
			return s.Published().Snapshot.NodeByID(f.nodes[0].ID).Status == structs.NodeDown
		})
	})
}

// lead returns the ready leader among the servers that the test can reach.
func (c *cluster) lead(except *int) func() *Server {
	return func() *Server {
		for i, s := range c.servers {
			if s != nil && i != *except && s.IsLeader() {
				return s
			}
		}
		return nil
	}
}

// TestNodeDiesWithTheLeader (I8): the dead node is detected within 30 s, no other node goes down, and everything that
// was acknowledged runs.
func TestNodeDiesWithTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		cut := -1
		old := c.leader()
		s := c.servers[old]
		f := newFleet(t, c.lead(&cut), 6)
		for i := range 10 {
			register(t, s, passJob(fmt.Sprint("job-", i), 3, nil))
		}
		for i := range 10 {
			waitFor(t, 20*time.Second, "job", func() bool { return running(s, fmt.Sprint("job-", i)) == 3 })
		}
		dead := live(s, "job-0")[0].NodeID
		var rest []string
		for i := range 3 {
			if i != old {
				rest = append(rest, hostName(i))
			}
		}
		f.set(func() { f.dead[dead] = true; cut = old })
		c.net.Partition([]string{hostName(old)}, rest)
		began := time.Now()
		n := c.leader(old)
		s = c.servers[n]
		t.Logf("new leader after %s", time.Since(began))
		waitFor(t, 30*time.Second-time.Since(began), "dead node noticed", func() bool {
			return s.Published().Snapshot.NodeByID(dead).Status == structs.NodeDown
		})
		t.Logf("node down after %s", time.Since(began))
		for i := range 10 {
			waitFor(t, 10*time.Second, "job", func() bool { return running(s, fmt.Sprint("job-", i)) == 3 })
		}
		for node := range s.Published().Snapshot.Nodes() {
			if node.ID != dead && node.Status != structs.NodeReady {
				t.Errorf("healthy node %s is %s", node.Name, node.Status)
			}
		}
		c.net.Heal()
		time.Sleep(20 * time.Second)
		if over := overcommitted(s); over != "" {
			t.Error(over)
		}
		if o := openEvals(s); o != 0 {
			t.Errorf("%d evaluations are open at rest", o)
		}
	})
}

// TestLeadershipFlapsUnderLoad transfers leadership again and again while jobs are registered and decided. Afterwards
// every acknowledged job runs exactly as often as it should.
func TestLeadershipFlapsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		cut := -1
		c.leader()
		f := newFleet(t, c.lead(&cut), 8)
		acked := map[string]int{}
		flaps := 0
		for flap := range 200 {
			lead := c.servers[c.leader()]
			var props []*replica.Proposal
			var ids []string
			for i := range 3 {
				id := fmt.Sprintf("job-%d-%d", flap, i)
				ids = append(ids, id)
				props = append(props, lead.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: passJob(id, 1+i, func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 20 }), Eval: true}}))
			}
			if flap%2 == 0 {
				time.Sleep(time.Duration(flap%7) * time.Millisecond)
			}
			if err := lead.replica.TransferLeadership(); err == nil {
				flaps++
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			for i, p := range props {
				if res, err := p.Wait(ctx); err == nil && res.Err == nil {
					acked[ids[i]] = 1 + i
				}
			}
			cancel()
		}
		unknown := int64(0)
		for _, s := range c.servers {
			unknown += s.decide.Metrics().Planner.Unknown
		}
		s := c.servers[c.leader()]
		for id, n := range acked {
			waitFor(t, 30*time.Second, id, func() bool { return running(s, id) == n && len(live(s, id)) == n })
		}
		if o := openEvals(s); o != 0 {
			t.Errorf("%d evaluations are open at rest", o)
		}
		if over := overcommitted(s); over != "" {
			t.Error(over)
		}
		for node := range s.Published().Snapshot.Nodes() {
			if node.Status != structs.NodeReady {
				t.Errorf("node %s is %s after nothing but elections", node.Name, node.Status)
			}
		}
		c.converge()
		t.Logf("%d jobs acknowledged over %d changes of leader, %d plans of unknown outcome", len(acked), flaps, unknown)
		if len(acked) < 100 || flaps < 150 {
			t.Errorf("too little happened: the run proves nothing: got %v, %v; want at least 100, at least 150", len(acked), flaps)
		}
		_ = f
	})
}
