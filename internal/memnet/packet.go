package memnet

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// PacketConn sends and receives packets on one port of a host. Packets cross the network or are lost, never late
// beyond the network's delay and never twice.
type PacketConn struct {
	h      *Host
	port   int
	queue  chan Packet
	closed chan struct{}
	over   bool // guarded by h.n.mu
}

// Packet is one packet that arrived.
type Packet struct {
	Data []byte
	From net.Addr // "ip:port"
	At   time.Time
}

// ListenPacket opens a packet port; 0 is any.
func (h *Host) ListenPacket(port int) (*PacketConn, error) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.state != up {
		return nil, h.opError("listen", Addr{h.name, port}, syscall.ENETDOWN)
	}
	if port == 0 {
		port = h.anyPort()
	}
	if h.packets[port] != nil {
		return nil, h.opError("listen", Addr{h.name, port}, syscall.EADDRINUSE)
	}
	p := &PacketConn{h: h, port: port, queue: make(chan Packet, packetQueue), closed: make(chan struct{})}
	h.packets[port] = p
	return p, nil
}

// WriteTo sends a copy of b to "name:port" or "ip:port". A lost packet is no error.
func (p *PacketConn) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	name, port, err := splitAddr(addr)
	if err != nil {
		return now, err
	}
	if len(b) > maxPacket {
		return now, fmt.Errorf("packet of %d bytes is over the limit of %d", len(b), maxPacket)
	}
	n := p.h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.over {
		return now, net.ErrClosed
	}
	to := n.hosts[name]
	if to == nil {
		return now, fmt.Errorf("no host %q", name)
	}
	if p.h.state != up || to.state != up || (to != p.h && n.cut[link{p.h.name, to.name}]) {
		return now, nil
	}
	pkt := Packet{Data: append([]byte(nil), b...), From: Addr{p.h.ip.String(), p.port}}
	if n.delay == 0 || to == p.h {
		to.deliverLocked(port, pkt)
		return now, nil
	}
	time.AfterFunc(n.delay, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		to.deliverLocked(port, pkt)
	})
	return now, nil
}

func (h *Host) deliverLocked(port int, pkt Packet) {
	dst := h.packets[port]
	if dst == nil || dst.over {
		return
	}
	pkt.At = time.Now()
	select {
	case dst.queue <- pkt:
	default: // full: lost
	}
}

// Recv returns where packets arrive. It is never closed; see Closed.
func (p *PacketConn) Recv() <-chan Packet { return p.queue }

// Closed is closed by Close and by the death of the host.
func (p *PacketConn) Closed() <-chan struct{} { return p.closed }

// Close frees the port.
func (p *PacketConn) Close() error {
	p.h.n.mu.Lock()
	defer p.h.n.mu.Unlock()
	p.closeLocked()
	return nil
}

func (p *PacketConn) closeLocked() {
	if !p.over {
		p.over = true
		close(p.closed)
		delete(p.h.packets, p.port)
	}
}

// GossipTransport is a memberlist.Transport on one port of a host. Two goroutines, ending with Shutdown or the host.
//
// Inside synctest, sleep 10 s after memberlist's Shutdown: a probe in progress outlives it until its timer fires, and
// virtual time stops when the test's own goroutine ends.
type GossipTransport struct {
	h       *Host
	port    int
	l       net.Listener
	pc      *PacketConn
	packets chan *memberlist.Packet
	streams chan net.Conn
}

var _ memberlist.Transport = (*GossipTransport)(nil)

// Gossip opens a port for packets and connections of memberlist.
func (h *Host) Gossip(port int) (*GossipTransport, error) {
	l, err := h.Listen(port)
	if err != nil {
		return nil, err
	}
	port = l.Addr().(Addr).port
	pc, err := h.ListenPacket(port)
	if err != nil {
		l.Close()
		return nil, err
	}
	t := &GossipTransport{h: h, port: port, l: l, pc: pc,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn)}
	go t.acceptLoop()
	go t.packetLoop()
	return t, nil
}

func (t *GossipTransport) acceptLoop() {
	for {
		c, err := t.l.Accept()
		if err != nil {
			return
		}
		select {
		case t.streams <- c:
		case <-t.pc.closed:
			c.Close()
			return
		}
	}
}

func (t *GossipTransport) packetLoop() {
	for {
		select {
		case p := <-t.pc.queue:
			select {
			case t.packets <- &memberlist.Packet{Buf: p.Data, From: p.From, Timestamp: p.At}:
			case <-t.pc.closed:
				return
			}
		case <-t.pc.closed:
			return
		}
	}
}

// FinalAdvertiseAddr returns the host's own address; the arguments are ignored.
func (t *GossipTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.h.ip, t.port, nil
}

// WriteTo implements memberlist.Transport.
func (t *GossipTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.pc.WriteTo(b, addr)
}

// PacketCh implements memberlist.Transport.
func (t *GossipTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout implements memberlist.Transport.
func (t *GossipTransport) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return t.h.DialTimeout(addr, d)
}

// StreamCh implements memberlist.Transport.
func (t *GossipTransport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown frees the port.
func (t *GossipTransport) Shutdown() error {
	t.l.Close()
	return t.pc.Close()
}
