package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A node of these tests is a network namespace with a link to another one, the outside, which has no route to the
// addresses of allocations.
const (
	nodeIP    = "192.0.2.1"
	outsideIP = "192.0.2.2"
	allocA    = "aaaaaaaa-1111-2222-3333-444444444444"
	allocB    = "bbbbbbbb-1111-2222-3333-444444444444"
)

type node struct {
	*testing.T
	dir     string
	outside string // path of the namespace
}

// onNode runs fn in a thread whose network namespace is a node's.
func onNode(t *testing.T, fn func(n *node)) {
	t.Helper()
	if none, bridge := probe(); bridge != nil {
		if os.Geteuid() == 0 && none == nil {
			t.Skipf("not run: %v", bridge)
		}
		t.Skipf("does not apply here: %v", bridge)
	}
	n := &node{T: t, dir: t.TempDir(), outside: filepath.Join(t.TempDir(), "outside")}
	<-thread(func() { n.run(fn) })
	if err := letGo(n.outside); err != nil {
		t.Error(err)
	}
}

func (n *node) run(fn func(n *node)) {
	n.must(unix.Unshare(unix.CLONE_NEWNET))
	n.must(hold(n.outside))
	out, err := os.Open(n.outside)
	n.must(err)
	defer out.Close()
	v := netlink.NewVeth(netlink.LinkAttrs{Name: "up0"})
	v.PeerName, v.PeerNamespace = "up1", netlink.NsFd(out.Fd())
	n.must(netlink.LinkAdd(v))
	n.up("lo", "")
	n.up("up0", nodeIP+"/24")
	n.inside(n.outside, func() error {
		n.up("up1", outsideIP+"/24")
		return nil
	})
	fn(n)
}

func (n *node) up(name, addr string) {
	l, err := netlink.LinkByName(name)
	n.must(err)
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		n.must(err)
		n.must(netlink.AddrAdd(l, a))
	}
	n.must(netlink.LinkSetUp(l))
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// inside runs fn in a namespace.
func (n *node) inside(path string, fn func() error) {
	n.Helper()
	var err error
	<-thread(func() {
		var f *os.File
		if f, err = os.Open(path); err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			err = fn()
		}
	})
	n.must(err)
}

// serve answers connections and datagrams in a namespace with a name and the address from which they came.
func (n *node) serve(path, name string, port int) {
	n.Helper()
	n.inside(path, func() error {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		n.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				fmt.Fprintf(c, "%s %s\n", name, host)
				c.Close()
			}
		}()
		u, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		n.Cleanup(func() { u.Close() })
		go func() {
			b := make([]byte, 100)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(from.String())
				u.WriteTo([]byte(name+" "+host+"\n"), from)
			}
		}()
		return nil
	})
}

// ask connects from this thread's namespace.
func ask(network, addr string) (string, error) {
	c, err := net.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if network == "udp4" {
		fmt.Fprintln(c)
	}
	s, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(s), err
}

// asks judges an answer, from a namespace or ("") from the node.
func (n *node) asks(what, from, network, addr, want string) {
	n.Helper()
	look := func() error {
		got, err := ask(network, addr)
		if err != nil || got != want {
			n.Errorf("%s: %s %s answered %q (%v), want %q", what, network, addr, got, err, want)
		}
		return nil
	}
	if from == "" {
		look()
		return
	}
	n.inside(from, look)
}

// dials connects to a port of an allocation as the agent does.
func (n *node) dials(a *Attached, port, want string) {
	n.Helper()
	c, err := a.Dial(context.Background(), port)
	if err != nil {
		n.Errorf("port %s inside: %v", port, err)
		return
	}
	defer c.Close()
	if s, err := bufio.NewReader(c).ReadString('\n'); strings.TrimSpace(s) != want {
		n.Errorf("port %s inside answered %q (%v), want %q", port, s, err, want)
	}
}

func (n *node) manager() *Manager {
	n.Helper()
	m, err := New(Config{Dir: n.dir})
	n.must(err)
	_, bridge := m.Unable()
	n.must(bridge)
	return m
}

// left returns what is there of links and tables.
func (n *node) left() (out []string) {
	links, err := netlink.LinkList()
	n.must(err)
	for _, l := range links {
		out = append(out, l.Attrs().Name)
	}
	c, err := nftables.New()
	n.must(err)
	tables, err := c.ListTables()
	n.must(err)
	for _, t := range tables {
		out = append(out, "table "+t.Name)
	}
	list, _ := os.ReadDir(filepath.Join(n.dir, "ns"))
	for _, e := range list {
		out = append(out, "namespace "+e.Name())
	}
	slices.Sort(out)
	return out
}

func TestBridge(t *testing.T) {
	onNode(t, func(n *node) {
		before := n.left()
		m := n.manager()
		if got := n.left(); !slices.Equal(got, before) {
			t.Errorf("a manager that serves nobody made %v, there were %v", got, before)
		}
		a, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
		n.must(err)
		b, err := m.Setup(allocB, Want{Bridge: true, Ports: []Port{{Host: 20002, To: 80}, {HostIP: nodeIP, Host: 20003, To: 80}}})
		n.must(err)
		n.serve(a.Path, "a", 80)
		n.serve(b.Path, "b", 80)
		n.serve(n.outside, "outside", 90)

		// Twice: what is found in the table of connections must not hide what is wrong with the rules, or the other way round.
		check := func(when string) {
			for _, proto := range []string{"tcp4", "udp4"} {
				n.asks(when+", from outside", n.outside, proto, nodeIP+":20001", "a "+outsideIP)
				n.asks(when+", from outside", n.outside, proto, nodeIP+":20002", "b "+outsideIP)
				n.asks(when+", from the node's loopback", "", proto, "127.0.0.1:20001", "a 172.26.64.1")
				n.asks(when+", from the node", "", proto, nodeIP+":20002", "b "+nodeIP)
				n.asks(when+", by the address alone", "", proto, nodeIP+":20003", "b "+nodeIP)
				n.asks(when+", from a neighbour by the node's port", a.Path, proto, nodeIP+":20002", "b 172.26.64.1")
				n.asks(when+", from itself by the node's port", a.Path, proto, nodeIP+":20001", "a 172.26.64.1")
				n.asks(when+", from a neighbour", a.Path, proto, b.IP+":80", "b "+a.IP)
				n.asks(when+", inside", a.Path, proto, "127.0.0.1:80", "a 127.0.0.1")
				n.asks(when+", to the outside", a.Path, proto, outsideIP+":90", "outside "+nodeIP)
			}
			if s, err := ask("tcp4", "127.0.0.1:20003"); err == nil {
				t.Errorf("%s: a port of one address answers at another: %q", when, s)
			}
		}
		check("as it was made")
		n.dials(a, "80", "a 127.0.0.1")
		n.dials(b, "80", "b 127.0.0.1")
		n.inside(a.Path, func() error { // not at loopback
			l, err := net.Listen("tcp4", a.IP+":81")
			if err == nil {
				t.Cleanup(func() { l.Close() })
				go func() {
					if c, err := l.Accept(); err == nil {
						fmt.Fprintln(c, "a at", c.LocalAddr())
						c.Close()
					}
				}()
			}
			return err
		})
		n.dials(a, "81", "a at "+a.IP+":81")

		// An agent that was killed: the lock is free, the rest is there.
		n.must(m.Close())
		m = n.manager()
		n.must(m.Sweep(func(id string) bool { return true }))
		again, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
		n.must(err)
		if *again != *a {
			t.Errorf("the network of an allocation was %v, after a restart it is %v", *a, *again)
		}
		check("after a restart")

		// An operator removes the bridge, which breaks only the connection.
		br, err := netlink.LinkByName("muster")
		n.must(err)
		n.must(netlink.LinkDel(br))
		n.must(dropTable("muster"))
		n.must(m.Sweep(func(id string) bool { return true }))
		check("after the bridge was removed")

		n.must(m.Release(allocA))
		if s, err := ask("tcp4", "127.0.0.1:20001"); err == nil {
			t.Errorf("the port of an allocation that is gone answers %q", s)
		}
		n.asks("when the neighbour is gone", n.outside, "tcp4", nodeIP+":20002", "b "+outsideIP)

		// The agent is killed, and the allocation ends before it is back.
		n.must(m.Close())
		m = n.manager()
		n.must(m.Sweep(func(id string) bool { return false }))
		if got := n.left(); !slices.Equal(got, before) {
			t.Errorf("left: %v, before: %v", got, before)
		}
	})
}

// TestForwardDropped has a node that drops what is forwarded, as one with a Docker Engine does.
func TestForwardDropped(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("does not apply here: no iptables")
	}
	onNode(t, func(n *node) {
		if out, err := iptables("-P", "FORWARD", "DROP"); err != nil {
			t.Skipf("does not apply here: iptables: %v: %s", err, out)
		}
		was, _ := iptables("-S", "FORWARD")
		m := n.manager()
		a, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: 20001, To: 80}}})
		n.must(err)
		b, err := m.Setup(allocB, Want{Bridge: true, Ports: []Port{{Host: 20002, To: 80}}})
		n.must(err)
		n.serve(a.Path, "a", 80)
		n.serve(b.Path, "b", 80)
		n.serve(n.outside, "outside", 90)
		check := func(when string) {
			n.asks(when+", from outside", n.outside, "tcp4", nodeIP+":20001", "a "+outsideIP)
			n.asks(when+", to the outside", a.Path, "udp4", outsideIP+":90", "outside "+nodeIP)
			n.asks(when+", to a neighbour", a.Path, "tcp4", nodeIP+":20002", "b 172.26.64.1")
		}
		check("as it was made")
		_, err = iptables("-F", "FORWARD")
		n.must(err)
		n.must(m.Sweep(func(string) bool { return true }))
		check("when somebody has removed the rules")
		n.must(m.Release(allocA))
		n.must(m.Release(allocB))
		if now, _ := iptables("-S", "FORWARD"); now != was {
			t.Errorf("left:\n%s\nbefore:\n%s", now, was)
		}
	})
}

func TestNothingButLoopback(t *testing.T) {
	onNode(t, func(n *node) {
		m := n.manager()
		before := n.left()
		a, err := m.Setup(allocA, Want{})
		n.must(err)
		n.serve(a.Path, "a", 80)
		n.asks("inside", a.Path, "tcp4", "127.0.0.1:80", "a 127.0.0.1")
		n.dials(a, "80", "a 127.0.0.1")
		l, err := net.Listen("tcp4", "127.0.0.1:82") // the node's loopback is another one
		n.must(err)
		defer l.Close()
		if c, err := a.Dial(context.Background(), "82"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a port of the node's loopback, inside: %v, %v", c, err)
		}
		n.inside(a.Path, func() error {
			links, err := netlink.LinkList()
			if len(links) != 1 {
				t.Errorf("%d links inside, want loopback alone", len(links))
			}
			if _, err := ask("tcp4", nodeIP+":1"); !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("the way to the node: %v", err)
			}
			return err
		})
		n.must(m.Release(allocA))
		if got := n.left(); !slices.Equal(got, before) {
			t.Errorf("left: %v, before: %v", got, before)
		}
	})
}

func TestForeign(t *testing.T) {
	onNode(t, func(n *node) {
		m := n.manager()
		if _, err := New(Config{Dir: t.TempDir()}); err != nil {
			t.Fatal(err)
		}
		other, err := New(Config{Dir: t.TempDir()})
		n.must(err)
		if none, bridge := other.Unable(); none != nil || bridge == nil || !strings.Contains(bridge.Error(), "another agent") {
			t.Errorf("a second agent: %v; %v", none, bridge)
		}
		// A port that something listens at.
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		n.must(err)
		defer l.Close()
		taken := l.Addr().(*net.TCPAddr).Port
		before := n.left()
		if _, err := m.Setup(allocA, Want{Bridge: true, Ports: []Port{{Host: taken, To: 80}}}); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a port that is in use: %v", err)
		}
		if got := n.left(); !slices.Equal(got, before) {
			t.Errorf("a refused allocation left %v, before: %v", got, before)
		}
		// A link of the same name, and an address in the subnet.
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "muster"
		n.must(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		if _, bridge := m.Unable(); bridge == nil || !strings.Contains(bridge.Error(), "bridge_network_name") {
			t.Errorf("somebody else's bridge: %v", bridge)
		}
		n.must(m.Sweep(func(string) bool { return true }))
		br, err := netlink.LinkByName("muster")
		n.must(err) // it is still there
		n.must(netlink.LinkDel(br))
		up, err := netlink.LinkByName("up0")
		n.must(err)
		addr, err := netlink.ParseAddr("172.26.70.1/24")
		n.must(err)
		n.must(netlink.AddrAdd(up, addr))
		if _, bridge := m.Unable(); bridge == nil || !strings.Contains(bridge.Error(), "172.26.70.1/24") {
			t.Errorf("an address in the subnet: %v", bridge)
		}
	})
}

func TestPick(t *testing.T) {
	s := leases{Allocs: map[string]*lease{}}
	subnet := netip.MustParsePrefix("10.0.0.0/29") // .1 is the node, .7 for broadcasts
	var got []string
	for i := range 5 {
		ip, err := s.pick(subnet)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ip.String())
		s.Last = ip.String()
		s.Allocs[fmt.Sprint(i)] = &lease{IP: s.Last}
	}
	if want := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}; !slices.Equal(got, want) {
		t.Errorf("picked %v, want %v", got, want)
	}
	if ip, err := s.pick(subnet); err == nil || !strings.Contains(err.Error(), "all 5 addresses") {
		t.Errorf("a sixth of five: %v %v", ip, err)
	}
	delete(s.Allocs, "0")
	delete(s.Allocs, "3")
	if ip, err := s.pick(subnet); err != nil || ip.String() != "10.0.0.2" {
		t.Errorf("after the last comes the first that is free: %v %v", ip, err)
	}
	s.Last = "10.0.0.2"
	if ip, err := s.pick(subnet); err != nil || ip.String() != "10.0.0.5" {
		t.Errorf("the one that was given last does not come back at once: %v %v", ip, err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ bridge, subnet, want string }{
		{"muster", "172.26.64.0/20", ""},
		{"br-0", "10.1.2.3/24", ""},
		{"", "10.0.0.0/24", "bridge_network_name"},
		{"a/b", "10.0.0.0/24", "bridge_network_name"},
		{"sixteen-letters-", "10.0.0.0/24", "bridge_network_name"},
		{"muster", "10.0.0.0", "bridge_network_subnet"},
		{"muster", "10.0.0.0/30", "bridge_network_subnet"},
		{"muster", "fd00::/64", "bridge_network_subnet"},
		{"muster", "127.0.0.0/8", "bridge_network_subnet"},
	} {
		t.Run(fmt.Sprintf("bridge=%q subnet=%q", c.bridge, c.subnet), func(t *testing.T) {
			_, err := Check(c.bridge, c.subnet)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q %q: %v, want %q", c.bridge, c.subnet, err, c.want)
			}
		})
	}
}
