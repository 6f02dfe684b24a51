package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// cluster is several servers on an in-memory network, with raft, gossip and rpc as in production.
type cluster struct {
	t       *testing.T
	net     *memnet.Network
	servers []*Server
	stops   []func()
	cfgs    []Config
}

var testJoinKey = []byte("0123456789abcdef0123456789abcdef")

func hostName(i int) string { return fmt.Sprintf("s%d", i) }

func serverUUID(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i+1) }

func newCluster(t *testing.T, n int, edit func(i int, c *Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, net: memnet.New(), servers: make([]*Server, n), stops: make([]func(), n), cfgs: make([]Config, n)}
	for i := range n {
		c.net.Host(hostName(i)) // so that addresses are sorted
	}
	for i := range n {
		cfg := Config{Name: hostName(i), ID: serverUUID(i), InMemory: true, BootstrapExpect: n, Logger: testLogger(t).Named(hostName(i)),
			Testing: testingKnobs}
		cfg.Gossip.Key, cfg.JoinKey = []byte("0123456789abcdef"), testJoinKey
		for j := range n {
			if j != i {
				cfg.Gossip.RetryJoin = append(cfg.Gossip.RetryJoin, c.net.Host(hostName(j)).IP().String()+":4648")
			}
		}
		if edit != nil {
			edit(i, &cfg)
		}
		c.cfgs[i] = cfg
		c.start(i)
	}
	t.Cleanup(func() {
		for _, stop := range c.stops {
			if stop != nil {
				stop()
			}
		}
		time.Sleep(time.Minute) // memberlist's last timers must end inside the bubble
	})
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	h := c.net.Host(hostName(i))
	l, err := h.Listen(4647)
	if err != nil {
		c.t.Fatal(err)
	}
	cfg := c.cfgs[i]
	cfg.Listeners, cfg.Dial = []net.Listener{l}, h.Dial
	if !cfg.Gossip.Disabled {
		if cfg.Gossip.Transport, err = h.Gossip(4648); err != nil {
			c.t.Fatal(err)
		}
	}
	s, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	c.servers[i] = s
	c.stops[i] = sync.OnceFunc(func() { s.Close(); <-done })
}

// leader waits for a ready leader among the servers that the test has not cut off.
func (c *cluster) leader(except ...int) int {
	c.t.Helper()
	end := time.Now().Add(30 * time.Second)
	for time.Now().Before(end) {
		for i, s := range c.servers {
			out := false
			for _, e := range except {
				out = out || e == i
			}
			if !out && s != nil && s.IsLeader() && s.Published().Snapshot.ClusterMeta() != nil {
				return i
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatal("no leader within 30 s")
	return -1
}

func (c *cluster) call(i int, f func(ctx context.Context, to rpc.Caller) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return f(ctx, c.servers[i].Caller(rpc.Peer{}))
}

func (c *cluster) register(i int, id string) error {
	return c.call(i, func(ctx context.Context, to rpc.Caller) error {
		_, err := rpc.Invoke(ctx, to, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(id, 1)})
		return err
	})
}

func (c *cluster) has(i int, id string) bool {
	return c.servers[i].Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id}) != nil
}

// converge waits until all live servers have applied the same entries, and checks that their states are equal.
func (c *cluster) converge(skip ...int) {
	c.t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		same, first := true, -1
	servers:
		for i, s := range c.servers {
			for _, k := range skip {
				if k == i {
					continue servers
				}
			}
			if first < 0 {
				first = i
				continue
			}
			a, b := c.servers[first].Published(), s.Published()
			same = same && a.Index == b.Index && a.Snapshot.Hash() == b.Snapshot.Hash()
		}
		if same {
			return
		}
		if time.Now().After(end) {
			c.t.Fatal("the servers' states differ after 30 s")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestClusterFoundsAndForwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		for i := range c.servers {
			if err := c.register(i, fmt.Sprintf("job-%d", i)); err != nil {
				t.Fatalf("register through server %d (leader %d): %v", i, lead, err)
			}
		}
		c.converge()
		// A follower forwards linearizable reads to the leader, and answers stale ones itself, with its lag.
		follower := (lead + 1) % 3
		err := c.call(follower, func(ctx context.Context, to rpc.Caller) error {
			resp, err := rpc.Invoke(ctx, to, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "job-0"})
			if err == nil && (resp.Job == nil || !resp.Meta.KnownLeader || resp.Meta.LastContact != 0) {
				t.Errorf("read through a follower: %+v", resp.Meta)
			}
			if err != nil {
				return err
			}
			resp, err = rpc.Invoke(ctx, to, methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "job-0", Query: methods.Query{Stale: true}})
			if err == nil && (resp.Job == nil || !resp.Meta.KnownLeader || resp.Meta.LastContact > 2*time.Second) {
				t.Errorf("stale read at a follower: %+v", resp.Meta)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestLeaderLossKeepsAcknowledgedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		for i := range 20 {
			if err := c.register(lead, fmt.Sprintf("job-%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		c.net.Kill(hostName(lead))
		c.stops[lead]()
		next := c.leader(lead)
		if err := c.register((lead+1)%3, "after"); err != nil {
			t.Fatalf("write after the loss of the leader: %v", err)
		}
		t.Logf("next write acknowledged %s after the kill (virtual)", time.Since(began))
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the next write took %s", took)
		}
		for i := range 20 {
			if !c.has(next, fmt.Sprintf("job-%d", i)) {
				t.Errorf("job-%d was acknowledged and is lost", i)
			}
		}
		c.converge(lead)
	})
}

func TestPartitionedLeaderWritesAndReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		if err := c.register(lead, "before"); err != nil {
			t.Fatal(err)
		}
		c.converge()
		// Proposals that are in flight when the leader is cut off end as unknown, neither successful nor failed.
		c.net.Isolate(hostName(lead))
		read := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			_, err := rpc.Invoke(ctx, c.servers[lead].Caller(rpc.Peer{}), methods.JobGet, rpc.Header{}, &methods.JobGetRequest{JobID: "before"})
			return err
		}
		atOnce := make(chan error, 1)
		go func() { atOnce <- read() }() // the server still takes itself for the leader
		p := c.servers[lead].replica.Propose(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: preparedJob("cut-off"), Eval: true}})
		next := c.leader(lead)
		<-p.Done()
		if _, err := p.Result(); structs.CodeOf(err) != structs.CodeUnknown {
			t.Errorf("a write of a leader that was cut off ended as %v, want unknown", err)
		}
		if err := c.register(next, "majority"); err != nil {
			t.Fatal(err)
		}
		for when, err := range map[string]error{"at once": <-atOnce, "later": read()} {
			if err == nil {
				t.Errorf("a leader that was cut off answered a linearizable read %s", when)
			}
		}
		c.net.Heal()
		time.Sleep(5 * time.Second)
		c.converge()
		if !c.has(lead, "majority") {
			t.Error("the old leader lacks what the majority wrote")
		}
	})
}

// TestDeposedLeaderAnswersNothing calls every method that only the leader answers at a leader that was just cut off and
// does not know it yet. It must not answer from its state, neither "there is no such thing" nor "nothing to do".
func TestDeposedLeaderAnswersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		c.converge()
		c.net.Isolate(hostName(lead))
		var wg sync.WaitGroup
		calls := 0
		for _, row := range methods.Table {
			atLeader := row.Kind == methods.AtLeader || row.Kind == methods.KindRead
			if row.Side != methods.SideServer || !atLeader || row.Need.NodeSecret || row.Need.ServerCert || outsideLog[row.Name] {
				continue
			}
			calls++
			wg.Go(func() {
				err := call1(c.servers[lead].Caller(rpc.Peer{}), row, structs.SecretID{}, struct{}{})
				if code := structs.CodeOf(err); code != structs.CodeNoLeader && code != structs.CodeUnknown && code != structs.CodeTimeout {
					t.Errorf("%s: %v; want no leader", row.Name, err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d calls", calls)
	})
}

func preparedJob(id string) *structs.Job {
	j := apiJob(id, 1)
	j.Namespace = "default"
	endpoint.DefaultJob(j, "global")
	return j
}

func TestFlappingLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		unknown := 0
		var acked []string
		const flaps = 200
		for i := range flaps {
			lead := c.leader()
			id := fmt.Sprintf("job-%d", i)
			errs := make(chan error, 1)
			go func() { errs <- c.register((lead+1)%3, id) }()
			if err := c.servers[lead].replica.TransferLeadership(); err != nil {
				t.Logf("transfer %d: %v", i, err)
			}
			if err := <-errs; err != nil {
				switch structs.CodeOf(err) {
				case structs.CodeUnknown, structs.CodeNoLeader, structs.CodeUnavailable, structs.CodeTimeout:
					unknown++
				default:
					t.Fatalf("write during transfer %d: %v", i, err)
				}
			} else {
				acked = append(acked, id)
			}
		}
		lead := c.leader()
		c.converge()
		gains := int64(0)
		for _, s := range c.servers {
			gains += s.lead.gains.Load()
		}
		if gains < flaps/2 {
			t.Fatalf("leadership changed only %d times in %d transfers", gains, flaps)
		}
		if err := c.register(lead, "last"); err != nil {
			t.Fatalf("write after %d changes of leadership: %v", gains, err)
		}
		for _, id := range acked {
			if !c.has(lead, id) {
				t.Errorf("%s was acknowledged and is lost", id)
			}
		}
		t.Logf("%d changes of leadership, %d writes without an answer", gains, unknown)
	})
}

func TestClusterWithTLSAndACL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := tlsSources(t, "server", "client")
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.ACL, cfg.TLSServer, cfg.TLSClient = true, src["server"].RPCServer(), src["server"].ClientTo
		})
		lead := c.leader()
		follower := (lead + 1) % 3
		var token structs.SecretID
		err := c.call(follower, func(ctx context.Context, to rpc.Caller) error {
			resp, err := rpc.Invoke(ctx, to, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{})
			if err == nil {
				token = resp.Token.Secret
			}
			return err
		})
		if err != nil {
			t.Fatalf("bootstrap through a follower: %v", err)
		}
		if err := c.register(follower, "denied"); structs.CodeOf(err) != structs.CodeDenied {
			t.Fatalf("a write without a token: %v", err)
		}
		err = c.call(follower, func(ctx context.Context, to rpc.Caller) error {
			_, err := rpc.Invoke(ctx, to, methods.JobRegister, rpc.Header{Token: token.String()}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		j := c.servers[lead].Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "a"})
		if j == nil || j.Submitter.Name != "Bootstrap Token" || j.Submitter.Accessor.IsZero() {
			t.Fatalf("the job's submitter: %+v", j)
		}
		// A client certificate permits neither raft connections nor methods for servers.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		pool := rpc.NewPool(rpc.PoolConfig{Dial: rpc.TLSDialer(c.net.Host("evil").Dial, src["client"].Client)})
		defer pool.Close()
		if _, err := rpc.Invoke(ctx, pool.To(hostName(lead)+":4647"), methods.ServerInfo, rpc.Header{}, &methods.EmptyRequest{}); structs.CodeOf(err) != structs.CodeDenied {
			t.Fatalf("Server.Info with a client certificate: %v", err)
		}
	})
}

func TestServerLeavesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		gone := (lead + 1) % 3
		peers := func() int {
			servers, err := c.servers[lead].members.RaftServers()
			if err != nil {
				t.Fatal(err)
			}
			return len(servers)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.servers[gone].Leave(ctx); err != nil {
			t.Fatal(err)
		}
		waitFor(t, 30*time.Second, "removal of the server that left", func() bool { return peers() == 2 })
		c.stops[gone]()
		if err := c.register(lead, "while-away"); err != nil {
			t.Fatal(err)
		}
		// It comes back without data, proves its identity, and is added again.
		c.net.Revive(hostName(gone))
		c.cfgs[gone].BootstrapExpect = 0
		c.start(gone)
		waitFor(t, 2*time.Minute, "return of the server", func() bool { return peers() == 3 })
		waitFor(t, time.Minute, "the state on it", func() bool { return c.has(gone, "while-away") })
		waitFor(t, 2*time.Minute, "its vote", func() bool {
			servers, _, err := c.servers[lead].replica.Configuration()
			voters := 0
			for _, x := range servers {
				if x.Suffrage == raft.Voter {
					voters++
				}
			}
			return err == nil && voters == 3
		})
		h := c.servers[lead].members.Health()
		if len(h.Servers) != 3 || h.Leader == "" {
			t.Fatalf("autopilot's view: %+v", h)
		}
	})
}

// A gossip key reaches every server, and no key is used that a server lacks, because the servers could no longer
// gossip.
func TestGossipKeysReachEveryServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.leader()
		s, ctx, next := c.servers[0], context.Background(), []byte("fedcba9876543210")
		if _, _, _, err := s.Keyring(ctx, "use", next); err == nil || !strings.Contains(err.Error(), "not installed") {
			t.Fatalf("a key that nobody has is used: %v", err)
		}
		old := []byte("0123456789abcdef")
		text := base64.StdEncoding.EncodeToString
		for _, step := range []struct {
			op  string
			key []byte
			has map[string]int
			by  string
		}{
			{"install", next, map[string]int{text(old): 3, text(next): 3}, text(old)},
			{"use", next, map[string]int{text(old): 3, text(next): 3}, text(next)},
			{"remove", old, map[string]int{text(next): 3}, text(next)},
		} {
			has, writes, n, err := s.Keyring(ctx, step.op, step.key)
			if err != nil || n != 3 || !maps.Equal(has, step.has) || !maps.Equal(writes, map[string]int{step.by: 3}) {
				t.Fatalf("%s: %v, %v, %d servers, %v", step.op, has, writes, n, err)
			}
		}
		time.Sleep(time.Minute) // gossip continues with the new key
		for i, s := range c.servers {
			for _, m := range s.Members() {
				if m.Status != gossip.Alive {
					t.Errorf("server %d holds %s for %s", i, m.Name, m.Status)
				}
			}
		}
		if _, _, _, err := s.Keyring(ctx, "remove", next); err == nil {
			t.Error("the key in use was removed")
		}
	})
}

// TestGossipKeysSurviveARestart: servers that are restarted, or crash, return with the keys that commands have installed,
// though their configuration still names the old one, and do not accept the key that was removed.
func TestGossipKeysSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.InMemory, cfg.DataDir = false, t.TempDir() })
		c.leader()
		ctx, old, next := context.Background(), []byte("0123456789abcdef"), []byte("fedcba9876543210")
		do := func(i int, op string, key []byte) {
			t.Helper()
			if _, _, _, err := c.servers[i].Keyring(ctx, op, key); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
		only := func(what string) {
			t.Helper()
			waitFor(t, 5*time.Minute, what+": a leader and every server alive for every server", func() bool {
				c.leader()
				for _, s := range c.servers {
					alive := 0
					for _, m := range s.Members() {
						if m.Status == gossip.Alive {
							alive++
						}
					}
					if alive != 3 {
						return false
					}
				}
				return true
			})
			has, writes, n, err := c.servers[0].Keyring(ctx, "list", nil)
			want := map[string]int{base64.StdEncoding.EncodeToString(next): 3}
			if err != nil || n != 3 || !maps.Equal(has, want) || !maps.Equal(writes, want) {
				t.Fatalf("%s: keys %v, written with %v, %d servers, %v", what, has, writes, n, err)
			}
		}
		restart := func(i int, how func()) {
			how()
			c.stops[i]()
			c.net.Revive(hostName(i))
			c.start(i)
		}
		do(0, "install", next)
		do(0, "use", next)
		restart(2, func() { c.net.PowerOff(hostName(2)) }) // in the middle: it knows both keys
		waitFor(t, 5*time.Minute, "the server that crashed in the middle", func() bool {
			_, writes, n, err := c.servers[0].Keyring(ctx, "list", nil)
			return err == nil && n == 3 && writes[base64.StdEncoding.EncodeToString(next)] == 3
		})
		do(0, "remove", old)
		only("after the change")
		restart(1, func() { c.net.PowerOff(hostName(1)) })
		only("after a crash")
		restart(0, func() {})
		only("after a restart")
	})
}
