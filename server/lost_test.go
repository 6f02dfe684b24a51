package server

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// machine is a host of the test's network with an agent that gossips, registers and sends heartbeats to any server.
type machine struct {
	c    *cluster
	name string
	node *structs.Node
	stop func() // ends the agent's own goroutines; the network decides what others see of it
}

func (c *cluster) machines(n int) (out []*machine) {
	for i := range n {
		m := &machine{c: c, name: fmt.Sprintf("node-%d", i), node: testNode(i)}
		m.start()
		time.Sleep(10 * time.Millisecond) // of 1,000 machines that join in one instant, gossip knows the last after 20 s
		out = append(out, m)
		c.t.Cleanup(func() { m.stop() })
	}
	waitFor(c.t, time.Minute, "nodes", func() bool {
		ready := 0
		for x := range c.servers[c.leader()].Published().Snapshot.Nodes() {
			if x.Status == structs.NodeReady {
				ready++
			}
		}
		return ready == n && !slices.ContainsFunc(c.servers, func(s *Server) bool { return len(s.members.NodeMembers()) < n })
	})
	time.Sleep(5*time.Second + time.Duration(n)*10*time.Millisecond) // every server has reached every node
	return out
}

// quiet reports whether agents are quiet members: where gossip is not encrypted.
func (c *cluster) quiet() bool { return c.cfgs[0].Gossip.Key == nil }

func (m *machine) start() {
	m.c.t.Helper()
	h := m.c.net.Host(m.name)
	tr, err := h.Gossip(4648)
	if err != nil {
		m.c.t.Fatal(err)
	}
	meta := gossip.Meta{Role: gossip.RoleClient, Region: "global", ID: m.node.ID.String()}
	var g gossiper
	if m.c.quiet() {
		g, err = newQuietMember(h, tr, meta)
	} else {
		g, err = gossip.Start(gossip.Config{Name: m.name, Transport: tr, Key: []byte("0123456789abcdef"), Meta: meta})
	}
	if err != nil {
		m.c.t.Fatal(err)
	}
	pool := rpc.NewPool(rpc.PoolConfig{Dial: h.Dial, Registry: rpc.NewRegistry(nil, nil)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.run(ctx, g, pool)
	}()
	m.stop = sync.OnceFunc(func() { cancel(); pool.Close(); <-done; g.Close() })
}

// gossiper is the part of an agent that gossips: as in production, or a quietMember in a cluster that does not encrypt.
type gossiper interface {
	Join(addrs []string) (int, error)
	Close() error
}

func (m *machine) run(ctx context.Context, g gossiper, pool *rpc.Pool) {
	at := int(m.node.ID[0]) % len(m.c.servers)
	registered := false
	for ctx.Err() == nil {
		to := pool.To(m.c.net.Host(hostName(at)).IP().String() + ":4647")
		cctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		var err error
		if !registered {
			var resp *methods.NodeRegisterResponse
			if resp, err = rpc.Invoke(cctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: m.node}); err == nil {
				_, err = g.Join(resp.Gossip.Join)
			}
			registered = err == nil
		} else {
			auth := methods.NodeAuth{NodeID: m.node.ID, Secret: m.node.SecretID}
			_, err = rpc.Invoke(cctx, to, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: auth, Status: structs.NodeReady})
		}
		cancel()
		if err != nil {
			at = (at + 1) % len(m.c.servers)
			pause(ctx, 300*time.Millisecond)
			continue
		}
		pause(ctx, 5*time.Second)
	}
}

// work places a job on every node and reports it as running.
func (c *cluster) work(n int, edit func(*structs.Job)) *Server {
	s := c.servers[c.leader()]
	register(c.t, s, passJob("web", n, func(j *structs.Job) {
		j.Groups[0].Tasks[0].Resources.CPU = 3000 // one to a node
		if edit != nil {
			edit(j)
		}
	}))
	waitFor(c.t, 10*time.Second, "placements", func() bool { return len(live(s, "web")) == n })
	for _, a := range live(s, "web") {
		mustApply(c.t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: structs.LogTimeOf(time.Now())}}})
	}
	return s
}

// history is the statuses of a node, "ready" until it changes.
func (c *cluster) history(m *machine, d time.Duration, each func(status structs.NodeStatus, after time.Duration) (stop bool)) {
	last := structs.NodeReady
	for began := time.Now(); time.Since(began) < d; time.Sleep(20 * time.Millisecond) {
		n := c.servers[c.leader()].Published().Snapshot.NodeByID(m.node.ID)
		if n == nil {
			c.t.Fatal("the node is not in the state")
		}
		if n.Status != last {
			last = n.Status
			if each(n.Status, time.Since(began)) {
				return
			}
		}
	}
}

func (c *cluster) statuses(m *machine, d time.Duration) string {
	var out []string
	c.history(m, d, func(s structs.NodeStatus, after time.Duration) bool {
		out = append(out, fmt.Sprintf("%s after %s", s, after.Round(time.Second)))
		return false
	})
	return strings.Join(out, ", ")
}

func (c *cluster) allServers(f func(name string)) {
	for i := range c.servers {
		f(hostName(i))
	}
}

// TestLostNodes: what happens to a node decides what the servers believe of it, and how soon. Nothing else makes a node
// go down.
func TestLostNodes(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	const soon = 5 * time.Second
	for _, x := range []struct {
		name    string
		servers int
		fault   func(c *cluster, m *machine)
		want    func(got string) bool
		within  time.Duration
	}{
		{"the machine is off", 3, func(c *cluster, m *machine) { c.net.PowerOff(m.name); m.stop() },
			nil, soon},
		{"the machine is off, and there is one server", 1, func(c *cluster, m *machine) { c.net.PowerOff(m.name); m.stop() },
			nil, soon},
		{"packets are dropped", 3, func(c *cluster, m *machine) {
			c.net.Isolate(m.name)
		}, nil, soon},
		{"packets to the servers are dropped", 3, func(c *cluster, m *machine) {
			c.allServers(func(s string) { c.net.Cut(m.name, s) })
		}, nil, soon},
		{"packets from the servers are dropped", 3, func(c *cluster, m *machine) {
			c.allServers(func(s string) { c.net.Cut(s, m.name) })
		}, nil, soon},
		{"the agent has ended", 3, func(c *cluster, m *machine) { c.net.Kill(m.name); m.stop() },
			func(got string) bool {
				return strings.HasPrefix(got, "initializing after 5s, down after 5") || got == "initializing after 5s, down after 1m0s"
			}, 0},
		{"the agent has ended and returns after 3 s", 3, func(c *cluster, m *machine) {
			c.net.Kill(m.name)
			m.stop()
			time.AfterFunc(3*time.Second, func() { c.net.Revive(m.name); m.start() })
		}, func(got string) bool { return got == "" }, 0},
		{"the agent has ended and returns after 40 s", 3, func(c *cluster, m *machine) {
			c.net.Kill(m.name)
			m.stop()
			time.AfterFunc(40*time.Second, func() { c.net.Revive(m.name); m.start() })
		}, func(got string) bool { return got == "initializing after 5s, ready after 40s" }, 0},
		{"only the leader is cut off from it", 3, func(c *cluster, m *machine) {
			lead := hostName(c.leader())
			c.net.Cut(m.name, lead)
			c.net.Cut(lead, m.name)
		}, func(got string) bool { return got == "" }, 0},
		{"only packets to the leader are dropped", 3, func(c *cluster, m *machine) { c.net.Cut(m.name, hostName(c.leader())) },
			func(got string) bool { return got == "" }, 0},
		{"only packets from the leader are dropped", 3, func(c *cluster, m *machine) { c.net.Cut(hostName(c.leader()), m.name) },
			func(got string) bool { return got == "" }, 0},
		{"nothing", 3, func(c *cluster, m *machine) {}, func(got string) bool { return got == "" }, 0},
		{"the agent has ended, and then its machine is off", 3, func(c *cluster, m *machine) {
			c.net.Kill(m.name)
			m.stop()
			time.AfterFunc(20*time.Second, func() { c.net.PowerOff(m.name) })
		}, func(got string) bool {
			return strings.HasPrefix(got, "initializing after 5s, down after 2")
		}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, x.servers, nil)
				c.leader()
				ms := c.machines(4)
				c.work(3, nil)
				began := time.Now()
				x.fault(c, ms[0])
				fault := time.Since(began)
				if x.within > 0 {
					var first time.Duration
					c.history(ms[0], time.Minute, func(s structs.NodeStatus, after time.Duration) bool {
						first = after + fault
						t.Logf("%s after %s", s, first)
						return true
					})
					if first == 0 || first > x.within {
						t.Errorf("down after %s, want within %s", first, x.within)
					}
					return
				}
				got := c.statuses(ms[0], 90*time.Second)
				if !x.want(got) {
					t.Errorf("the node was: %s", got)
				}
				for _, m := range ms[1:] {
					if n := c.servers[c.leader()].Published().Snapshot.NodeByID(m.node.ID); n.Status != structs.NodeReady {
						t.Errorf("%s is %s, and nothing happened to it", n.Name, n.Status)
					}
				}
			})
		})
	}
}

// TestFleetLosesMachines prints how soon lost machines are noticed in a fleet of 200 nodes, or of LOST_NODES: one, and then a
// tenth of the fleet at once.
func TestFleetLosesMachines(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	fleet := fleetOf(200)
	losesMachines(t, fleet, fleet > 400, 1, fleet/10)
}

// TestHalfTheFleetIsLost does the same for half of a fleet of 800 nodes, or of LOST_NODES.
func TestHalfTheFleetIsLost(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	fleet := fleetOf(800)
	if testing.Short() {
		fleet = min(fleet, 300)
	}
	losesMachines(t, fleet, true, fleet/2)
}

func fleetOf(nodes int) int {
	if n, err := strconv.Atoi(os.Getenv("LOST_NODES")); err == nil {
		return n
	}
	return nodes
}

// losesMachines cuts off numbers of machines, one number after the other. quiet says whether the fleet is of quiet members.
func losesMachines(t *testing.T, fleet int, quiet bool, numbers ...int) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) {
			cfg.Gossip.Nodes = 2 * fleet // near the limit, agents no longer join
			if quiet {
				cfg.Gossip.Key, cfg.Gossip.AllowPlain = nil, true
			}
		})
		c.leader()
		ms := c.machines(fleet)
		at := 0
		for _, lost := range numbers {
			gone := ms[at : at+lost]
			at += lost
			began := time.Now()
			c.cutOff(gone)
			var first, last time.Duration
			waitFor(t, time.Minute, "lost nodes", func() bool {
				down := 0
				for _, m := range gone {
					if c.servers[c.leader()].Published().Snapshot.NodeByID(m.node.ID).Status == structs.NodeDown {
						down++
					}
				}
				if down > 0 && first == 0 {
					first = time.Since(began)
				}
				last = time.Since(began)
				return down == lost
			})
			t.Logf("%d of %d machines cut off at once: down after %s to %s (goal 5 s)", lost, fleet, first.Round(10*time.Millisecond), last.Round(10*time.Millisecond))
			if limit := 5*time.Second + time.Duration(lost)*4*time.Millisecond; last > limit {
				t.Errorf("the last one was noticed after %s", last)
			}
			if m := c.servers[c.leader()].nodes.Probes.Metrics(); m.Probes > int64(at+at/10) {
				t.Errorf("%d probes for %d lost nodes: others wait for probes from which nothing can follow", m.Probes, at)
			}
		}
		for _, m := range ms[:at] {
			m.stop()
		}
		for _, m := range ms[at:] {
			if n := c.servers[c.leader()].Published().Snapshot.NodeByID(m.node.ID); n.Status != structs.NodeReady {
				t.Errorf("%s is %s, and nothing happened to it", n.Name, n.Status)
			}
		}
	})
}

// cutOff cuts machines off from all others in one instant.
func (c *cluster) cutOff(gone []*machine) {
	var names, servers []string
	for _, m := range gone {
		names = append(names, m.name)
		if !c.quiet() {
			c.net.Isolate(m.name)
		}
	}
	c.allServers(func(s string) { servers = append(servers, s) })
	c.net.Partition(names, servers) // quiet members speak only to them
}

// TestGossipAdvice is the witness of server.gossip_nodes: agents join in a small region, leave a large one, and between
// the two nothing changes.
func TestGossipAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(i int, cfg *Config) { cfg.Gossip.Nodes = 20 })
		s := c.servers[c.leader()]
		waitFor(t, 10*time.Second, "servers to see each other", func() bool { return len(s.Members()) == 3 })
		for fleet, want := range map[int]string{0: "join", 18: "join", 19: "stay", 20: "stay", 21: "leave"} {
			time.Sleep(2 * time.Second)
			got := "stay"
			switch a := s.members.Advice(fleet); {
			case a.Leave:
				got = "leave"
			case len(a.Join) == 3:
				got = "join"
			case len(a.Join) > 0:
				got = fmt.Sprint(a.Join)
			}
			if got != want {
				t.Errorf("%d nodes, limit 20: %s, want %s", fleet, got, want)
			}
		}
		// A node that registers is advised.
		resp := call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: testNode(1)})
		if len(resp.Gossip.Join) != 3 || resp.Gossip.Leave {
			t.Errorf("advice to the first node: %+v", resp.Gossip)
		}
	})
	for _, limit := range []int{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 1, func(i int, cfg *Config) { cfg.Gossip.Nodes = limit })
			s := c.servers[c.leader()]
			if in, out := s.members.Advice(1800), s.members.Advice(2001); limit == 0 && (in.Leave || len(in.Join) != 1 || !out.Leave) || limit < 0 && !in.Leave {
				t.Errorf("limit %d: %+v for 1,800 nodes, %+v for 2,001", limit, in, out)
			}
		})
	}
}

// TestHeartbeatVoidsVerdict: a heartbeat that arrives after a probe began outweighs what the probe found.
func TestHeartbeatVoidsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		node := newFleet(t, one(s), 1).nodes[0]
		waitFor(t, 10*time.Second, "a heartbeat", func() bool { return s.nodes.Beats.Metrics().Beats > 0 })
		began := time.Now()
		time.Sleep(time.Second)
		s.nodes.Beats.Beat(node.ID)
		if s.nodes.Beats.Gone(node.ID, began) || s.nodes.Beats.Ended(t.Context(), node.ID, began) {
			t.Error("a verdict in spite of a heartbeat after the probe began")
		}
		time.Sleep(time.Second)
		if n := s.Published().Snapshot.NodeByID(node.ID); n.Status != structs.NodeReady {
			t.Errorf("the node is %s", n.Status)
		}
		if !s.nodes.Beats.Gone(node.ID, time.Now()) {
			t.Error("no verdict although the last heartbeat came before the probe began")
		}
	})
}

// TestGraceEndsWithTheLease: the supervisor ends work with stop_on_client_after without the agent, so its node is not
// waited for as long as others.
func TestGraceEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.leader()
		ms := c.machines(3)
		limit := 10 * time.Second
		c.work(3, func(j *structs.Job) { j.Groups[0].StopAfterDisc = &limit })
		c.net.Kill(ms[0].name)
		ms[0].stop()
		if got := c.statuses(ms[0], 25*time.Second); !strings.HasPrefix(got, "initializing after 5s, down after 1") {
			t.Errorf("the node was: %s", got)
		}
	})
}
