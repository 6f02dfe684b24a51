// Package netns gives allocations their own network: a network namespace whose tasks share one address behind a bridge
// of the node (mode bridge), or one with only loopback (mode none). The node forwards the allocation's host ports to
// it, and masquerades what it sends elsewhere.
//
// The state that must survive the agent is in three places, each of which can be rebuilt from the one before:
// leases.json in the agent's directory has the addresses and ports, ns/<allocation> there holds the namespaces (bind
// mounts), and the kernel has bridge, links and one nftables table, named after the bridge. ADR 0012 says why it is
// built like this.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"
)

// Defaults of the configuration, the subnet that of Nomad.
const (
	BridgeDefault = "muster"
	SubnetDefault = "172.26.64.0/20"
)

// Interface is the name of an allocation's link inside its network.
const Interface = "eth0"

// Config configures the node's bridge network.
type Config struct {
	Dir    string // directory of leases and namespaces; only the agent writes there
	Bridge string // name of the bridge, and part of that of the nftables table; "" is BridgeDefault
	Subnet string // of the allocations, IPv4; its first address is the node's. "" is SubnetDefault
	Log    hclog.Logger
}

// Port maps a port of the node to one inside.
type Port struct {
	HostIP string // of the node; "" for every address of the node, loopback included
	Host   int
	To     int
}

// Want is the network that an allocation asks for.
type Want struct {
	Bridge bool // false: only loopback
	Ports  []Port
}

// Attached is the network of an allocation.
type Attached struct {
	Path string // of the namespace
	IP   string // "" without a bridge
}

// Manager creates and removes the networks of a node's allocations. An agent has one.
type Manager struct {
	cfg    Config
	log    hclog.Logger
	subnet netip.Prefix

	mu      sync.Mutex
	lock    net.Listener // held while this agent uses the bridge
	state   leases
	forward bool // allowForward was called since the bridge was created, or since the start of this agent
	probed  bool
	lacks   [2]error // what the machine lacks for mode none and bridge, once probed
}

// New reads the state of an earlier agent. Nothing is created before Setup.
func New(cfg Config) (*Manager, error) {
	if cfg.Bridge == "" {
		cfg.Bridge = BridgeDefault
	}
	if cfg.Subnet == "" {
		cfg.Subnet = SubnetDefault
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	subnet, err := Check(cfg.Bridge, cfg.Subnet)
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, log: cfg.Log.Named("network"), subnet: subnet}
	if err := os.MkdirAll(filepath.Dir(cfg.Dir), 0o711); err != nil { // tasks traverse it
		return nil, fmt.Errorf("network: %w", err)
	}
	if err := os.MkdirAll(m.dir("ns"), 0o700); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if m.state, err = readLeases(m.dir("leases.json")); err != nil {
		aside := m.dir("leases.json.unreadable")
		m.log.Error("the addresses of allocations are unknown; the file is moved aside, and networks are set up again", "error", err, "moved_to", aside)
		if err := os.Rename(m.dir("leases.json"), aside); err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
		m.state = leases{Allocs: map[string]*lease{}}
	}
	if s := m.state; len(s.Allocs) > 0 && s.bridged() && (s.Bridge != cfg.Bridge || s.Subnet != subnet.String()) {
		// Running allocations have addresses in the old subnet.
		old, err := Check(s.Bridge, s.Subnet)
		if err != nil {
			return nil, fmt.Errorf("network: %s: %w", m.dir("leases.json"), err)
		}
		m.log.Warn("allocations use the bridge network as it was configured before; what is configured now counts when they have ended and the agent is started again",
			"bridge", s.Bridge, "subnet", s.Subnet)
		m.cfg.Bridge, m.subnet = s.Bridge, old
	}
	return m, nil
}

// Check returns an error if a bridge's name or subnet is invalid.
func Check(bridge, subnet string) (netip.Prefix, error) {
	if len(bridge) == 0 || len(bridge) > 15 || bridge == "." || bridge == ".." {
		return netip.Prefix{}, fmt.Errorf("bridge_network_name %q: want 1 to 15 characters", bridge)
	}
	for _, c := range bridge {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return netip.Prefix{}, fmt.Errorf("bridge_network_name %q: want letters, digits, - _ and .", bridge)
		}
	}
	p, err := netip.ParsePrefix(subnet)
	if err != nil || !p.Addr().Is4() {
		return netip.Prefix{}, fmt.Errorf("bridge_network_subnet %q: want an IPv4 network such as %s", subnet, SubnetDefault)
	}
	if p.Bits() < 8 || p.Bits() > 29 {
		return netip.Prefix{}, fmt.Errorf("bridge_network_subnet %q: want a prefix of 8 to 29 bits", subnet)
	}
	if p.Masked().Addr().IsLoopback() || p.Masked().Addr().IsMulticast() {
		return netip.Prefix{}, fmt.Errorf("bridge_network_subnet %q: loopback and multicast addresses cannot be given to allocations", subnet)
	}
	return p.Masked(), nil
}

func (m *Manager) dir(name string) string { return filepath.Join(m.cfg.Dir, name) }

// gateway returns the node's address in the subnet.
func (m *Manager) gateway() netip.Addr { return m.subnet.Addr().Next() }

// Bridge returns the name of the bridge.
func (m *Manager) Bridge() string { return m.cfg.Bridge }

// Unable returns why this node has no networks of mode none, or of mode bridge, now; nil if it has them. The machine is
// probed once; other users of the bridge are checked each time.
func (m *Manager) Unable() (none, bridge error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.probed {
		m.lacks[0], m.lacks[1] = probe()
		m.probed = true
	}
	if m.lacks[0] != nil || m.lacks[1] != nil {
		return m.lacks[0], m.lacks[1]
	}
	return nil, m.ready()
}

// ready acquires the bridge for this agent. The lock is an abstract socket: like the bridge it belongs to the network
// namespace, and it ends with the process in any case.
func (m *Manager) ready() error {
	if m.lock == nil {
		l, err := net.Listen("unix", "@muster-network-"+m.cfg.Bridge)
		if err != nil {
			return fmt.Errorf("another agent on this machine uses the bridge network %q; give this one a different bridge_network_name and bridge_network_subnet", m.cfg.Bridge)
		}
		m.lock = l
	}
	return m.overlap()
}

// Setup creates the network of an allocation, or its missing parts. It may be repeated at any time.
func (m *Manager) Setup(alloc string, w Want) (*Attached, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.state.Allocs[alloc]
	if w.Bridge {
		if err := m.ready(); err != nil {
			if at := m.attached(alloc); at != nil && at.IP != "" && isNamespace(at.Path) {
				m.log.Warn("the network of a running allocation is not changed", "alloc", alloc, "error", err)
				return at, nil
			}
			return nil, err
		}
	}
	l := old
	if l == nil {
		l = &lease{}
	}
	next := *l
	next.Ports = nil
	if w.Bridge {
		next.Ports = slices.Clone(w.Ports)
		if next.IP == "" {
			for _, p := range w.Ports {
				if err := portFree(p); err != nil {
					return nil, err
				}
			}
			ip, err := m.state.pick(m.subnet)
			if err != nil {
				return nil, err
			}
			next.IP = ip.String()
			m.state.Last = next.IP
		}
	}
	if old == nil || !old.equal(&next) {
		m.state.Bridge, m.state.Subnet = m.cfg.Bridge, m.subnet.String()
		m.state.Allocs[alloc] = &next
		if err := m.save(); err != nil {
			if old == nil {
				delete(m.state.Allocs, alloc)
			} else {
				m.state.Allocs[alloc] = old
			}
			return nil, err
		}
	}
	at := &Attached{Path: m.dir(filepath.Join("ns", alloc)), IP: next.IP}
	err := hold(at.Path)
	if err == nil && w.Bridge {
		if err = m.connect(alloc, at); err == nil {
			err = m.rules()
		}
		if err == nil && (old == nil || !old.equal(&next)) {
			forgetStrays(next.Ports)
		}
	}
	if err != nil {
		err = fmt.Errorf("network of the allocation: %w", err)
		if old == nil {
			err = errors.Join(err, m.release(alloc))
		}
		return nil, err
	}
	return at, nil
}

// Get returns the existing network of an allocation, or nil.
func (m *Manager) Get(alloc string) *Attached {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attached(alloc)
}

func (m *Manager) attached(alloc string) *Attached {
	l := m.state.Allocs[alloc]
	if l == nil {
		return nil
	}
	return &Attached{Path: m.dir(filepath.Join("ns", alloc)), IP: l.IP}
}

// Release removes the network of an allocation. The next Sweep retries what fails.
func (m *Manager) Release(alloc string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Allocs[alloc] == nil {
		return nil
	}
	return m.release(alloc)
}

func (m *Manager) release(alloc string) error {
	l := m.state.Allocs[alloc]
	if l.IP != "" {
		if err := m.ready(); m.lock == nil {
			return err // the links belong to the agent that has the bridge now
		}
		gone := *l
		gone.Ports = nil
		m.state.Allocs[alloc] = &gone // without rules
		if err := errors.Join(m.rules(), removeLink(linkName(alloc))); err != nil {
			return fmt.Errorf("remove the network of allocation %.8s: %w", alloc, err)
		}
		forgetConnections(l.IP)
	}
	if err := letGo(m.dir(filepath.Join("ns", alloc))); err != nil {
		return fmt.Errorf("remove the network of allocation %.8s: %w", alloc, err)
	}
	delete(m.state.Allocs, alloc)
	var err error
	if l.IP != "" && !m.state.bridged() {
		err = m.dismantle()
	}
	return errors.Join(err, m.save())
}

// Sweep removes every network except those of allocations for which keep returns true, known or not.
func (m *Manager) Sweep(keep func(alloc string) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, id := range m.state.ids() {
		if !keep(id) {
			m.log.Info("removing the network of an allocation that is gone", "alloc", id)
			errs = append(errs, m.release(id))
		}
	}
	list, err := os.ReadDir(m.dir("ns"))
	errs = append(errs, err)
	for _, e := range list {
		if m.state.Allocs[e.Name()] == nil {
			errs = append(errs, letGo(m.dir(filepath.Join("ns", e.Name()))))
		}
	}
	if m.lock == nil {
		return errors.Join(errs...)
	}
	known := map[string]bool{}
	for id := range m.state.Allocs {
		known[linkName(id)] = true
	}
	errs = append(errs, m.removeStrays(known))
	if m.state.bridged() {
		errs = append(errs, m.repair())
	} else {
		errs = append(errs, m.dismantle())
	}
	return errors.Join(errs...)
}

// Close releases the bridge for another agent. Networks stay.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lock == nil {
		return nil
	}
	l := m.lock
	m.lock = nil
	return l.Close()
}
