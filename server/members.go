package server

import (
	"context"
	"errors"
	"net"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Timings of membership.
const (
	membersEvery    = 10 * time.Second       // the leader looks over raft's servers at least this often
	infoTimeout     = 5 * time.Second        // of asking a server who it is
	joinRetryMin    = 250 * time.Millisecond // between attempts to join
	joinRetryMax    = 5 * time.Second
	bootstrapEvery  = 500 * time.Millisecond // between looks whether enough servers are there to found a cluster
	deadServerAfter = 3 * time.Minute        // how long gossip must believe a server dead before autopilot may remove it
)

// members is this server's gossip and what follows from it. g is nil without gossip.
type members struct {
	s       *Server
	g       *gossip.Gossip
	changed chan struct{}

	mu     sync.Mutex
	pruned map[string]bool // raft ids that autopilot gave up

	known atomic.Pointer[knownServers]
}

// knownServers is the answer to "which servers are there", which every heartbeat carries.
type knownServers struct {
	at     time.Time
	leader string
	list   []string
}

// serversFresh is how old that answer may be, unless another server leads.
const serversFresh = time.Second

func (s *Server) startGossip() (*members, error) {
	m := &members{s: s, changed: make(chan struct{}, 1), pruned: map[string]bool{}}
	c := s.cfg.Gossip
	if c.Disabled {
		return m, nil
	}
	g, err := gossip.Start(gossip.Config{
		Name: s.cfg.Name,
		Meta: gossip.Meta{Role: gossip.RoleServer, Region: s.cfg.Region, Datacenter: s.cfg.Datacenter, ID: s.cfg.ID,
			RPC: s.cfg.Advertise, Expect: s.cfg.BootstrapExpect, Version: s.cfg.Version, Build: s.cfg.Build},
		Transport: c.Transport, BindAddr: c.BindAddr, BindPort: c.BindPort,
		AdvertiseAddr: c.AdvertiseAddr, AdvertisePort: c.AdvertisePort,
		Key: c.Key, Keyring: c.Keyring, AllowPlain: c.AllowPlain || s.cfg.Dev,
		OnChange: m.notify, Log: s.log.Named("gossip"),
	})
	if err != nil {
		return nil, err
	}
	m.g = g
	return m, nil
}

func (m *members) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
	m.s.bumpMembers()
}

// bumpMembers wakes the leader's look at raft's servers.
func (s *Server) bumpMembers() {
	select {
	case s.memberWake <- struct{}{}:
	default:
	}
}

func (m *members) close() {
	if m.g != nil {
		if err := m.g.Close(); err != nil {
			m.s.log.Warn("gossip shutdown", "error", err)
		}
	}
}

func (m *members) leave(ctx context.Context) error {
	if m.g == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- m.g.Leave() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *members) join(addrs []string) (int, error) {
	if m.g == nil {
		return 0, errors.New("gossip is disabled here")
	}
	return m.g.Join(addrs)
}

// run joins until it works, and founds a cluster when the expected servers are there.
func (m *members) run(ctx context.Context) {
	if m.g == nil {
		return
	}
	retry := m.s.cfg.Gossip.RetryJoin
	most := m.s.cfg.Gossip.RetryInterval
	if most <= 0 {
		most = joinRetryMax
	}
	wait := min(joinRetryMin, most)
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
			m.maybeBootstrap(ctx)
		case <-t.C:
			next := most
			if len(retry) > 0 && m.g.Alone() {
				if n, err := m.g.Join(retry); n == 0 {
					m.s.log.Warn("could not join; trying again", "addresses", retry, "error", err, "in", wait)
					next = wait
					wait = min(2*wait, most)
				} else {
					m.s.log.Info("joined", "servers", n)
					wait = min(joinRetryMin, most)
				}
			}
			m.maybeBootstrap(ctx)
			if !m.s.replica.Bootstrapped() {
				next = min(next, bootstrapEvery)
			}
			t.Reset(next)
		}
	}
}

// maybeBootstrap founds a cluster when bootstrap_expect servers see each other and none belongs to one. Each of them
// does so with the same sorted list, so whoever is first, they agree.
func (m *members) maybeBootstrap(ctx context.Context) {
	s := m.s
	if s.cfg.BootstrapExpect < 2 || s.replica.Bootstrapped() {
		return
	}
	var peers []raft.Server
	for _, x := range m.g.Members() {
		if x.Role != gossip.RoleServer || x.Region != s.cfg.Region || x.Status != gossip.Alive {
			continue
		}
		if x.Expect == 0 {
			continue // joins later
		}
		if x.Expect != s.cfg.BootstrapExpect {
			s.log.Error("servers disagree about bootstrap_expect; founding no cluster", "here", s.cfg.BootstrapExpect, "server", x.Name, "there", x.Expect)
			return
		}
		peers = append(peers, raft.Server{ID: raft.ServerID(x.ID), Address: raft.ServerAddress(x.RaftAddr())})
	}
	if len(peers) < s.cfg.BootstrapExpect {
		return
	}
	sort.Slice(peers, func(i, j int) bool { return peers[i].ID < peers[j].ID })
	for _, p := range peers {
		if string(p.ID) == s.cfg.ID {
			continue
		}
		info, err := s.serverInfo(ctx, string(p.Address))
		if err != nil {
			s.log.Info("waiting to found the cluster: a server does not answer", "addr", p.Address, "error", err)
			return
		}
		if info.ID != string(p.ID) || info.Region != s.cfg.Region {
			s.log.Error("a server is not who gossip says; founding no cluster", "addr", p.Address, "want", p.ID, "got", info.ID)
			return
		}
		if info.Bootstrapped {
			// It founded the cluster with us in it, or belongs to an older one whose leader will add us.
			s.log.Info("a cluster exists already; waiting for its leader", "server", info.Name)
			s.replica.SetBootstrapped()
			return
		}
	}
	if err := s.replica.Bootstrap(peers); err != nil {
		s.log.Error("founding the cluster failed", "error", err)
	}
}

// serverInfo asks a server who it is. With TLS the connection proves a server certificate of the region.
func (s *Server) serverInfo(ctx context.Context, addr string) (*methods.ServerInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	return rpc.Invoke(ctx, s.pool.To(addr), methods.ServerInfo, rpc.Header{}, &methods.EmptyRequest{})
}

// Members are all servers and agents that gossip knows, nil without gossip.
func (s *Server) Members() []gossip.Member {
	if s.gossip.g == nil {
		return nil
	}
	return s.gossip.g.Members()
}

// Gossip is this server's gossip, or nil: for joining, leaving and the keyring.
func (s *Server) Gossip() *gossip.Gossip { return s.gossip.g }

// Join contacts other servers by gossip and says how many answered.
func (s *Server) Join(addrs []string) (int, error) { return s.gossip.join(addrs) }

// serversOf are the RPC addresses of a region's live servers.
func (m *members) serversOf(region string) []string {
	var out []string
	if m.g != nil {
		for _, x := range m.g.Members() {
			if x.Role == gossip.RoleServer && x.Region == region && x.Status == gossip.Alive && x.RPC != "" {
				out = append(out, x.RPC)
			}
		}
	}
	return out
}

// regions are all regions known, sorted.
func (m *members) regions() []string {
	out := []string{m.s.cfg.Region}
	if m.g != nil {
		for _, x := range m.g.Members() {
			if x.Role == gossip.RoleServer {
				out = append(out, x.Region)
			}
		}
	}
	return sortedUnique(out)
}

// servers are the RPC addresses of this region's servers, the leader first: raft's, and those that gossip adds.
func (m *members) servers() []string {
	leader, _ := m.s.Leader()
	now := time.Now()
	if k := m.known.Load(); k != nil && k.leader == leader && now.Sub(k.at) < serversFresh {
		return k.list
	}
	list := m.findServers(leader)
	m.known.Store(&knownServers{now, leader, list})
	return list
}

func (m *members) findServers(leader string) []string {
	seen := map[string]bool{}
	var out []string
	add := func(a string) {
		if a != "" && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	add(leader)
	servers, _, _ := m.s.replica.Configuration() // gossip's list has to do where raft's is not known
	for _, x := range servers {
		add(string(x.Address))
	}
	for _, a := range m.serversOf(m.s.cfg.Region) {
		add(a)
	}
	add(m.s.cfg.Advertise)
	return out
}

// otherServers are servers without this one.
func (m *members) otherServers() []string {
	var out []string
	for _, a := range m.servers() {
		if a != m.s.cfg.Advertise {
			out = append(out, a)
		}
	}
	return out
}

// runMembers keeps raft's servers what they should be: those that gossip found and that prove themselves are added, those
// that left are removed. Dead ones are autopilot's business.
func (s *Server) runMembers(ctx context.Context, term uint64) error {
	if s.gossip.g == nil {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(membersEvery)
	defer t.Stop()
	for {
		s.reconcileMembers(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-s.memberWake:
		case <-t.C:
		}
	}
}

func (s *Server) reconcileMembers(ctx context.Context) {
	servers, _, err := s.replica.Configuration()
	if err != nil {
		return
	}
	inRaft := map[string]raft.Server{}
	for _, x := range servers {
		inRaft[string(x.ID)] = x
	}
	for _, x := range s.gossip.g.Members() {
		if ctx.Err() != nil {
			return
		}
		if x.Role != gossip.RoleServer || x.Region != s.cfg.Region || x.ID == s.cfg.ID {
			continue
		}
		have, ok := inRaft[x.ID]
		switch {
		case x.Status == gossip.Left && ok:
			s.log.Info("removing a server that left", "server", x.Name)
			if _, err := s.replica.RemoveServer(raft.ServerID(x.ID), 10*time.Second); err != nil {
				s.log.Warn("removing a server failed", "server", x.Name, "error", err)
			}
		case x.Status == gossip.Alive && (!ok || string(have.Address) != x.RaftAddr()):
			if err := s.addServer(ctx, x); err != nil {
				s.log.Warn("not adding a server", "server", x.Name, "addr", x.RPC, "error", err)
			}
		}
	}
}

// addServer adds a server to raft after it proved, over an RPC with a server certificate, that it is who gossip says.
func (s *Server) addServer(ctx context.Context, x gossip.Member) error {
	info, err := s.serverInfo(ctx, x.RPC)
	if err != nil {
		return err
	}
	cluster := s.Published().Snapshot.ClusterMeta()
	switch {
	case info.ID != x.ID:
		return structs.Errorf(structs.CodeInvalid, "it says its id is %s, gossip says %s", info.ID, x.ID)
	case info.Region != s.cfg.Region:
		return structs.Errorf(structs.CodeInvalid, "it belongs to region %s", info.Region)
	case !info.Cluster.IsZero() && cluster != nil && info.Cluster != cluster.ID:
		return structs.Errorf(structs.CodeInvalid, "it belongs to another cluster (%s, here %s); remove its data_dir to let it join this one", info.Cluster, cluster.ID)
	}
	s.gossip.mu.Lock()
	delete(s.gossip.pruned, x.ID)
	s.gossip.mu.Unlock()
	s.log.Info("adding a server", "server", x.Name, "addr", x.RPC)
	return s.autopilot.AddServer(autopilotServer(x, false))
}

// hostPort is addr, if it is one.
func hostPort(addr string) bool {
	_, _, err := net.SplitHostPort(addr)
	return err == nil
}

func memberOf(req *methods.ServerJoinRequest, region string) gossip.Member {
	return gossip.Member{Name: req.Name, Status: gossip.Alive,
		Meta: gossip.Meta{Role: gossip.RoleServer, Region: region, ID: req.ID, RPC: req.Address}}
}
