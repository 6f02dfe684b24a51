// Package netns gives allocations a network of their own: a network namespace whose tasks share one address behind a
// bridge of the node (mode bridge), or one with nothing but loopback (mode none). The node lets what comes for the
// allocation's host ports through to it, and hides its address behind its own for what it sends elsewhere.
//
// What must survive the agent is in three places, each of which can be made again from the one before it: leases.json in
// the agent's directory says who has which address and ports, ns/<allocation> there holds the namespaces (bind mounts), and the
// kernel has bridge, links and one nftables table, named after the bridge. ADR 0012 says why it is built like this.
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

// Interface is what an allocation's own link is called inside.
const Interface = "eth0"

// Config says how the node's bridge network looks.
type Config struct {
	Dir    string // where leases and namespaces are kept; nobody but the agent writes there
	Bridge string // name of the bridge, and part of that of the nftables table; "" is BridgeDefault
	Subnet string // of the allocations, IPv4; its first address is the node's. "" is SubnetDefault
	Log    hclog.Logger
}

// Port leads from a port of the node to one inside.
type Port struct {
	HostIP string // of the node; "" for every address that is the node's, loopback included
	Host   int
	To     int
}

// Want is what an allocation asks for.
type Want struct {
	Bridge bool // else loopback is all there is
	Ports  []Port
}

// Attached is the network of an allocation.
type Attached struct {
	Path string // of the namespace
	IP   string // "" without a bridge
}

// Manager makes and removes the networks of a node's allocations. One agent has one.
type Manager struct {
	cfg    Config
	log    hclog.Logger
	subnet netip.Prefix

	mu      sync.Mutex
	lock    net.Listener // while this agent is the one to use the bridge
	state   leases
	forward bool // allowForward was called since the bridge was made, or this agent began
	probed  bool
	lacks   [2]error // what the machine lacks for mode none and bridge, once probed
}

// New reads what an earlier agent has left. Nothing is made before Setup.
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
	if err := os.MkdirAll(filepath.Dir(cfg.Dir), 0o711); err != nil { // tasks pass through there
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
		m.log.Error("it is not known any more which allocation has which address; the file is moved aside, and networks are made anew", "error", err, "moved_to", aside)
		if err := os.Rename(m.dir("leases.json"), aside); err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
		m.state = leases{Allocs: map[string]*lease{}}
	}
	if s := m.state; len(s.Allocs) > 0 && s.bridged() && (s.Bridge != cfg.Bridge || s.Subnet != subnet.String()) {
		// Who runs has its address in the old one.
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

// Check tells what is wrong with a bridge's name and subnet.
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

// Unable tells why this node has no networks of mode none, or of mode bridge, now; nil when it has. The machine is tried once; who
// else uses the bridge is looked at each time.
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

// ready takes the bridge for this agent. The lock is an abstract socket: it belongs to the network namespace, as the bridge
// does, and ends with the process, however that ends.
func (m *Manager) ready() error {
	if m.lock == nil {
		l, err := net.Listen("unix", "@muster-network-"+m.cfg.Bridge)
		if err != nil {
			return fmt.Errorf("another agent on this machine uses the bridge network %q; give this one a bridge_network_name and a bridge_network_subnet of its own", m.cfg.Bridge)
		}
		m.lock = l
	}
	return m.overlap()
}

// Setup makes the network of an allocation, or what is missing of it: it may be called at any time and again.
func (m *Manager) Setup(alloc string, w Want) (*Attached, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.state.Allocs[alloc]
	if w.Bridge {
		if err := m.ready(); err != nil {
			if at := m.attached(alloc); at != nil && at.IP != "" && isNamespace(at.Path) {
				m.log.Warn("the network of an allocation that runs stays as it is", "alloc", alloc, "error", err)
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

// Get returns the network of an allocation as it was made, or nil.
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

// Release removes the network of an allocation. What cannot be removed now is removed by the next Sweep.
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
			return err // the links are with the agent that has the bridge now
		}
		gone := *l
		gone.Ports = nil
		m.state.Allocs[alloc] = &gone // no rules any more
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

// Sweep removes every network but those of the named allocations, remembered or not.
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

// Close lets another agent have the bridge. Networks stay.
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
