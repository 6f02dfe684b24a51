// Package gossip lets servers and agents find each other. Its data is a hint: to become a raft server an agent must
// call with a server certificate or the join key, and a node that is suspected is probed before any action (D12, ADR
// 0027).
//
// It starts two goroutines (the filters of packets and of streams); they and memberlist's own end with Close.
package gossip

import (
	"errors"
	"fmt"
	"log"
	"net"
	"sort"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/loglimit"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of the member list.
const (
	deadKept     = 24 * time.Hour // how long a failed member is remembered
	membersMax   = 50_000         // members beyond it are ignored
	metaMax      = 512            // memberlist's
	leaveTimeout = 5 * time.Second
)

// Status of a member as this process believes it.
type Status string

// A member is alive, left on purpose, or failed.
const (
	Alive  Status = "alive"
	Left   Status = "left"
	Failed Status = "failed"
)

// Roles of a member.
const (
	RoleServer = "server"
	RoleClient = "client"
)

// Meta is a member's description of itself, at most 512 bytes encoded.
type Meta struct {
	Role       string `codec:"o"`
	Region     string `codec:"g"`
	Datacenter string `codec:"d,omitempty"`
	ID         string `codec:"i"`           // raft server id, or node id
	Node       string `codec:"n,omitempty"` // of a server: the node id of the client part in its process
	RPC        string `codec:"r,omitempty"`
	Raft       string `codec:"f,omitempty"` // "" is RPC
	Expect     int    `codec:"e,omitempty"` // bootstrap_expect
	Version    string `codec:"v,omitempty"`
	Build      string `codec:"b,omitempty"`
	Leaving    bool   `codec:"l,omitempty"` // it is about to leave on purpose

	// What a server speaks (structs.Speaks); Version is the release.
	Oldest structs.Format `codec:"fo,omitempty"`
	Newest structs.Format `codec:"fn,omitempty"`
	Calls  uint64         `codec:"fr,omitempty"`
}

// Speaks returns what the member speaks.
func (m *Meta) Speaks() structs.Speaks {
	return structs.Speaks{Muster: m.Version, Oldest: m.Oldest, Newest: m.Newest, RPC: m.Calls}
}

// RaftAddr returns the member's raft address.
func (m *Meta) RaftAddr() string {
	if m.Raft != "" {
		return m.Raft
	}
	return m.RPC
}

// Member is one server or agent.
type Member struct {
	Meta
	Name   string // without the region
	Addr   string // gossip address, "ip:port"
	Status Status
	Since  time.Time // of the status
}

// Config is how this process gossips.
type Config struct {
	Name          string // unique in the region
	Meta          Meta
	Transport     memberlist.Transport // or nil: TCP and UDP on BindAddr:BindPort
	BindAddr      string
	BindPort      int
	AdvertiseAddr string
	AdvertisePort int
	Key           []byte          // 16, 24 or 32 bytes, or nil
	KeyFile       string          // has the keys since they were first changed, and then counts instead of Key; "": they are in memory only
	AllowPlain    bool            // gossip without a key even beyond loopback
	OnChange      func()          // called after each change of a server; must not block
	OnDoubt       func(id string) // called with the node id of a member that others suspect, or that failed; must not block
	Log           hclog.Logger
}

// Gossip is this process's membership.
type Gossip struct {
	cfg  Config
	list *memberlist.Memberlist
	ring *memberlist.Keyring // or nil
	log  hclog.Logger

	changing sync.Mutex // held while the keys and their file are changed

	mu      sync.Mutex
	members map[string]*Member // by full name; cfg.Meta is guarded too
	nodes   map[string]string  // full names by node id
}

// Start makes this process reachable. It joins no other member yet.
func Start(cfg Config) (*Gossip, error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Name == "" || cfg.Meta.Region == "" {
		return nil, errors.New("gossip: a member needs a name and a region")
	}
	if b, err := rpc.Encode(&cfg.Meta); err != nil || len(b) > metaMax {
		return nil, fmt.Errorf("gossip: the description of %s takes %d bytes, the limit is %d: shorten name, version or addresses", cfg.Name, len(b), metaMax)
	}
	ring, err := keyring(&cfg)
	if err != nil {
		return nil, err
	}
	if ring == nil && !cfg.AllowPlain && !loopback(cfg.BindAddr) {
		return nil, fmt.Errorf("gossip: no encryption key although bound to %s; set server.encrypt (make one with `muster operator gossip keyring generate`)", cfg.BindAddr)
	}
	g := &Gossip{cfg: cfg, ring: ring, log: cfg.Log, members: map[string]*Member{}, nodes: map[string]string{}}
	mc := memberlist.DefaultLANConfig()
	mc.Name = cfg.Name + "." + cfg.Meta.Region
	mc.BindAddr, mc.BindPort = cfg.BindAddr, cfg.BindPort
	mc.AdvertiseAddr, mc.AdvertisePort = cfg.AdvertiseAddr, cfg.AdvertisePort
	if mc.BindAddr == "" {
		mc.BindAddr = "0.0.0.0"
	}
	mc.EnableCompression = false // the transport refuses compressed messages, so none is ever decompressed
	limited := loglimit.New(cfg.Log.StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}), "memberlist")
	mc.Logger = log.New(limited, "", 0) // anyone who reaches the port can make memberlist log a line per packet
	mc.Events, mc.Delegate = (*events)(g), (*delegate)(g)
	mc.DeadNodeReclaimTime = 30 * time.Second
	mc.Keyring = ring
	inner := cfg.Transport
	if inner == nil {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{mc.BindAddr}, BindPort: mc.BindPort, Logger: mc.Logger,
		})
		if err != nil {
			return nil, fmt.Errorf("gossip: %w", err)
		}
		if mc.BindPort == 0 {
			mc.BindPort = t.GetAutoBindPort()
		}
		if mc.AdvertisePort == 0 {
			mc.AdvertisePort = mc.BindPort
		}
		inner = t
	}
	ft := newFilter(inner, g.ring, cfg.Log, g.suspected)
	mc.Transport = ft
	list, err := memberlist.Create(mc)
	if err != nil {
		_ = ft.Shutdown() // err says more
		return nil, fmt.Errorf("gossip: %w", err)
	}
	g.list = list
	return g, nil
}

func loopback(addr string) bool {
	ip := net.ParseIP(addr)
	return ip != nil && ip.IsLoopback()
}

// Addr returns the address that others gossip to.
func (g *Gossip) Addr() string { return g.list.LocalNode().Address() }

// Join contacts addresses ("host:port", or "host" with the default port) and returns how many answered.
func (g *Gossip) Join(addrs []string) (int, error) { return g.list.Join(addrs) }

// Alone reports whether no other member is alive.
func (g *Gossip) Alone() bool { return g.list.NumMembers() < 2 }

// Members returns all members by name; failed ones for a day.
func (g *Gossip) Members() []Member { return g.ofRole("") }

// Servers returns the members that are servers.
func (g *Gossip) Servers() []Member { return g.ofRole(RoleServer) }

// ofRole returns the members with a role, or all.
func (g *Gossip) ofRole(role string) []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	out := make([]Member, 0, 16)
	for name, m := range g.members {
		if role != "" && m.Role != role {
			continue
		}
		if m.Status != Alive && now.Sub(m.Since) > deadKept {
			g.drop(name, m)
			continue
		}
		out = append(out, *m)
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Region != out[j].Region {
			return out[i].Region < out[j].Region
		}
		return out[i].Name < out[j].Name
	})
	return out
}

// Forget drops a member that is not alive, so that it does not stay in lists. memberlist forgets it on its own.
func (g *Gossip) Forget(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for full, m := range g.members {
		if (m.Name == name || full == name) && m.Status != Alive {
			g.drop(full, m)
			return true
		}
	}
	return false
}

// drop forgets a member. The caller holds mu.
func (g *Gossip) drop(full string, m *Member) {
	delete(g.members, full)
	if g.nodes[m.NodeID()] == full {
		delete(g.nodes, m.NodeID())
	}
}

// NodeID returns the id of the member's node, or "" if it has no client part.
func (m *Meta) NodeID() string {
	if m.Role == RoleClient {
		return m.ID
	}
	return m.Node
}

// Node returns the member of this region whose agent speaks for a node.
func (g *Gossip) Node(id string) (Member, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.members[g.nodes[id]]
	if m == nil || m.Region != g.cfg.Meta.Region {
		return Member{}, false
	}
	return *m, true
}

// Nodes returns the ids of the nodes of this region whose agents are alive.
func (g *Gossip) Nodes() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]string, 0, len(g.nodes))
	for id, full := range g.nodes {
		if m := g.members[full]; m != nil && m.Status == Alive && m.Region == g.cfg.Meta.Region {
			out = append(out, id)
		}
	}
	return out
}

// SetNode says which node the client part of this process is.
func (g *Gossip) SetNode(id string) error {
	g.mu.Lock()
	g.cfg.Meta.Node = id
	g.mu.Unlock()
	return g.list.UpdateNode(leaveTimeout)
}

// suspected reports doubt about a member by its full name.
func (g *Gossip) suspected(full string) {
	if g.cfg.OnDoubt == nil {
		return
	}
	g.mu.Lock()
	id := ""
	if m := g.members[full]; m != nil {
		id = m.NodeID()
	}
	g.mu.Unlock()
	if id != "" {
		g.cfg.OnDoubt(id)
	}
}

// Leave announces that this member leaves on purpose. memberlist reports leaving and dying alike, so the member first
// sets Leaving in its Meta.
func (g *Gossip) Leave() error {
	g.mu.Lock()
	g.cfg.Meta.Leaving = true
	g.mu.Unlock()
	if err := g.list.UpdateNode(leaveTimeout); err != nil {
		g.log.Warn("the others may take leaving for a failure", "error", err)
	}
	return g.list.Leave(leaveTimeout)
}

// Close stops gossip; the others see a failure unless Leave was called first.
func (g *Gossip) Close() error { return g.list.Shutdown() }

type delegate Gossip

func (d *delegate) NodeMeta(limit int) []byte {
	d.mu.Lock()
	meta := d.cfg.Meta
	d.mu.Unlock()
	b, err := rpc.Encode(&meta)
	if err != nil || len(b) > limit {
		return nil
	}
	return b
}
func (d *delegate) NotifyMsg([]byte)                {}
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (d *delegate) LocalState(bool) []byte          { return nil }
func (d *delegate) MergeRemoteState([]byte, bool)   {}

type events Gossip

func (e *events) NotifyJoin(n *memberlist.Node)   { e.set(n, Alive) }
func (e *events) NotifyUpdate(n *memberlist.Node) { e.set(n, Alive) }
func (e *events) NotifyLeave(n *memberlist.Node)  { e.set(n, Failed) }

func (e *events) set(n *memberlist.Node, st Status) {
	m := &Member{Addr: n.Address(), Status: st, Since: time.Now()}
	if len(n.Meta) > metaMax || rpc.Decode(n.Meta, &m.Meta) != nil || !sane(&m.Meta) {
		e.log.Warn("ignoring a member that does not say who it is", "name", n.Name, "addr", m.Addr)
		return
	}
	if st == Failed && m.Leaving {
		m.Status = Left
	}
	m.Name = n.Name
	if suffix := "." + m.Region; len(n.Name) > len(suffix) && n.Name[len(n.Name)-len(suffix):] == suffix {
		m.Name = n.Name[:len(n.Name)-len(suffix)]
	}
	e.mu.Lock()
	if old := e.members[n.Name]; old == nil && len(e.members) >= membersMax {
		e.mu.Unlock()
		e.log.Warn("ignoring a member: the list is full", "name", n.Name, "limit", membersMax)
		return
	}
	if old := e.members[n.Name]; old != nil && e.nodes[old.NodeID()] == n.Name {
		delete(e.nodes, old.NodeID()) // the machine may have a new node
	}
	e.members[n.Name] = m
	if id := m.NodeID(); id != "" {
		e.nodes[id] = n.Name
	}
	e.mu.Unlock()
	if m.Status == Failed {
		(*Gossip)(e).suspected(n.Name)
	}
	if e.cfg.OnChange != nil && m.Role == RoleServer {
		e.cfg.OnChange()
	}
}

// sane limits what a key holder can make other members show and dial.
func sane(m *Meta) bool {
	return (m.Role == RoleServer || m.Role == RoleClient) && m.Region != "" && len(m.Region) <= 128 &&
		len(m.ID) <= 64 && len(m.Node) <= 64 && len(m.RPC) <= 255 && len(m.Raft) <= 255 && m.Expect >= 0 && m.Expect < 100
}
