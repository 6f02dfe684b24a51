package rpc

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/structs"
)

// The first byte of a connection.
const (
	byteRaft = 0x01
	byteRPC  = 0x02
	byteTLS  = 0x16 // a TLS handshake record
)

// HandshakeTimeout bounds the time from accept or dial to the first byte, including TLS.
const HandshakeTimeout = 5 * time.Second

// ServerConfig configures a Server.
type ServerConfig struct {
	Registry      *Registry      // what it serves; required
	TLS           *tls.Config    // nil: plaintext. Must require client certificates; see internal/tlsutil
	PeerTLS       *tls.Config    // without TLS: for connections of other servers, on a port that is plaintext for agents; nil: none
	VerifyPeers   bool           // raft connections need a verified server certificate even without TLS and PeerTLS: then there are none
	Dial          Dialer         // for raft's outgoing connections; nil is plain TCP
	Advertise     net.Addr       // address of this server for raft; nil: the first listener's
	MaxConnsPerIP int            // limit for connections without a verified certificate; 0: 100, negative: no limit
	MaxStreams    int            // calls in progress per session; 0: DefaultMaxStreams
	OnSession     func(*Session) // called for each accepted session, or nil
	Log           hclog.Logger   // or nil
}

// Server accepts connections and serves sessions; connections for raft go to RaftConns.
type Server struct {
	cfg  ServerConfig
	log  hclog.Logger
	raft *RaftConns

	mu struct {
		sync.Mutex
		closed    bool
		listeners map[net.Listener]bool
		conns     map[net.Conn]bool // in the handshake, or raft's
		sessions  map[*Session]bool
		perIP     map[string]int // without a verified certificate
	}
	wg sync.WaitGroup
}

// NewServer returns a server; Serve runs it.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.MaxConnsPerIP == 0 {
		cfg.MaxConnsPerIP = 100
	}
	if cfg.Dial == nil {
		cfg.Dial = NetDialer()
	}
	s := &Server{cfg: cfg, log: cfg.Log}
	s.raft = &RaftConns{s: s, conns: make(chan net.Conn, 16), closed: make(chan struct{})}
	s.mu.listeners = map[net.Listener]bool{}
	s.mu.conns = map[net.Conn]bool{}
	s.mu.sessions = map[*Session]bool{}
	s.mu.perIP = map[string]int{}
	return s
}

// ErrServerClosed is returned by Serve after Close.
var ErrServerClosed = errors.New("rpc: server closed")

// Serve accepts connections from l until l or the server is closed. It may run on several listeners at once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		l.Close()
		return ErrServerClosed
	}
	s.mu.listeners[l] = true
	s.mu.Unlock()
	backoff := time.Duration(0)
	for {
		conn, err := l.Accept()
		if err != nil {
			if s.isClosed() {
				return ErrServerClosed
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Most likely out of file descriptors: retry after a growing pause of at most a second.
			backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
			s.log.Warn("accept failed", "error", err, "retry_in", backoff)
			time.Sleep(backoff)
			continue
		}
		backoff = 0
		s.admit(conn)
	}
}

// admit starts the handshake of a connection, or closes it if its address has too many.
func (s *Server) admit(conn net.Conn) {
	ip := hostOf(conn.RemoteAddr())
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		conn.Close()
		return
	}
	if s.cfg.MaxConnsPerIP > 0 && s.mu.perIP[ip] >= s.cfg.MaxConnsPerIP {
		s.mu.Unlock()
		s.refuse(conn, "per-ip", fmt.Sprintf("%d connections without a verified certificate from this address already", s.cfg.MaxConnsPerIP))
		return
	}
	s.mu.perIP[ip]++
	s.mu.conns[conn] = true
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		s.handle(conn, ip)
	}()
}

func (s *Server) refuse(conn net.Conn, reason, detail string) {
	s.cfg.Registry.metrics.Refused(reason)
	s.log.Warn("connection refused", "from", conn.RemoteAddr().String(), "reason", reason, "detail", detail)
	conn.Close()
}

func (s *Server) release(ip string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.perIP[ip]--; s.mu.perIP[ip] <= 0 {
		delete(s.mu.perIP, ip)
	}
}

// handle runs the handshake and serves the connection to its end.
func (s *Server) handle(raw net.Conn, ip string) {
	release := sync.OnceFunc(func() { s.release(ip) })
	defer release()
	defer func() {
		s.mu.Lock()
		delete(s.mu.conns, raw)
		s.mu.Unlock()
	}()
	conn, r, first, reason, err := s.handshake(raw)
	if err != nil {
		s.refuse(raw, reason, err.Error())
		return
	}
	peer := peerOf(conn, "")
	if peer.TLS && peer.Role != "" {
		release() // a verified peer does not count against the limit of its address
	}
	switch first {
	case byteRaft:
		if (s.cfg.TLS != nil || s.cfg.PeerTLS != nil || s.cfg.VerifyPeers) && peer.Role != "server" {
			s.refuse(raw, "raft-role", raftRefusal(peer))
			return
		}
		c := &raftConn{Conn: conn, r: r, done: make(chan struct{})}
		select {
		case s.raft.conns <- c:
		case <-s.raft.closed:
			conn.Close()
			return
		case <-time.After(HandshakeTimeout):
			s.refuse(raw, "raft-busy", "raft did not accept the connection in time")
			return
		}
		select { // count it until raft closes it
		case <-c.done:
		case <-s.raft.closed:
			conn.Close()
		}
	case byteRPC:
		sess := newSession(conn, false, peer, s.cfg.Registry, s.cfg.MaxStreams, s.log)
		s.mu.Lock()
		closed := s.mu.closed
		if !closed {
			s.mu.sessions[sess] = true
		}
		delete(s.mu.conns, raw)
		s.mu.Unlock()
		if closed {
			conn.Close()
			return
		}
		if s.cfg.OnSession != nil {
			s.cfg.OnSession(sess)
		}
		sess.m.start(r)
		<-sess.Closed()
		s.mu.Lock()
		delete(s.mu.sessions, sess)
		s.mu.Unlock()
		s.log.Debug("session ended", "from", peer.Addr, "role", peer.Role, "reason", sess.Err())
	default:
		detail := fmt.Sprintf("first byte 0x%02x is neither raft (0x01) nor rpc (0x02)", first)
		switch otherProtocol(first) {
		case "HTTP":
			detail += fmt.Sprintf("; it looks like HTTP, which has another port (%d by default)", structs.PortHTTP)
		case "gossip":
			detail += fmt.Sprintf("; it looks like gossip (retry_join of a server), which has another port (%d by default)", structs.PortGossip)
		}
		s.refuse(raw, "first-byte", detail)
	}
}

// raftRefusal says why a peer may not take part in raft.
func raftRefusal(peer Peer) string {
	if !peer.TLS {
		return "a peer that proves nothing cannot join raft; it takes a server certificate (tls) or the servers' key (server.join_key)"
	}
	return fmt.Sprintf("a certificate of role %q cannot join raft; it takes a server certificate", peer.Role)
}

// handshake runs TLS if configured and reads the first byte. On an error, reason is a fixed word for it.
func (s *Server) handshake(raw net.Conn) (conn net.Conn, r *bufio.Reader, first byte, reason string, err error) {
	deadline := time.Now().Add(HandshakeTimeout)
	raw.SetDeadline(deadline)
	pr := bufio.NewReaderSize(raw, 512)
	b, err := pr.Peek(1)
	if err != nil {
		return nil, nil, 0, "no-first-byte", fmt.Errorf("no first byte within %s: %w", HandshakeTimeout, err)
	}
	conn = &prefixConn{Conn: raw, r: pr}
	conf, secure := s.cfg.TLS, b[0] == byteTLS
	switch {
	case conf != nil && !secure:
		return nil, nil, 0, "plaintext", fmt.Errorf("plaintext connection (first byte 0x%02x) to a port that demands TLS", b[0])
	case conf == nil && secure:
		if conf = s.cfg.PeerTLS; conf == nil {
			return nil, nil, 0, "tls-on-plaintext", errors.New("TLS connection to a port that speaks plaintext; enable tls here or disable it there, and give server.join_key to all servers or to none")
		}
	}
	if secure {
		tc := tls.Server(conn, conf)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, nil, 0, "tls", fmt.Errorf("TLS handshake: %w", err)
		}
		conn = tc
	}
	r = bufio.NewReaderSize(conn, fragment)
	if first, err = r.ReadByte(); err != nil {
		return nil, nil, 0, "no-first-byte", fmt.Errorf("no first byte within %s: %w", HandshakeTimeout, err)
	}
	raw.SetDeadline(time.Time{})
	return conn, r, first, "", nil
}

// RaftConns returns the stream layer for raft.
func (s *Server) RaftConns() *RaftConns { return s.raft }

// Sessions returns the number of live sessions.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.sessions)
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed
}

// Close closes listeners and connections and waits for their goroutines. Handlers are cancelled; Close does not wait
// for them.
func (s *Server) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	for l := range s.mu.listeners {
		l.Close()
	}
	for c := range s.mu.conns {
		c.Close()
	}
	sessions := make([]*Session, 0, len(s.mu.sessions))
	for sess := range s.mu.sessions {
		sessions = append(sessions, sess)
	}
	s.mu.Unlock()
	for _, sess := range sessions {
		sess.Close()
	}
	s.raft.Close()
	s.wg.Wait()
	return nil
}

// RaftConns implements raft.StreamLayer over the server's port.
type RaftConns struct {
	s      *Server
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

var _ raft.StreamLayer = (*RaftConns)(nil)

// Accept returns the next connection from another server's raft.
func (r *RaftConns) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

// Dial connects to another server's raft.
func (r *RaftConns) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := r.s.cfg.Dial(ctx, string(addr))
	if err != nil {
		return nil, err
	}
	if p := peerOf(conn, string(addr)); p.TLS && p.Role != "server" {
		conn.Close()
		return nil, fmt.Errorf("raft to %s: the certificate there has role %q, not server", addr, p.Role)
	}
	conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte{byteRaft}); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// Close makes Accept fail and closes the connections that raft still uses.
func (r *RaftConns) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

// Addr returns the address that raft advertises.
func (r *RaftConns) Addr() net.Addr {
	if r.s.cfg.Advertise != nil {
		return r.s.cfg.Advertise
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for l := range r.s.mu.listeners {
		return l.Addr()
	}
	return nil
}
