// Package harness runs the real binary as real processes, on hosts that are network namespaces of this machine, and is
// cruel to them: kill -9, partitions, full disks. What it starts it ends by process id; what it mounts or adds it
// removes.
package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Net is a switch with hosts on it, each in a separate network namespace.
type Net struct {
	t     testing.TB
	tag   string
	sw    string // namespace of the switch; the test itself speaks from there
	Hosts []*Host
	drops map[route]uint32 // percent of packets that the switch drops
}

// Host is one namespace with one address.
type Host struct {
	Name string
	IP   string
	ns   string
	net  *Net
}

// NeedNamespaces skips a test on a machine where namespaces cannot be made; with CI=true it fails instead, so that the
// coverage is not lost unseen.
func NeedNamespaces(t testing.TB) {
	t.Helper()
	why := ""
	switch {
	case runtime.GOOS != "linux":
		why = "network namespaces need Linux"
	case os.Geteuid() != 0:
		why = "network namespaces need root"
	default:
		for _, p := range []string{"ip", "nsenter"} {
			if _, err := exec.LookPath(p); err != nil {
				why = p + " is not installed (packages iproute2, util-linux)"
			}
		}
	}
	if why == "" {
		probe := fmt.Sprintf("mprobe%d", os.Getpid()) // suites may run at the same time
		if out, err := exec.Command("ip", "netns", "add", probe).CombinedOutput(); err != nil {
			why = fmt.Sprintf("ip netns add: %v: %s", err, out)
		} else {
			_ = exec.Command("ip", "netns", "del", probe).Run()
		}
	}
	NotRun(t, why)
}

// NotRun skips with a reason ("" does nothing); in CI it fails.
func NotRun(t testing.TB, why string) {
	t.Helper()
	switch {
	case why == "":
	case os.Getenv("CI") == "true":
		t.Fatal("not run: " + why)
	default:
		t.Skip("not run: " + why)
	}
}

// NewNet makes a switch and hosts 10.77.0.1, .2, ... in the order of names.
func NewNet(t testing.TB, names ...string) *Net {
	t.Helper()
	n := &Net{t: t, tag: fmt.Sprintf("m%d", os.Getpid()%100000)}
	n.sw = n.tag + "sw"
	t.Cleanup(n.close)
	n.ip("netns", "add", n.sw)
	n.in(n.sw, "ip", "link", "add", "br0", "type", "bridge")
	n.in(n.sw, "ip", "addr", "add", "10.77.0.254/24", "dev", "br0")
	n.in(n.sw, "ip", "link", "set", "br0", "up")
	n.in(n.sw, "ip", "link", "set", "lo", "up")
	for i, name := range names {
		h := &Host{Name: name, IP: fmt.Sprintf("10.77.0.%d", i+1), ns: n.tag + name, net: n}
		n.Hosts = append(n.Hosts, h)
		n.ip("netns", "add", h.ns)
		port := fmt.Sprintf("p%d", i)
		n.in(n.sw, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", h.ns)
		n.in(n.sw, "ip", "link", "set", port, "master", "br0", "up")
		n.in(h.ns, "ip", "addr", "add", h.IP+"/24", "dev", "eth0")
		n.in(h.ns, "ip", "link", "set", "eth0", "up")
		n.in(h.ns, "ip", "link", "set", "lo", "up")
		n.in(h.ns, "ip", "route", "add", "default", "via", "10.77.0.254")
	}
	return n
}

// Host finds a host by name.
func (n *Net) Host(name string) *Host {
	for _, h := range n.Hosts {
		if h.Name == name {
			return h
		}
	}
	n.t.Fatalf("no host %q", name)
	return nil
}

func (n *Net) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (n *Net) in(ns string, args ...string) {
	n.t.Helper()
	full := append([]string{"--net=/var/run/netns/" + ns}, args...)
	if out, err := exec.Command("nsenter", full...).CombinedOutput(); err != nil {
		n.t.Fatalf("in %s: %s: %v: %s", ns, strings.Join(args, " "), err, out)
	}
}

func (n *Net) close() {
	for _, h := range n.Hosts {
		_ = exec.Command("ip", "netns", "del", h.ns).Run()
	}
	_ = exec.Command("ip", "netns", "del", n.sw).Run()
}

// Namespace returns the file of the host's network namespace, for nsenter.
func (h *Host) Namespace() string { return "/var/run/netns/" + h.ns }

// Muster returns a command of the binary under test in the host's network namespace.
func (h *Host) Muster(t testing.TB, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + h.Namespace(), Bin(t)}, args...)...)
}

// Cut takes a host off the switch, silently: its packets are dropped in both directions. Join puts it back.
func (h *Host) Cut() { h.link("down") }

// Join undoes Cut.
func (h *Host) Join() { h.link("up") }

func (h *Host) link(state string) { h.net.in(h.net.sw, "ip", "link", "set", h.port(), state) }

// port returns the name of the host's port at the switch.
func (h *Host) port() string {
	for i, o := range h.net.Hosts {
		if o == h {
			return fmt.Sprintf("p%d", i)
		}
	}
	panic(h.Name + " is on no switch")
}

// Dial connects from the switch's namespace, so that a test reaches every host.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		// The thread enters the namespace and is thrown away with the goroutine: it is never unlocked.
		runtime.LockOSThread()
		f, err := os.Open("/var/run/netns/" + n.sw)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err != nil {
			ch <- result{nil, err}
			return
		}
		d := net.Dialer{Timeout: 2 * time.Second, Resolver: &net.Resolver{PreferGo: true}}
		c, err := d.DialContext(ctx, network, addr)
		ch <- result{c, err}
	}()
	select {
	case r := <-ch:
		return r.c, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
