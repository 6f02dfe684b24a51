package rpc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
		if got := AnswersHTTP(t.Context(), NetDialer(), addr); got != want {
			t.Errorf("%s answers HTTP: %v, want %v", addr, got, want)
		}
	}
	for first, want := range map[byte]string{'G': "HTTP", 'P': "HTTP", 10: "gossip", 244: "gossip", 0x16: ""} {
		if got := otherProtocol(first); got != want {
			t.Errorf("first byte %d: %q, want %q", first, got, want)
		}
	}
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
