// Package member manages the servers of a region: gossip, raft's servers, autopilot, and the consent of clocks.
package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Timings of membership.
const (
	membersEvery    = 10 * time.Second       // longest time between the leader's checks of raft's servers
	infoTimeout     = 5 * time.Second        // for one ServerInfo call
	joinRetryMin    = 250 * time.Millisecond // time between attempts to join
	joinRetryMax    = 5 * time.Second
	joinSilence     = 2 * time.Second        // of an address, before it is looked up whether it is another port
	bootstrapEvery  = 500 * time.Millisecond // time between checks whether enough servers are there to create a cluster
	deadServerAfter = 3 * time.Minute        // time for which a server must be unhealthy before autopilot gives it up
)

// Environment is what membership needs from the server.
type Environment struct {
	Name        string      // of this server
	Self        gossip.Meta // what gossip sends to others about this server
	Gossip      GossipConfig
	KeyFile     string // keeps the gossip keys that commands have changed; "": they are in memory only
	GossipOnly  bool   // agents may be sent to servers that only gossip knows: they verify them, or trust their network
	Log         hclog.Logger
	Now         func() time.Time
	Replica     *replica.Replica
	LastContact func() time.Duration         // time since this server heard from a leader
	To          func(addr string) rpc.Caller // returns a caller of another server
	Dial        rpc.Dialer                   // below TLS
	Apply       func(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error)
	OnDoubt     func(node structs.NodeID) // gossip suspects the agent of a node; must not block
	Exit        func(why string)          // ends the process
}

// Members combines this server's gossip and autopilot. g is nil without gossip.
type Members struct {
	env       Environment
	g         *gossip.Gossip
	Autopilot *autopilot.Autopilot
	wake      chan struct{} // makes the leader check raft's servers
	Unhealthy atomic.Bool   // autopilot reports an unhealthy server
	changed   chan struct{}
	health    map[raft.ServerID]autopilot.ServerHealth // in autopilot's last look of this term; used by its goroutine only
	leaving   atomic.Bool                              // Leave was called
	joining   sync.Mutex                               // held while a server is added and while an upgrade is finished

	mu     sync.Mutex
	pruned map[string]bool // raft IDs that autopilot has given up
	ailing map[string]ail  // by raft ID: servers that do not do their part

	founders atomic.Pointer[[]string] // raft IDs of the servers that would found the cluster, as seen from here; nil for none
	waits    string                   // what founding the cluster waits for, as logged last; used by Run only

	known  atomic.Pointer[knownServers]
	advice atomic.Pointer[knownJoin]
}

// knownServers caches the list of servers, which every heartbeat carries.
type knownServers struct {
	at     time.Time
	leader string
	list   []string
}

// serversFresh is the greatest age of that cache. A new leader invalidates it at once.
const serversFresh = time.Second

// New starts gossip. The replica must have been started.
func New(env Environment) (*Members, error) {
	m := &Members{env: env, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), pruned: map[string]bool{}}
	m.Autopilot = newAutopilot(m)
	c := env.Gossip
	if c.Disabled {
		return m, nil
	}
	g, err := gossip.Start(gossip.Config{
		Name: env.Name, Meta: env.Self,
		Transport: c.Transport, BindAddr: c.BindAddr, BindPort: c.BindPort,
		AdvertiseAddr: c.AdvertiseAddr, AdvertisePort: c.AdvertisePort,
		Key: c.Key, KeyFile: env.KeyFile, AllowPlain: c.AllowPlain,
		OnChange: m.notify, OnDoubt: m.doubt, Log: env.Log.Named("gossip"),
	})
	if err != nil {
		return nil, err
	}
	m.g = g
	return m, nil
}

// doubt passes a suspicion on.
func (m *Members) doubt(node string) {
	if id, err := structs.ParseID[structs.NodeID](node); err == nil {
		m.env.OnDoubt(id)
	}
}

func (m *Members) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
	m.bump()
}

// bump makes the leader check raft's servers.
func (m *Members) bump() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Close ends gossip without announcing it: others see this server fail.
func (m *Members) Close() {
	if m.g != nil {
		if err := m.g.Close(); err != nil {
			m.env.Log.Warn("gossip shutdown", "error", err)
		}
	}
}

// Leave announces to gossip that this server leaves for good.
func (m *Members) Leave(ctx context.Context) error {
	if m.g == nil {
		return nil
	}
	m.leaving.Store(true)
	done := make(chan error, 1)
	go func() { done <- m.g.Leave() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leaving reports whether this server is about to leave for good.
func (m *Members) Leaving() bool { return m.leaving.Load() }

// Join contacts other servers by gossip and returns how many answered.
func (m *Members) Join(addrs []string) (int, error) {
	if m.g == nil {
		return 0, errors.New("gossip is disabled here")
	}
	return m.g.Join(addrs)
}

// Run joins the configured addresses, meets again those that gossip has lost, and creates a cluster when the expected
// servers are there.
func (m *Members) Run(ctx context.Context) {
	if m.g == nil {
		return
	}
	j := joiner{Members: m, open: slices.Clone(m.env.Gossip.RetryJoin), most: m.env.Gossip.RetryInterval}
	if j.most <= 0 {
		j.most = joinRetryMax
	}
	j.wait = min(joinRetryMin, j.most)
	var joining sync.WaitGroup
	joining.Go(func() { j.run(ctx) }) // an address without an answer takes seconds
	defer joining.Wait()
	t := time.NewTicker(bootstrapEvery)
	defer t.Stop()
	for !m.env.Replica.Bootstrapped() {
		m.found(ctx)
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-t.C:
		}
	}
	<-ctx.Done()
}

// joiner brings this server together with those that it should know.
type joiner struct {
	*Members
	open       []string      // addresses of retry_join that have not answered; all of them while this server is alone
	wait, most time.Duration // until the next try while no one has answered; the longest one
	turn       int           // of the servers that have failed
	wrong      string        // what is wrong with a port of open; "": nothing is known to be
}

func (j *joiner) run(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			t.Reset(j.try(ctx))
		}
	}
}

// try makes one attempt and returns the time until the next. An address that does not answer is tried again, although
// others have: it may be the only one of its part of the network. Members that gossip takes for dead are tried in turns,
// because memberlist forgets them after a while, and two halves that do so never meet again.
func (j *joiner) try(ctx context.Context) time.Duration {
	if j.g.Alone() {
		j.open = slices.Clone(j.env.Gossip.RetryJoin)
	}
	var failed error
	before, known := len(j.open), j.wrong
	j.open = slices.DeleteFunc(j.open, func(addr string) bool {
		n, err := j.join(ctx, addr)
		if err != nil {
			failed = err
		}
		return n > 0
	})
	j.rejoin(ctx)
	if j.wrong != "" {
		failed = errors.New(j.wrong)
	}
	if len(j.open) == before && j.g.Alone() && before > 0 {
		j.env.Log.Warn("could not join; trying again", "addresses", j.open, "error", failed, "in", j.wait)
		next := j.wait
		j.wait = min(2*j.wait, j.most)
		return next
	}
	if n := before - len(j.open); n > 0 {
		j.env.Log.Info("joined", "servers", n)
	}
	if j.wrong != known {
		j.env.Log.Warn("could not join one of the addresses", "error", failed)
	}
	j.wait = min(joinRetryMin, j.most)
	return j.most
}

// wrongPort says which port an address has that answers, but not with gossip; "" if that is not known.
func (j *joiner) wrongPort(ctx context.Context, addr string) string {
	what := ""
	is, err := rpc.AnswersHTTP(ctx, j.env.Dial, addr)
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return "" // nothing answers there
	}
	if is {
		what = fmt.Sprintf("the HTTP API answers (ports.http, %d by default)", structs.PortHTTP)
	} else if _, err := j.serverInfo(ctx, addr); err == nil {
		what = fmt.Sprintf("a server takes calls (ports.rpc, %d by default)", structs.PortCalls)
	}
	if what == "" {
		return ""
	}
	return fmt.Sprintf("at %s %s: servers join by gossip, so this needs the other's gossip port (ports.serf, %d by default)", addr, what, structs.PortGossip)
}

// rejoin contacts the next server that gossip takes for dead.
func (j *joiner) rejoin(ctx context.Context) {
	var lost []gossip.Member
	for _, x := range j.g.Servers() {
		if x.Status == gossip.Failed {
			lost = append(lost, x)
		}
	}
	if len(lost) == 0 {
		return
	}
	j.turn++
	x := lost[j.turn%len(lost)]
	if _, err := j.join(ctx, x.Addr); err == nil {
		j.env.Log.Info("met a lost server again", "server", x.Name, "addr", x.Addr)
	}
}

// join contacts an address. memberlist takes up to 10 s for one that does not answer, for which the end of the server
// does not wait. Nor does the log: after joinSilence it is looked up whether that is another port, once.
func (j *joiner) join(ctx context.Context, addr string) (n int, err error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	done := make(chan struct{})
	var answered int
	var failed error
	go func() {
		defer close(done)
		answered, failed = j.g.Join([]string{addr})
	}()
	silent := time.NewTimer(joinSilence)
	defer silent.Stop()
	look := j.wrong == "" && slices.Contains(j.env.Gossip.RetryJoin, addr)
	for {
		select {
		case <-done:
			if failed != nil && look {
				j.wrong = j.wrongPort(ctx, addr)
			}
			return answered, failed
		case <-silent.C:
			if !look {
				continue
			}
			look = false
			if j.wrong = j.wrongPort(ctx, addr); j.wrong != "" {
				return 0, errors.New(j.wrong)
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// serverInfo asks a server for its identity. With TLS or a join key, the connection proves that it is a server.
func (m *Members) serverInfo(ctx context.Context, addr string) (*methods.ServerInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	return rpc.Invoke(ctx, m.env.To(addr), methods.ServerInfo, rpc.Header{}, &methods.EmptyRequest{})
}

// All returns all servers and agents that gossip knows, or nil without gossip.
func (m *Members) All() []gossip.Member {
	if m.g == nil {
		return nil
	}
	return m.g.Members()
}

// Gossip returns this server's gossip, or nil.
func (m *Members) Gossip() *gossip.Gossip { return m.g }

// ServersOf returns the RPC addresses of a region's live servers.
func (m *Members) ServersOf(region string) []string {
	var out []string
	if m.g != nil {
		for _, x := range m.g.Servers() {
			if x.Region == region && x.Status == gossip.Alive && x.RPC != "" {
				out = append(out, x.RPC)
			}
		}
	}
	return out
}

// Regions returns all known regions, sorted.
func (m *Members) Regions() []string {
	out := []string{m.env.Self.Region}
	if m.g != nil {
		for _, x := range m.g.Servers() {
			out = append(out, x.Region)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Servers returns the RPC addresses of this region's servers, the leader first: raft's, then others that gossip knows,
// unless agents cannot verify servers.
func (m *Members) Servers() []string {
	leader, _ := m.env.Replica.Leader()
	now := time.Now()
	if k := m.known.Load(); k != nil && k.leader == leader && now.Sub(k.at) < serversFresh {
		return k.list
	}
	list := m.findServers(leader)
	m.known.Store(&knownServers{now, leader, list})
	return list
}

func (m *Members) findServers(leader string) []string {
	seen := map[string]bool{}
	var out []string
	add := func(a string) {
		if a != "" && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	add(leader)
	servers, _, _ := m.env.Replica.Configuration() // on error, gossip's list must do
	for _, x := range servers {
		add(string(x.Address))
	}
	if m.env.GossipOnly {
		for _, a := range m.ServersOf(m.env.Self.Region) {
			add(a)
		}
	}
	add(m.env.Self.RPC)
	return out
}

// OtherServers returns Servers without this one.
func (m *Members) OtherServers() []string {
	var out []string
	for _, a := range m.Servers() {
		if a != m.env.Self.RPC {
			out = append(out, a)
		}
	}
	return out
}

// RunMembers keeps raft's servers up to date. It adds those that gossip found and that prove their identity, and
// removes those that left. Dead servers are left to autopilot.
func (m *Members) RunMembers(ctx context.Context, term uint64) error {
	if m.g == nil {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(membersEvery)
	defer t.Stop()
	for {
		m.reconcileMembers(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-t.C:
		}
	}
}

func (m *Members) reconcileMembers(ctx context.Context) {
	servers, _, err := m.env.Replica.Configuration()
	if err != nil {
		return
	}
	inRaft := map[string]raft.Server{}
	for _, x := range servers {
		inRaft[string(x.ID)] = x
	}
	for _, x := range m.g.Servers() {
		if ctx.Err() != nil {
			return
		}
		if x.Region != m.env.Self.Region || x.ID == m.env.Self.ID {
			continue
		}
		have, ok := inRaft[x.ID]
		switch {
		case x.Status == gossip.Left && ok:
			if m.stays(ctx, have) {
				m.env.Log.Warn("gossip says that a server left, but it answers and is not leaving; keeping it", "server", x.Name)
				continue
			}
			m.env.Log.Info("removing a server that left", "server", x.Name)
			if _, err := m.env.Replica.RemoveServer(raft.ServerID(x.ID), 10*time.Second); err != nil {
				m.env.Log.Warn("removing a server failed", "server", x.Name, "error", err)
			}
		case x.Status == gossip.Alive && (!ok || string(have.Address) != x.RaftAddr()):
			if err := m.AddServer(ctx, x); err != nil {
				m.env.Log.Warn("not adding a server", "server", x.Name, "addr", x.RPC, "error", err)
			}
		}
	}
}

// stays reports whether a server of raft answers and is not about to leave. Every holder of the gossip key can announce
// the leave of another.
func (m *Members) stays(ctx context.Context, x raft.Server) bool {
	info, err := m.serverInfo(ctx, string(x.Address))
	return err == nil && info.ID == string(x.ID) && !info.Leaving
}

// AddServer adds a server to raft after it has proved its identity by an RPC (see serverInfo).
func (m *Members) AddServer(ctx context.Context, x gossip.Member) error {
	m.joining.Lock()
	defer m.joining.Unlock()
	info, err := m.serverInfo(ctx, x.RPC)
	if err != nil {
		return err
	}
	if err := m.speaksHere(info.Speaks); err != nil {
		return err
	}
	cluster := m.env.Replica.Published().Snapshot.ClusterMeta()
	switch {
	case info.ID != x.ID:
		return structs.Errorf(structs.CodeInvalid, "it says its id is %s, gossip says %s", info.ID, x.ID)
	case info.Region != m.env.Self.Region:
		return structs.Errorf(structs.CodeInvalid, "it belongs to region %s", info.Region)
	case !info.Cluster.IsZero() && cluster != nil && info.Cluster != cluster.ID:
		return structs.Errorf(structs.CodeInvalid, "it belongs to another cluster (%s, here %s); remove its data_dir to let it join this one", info.Cluster, cluster.ID)
	}
	m.mu.Lock()
	delete(m.pruned, x.ID)
	m.mu.Unlock()
	m.env.Log.Info("adding a server", "server", x.Name, "addr", x.RPC)
	return m.Autopilot.AddServer(autopilotServer(x, false))
}

// HostPort reports whether an address has a host and a port.
func HostPort(addr string) bool {
	_, _, err := net.SplitHostPort(addr)
	return err == nil
}

// Joining returns a server that has no gossip as a member of a region.
func Joining(req *methods.ServerJoinRequest, region string) gossip.Member {
	return gossip.Member{Name: req.Name, Status: gossip.Alive,
		Meta: gossip.Meta{Role: gossip.RoleServer, Region: region, ID: req.ID, RPC: req.Address}}
}

// RaftServers returns raft's servers, including this one.
func (m *Members) RaftServers() ([]raft.Server, error) {
	servers, _, err := m.env.Replica.Configuration()
	if err != nil {
		return nil, structs.Errorf(structs.CodeUnavailable, "raft configuration: %v", err)
	}
	return servers, nil
}

// RaftOthers returns the addresses of raft's other servers.
func (m *Members) RaftOthers() []string {
	servers, _, _ := m.env.Replica.Configuration()
	var out []string
	for _, x := range servers {
		if string(x.ID) != m.env.Self.ID {
			out = append(out, string(x.Address))
		}
	}
	return out
}

// ServerName returns the name of the server with an RPC address, or the address if gossip does not know it; of "", the
// name of this server.
func (m *Members) ServerName(addr string) string {
	if addr == "" {
		return m.env.Name
	}
	for _, x := range m.All() {
		if x.Role == gossip.RoleServer && x.Region == m.env.Self.Region && x.RaftAddr() == addr {
			return x.Name
		}
	}
	return addr
}

// RaftPeers returns the addresses of raft's other servers, each with whether it votes, and the number of voters
// including this server.
func (m *Members) RaftPeers() (others map[string]bool, voters int, err error) {
	servers, err := m.RaftServers()
	if err != nil {
		return nil, 0, err
	}
	others = map[string]bool{}
	for _, r := range servers {
		voter := r.Suffrage == raft.Voter
		if voter {
			voters++
		}
		if string(r.ID) != m.env.Self.ID {
			others[string(r.Address)] = voter
		}
	}
	return others, voters, nil
}
