package egress

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
)

// Gate is an HTTP proxy on loopback, for a program that resolves names and follows redirects by itself. It connects to
// allowed addresses only.
type Gate struct {
	filter *Filter
	server *http.Server
	url    string
	auth   string

	mu      sync.Mutex
	refused error
}

// NewGate starts a proxy. Only who knows its URL can use it.
func (f *Filter) NewGate() (*Gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	g := &Gate{filter: f, url: "http://gate:" + password + "@" + l.Addr().String(), auth: "Basic " + base64.StdEncoding.EncodeToString([]byte("gate:"+password))}
	forward := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: f.Transport(false), ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { g.fail(w, err) }}
	g.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Proxy-Authorization") != g.auth:
			w.Header().Set("Proxy-Authenticate", "Basic")
			w.WriteHeader(http.StatusProxyAuthRequired)
		case r.Method == http.MethodConnect:
			g.connect(w, r)
		default:
			forward.ServeHTTP(w, r)
		}
	})}
	go func() { _ = g.server.Serve(l) }() // until it is closed
	return g, nil
}

// URL returns the proxy's address with its password.
func (g *Gate) URL() string { return g.url }

// Refused returns the first refusal of an address, or nil.
func (g *Gate) Refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// Close ends the proxy and its connections.
func (g *Gate) Close() error { return g.server.Close() }

func (g *Gate) fail(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrRefused) {
		g.mu.Lock()
		if g.refused == nil {
			g.refused = err
		}
		g.mu.Unlock()
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// connect makes a tunnel.
func (g *Gate) connect(w http.ResponseWriter, r *http.Request) {
	out, err := g.filter.Dialer().DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		g.fail(w, err)
		return
	}
	defer out.Close()
	w.WriteHeader(http.StatusOK)
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(out, buffered)
		cancel()
	}()
	go func() {
		_, _ = io.Copy(in, out)
		cancel()
	}()
	<-ctx.Done() // git closes a connection only when it has read everything
}
