package server

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// history records the outcomes of writes and the times of calls.
type history struct {
	mu      sync.Mutex
	outcome map[string]error // by the text that the write carries
	reads   int
	slowest struct{ read, write time.Duration }
	acks    []time.Time
}

// load writes and reads through a server until stop is closed. Each write creates a child of a parameterized job with
// its own payload, so that a write that was done twice is seen.
func (h *history) load(ctx context.Context, t *testing.T, s *Server, who string, stop <-chan struct{}) {
	to := s.Caller(rpc.Peer{})
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		id := fmt.Sprintf("%s-%d", who, i)
		began := time.Now()
		_, err := rpc.Invoke(ctx, to, methods.JobDispatch, rpc.Header{}, &methods.JobDispatchRequest{JobID: "p", Payload: []byte(id)})
		h.mu.Lock()
		h.outcome[id] = err
		h.slowest.write = max(h.slowest.write, time.Since(began))
		if err == nil {
			h.acks = append(h.acks, time.Now())
		}
		h.mu.Unlock()
		began = time.Now()
		_, err = rpc.Invoke(ctx, to, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "p"})
		h.mu.Lock()
		h.reads++
		h.slowest.read = max(h.slowest.read, time.Since(began))
		h.mu.Unlock()
		if err != nil {
			t.Errorf("a read through %s: %v after %s", who, err, time.Since(began))
		}
	}
}

// check compares the outcomes with a state: what was acknowledged is there once, what may have been done at most once,
// and what was refused is not there.
func (h *history) check(t *testing.T, s *Server) (unknown int) {
	t.Helper()
	count := map[string]int{}
	for j := range s.Published().Snapshot.Jobs("", "") {
		if j.ParentID != "" {
			count[string(j.Payload)]++
		}
	}
	for id, err := range h.outcome {
		n := count[id]
		code := structs.CodeOf(err)
		switch {
		case err == nil && n != 1:
			t.Errorf("the acknowledged write %s was done %d times", id, n)
		case n > 1:
			t.Errorf("the write %s was done %d times; its answer was %v", id, n, err)
		case err != nil && code != structs.CodeUnknown && n != 0:
			t.Errorf("the write %s was done; its answer was %s: %v", id, code, err)
		}
		if code == structs.CodeUnknown && err != nil {
			unknown++
		}
	}
	return unknown
}

// longestGap returns the longest time without an acknowledged write.
func (h *history) longestGap() (gap time.Duration) {
	slices.SortFunc(h.acks, func(a, b time.Time) int { return a.Compare(b) })
	for i := 1; i < len(h.acks); i++ {
		gap = max(gap, h.acks[i].Sub(h.acks[i-1]))
	}
	return gap
}

// parameterized registers the job that load dispatches.
func (c *cluster) parameterized(lead int) {
	c.t.Helper()
	job := apiJob("p", 1)
	job.Parameterized = &structs.Parameterized{Payload: "optional"}
	if err := c.call(lead, func(ctx context.Context, to rpc.Caller) error {
		_, err := rpc.Invoke(ctx, to, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job})
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	c.converge()
}

// TestSilentLeader cuts off the leader while followers have calls in flight to it. No connection breaks, as when a
// leader freezes or its machine is gone. Reads succeed at the new leader; a write gets an answer within 2 s, and none is
// done twice. MUSTER_ROUNDS sets the number of rounds.
func TestSilentLeader(t *testing.T) {
	rounds := 1
	if v, err := strconv.Atoi(os.Getenv("MUSTER_ROUNDS")); err == nil {
		rounds = v
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.net.SetDelay(2 * time.Millisecond) // so that calls are in flight when the leader falls silent
		c.parameterized(c.leader())
		for round := range rounds {
			lead := c.leader()
			h := &history{outcome: map[string]error{}}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for i, s := range c.servers {
				for w := range 3 {
					if i != lead {
						wg.Go(func() { h.load(context.Background(), t, s, fmt.Sprintf("round %d s%d w%d", round, i, w), stop) })
					}
				}
			}
			// A blocking read waits at the leader for much longer than the others.
			waiting := make(chan error, 1)
			go func() {
				_, err := rpc.Invoke(context.Background(), c.servers[(lead+1)%3].Caller(rpc.Peer{}), methods.QueueGet, rpc.Header{},
					&methods.NameRequest{Name: "default", Query: methods.Query{MinIndex: 1 << 40, MaxWait: 10 * time.Second}})
				waiting <- err
			}()
			time.Sleep(2 * time.Second)
			c.net.Isolate(hostName(lead))
			cut := time.Now()
			next := c.leader(lead)
			elected := time.Since(cut)
			time.Sleep(3 * time.Second)
			close(stop)
			wg.Wait()
			if err := <-waiting; err != nil {
				t.Errorf("a blocking read over the change of leaders: %v", err)
			}
			c.net.Heal()
			c.converge()
			unknown := h.check(t, c.servers[next])
			t.Logf("round %d: new leader after %s; %d writes, %d acknowledged, %d unknown; longest gap between acknowledged writes %s, slowest write %s, slowest of %d reads %s",
				round, elected, len(h.outcome), len(h.acks), unknown, h.longestGap(), h.slowest.write, h.reads, h.slowest.read)
			if ended := time.Duration(c.servers[lead].lead.ended.Load()); ended > 100*time.Millisecond {
				t.Errorf("the services of the leader that was cut off took %s to end", ended)
			}
			if h.slowest.write > 2*time.Second || h.slowest.read > 2*time.Second || h.longestGap() > 2*time.Second {
				t.Error("a call waited longer than 2 s for a leader that was replaced")
			}
		}
	})
}

// TestRemovedLeader removes the leader from raft while followers have calls in flight. Leadership is handed over first, so
// that no call waits for an election timeout.
func TestRemovedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.parameterized(c.leader())
		// A server that stood in the first election and lost remains a candidate of that term for up to two election
		// timeouts: raft does not make a candidate without pre-vote a follower. Until then it cannot be handed leadership.
		time.Sleep(3 * replica.HeartbeatDefault)
		for _, through := range []int{1, 0} { // a follower, the leader itself
			lead := c.leader()
			h := &history{outcome: map[string]error{}}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for i, s := range c.servers {
				if i != lead {
					wg.Go(func() { h.load(context.Background(), t, s, fmt.Sprintf("removal of s%d, s%d", lead, i), stop) })
				}
			}
			time.Sleep(300 * time.Millisecond)
			err := c.call((lead+through)%3, func(ctx context.Context, to rpc.Caller) error {
				_, err := rpc.Invoke(ctx, to, methods.RaftRemovePeer, rpc.Header{}, &methods.RaftPeerRequest{ID: c.servers[lead].ID()})
				return err
			})
			if err != nil {
				t.Fatalf("removing the leader: %v", err)
			}
			time.Sleep(time.Second)
			close(stop)
			wg.Wait()
			next := c.leader(lead)
			waitFor(t, 2*time.Minute, "three servers again", func() bool { return c.votersOf(next) == 3 }) // gossip sees the removed one alive
			time.Sleep(30 * time.Second)                                                                   // it votes again
			c.converge()
			unknown := h.check(t, c.servers[next])
			t.Logf("%d writes, %d acknowledged, %d unknown; longest gap %s, slowest write %s", len(h.outcome), len(h.acks), unknown, h.longestGap(), h.slowest.write)
			if h.longestGap() > 500*time.Millisecond || h.slowest.write > 500*time.Millisecond {
				t.Error("nothing was acknowledged for longer than a transfer of leadership takes")
			}
		}
	})
}

// TestLeaderWithIllDisk fails every write to the leader's log. The leader steps down, and another server is elected at
// once: a candidate that cannot store does not win.
func TestLeaderWithIllDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ill [3]atomic.Bool
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Testing.Replica.StoreLogs = func() error {
				if ill[i].Load() {
					return syscall.EIO
				}
				return nil
			}
		})
		c.parameterized(c.leader())
		for round := range 5 {
			lead := c.leader()
			h := &history{outcome: map[string]error{}}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for i, s := range c.servers {
				if i != lead {
					wg.Go(func() { h.load(context.Background(), t, s, fmt.Sprintf("disk %d s%d", round, i), stop) })
				}
			}
			time.Sleep(300 * time.Millisecond)
			ill[lead].Store(true)
			gains := c.servers[lead].lead.gains.Load()
			time.Sleep(3 * time.Second)
			close(stop)
			wg.Wait()
			if n := c.servers[lead].lead.gains.Load(); n != gains {
				t.Errorf("round %d: the server whose disk fails won %d elections", round, n-gains)
			}
			ill[lead].Store(false)
			if ended := time.Duration(c.servers[lead].lead.ended.Load()); ended > 100*time.Millisecond {
				t.Errorf("the services of the leader whose disk fails took %s to end", ended)
			}
			c.converge()
			unknown := h.check(t, c.servers[c.leader()])
			t.Logf("round %d: %d writes, %d acknowledged, %d unknown; longest gap %s, slowest write %s", round, len(h.outcome), len(h.acks), unknown, h.longestGap(), h.slowest.write)
			if h.longestGap() > 1500*time.Millisecond {
				t.Errorf("no write was acknowledged for %s", h.longestGap())
			}
		}
	})
}
