// Package memnet is a network of named hosts in memory: listeners, connections and packets, with partitions, delay and
// hosts that die. It waits on channels and time.AfterFunc only, so whole clusters run on it inside testing/synctest.
//
// Links behave like a network under TCP: while a direction is cut, written bytes are kept and arrive after Heal; a dial
// across a cut blocks until its deadline; packets are lost. A killed host resets its connections (its kernel is alive);
// a host without power is silent.
package memnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Limits of the network, with what happens when they are reached.
const (
	connBuffer  = 256 << 10        // bytes in flight per direction of a connection; Write waits
	backlog     = 128              // connections not yet accepted per listener; Dial waits
	packetQueue = 1024             // packets not yet received per port; further ones are lost
	maxPacket   = 64 << 10         // bytes of a packet; WriteTo refuses more
	dialTimeout = 20 * time.Second // of a dial whose context has no deadline
)

// Network is a set of hosts. All methods may be called at any time from anywhere.
type Network struct {
	mu      sync.Mutex
	hosts   map[string]*Host // by name and by address
	n       int              // hosts created
	cut     map[link]bool
	delay   time.Duration
	changed chan struct{}  // closed and replaced when cuts or hosts change
	stale   map[*conn]bool // ends whose other end is gone and that have not been reset yet
}

type link struct{ from, to string }

// New makes an empty network. Inside synctest, make it inside the bubble.
func New() *Network {
	return &Network{hosts: map[string]*Host{}, cut: map[link]bool{}, changed: make(chan struct{}), stale: map[*conn]bool{}}
}

// state of a host.
type state int

const (
	up     state = iota
	killed       // connections were reset, dials are refused
	off          // silence
)

// Host is one machine of the network.
type Host struct {
	n    *Network
	name string
	ip   net.IP

	// guarded by n.mu
	state     state
	listeners map[int]*listener
	packets   map[int]*PacketConn
	conns     map[*conn]bool
	nextPort  int
}

// Host returns the host of that name, creating it if needed. It also has an IP address, 10.77.x.y in order of creation.
func (n *Network) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[name]; h != nil {
		return h
	}
	n.n++
	h := &Host{n: n, name: name, ip: net.IPv4(10, 77, byte(n.n>>8), byte(n.n)),
		listeners: map[int]*listener{}, packets: map[int]*PacketConn{}, conns: map[*conn]bool{}, nextPort: 40000}
	n.hosts[name], n.hosts[h.ip.String()] = h, h
	return h
}

// Name of the host.
func (h *Host) Name() string { return h.name }

// IP of the host; dialling it is the same as dialling the name.
func (h *Host) IP() net.IP { return h.ip }

// Cut blocks data from one host to another; the other direction still works.
func (n *Network) Cut(from, to string) { n.change(func() { n.cut[link{from, to}] = true }) }

// Join undoes Cut of that direction.
func (n *Network) Join(from, to string) { n.change(func() { delete(n.cut, link{from, to}) }) }

// Partition cuts both directions between every host of a and every host of b.
func (n *Network) Partition(a, b []string) {
	n.change(func() {
		for _, x := range a {
			for _, y := range b {
				n.cut[link{x, y}], n.cut[link{y, x}] = true, true
			}
		}
	})
}

// Isolate cuts a host off from all others that exist now.
func (n *Network) Isolate(name string) {
	n.change(func() {
		for _, h := range n.hosts {
			if h.name != name {
				n.cut[link{name, h.name}], n.cut[link{h.name, name}] = true, true
			}
		}
	})
}

// Heal undoes every cut.
func (n *Network) Heal() { n.change(func() { clear(n.cut) }) }

// SetDelay makes everything sent from now on take d to arrive, in order.
func (n *Network) SetDelay(d time.Duration) { n.change(func() { n.delay = d }) }

// Kill ends the host's listeners and connections as if its process had died: others see resets and refusals.
func (n *Network) Kill(name string) { n.down(name, killed) }

// PowerOff ends them as if the machine had lost power: others see silence.
func (n *Network) PowerOff(name string) { n.down(name, off) }

// Revive makes a host usable again, without any listener.
func (n *Network) Revive(name string) {
	n.change(func() {
		if h := n.hosts[name]; h != nil {
			h.state = up
		}
	})
}

func (n *Network) down(name string, st state) {
	var broken []*conn
	n.change(func() {
		h := n.hosts[name]
		if h == nil {
			return
		}
		h.state = st
		for _, l := range h.listeners {
			l.closeLocked()
		}
		for _, p := range h.packets {
			p.closeLocked()
		}
		for c := range h.conns {
			broken = append(broken, c)
		}
		clear(h.conns)
	})
	for _, c := range broken {
		c.reset()
		n.mu.Lock()
		n.stale[c.peer] = true
		n.mu.Unlock()
	}
	n.change(func() {})
}

// tellStale returns the connections whose other end is gone and that a reset can reach now: the other host is running
// and not cut off. The caller holds mu and breaks them after releasing it.
func (n *Network) tellStale() (reset []*conn) {
	for c := range n.stale {
		from := n.hosts[c.remote.host]
		if from.state != off && (from == c.h || !n.cut[link{from.name, c.h.name}]) {
			delete(n.stale, c)
			reset = append(reset, c)
		}
	}
	return reset
}

// change runs f under the lock and wakes all goroutines that wait for the network.
func (n *Network) change(f func()) {
	n.mu.Lock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
	reset := n.tellStale()
	var conns []*conn
	for name, h := range n.hosts {
		if name != h.name {
			continue
		}
		for c := range h.conns {
			conns = append(conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range reset {
		c.reset()
	}
	for _, c := range conns {
		c.in.wake()
	}
}

// linked reports whether data sent by from reaches to.
func (n *Network) linked(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return from == to || !n.cut[link{from, to}]
}

// Addr is an address of this network.
type Addr struct {
	host string
	port int
}

// Network is "mem".
func (Addr) Network() string { return "mem" }

func (a Addr) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

func splitAddr(addr string) (string, int, error) {
	h, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("address %q: the port is not a number from 0 to 65535", addr)
	}
	return h, port, nil
}

// Listen listens on a port; 0 is any.
func (h *Host) Listen(port int) (net.Listener, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.state != up {
		return nil, h.opError("listen", Addr{h.name, port}, syscall.ENETDOWN)
	}
	if port == 0 {
		port = h.anyPort()
	}
	if h.listeners[port] != nil {
		return nil, h.opError("listen", Addr{h.name, port}, syscall.EADDRINUSE)
	}
	l := &listener{h: h, addr: Addr{h.name, port}, queue: make(chan *conn, backlog), closed: make(chan struct{})}
	h.listeners[port] = l
	return l, nil
}

func (h *Host) anyPort() int {
	h.nextPort++
	return h.nextPort
}

func (h *Host) opError(op string, a Addr, err error) error {
	return &net.OpError{Op: op, Net: "mem", Addr: a, Err: os.NewSyscallError(op, err)}
}

// Dial connects from this host to addr, "name:port" or "ip:port". It has the shape of an rpc.Dialer.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	name, port, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	n := h.n
	for {
		n.mu.Lock()
		to := n.hosts[name]
		changed := n.changed
		reach := to != nil && to.state != off && (to == h || !n.cut[link{h.name, to.name}] && !n.cut[link{to.name, h.name}])
		switch {
		case h.state != up:
			n.mu.Unlock()
			return nil, h.opError("dial", Addr{name, port}, syscall.ENETDOWN)
		case to == nil:
			n.mu.Unlock()
			return nil, &net.OpError{Op: "dial", Net: "mem", Addr: Addr{name, port}, Err: &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}}
		case reach && (to.state == killed || to.listeners[port] == nil):
			n.mu.Unlock()
			return nil, h.opError("dial", Addr{name, port}, syscall.ECONNREFUSED)
		case reach:
			l := to.listeners[port]
			near, far := n.connect(h, to, port)
			n.mu.Unlock()
			select {
			case l.queue <- far:
				return near, nil
			case <-l.closed:
				near.Close()
				return nil, h.opError("dial", Addr{name, port}, syscall.ECONNREFUSED)
			case <-ctx.Done():
				near.Close()
				return nil, &net.OpError{Op: "dial", Net: "mem", Addr: Addr{name, port}, Err: ctx.Err()}
			}
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "mem", Addr: Addr{name, port}, Err: ctx.Err()}
		}
	}
}

// DialTimeout is Dial with a timeout.
func (h *Host) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return h.Dial(ctx, addr)
}

// connect makes the two ends of a connection. The caller holds mu.
func (n *Network) connect(from, to *Host, port int) (near, far *conn) {
	a, b := Addr{from.name, from.anyPort()}, Addr{to.name, port}
	out, back := newHalf(n, from.name, to.name), newHalf(n, to.name, from.name)
	near = &conn{h: from, local: a, remote: b, in: back, out: out}
	far = &conn{h: to, local: b, remote: a, in: out, out: back}
	near.peer, far.peer = far, near
	from.conns[near], to.conns[far] = true, true
	return near, far
}

type listener struct {
	h      *Host
	addr   Addr
	queue  chan *conn
	closed chan struct{}
	over   bool // guarded by h.n.mu
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.addr, Err: net.ErrClosed}
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.addr, Err: net.ErrClosed}
	}
}

// Close stops listening; connections that were never accepted are reset.
func (l *listener) Close() error {
	l.h.n.mu.Lock()
	l.closeLocked()
	l.h.n.mu.Unlock()
	for {
		select {
		case c := <-l.queue:
			c.reset()
			c.peer.reset()
		default:
			return nil
		}
	}
}

func (l *listener) closeLocked() {
	if !l.over {
		l.over = true
		close(l.closed)
		delete(l.h.listeners, l.addr.port)
	}
}

// Addr of the listener, "name:port".
func (l *listener) Addr() net.Addr { return l.addr }
