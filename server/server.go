package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/bundle"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/admit"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/bundles"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/events"
	"github.com/muster-sched/muster/server/keystore"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// Server is one server. New makes it, Run runs it, Close ends it.
type Server struct {
	cfg Config
	log hclog.Logger

	reg     *rpc.Registry
	rpc     *rpc.Server
	pool    *rpc.Pool // sessions to other servers of the region
	vital   *rpc.Pool // the same for what must not wait behind other calls: heartbeats of nodes, questions about the leader
	regions regions   // and of other regions
	replica *replica.Replica

	lead leadership

	hub       *watch.Hub
	ring      *events.Ring
	auth      *auth.Guard
	keys      *keystore.Keystore
	nodes     nodes.Nodes
	members   *member.Members
	bundles   *bundles.Keeper
	decide    *decide.Service
	duties    duties
	endpoints *endpoint.Set
	gate      *admit.Gate
	allowance *admit.Allowance
	rights    leaderRights
	retries   *rpc.Budget // of calls that are forwarded to the leader
	metrics   metrics

	lifetime
}

// lifetime is about the end of a server.
type lifetime struct {
	started time.Time
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	closing atomic.Bool   // Close has been called
	closed  chan struct{} // closed when Close is done. Not a sync.Once, because waiting for one stops the clock of a test in virtual time
}

// New makes a server and starts raft, which replays the log. It serves nothing before Run. On an error it closes
// everything, including the listeners.
func New(cfg Config) (s *Server, err error) {
	defer func() {
		if err != nil {
			for _, l := range cfg.Listeners {
				l.Close()
			}
		}
	}()
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if cfg.ID, err = serverID(&cfg); err != nil {
		return nil, err
	}
	s = &Server{cfg: cfg, log: cfg.Logger, gate: admit.New(), allowance: admit.NewAllowance(cfg.AllocRatePerToken), retries: rpc.NewBudget(repeatBurst), rights: leaderRights{turn: make(chan struct{}, 1)}, lifetime: lifetime{started: time.Now(), closed: make(chan struct{})}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.metrics.declare(s)
	s.auth = auth.NewGuard(auth.Environment{ACL: cfg.ACL, Region: cfg.Region, TLS: cfg.TLSServer != nil, Proof: cfg.provesPeers(), Now: s.now, Published: s.Published})
	s.hub = watch.NewHub(s.Published, s.auth.Still, s.ctx.Done())
	s.ring = events.NewRing()
	s.replica = replica.New(replica.Config{
		ID: cfg.ID, DataDir: cfg.DataDir, InMemory: cfg.InMemory, Bootstrap: cfg.BootstrapExpect == 1, Raft: cfg.Raft,
		Logger: cfg.Logger, Now: cfg.Now, Exit: s.exit, Feeds: []func(replica.Applied){s.hub.Feed, s.ring.Feed}, Peers: peers{s}, Testing: cfg.Testing.Replica,
		Stalled: s.stalled,
		Applied: func(took time.Duration) { s.metrics.apply.Observe(took.Seconds()) },
	})
	s.duties.collect = make(chan chan error)
	s.decide = decide.New(decide.Environment{Region: cfg.Region, Replica: s.replica, Logger: cfg.Logger,
		Observe: s.metrics.observers(), Testing: cfg.Testing.Decide})
	s.nodes = nodes.Nodes{
		Sessions: nodes.NewSessions(),
		Reports:  nodes.NewObservations(func(cmd structs.Command) nodes.Proposed { return s.replica.Propose(replica.LanePriority, cmd) }),
		Beats: nodes.NewHeartbeats(nodes.Environment{Log: cfg.Logger, Now: cfg.Testing.Steady, Replica: s.replica, Stressed: s.stressed, Apply: s.apply, Grace: cfg.RestartGrace,
			Answers: func(ctx context.Context, ids []structs.NodeID) (map[structs.NodeID]bool, bool) {
				return s.nodes.Probes.Answers(ctx, ids)
			}}),
	}
	s.nodes.Probes = nodes.NewProber(s.probeEnvironment())

	keyDir := cfg.DataDir
	if cfg.InMemory {
		keyDir = ""
	}
	if s.keys, err = keystore.Open(keystore.Environment{DataDir: keyDir, Log: cfg.Logger, Exit: s.exit, Published: s.Published, Apply: s.apply,
		To:      func(addr string) rpc.Caller { return s.pool.To(addr) },
		Servers: func() (map[string]bool, int, error) { return s.members.RaftPeers() },
	}); err != nil {
		return nil, err
	}

	s.reg = rpc.NewRegistry(cfg.Logger.Named("rpc"), &s.metrics)
	s.reg.Wrap(s.wrap)
	peerTLS, dialTo, err := peerConns(&cfg)
	if err != nil {
		return nil, err
	}
	advertised, err := resolveAdvertise(cfg.Advertise)
	if err != nil {
		return nil, err
	}
	s.rpc = rpc.NewServer(rpc.ServerConfig{
		Registry: s.reg, TLS: cfg.TLSServer, PeerTLS: peerTLS, VerifyPeers: cfg.provesPeers(), Dial: dialTo(cfg.Region), Advertise: advertised,
		MaxConnsPerIP: cfg.MaxConnsPerIP, MaxStreams: cfg.MaxStreams, Log: cfg.Logger.Named("rpc"),
	})
	s.regions.open = func(region string) *rpc.Pool {
		return rpc.NewPool(rpc.PoolConfig{Dial: dialTo(region), Registry: s.reg, Log: cfg.Logger.Named("rpc")})
	}
	s.pool, s.vital = s.regions.open(cfg.Region), s.regions.open(cfg.Region)
	made := s
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	if err := s.replica.Start(s.rpc.RaftConns()); err != nil {
		return nil, err
	}
	if s.members, err = member.New(s.memberEnvironment()); err != nil {
		return nil, err
	}
	if s.bundles, err = s.openBundles(); err != nil {
		return nil, err
	}
	s.endpoints = endpoint.New(s.environment())
	s.endpoints.Register()
	s.registerRelays()
	return s, nil
}

// environment returns what endpoints need from this server.
func (s *Server) environment() endpoint.Environment {
	c := &s.cfg
	dir := c.DataDir
	if c.InMemory {
		dir = ""
	}
	return endpoint.Environment{
		Settings: endpoint.Settings{Name: c.Name, ID: c.ID, Region: c.Region, Version: c.Version, Advertise: c.Advertise, DataDir: dir, ACL: c.ACL, Issuer: c.OIDCIssuer, Logins: c.Logins, Priorities: c.Priorities, Now: c.Now, Filter: c.Filter},
		Log:      s.log, Registry: s.reg, Replica: s.replica, Apply: s.apply, Allowance: s.allowance.Allocs, RightsBehind: s.rightsBehind, Hub: s.hub, Events: s.ring, Guard: s.auth, Decide: s.decide, Keys: s.keys, Members: s.members, Bundles: s.bundles,
		Nodes:    s.nodes,
		IsLeader: s.IsLeader, LastContact: s.lastContact, Collect: s.collectNow, Denied: func() { s.metrics.denied.Add(1) }, Closing: s.ctx.Done(),
	}
}

// openBundles opens the bundles that this server keeps. They are in files also where everything else is in memory.
func (s *Server) openBundles() (*bundles.Keeper, error) {
	env := bundles.Environment{Log: s.log, Now: s.cfg.Now, Others: s.members.RaftOthers, To: func(addr string) rpc.Caller { return s.pool.To(addr) },
		Jobs: s.jobVersions, HasLeader: func() bool { addr, _ := s.Leader(); return addr != "" }}
	if s.cfg.DataDir != "" && s.cfg.BundlesMax >= 0 {
		var err error
		if env.Store, err = bundle.Open(filepath.Join(s.cfg.DataDir, "bundles"), cmp.Or(s.cfg.BundlesMax, structs.BundlesMaxMiB<<20), s.cfg.Now); err != nil {
			return nil, err
		}
	}
	return bundles.New(env), nil
}

// jobVersions visits all jobs, in all versions that are kept.
func (s *Server) jobVersions(yield func(*structs.Job) bool) {
	snap := s.Published().Snapshot
	for j := range snap.Jobs("", "") {
		for _, v := range snap.JobVersions(j.Key()) {
			if !yield(v) {
				return
			}
		}
	}
}

// memberEnvironment returns what membership needs from this server.
func (s *Server) memberEnvironment() member.Environment {
	c := s.cfg.Gossip
	c.AllowPlain = c.AllowPlain || s.cfg.Dev
	keyFile := ""
	if !s.cfg.InMemory {
		keyFile = filepath.Join(s.cfg.DataDir, "gossip.keyring")
	}
	speaks := feature.Here()
	return member.Environment{
		Name: s.cfg.Name,
		Self: gossip.Meta{Role: gossip.RoleServer, Region: s.cfg.Region, Datacenter: s.cfg.Datacenter, ID: s.cfg.ID,
			RPC: s.cfg.Advertise, Expect: s.cfg.BootstrapExpect, Version: s.cfg.Version, Build: s.cfg.Build,
			Oldest: speaks.Oldest, Newest: speaks.Newest, Calls: speaks.RPC},
		Gossip: c, KeyFile: keyFile, GossipOnly: !s.cfg.ACL || s.cfg.TLSServer != nil, Log: s.log, Now: s.cfg.Now, Replica: s.replica, LastContact: s.lastContact, To: s.pool.To, Dial: s.cfg.Dial, Apply: s.apply,
		OnDoubt: s.nodes.Probes.Doubt, Exit: s.exit,
	}
}

// probeEnvironment returns what probes of nodes need from this server.
func (s *Server) probeEnvironment() nodes.ProbeEnvironment {
	return nodes.ProbeEnvironment{
		Log: s.log, Now: s.cfg.Testing.Steady, Sessions: s.nodes.Sessions, Beats: s.nodes.Beats, IsLeader: s.IsLeader, Dial: s.cfg.Dial,
		Address: func(id structs.NodeID) string { return s.members.NodeAddr(id) },
		Lost: func(id structs.NodeID) bool {
			n := s.Published().Snapshot.NodeByID(id)
			return n != nil && !n.InTouch()
		},
		Members: func() []structs.NodeID { return s.members.NodeMembers() },
		Others:  func() []string { return s.members.RaftOthers() },
		Alive:   func(server string) bool { return slices.Contains(s.members.ServersOf(s.cfg.Region), server) },
		Ask: func(ctx context.Context, server string, id structs.NodeID) (nodes.Sign, error) {
			resp, err := rpc.Invoke(ctx, s.pool.To(server), methods.ServerNodeSign, rpc.Header{}, &methods.ServerNodeRequest{NodeID: id})
			if err != nil {
				return "", err
			}
			return nodes.Sign(resp.Sign), nil
		},
		AskAnswering: func(ctx context.Context, server string, ids []structs.NodeID) ([]structs.NodeID, error) {
			resp, err := rpc.Invoke(ctx, s.vital.To(server), methods.ServerAnswering, rpc.Header{}, &methods.ServerAnsweringRequest{NodeIDs: ids})
			if err != nil {
				return nil, err
			}
			return resp.NodeIDs, nil
		},
		Report: func(ctx context.Context, id structs.NodeID) error {
			addr, _ := s.Leader()
			if addr == "" {
				return structs.ErrNoLeader
			}
			_, err := rpc.Invoke(ctx, s.pool.To(addr), methods.ServerNodeDoubt, rpc.Header{}, &methods.ServerNodeRequest{NodeID: id})
			return err
		},
	}
}

// Members returns all servers and agents that gossip knows, or nil without gossip.
func (s *Server) Members() []gossip.Member { return s.members.All() }

// Gossip returns this server's gossip, or nil.
func (s *Server) Gossip() *gossip.Gossip { return s.members.Gossip() }

// SetNode announces to other servers which node the client part in this process is.
func (s *Server) SetNode(id structs.NodeID) { s.members.SetNode(id) }

// Join contacts other servers by gossip and returns how many answered.
func (s *Server) Join(addrs []string) (int, error) { return s.members.Join(addrs) }

// Keyring changes or lists the gossip keys of all servers. See member.Members.Keyring.
func (s *Server) Keyring(ctx context.Context, op string, key []byte) (has, writes map[string]int, servers int, err error) {
	return s.members.Keyring(ctx, op, key)
}

// Run serves until ctx ends or Close is called, then closes the server. The error says why it could not continue.
func (s *Server) Run(ctx context.Context) error {
	run := func(f func()) {
		s.wg.Add(1)
		go func() { defer s.wg.Done(); f() }()
	}
	s.replica.Run(s.ctx, run)
	run(func() { s.runLeadership(s.ctx) })
	run(func() { s.watchLeader(s.ctx) })
	run(func() { s.decide.Follow(s.ctx) })
	run(func() { s.members.Run(s.ctx) })
	run(func() { s.members.RunClock(s.ctx) })
	run(func() { s.nodes.Probes.Run(s.ctx) })
	run(func() { s.keys.Run(s.ctx) })
	run(func() { s.bundles.Run(s.ctx) })
	for _, l := range s.cfg.Listeners {
		run(func() {
			if err := s.rpc.Serve(l); err != nil && !errors.Is(err, rpc.ErrServerClosed) {
				s.log.Error("listener failed", "addr", l.Addr().String(), "error", err)
			}
		})
	}
	var err error
	if len(s.cfg.Gossip.Join) > 0 {
		if n, jerr := s.members.Join(s.cfg.Gossip.Join); n == 0 {
			err = fmt.Errorf("join %v: %w", s.cfg.Gossip.Join, jerr)
		}
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
	}
	s.Close()
	return err
}

// Close ends the server without leaving the cluster: other servers see it fail, and it may come back. It waits for
// everything it started.
func (s *Server) Close() error {
	if !s.closing.CompareAndSwap(false, true) {
		<-s.closed
		return nil
	}
	defer close(s.closed)
	s.cancel()
	if s.members != nil {
		s.members.Close()
	}
	s.replica.Stop()
	s.pool.Close()
	s.vital.Close()
	s.regions.close()
	s.rpc.Close()
	for _, l := range s.cfg.Listeners {
		l.Close()
	}
	s.wg.Wait()
	if s.bundles != nil {
		s.bundles.Close()
	}
	s.decide.Wait()
	s.replica.Close()
	return nil
}

// stalled counts a stall. Nodes get more time for what this process could not hear.
func (s *Server) stalled(cause replica.Stall, took time.Duration) {
	s.metrics.stalled(cause, took)
	if cause == replica.StallQueue {
		s.nodes.Beats.Stalled(took)
	}
}

// stressed reports whether this server takes on less than it is asked to.
func (s *Server) stressed() bool { return s.gate.Stressed() || s.nodes.Reports.Stressed() }

// exit ends the process, because it would be wrong to continue.
func (s *Server) exit(why string) {
	s.log.Error("ending the process", "why", why)
	if s.cfg.Exit != nil {
		s.cfg.Exit(why)
		return
	}
	os.Exit(1)
}

// Leave removes the server from the cluster for good: it hands leadership over, and announces to gossip that it leaves,
// so that the leader removes it from raft.
func (s *Server) Leave(ctx context.Context) error {
	if s.replica.IsRaftLeader() {
		if servers, _, _ := s.replica.Configuration(); len(servers) > 1 {
			if err := s.replica.TransferLeadership(); err != nil {
				s.log.Warn("leadership transfer", "error", err)
			}
		}
	}
	return s.members.Leave(ctx)
}

// now returns the time that most servers agree on.
func (s *Server) now() structs.LogTime { return s.replica.Now() }

// Caller returns a caller of this server's methods in this process. Requests and responses are shared, not copied: the
// user must own its request and only read the response.
func (s *Server) Caller(peer rpc.Peer) rpc.Caller { return s.reg.LocalShared(peer, nil) }

// CallerFor is Caller for an agent in the same process. Messages are copied, and back calls the methods that the agent
// serves.
func (s *Server) CallerFor(peer rpc.Peer, back rpc.Caller) rpc.Caller { return s.reg.Local(peer, back) }

// ID returns the raft server ID.
func (s *Server) ID() string { return s.cfg.ID }

// Addr returns the advertised RPC address.
func (s *Server) Addr() string { return s.cfg.Advertise }

// Leader returns the RPC address and ID of the leader, or "" if none is known.
func (s *Server) Leader() (addr, id string) {
	return s.replica.Leader()
}

// Problem returns why this server does not do its part: no leader, a disk that takes no writes, a state that it distrusts,
// or a log that is far behind; "" if it does.
func (s *Server) Problem(ctx context.Context) string {
	if addr, _ := s.Leader(); addr == "" {
		return "No cluster leader"
	}
	return s.members.Problem(ctx)
}

// resolveAdvertise returns an address for raft. Host names are not resolved.
func resolveAdvertise(addr string) (net.Addr, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("server: advertised address %q: %w", addr, err)
	}
	return textAddr(addr), nil
}

type textAddr string

func (textAddr) Network() string  { return "tcp" }
func (a textAddr) String() string { return string(a) }
