package rpc

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/structs"
)

// TestWrongPort: a call to the port of another protocol says which port it seems to be.
func TestWrongPort(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	silent := listen(t, func(conn *net.TCPConn) { // closes each connection
		b := make([]byte, 1)
		_, _ = conn.Read(b)
		conn.CloseWrite()
	})
	pool := NewPool(PoolConfig{})
	defer pool.Close()
	answer := listen(t, func(conn *net.TCPConn) { // answers as HTTP does, at once
		_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		go io.Copy(io.Discard, conn) // unread bytes would reset the connection, and the answer might be lost with it
	})
	for addr, want := range map[string]string{silent: "is that the port of a server for calls (4647 by default)?", answer: "HTTP is served there (port 4646 by default)"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := pool.To(addr).Invoke(ctx, Header{Method: "Test.Echo"}, &struct{}{}, &struct{}{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	for addr, want := range map[string]bool{web.Listener.Addr().String(): true, secure.Listener.Addr().String(): true, silent: false} {
		if got, err := AnswersHTTP(t.Context(), NetDialer(), addr); got != want || err != nil {
			t.Errorf("%s answers HTTP: %v, %v; want %v", addr, got, err, want)
		}
	}
	for first, want := range map[byte]string{'G': "HTTP", 'P': "HTTP", 10: "gossip", 244: "gossip", 0x16: ""} {
		if got := otherProtocol(first); got != want {
			t.Errorf("first byte %d: %q, want %q", first, got, want)
		}
	}
}

// TestCallToHTTP: a call to a port of HTTP fails with the reason long before its deadline, and is known not to have been
// done. An HTTP server waits for the end of a line, so it answers nothing by itself.
func TestCallToHTTP(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	trusting := func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
	for name, c := range map[string]struct {
		addr string
		dial Dialer
	}{
		"plain":                     {web.Listener.Addr().String(), NetDialer()},
		"HTTPS":                     {secure.Listener.Addr().String(), TLSDialer(NetDialer(), trusting)},
		"plain, called through TLS": {web.Listener.Addr().String(), TLSDialer(NetDialer(), trusting)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := NewPool(PoolConfig{Dial: c.dial})
			defer pool.Close()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := pool.To(c.addr).Invoke(ctx, Header{Method: "Test.Echo"}, &struct{}{}, &struct{}{})
			if structs.CodeOf(err) != structs.CodeUnavailable || !strings.Contains(err.Error(), string(errHTTP)) {
				t.Errorf("%v (%s)", err, structs.CodeOf(err))
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("the call ended after %s", took)
			}
		})
	}
}

// TestMuteSession: a session on which nothing arrives stays while its peer is not known to speak HTTP.
func TestMuteSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Host("frozen").Listen(1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		pool := NewPool(PoolConfig{Dial: n.Host("node").Dial})
		defer pool.Close()
		s, err := pool.Session(t.Context(), "frozen:1")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if err := s.Err(); err != nil {
			t.Errorf("the session ended: %v", err)
		}
	})
}

// listen serves each connection to an address that it returns, one after the other.
func listen(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.TCPConn))
		}
	}()
	return l.Addr().String()
}
