package netns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// TestTalksOn sends datagrams to a port all the time while the allocation behind it is replaced.
func TestTalksOn(t *testing.T) {
	onNode(t, func(n *node) {
		m := n.manager()
		_, err := m.Setup("cccccccc-1111-2222-3333-444444444444", Want{Bridge: true}) // the node has rules all the time
		n.must(err)
		defer m.Sweep(func(string) bool { return false })
		var c net.Conn
		n.inside(n.outside, func() (err error) {
			c, err = net.Dial("udp4", nodeIP+":20001")
			return err
		})
		defer c.Close()
		says := func(want string) {
			t.Helper()
			got := make([]byte, 100)
			for range 20 {
				fmt.Fprintln(c)
				c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				if k, err := c.Read(got); err == nil && strings.HasPrefix(string(got[:k]), want) {
					return
				}
			}
			t.Errorf("%s does not answer who has sent before it came", want)
		}
		for _, alloc := range []string{allocA, allocB} {
			for range 3 { // to no listener
				fmt.Fprintln(c)
				time.Sleep(10 * time.Millisecond)
			}
			a, err := m.Setup(alloc, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
			n.must(err)
			n.serve(a.Path, alloc, 80)
			says(alloc)
			n.must(m.Release(alloc))
		}
	})
}

// TestUnpublished: who may send packets to the node's link reaches the ports that allocations have asked for, and no others.
func TestUnpublished(t *testing.T) {
	onNode(t, func(n *node) {
		m := n.manager()
		a, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
		n.must(err)
		n.serve(a.Path, "a", 80)
		n.serve(a.Path, "secret", 81)
		defer m.Release(allocA)
		n.inside(n.outside, func() error {
			up, err := netlink.LinkByName("up1")
			if err != nil {
				return err
			}
			_, dst, _ := net.ParseCIDR(SubnetDefault)
			return netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: dst, Gw: net.ParseIP(nodeIP)})
		})
		n.asks("by the node's port", n.outside, "tcp4", nodeIP+":20001", "a "+outsideIP)
		n.inside(n.outside, func() error {
			for _, proto := range []string{"tcp4", "udp4"} {
				c, err := net.DialTimeout(proto, a.IP+":81", 500*time.Millisecond)
				if err != nil {
					continue
				}
				fmt.Fprintln(c)
				c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				if _, err := c.Read(make([]byte, 100)); err == nil {
					t.Errorf("%s: a port that was never asked for answers from outside", proto)
				}
				c.Close()
			}
			return nil
		})
	})
}

// TestForeignRoutesAndTables: what is the node's stays the node's.
func TestForeignRoutesAndTables(t *testing.T) {
	onNode(t, func(n *node) {
		c, err := nftables.New()
		n.must(err)
		c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
		n.must(c.Flush())
		before := n.left()
		m, err := New(Config{Dir: n.dir, Bridge: "nat"})
		n.must(err)
		_, err = m.Unable()
		n.must(err)
		a, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
		n.must(err)
		n.serve(a.Path, "a", 80)
		n.asks("a bridge with the name of somebody's table", n.outside, "tcp4", nodeIP+":20001", "a "+outsideIP)
		n.must(m.Release(allocA))
		if got := n.left(); !slices.Equal(got, before) {
			t.Errorf("left: %v, before: %v", got, before)
		}
		n.must(m.Close())

		up, err := netlink.LinkByName("up0")
		n.must(err)
		for dst, clash := range map[string]bool{"172.26.64.0/20": true, "172.26.70.0/24": true, "172.26.64.9/32": true, "172.16.0.0/12": false, "172.26.80.0/24": false} {
			p := netip.MustParsePrefix(dst)
			r := &netlink.Route{LinkIndex: up.Attrs().Index, Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}, Gw: net.ParseIP(outsideIP)}
			n.must(netlink.RouteAdd(r))
			m, err := New(Config{Dir: n.dir})
			n.must(err)
			if _, bridge := m.Unable(); (bridge != nil && strings.Contains(bridge.Error(), dst)) != clash {
				t.Errorf("a route to %s: %v, a clash: %t", dst, bridge, clash)
			}
			if !clash {
				_, err := m.Setup(allocA, Want{Bridge: true})
				n.must(err)
				_, err = m.Setup(allocB, Want{Bridge: true}) // the bridge's own route does not conflict
				n.must(err)
				n.must(m.Sweep(func(string) bool { return false }))
			}
			n.must(m.Close())
			n.must(netlink.RouteDel(r))
		}
	})
}
