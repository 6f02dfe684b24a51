package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkPrefix begins the node's names of allocation links.
const linkPrefix = "mv"

// mark is the alias of the agent's bridge: a bridge of the same name without it belongs to another program.
const mark = "muster: network of allocations"

// linkName returns the name of the node's end of an allocation's link: as much of its id as fits.
func linkName(alloc string) string {
	id := strings.ReplaceAll(alloc, "-", "")
	return linkPrefix + id[:min(len(id), 13)]
}

// mac derives a link's hardware address from its IP address: neighbours' caches stay valid when an address is reused,
// and the bridge keeps its own address when links come and go.
func mac(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x0a, 0x6d, b[0], b[1], b[2], b[3]}
}

// inThread runs fn in a separate thread with a new network namespace.
func inThread(fn func() error) (err error) {
	<-thread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		err = fn()
	})
	return err
}

// thread runs fn in a thread that ends with it, and with it the thread's changes. It is never the process's first
// thread, which does not end, and which determines what /proc/self and /proc/net show: an agent whose first thread had
// another network would not find its routes any more.
func thread(fn func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			<-thread(fn) // in another one, while this one is locked
			return
		}
		fn()
	}()
	return done
}

// isNamespace reports whether a namespace is mounted at path.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// hold creates a network namespace, with loopback up, and mounts it at path, unless there is one.
func hold(path string) error {
	if isNamespace(path) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return err
	}
	f.Close()
	return inThread(func() error {
		// What any user may do in the allocation's own network, which is IPv4; the node's settings are unchanged.
		for name, v := range map[string]string{"ipv4/ip_unprivileged_port_start": "0", "ipv4/ping_group_range": "0 2147483647", "ipv6/conf/default/disable_ipv6": "1"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(v), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keep the network namespace: %w", err)
		}
		return nil
	})
}

// letGo unmounts a namespace, which ends with the last process in it. Removing the file also removes the copies of the
// mount in other mount namespaces.
func letGo(path string) error {
	for isNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// find returns a link by name, or nil.
func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return l, nil
}

// ours returns the agent's bridge, nil if there is none.
func (m *Manager) ours() (netlink.Link, error) {
	l, err := find(m.cfg.Bridge)
	if err != nil || l == nil {
		return nil, err
	}
	if l.Type() != "bridge" || l.Attrs().Alias != mark {
		return nil, fmt.Errorf("the node has a link %q that is not the bridge of allocations; set another bridge_network_name", m.cfg.Bridge)
	}
	return l, nil
}

// overlap looks for conflicts with the bridge: a link of its name, an address in its subnet, or a route to a part of
// it.
func (m *Manager) overlap() error {
	own, err := m.ours()
	if err != nil {
		return err
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("addresses of the node: %w", err)
	}
	for _, a := range all {
		if own != nil && a.LinkIndex == own.Attrs().Index || a.IPNet == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		ones, _ := a.Mask.Size()
		if ok && m.subnet.Overlaps(netip.PrefixFrom(ip, ones)) {
			return fmt.Errorf("the node's address %s is in the bridge network %s; set another bridge_network_subnet", a.IPNet, m.subnet)
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("routes of the node: %w", err)
	}
	for _, r := range routes {
		if own != nil && r.LinkIndex == own.Attrs().Index || r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ones, _ := r.Dst.Mask.Size(); ok && ones >= m.subnet.Bits() && m.subnet.Contains(ip) { // wider routes are less specific
			return fmt.Errorf("the node has a route to %s, which is in the bridge network %s; set another bridge_network_subnet", r.Dst, m.subnet)
		}
	}
	return nil
}

// mtu returns the MTU of the node's default route: larger packets would be fragmented, or lost, there.
func mtu() int {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return 1500
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() != "0.0.0.0/0" {
			continue
		}
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().MTU >= 576 {
			return min(l.Attrs().MTU, 65535)
		}
	}
	return 1500
}

// bridge creates the bridge, or its missing parts.
func (m *Manager) bridge() (netlink.Link, error) {
	br, err := m.ours()
	if err != nil {
		return nil, err
	}
	if br == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = m.cfg.Bridge, mtu(), mac(m.gateway())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("make the bridge %s: %w", m.cfg.Bridge, err)
		}
		if br, err = netlink.LinkByName(m.cfg.Bridge); err != nil {
			return nil, fmt.Errorf("bridge %s: %w", m.cfg.Bridge, err)
		}
		if err := netlink.LinkSetAlias(br, mark); err != nil {
			return nil, errors.Join(fmt.Errorf("mark the bridge %s: %w", m.cfg.Bridge, err), netlink.LinkDel(br))
		}
	}
	if !m.forward {
		m.allowForward()
		m.forward = true
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: m.gateway().AsSlice(), Mask: net.CIDRMask(m.subnet.Bits(), 32)}}
	if err := netlink.AddrReplace(br, addr); err != nil {
		return nil, fmt.Errorf("address of the bridge: %w", err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", m.cfg.Bridge, err)
	}
	// route_localnet: packets that the node sends from 127.0.0.1 to one of the ports may leave by the bridge. The rules
	// keep all other packets with a loopback address from arriving by it.
	for _, f := range []string{"conf/" + m.cfg.Bridge + "/route_localnet", "ip_forward"} {
		path := "/proc/sys/net/ipv4/" + f
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			return nil, fmt.Errorf("let the node route for its allocations: %w", err)
		}
		if f == "ip_forward" {
			m.log.Info("the node routes packets from now on: net.ipv4.ip_forward was 0")
		}
	}
	return br, nil
}

// connect creates the link between an allocation's namespace and the bridge, unless it exists.
func (m *Manager) connect(alloc string, at *Attached) error {
	br, err := m.bridge()
	if err != nil {
		return err
	}
	ns, err := unix.Open(at.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(ns)
	inside, err := netlink.NewHandleAt(nsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	defer inside.Close()
	name := linkName(alloc)
	host, err := find(name)
	if err != nil {
		return err
	}
	eth, err := inside.LinkByName(Interface)
	if host == nil || err != nil { // an end whose other end is gone disappears, too, unless it was renamed or moved
		if host != nil {
			if err := netlink.LinkDel(host); err != nil {
				return fmt.Errorf("remove link %s: %w", name, err)
			}
		}
		if err == nil {
			_ = inside.LinkDel(eth)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.MasterIndex = name, br.Attrs().MTU, br.Attrs().Index
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace, v.PeerMTU = Interface, netlink.NsFd(ns), uint32(br.Attrs().MTU)
		v.PeerHardwareAddr = mac(netip.MustParseAddr(at.IP))
		if err := netlink.LinkAdd(v); err != nil {
			return fmt.Errorf("make the link %s: %w", name, err)
		}
		if host, err = netlink.LinkByName(name); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if eth, err = inside.LinkByName(Interface); err != nil {
			return fmt.Errorf("link %s inside: %w", Interface, err)
		}
	}
	if host.Attrs().MasterIndex != br.Attrs().Index {
		if err := netlink.LinkSetMaster(host, br); err != nil {
			return fmt.Errorf("put link %s on the bridge: %w", name, err)
		}
	}
	// On nodes whose bridges filter (module br_netfilter) an allocation could not reach itself by the node's port
	// otherwise.
	if err := netlink.LinkSetHairpin(host, true); err != nil {
		return fmt.Errorf("hairpin of link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: netip.MustParseAddr(at.IP).AsSlice(), Mask: net.CIDRMask(m.subnet.Bits(), 32)}}
	if err := inside.AddrReplace(eth, addr); err != nil {
		return fmt.Errorf("address of the allocation: %w", err)
	}
	if err := inside.LinkSetUp(eth); err != nil {
		return fmt.Errorf("link %s inside: %w", Interface, err)
	}
	if err := inside.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: m.gateway().AsSlice()}); err != nil {
		return fmt.Errorf("default route of the allocation: %w", err)
	}
	return nil
}

func removeLink(name string) error {
	l, err := find(name)
	if err != nil || l == nil {
		return err
	}
	if err := netlink.LinkDel(l); err != nil {
		if left, ferr := find(name); left == nil && ferr == nil {
			return nil // it was removed with its namespace
		}
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// removeStrays removes links on the bridge that belong to no allocation.
func (m *Manager) removeStrays(known map[string]bool) error {
	br, err := m.ours()
	if err != nil || br == nil {
		return nil // a foreign bridge is not swept; Unable reports it
	}
	all, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	var errs []error
	for _, l := range all {
		if a := l.Attrs(); a.MasterIndex == br.Attrs().Index && strings.HasPrefix(a.Name, linkPrefix) && !known[a.Name] {
			errs = append(errs, removeLink(a.Name))
		}
	}
	return errors.Join(errs...)
}

// repair creates the missing parts of the networks of known allocations.
func (m *Manager) repair() error {
	var errs []error
	for _, id := range m.state.ids() {
		l := m.state.Allocs[id]
		at := &Attached{Path: m.dir("ns/" + id), IP: l.IP}
		if l.IP != "" && isNamespace(at.Path) { // otherwise its tasks are gone: Setup creates everything
			errs = append(errs, m.connect(id, at))
		}
	}
	m.allowForward()
	return errors.Join(append(errs, m.rules())...)
}

// dismantle removes table and bridge when they are unused.
func (m *Manager) dismantle() error {
	err := dropTable(m.cfg.Bridge)
	br, berr := m.ours()
	if berr != nil || br == nil {
		return err // a foreign bridge stays
	}
	m.forbidForward()
	m.forward = false
	if derr := netlink.LinkDel(br); derr != nil {
		err = errors.Join(err, fmt.Errorf("remove the bridge: %w", derr))
	}
	return err
}
