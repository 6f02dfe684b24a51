package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"github.com/muster-sched/muster/internal/tlsutil"
)

// prefixConn is a connection that reads from a buffered reader, which may have bytes already.
type prefixConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *prefixConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// raftConn is a connection given to raft; done is closed when raft closes it.
type raftConn struct {
	net.Conn
	r    *bufio.Reader
	once sync.Once
	done chan struct{}
}

func (c *raftConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *raftConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

func hostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return h
}

// peerOf identifies the peer of a connection whose handshake is complete.
func peerOf(conn net.Conn, addr string) Peer {
	p := Peer{Addr: addr}
	if addr == "" && conn.RemoteAddr() != nil {
		p.Addr = conn.RemoteAddr().String()
	}
	tc, ok := conn.(*tls.Conn)
	if !ok {
		return p
	}
	p.TLS = true
	st := tc.ConnectionState()
	if len(st.VerifiedChains) == 0 || len(st.PeerCertificates) == 0 {
		return p
	}
	cert := st.PeerCertificates[0]
	p.Name = cert.Subject.CommonName
	role, region := tlsutil.RoleOf(cert)
	p.Role, p.Region = string(role), region
	return p
}

// TLSDialer returns a dialer that runs a TLS handshake over connections of base. conf is called for each connection, so
// that certificates can be reloaded; it must verify the server (ServerName "server.<region>.muster").
func TLSDialer(base Dialer, conf func() *tls.Config) Dialer {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		raw, err := base(ctx, addr)
		if err != nil {
			return nil, err
		}
		tc := tls.Client(raw, conf())
		if err := tc.HandshakeContext(ctx); err != nil {
			raw.Close()
			if head := (tls.RecordHeaderError{}); errors.As(err, &head) && bytes.Equal(head.RecordHeader[:], httpAnswer) {
				return nil, errHTTP
			}
			return nil, err
		}
		return tc, nil
	}
}
