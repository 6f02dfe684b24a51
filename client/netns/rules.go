package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func nsHandle(fd int) netns.NsHandle { return netns.NsHandle(fd) }

// The table, as nft(8) would show it (bridge muster, one port):
//
//	table ip muster {
//		chain guard       { type filter hook prerouting priority raw;   iifname "muster" ip daddr 127.0.0.0/8 drop }
//		chain forward     { type filter hook forward priority filter;
//			iifname != "muster" oifname "muster" ct state ! established,related ct status ! dnat drop }  (an unpublished port)
//		chain prerouting  { type nat hook prerouting priority dstnat;   jump ports }
//		chain output      { type nat hook output priority dstnat;       jump ports }
//		chain ports       { fib daddr type local tcp dport 8080 dnat to 172.26.64.2:80; ... }
//		chain postrouting { type nat hook postrouting priority srcnat;
//			ip saddr 172.26.64.0/20 oifname != "muster" masquerade            (what allocations send elsewhere)
//			ip saddr 172.26.64.0/20 oifname "muster" ct status dnat masquerade (to a neighbour, or itself, by the node's port)
//			ip saddr 127.0.0.0/8 oifname "muster" masquerade }                (from the node's own 127.0.0.1)
//	}
//
// It is replaced as one transaction, so that there is no moment without rules; established connections are not
// affected.

// sockets makes room for a large transaction.
var sockets = nftables.WithSockOptions(func(c *mdl.Conn) error {
	return errors.Join(c.SetWriteBuffer(16<<20), c.SetReadBuffer(16<<20))
})

// rules replaces the table according to the leases.
func (m *Manager) rules() error {
	c, err := nftables.New(sockets)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	var ports []redirect
	for _, id := range m.state.ids() {
		l := m.state.Allocs[id]
		ip, err := netip.ParseAddr(l.IP)
		if err != nil {
			continue
		}
		for _, p := range l.Ports {
			ports = append(ports, redirect{p, ip})
		}
	}
	writeTable(c, m.cfg.Bridge, m.subnet, ports)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the nftables table %q: %w", tableName(m.cfg.Bridge), err)
	}
	return nil
}

// tableName returns the name of a bridge's table. It cannot collide with one of iptables (nat, filter) or of another
// program.
func tableName(bridge string) string {
	if strings.HasPrefix(bridge, "muster") {
		return bridge
	}
	return "muster-" + bridge
}

// redirect is a published port of an allocation.
type redirect struct {
	Port
	ip netip.Addr
}

func dropTable(bridge string) error {
	name := tableName(bridge)
	c, err := nftables.New(sockets)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: name}
	c.AddTable(t) // an absent table cannot be deleted
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the nftables table %q: %w", name, err)
	}
	return nil
}

func writeTable(c *nftables.Conn, bridge string, subnet netip.Prefix, ports []redirect) {
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(bridge)}
	c.AddTable(t)
	c.DelTable(t)
	t = c.AddTable(t)
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: kind, Hooknum: hook, Priority: prio})
	}
	rule := func(ch *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: all})
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	guard := chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	rule(guard, link(expr.MetaKeyIIFNAME, expr.CmpOpEq, bridge), address(16, loopback), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})

	const dnat = 1 << 5       // IPS_DST_NAT
	const known = 1<<1 | 1<<2 // established and related, as nf_conntrack numbers states
	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	rule(forward, link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, bridge), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, bridge),
		connection(expr.CtKeySTATE, known, expr.CmpOpEq), connection(expr.CtKeySTATUS, dnat, expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})

	to := c.AddChain(&nftables.Chain{Name: "ports", Table: t})
	jump := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "ports"}}
	rule(chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), jump)
	rule(chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest), jump)
	for _, p := range ports {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			rule(to, p.here(), port(proto, p.Host), []expr.Any{
				&expr.Immediate{Register: 1, Data: p.ip.AsSlice()},
				&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(uint16(p.To))},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
			})
		}
	}

	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	masq := []expr.Any{&expr.Masq{}}
	rule(post, address(12, subnet), link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, bridge), masq)
	rule(post, address(12, subnet), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, bridge), connection(expr.CtKeySTATUS, dnat, expr.CmpOpNeq), masq)
	rule(post, address(12, loopback), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, bridge), masq)
}

// here matches packets to the port's address on the node.
func (p redirect) here() []expr.Any {
	if ip, err := netip.ParseAddr(p.HostIP); err == nil && ip.Unmap().Is4() {
		return address(16, netip.PrefixFrom(ip.Unmap(), 32))
	}
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// link matches the link by which a packet arrives or leaves.
func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: b}}
}

// connection compares bits of a packet's connection tracking state with 0.
func connection(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// address matches an address of the IPv4 header: the source is at 12, the destination at 16.
func address(offset uint32, in netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(in.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: in.Masked().Addr().AsSlice()},
	}
}

// port matches a protocol and its destination port.
func port(proto byte, n int) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(n))},
	}
}

// forgetConnections deletes the kernel's connection entries of a freed address, best effort: packets of an old flow
// would go to its next owner.
func forgetConnections(ip string) {
	f := &netlink.ConntrackFilter{}
	g := &netlink.ConntrackFilter{}
	addr := net.ParseIP(ip)
	if f.AddIP(netlink.ConntrackReplySrcIP, addr) == nil && g.AddIP(netlink.ConntrackOrigSrcIP, addr) == nil {
		_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f, g)
	}
}

// untranslated matches connection entries of datagrams that arrived for one of the ports when there was no rule for it.
type untranslated []Port

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u untranslated) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstIP.Equal(f.Reverse.SrcIP) && f.Forward.SrcIP.Equal(f.Reverse.DstIP) &&
		slices.ContainsFunc(u, func(p Port) bool { return p.Host == int(f.Forward.DstPort) })
}

// forgetStrays deletes the connection entries of datagrams that arrived before the rules of their port, best effort:
// while the sender does not pause, they would still go to the node itself.
func forgetStrays(ports []Port) {
	if len(ports) > 0 {
		_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, untranslated(ports))
	}
}

// probe checks whether the machine supports the networks, in a temporary network namespace.
func probe() (none, bridge error) {
	err := inThread(func() error {
		bridge = probeBridge()
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		err = errors.New("the agent may not make network namespaces: it needs to be root, with CAP_SYS_ADMIN and CAP_NET_ADMIN")
	}
	if err != nil {
		return err, err
	}
	return nil, bridge
}

func probeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br"
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return lacks("bridges (module bridge)", err)
	}
	attrs = netlink.NewLinkAttrs()
	attrs.Name = "v0"
	v := netlink.NewVeth(attrs)
	v.PeerName = "v1"
	if err := netlink.LinkAdd(v); err != nil {
		return lacks("pairs of links (module veth)", err)
	}
	self, err := netns.Get()
	if err != nil {
		return lacks("network namespaces", err)
	}
	defer self.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(self)), sockets)
	if err != nil {
		return lacks("nftables (module nf_tables)", err)
	}
	ip := netip.MustParseAddr("192.0.2.1")
	writeTable(c, "br", netip.MustParsePrefix("192.0.2.0/24"), []redirect{{Port{Host: 1, To: 1}, ip}, {Port{HostIP: "192.0.2.2", Host: 1, To: 1}, ip}})
	if err := c.Flush(); err != nil {
		return lacks("nftables with NAT (modules nft_chain_nat, nft_masq, nft_fib_ipv4, nft_ct)", err)
	}
	return nil
}

func lacks(what string, err error) error {
	return fmt.Errorf("the kernel has no %s: %w", what, err)
}
