package server

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestCountersSurviveElections transfers leadership: no counter of a server ever decreases, and a count survives the
// following terms. Gauges that only a leader has are gone on other servers.
func TestCountersSurviveElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		cut := -1
		c.leader()
		newFleet(t, c.lead(&cut), 4)
		type series struct {
			server int
			name   string
		}
		before := map[series]float64{}
		check := func(when string) {
			t.Helper()
			for i, s := range c.servers {
				for _, x := range s.Metrics().Samples() {
					at := series{i, x.Name + " " + strings.Join(x.Values, " ")}
					if x.Kind == telemetry.KindCounter && x.Value < before[at] {
						t.Errorf("%s: %s of server %d went from %v to %v", when, x.Name, i, before[at], x.Value)
					}
					before[at] = x.Value
				}
			}
		}
		passes := map[int]float64{}
		led := map[int]int{}
		for term := range 6 {
			i := c.leader()
			led[i]++
			lead := c.servers[i]
			for k := range 3 {
				job := passJob(fmt.Sprintf("job-%d-%d", term, k), 1, func(j *structs.Job) {
					if k == 2 {
						j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 20 // too large for a node, so that it stays blocked
					}
				})
				cmd := structs.Command{Body: &structs.JobRegisterCommand{Job: job, Eval: true}}
				if _, err := lead.decide.ProposeJob(replica.LaneUser, cmd).Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Second)
			check(fmt.Sprintf("term %d", term))
			now, _ := lead.Metrics().Samples().Find("muster_server_broker_passes_total")
			if now < passes[i]+1 {
				t.Errorf("term %d: %v passes, %v at the end of the last term of server %d", term, now, passes[i], i)
			}
			passes[i] = now
			if blocked, _ := lead.Metrics().Samples().Find("muster_server_broker_blocked"); blocked == 0 {
				t.Errorf("term %d: the leader has no blocked job", term)
			}
			if err := lead.replica.TransferLeadership(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			check(fmt.Sprintf("after term %d", term))
			if blocked, _ := lead.Metrics().Samples().Find("muster_server_broker_blocked"); i != c.leader() && blocked != 0 {
				t.Errorf("after term %d: %v blocked jobs at a server that does not lead", term, blocked)
			}
		}
		again := false
		for _, n := range led {
			again = again || n > 1
		}
		if !again {
			t.Errorf("no server led twice: %v", led)
		}
	})
}

// Every call is counted in the RPC histogram, by method and error code. Callers cannot invent methods.
func TestCallsAreObserved(t *testing.T) {
	s := &Server{}
	s.metrics.declare(s)
	s.metrics.Call("Job.Register", rpc.Peer{}, "", time.Second, 0, 0)
	s.metrics.Call("Job.Register", rpc.Peer{}, structs.CodeDenied, time.Second, 0, 0)
	s.metrics.Call("made.up", rpc.Peer{}, structs.CodeInvalid, time.Second, 0, 0)
	if n, sum := s.metrics.rpc.Count(); n != 3 || sum != 3 {
		t.Errorf("%d calls of %v s together, want 3 and 3", n, sum)
	}
	if c, f := s.metrics.calls.Load(), s.metrics.failed.Load(); c != 3 || f != 1 {
		t.Errorf("%d calls, %d failed; want 3 and 1", c, f)
	}
}

// A slow write of the raft log is counted as a stall of the disk, and a fast one is not.
func TestStallsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		s := testServer(t, func(c *Config) {
			c.Testing.Replica.StoreLogs = func() error { time.Sleep(time.Duration(slow.Load())); return nil }
		})
		for i, d := range []time.Duration{90 * time.Millisecond, 150 * time.Millisecond} {
			slow.Store(int64(d))
			call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(fmt.Sprint("j", i), 1)})
			slow.Store(0)
			if n, sum := s.metrics.stalls.Count(); i == 0 && n != 0 || i == 1 && (n == 0 || sum < 0.15) {
				t.Errorf("after a write of %s: %d stalls of %v s together", d, n, sum)
			}
		}
	})
}
