package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// api is a client of one agent.
type api struct {
	base      string
	http      *http.Client
	token     string
	namespace string
	region    string
	headers   http.Header // sent with every request, or nil
	context   string      // name of the context in use, or ""
	accept    int         // a status other than 2xx that is not an error, or 0
}

// apiError is an answer with an error status.
type apiError struct {
	Status int
	Msg    string
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Msg, e.Status) }

// notFound reports whether the agent answered that the object does not exist.
func notFound(err error) bool {
	var e *apiError
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}

// api returns the client that the flags and environment select.
func (e *env) api() (*api, error) {
	if e.contextErr != nil {
		return nil, e.contextErr
	}
	a := &api{token: e.token, namespace: e.namespace, region: e.region, context: e.context}
	addr := e.addr
	tr := &http.Transport{MaxIdleConns: 10, IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: 10 * time.Second}
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialUnix(ctx, path)
		}
		addr = "http://unix"
	}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("address %q is not usable: want http://HOST:PORT, https://HOST:PORT or unix:///PATH", e.addr)
	}
	if u.Scheme == "https" {
		conf, err := e.tlsConfig()
		if err != nil {
			return nil, err
		}
		tr.TLSClientConfig = conf
	}
	a.base = strings.TrimSuffix(addr, "/")
	a.http = &http.Client{Transport: tr, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if req.URL.Host != via[0].URL.Host { // the token is for the agent that was named
			return http.ErrUseLastResponse
		}
		return nil
	}}
	return a, nil
}

// unixPathMax is the maximum length of a socket path in a system call.
const unixPathMax = 107

// dialUnix connects to a socket; its path may be of any length.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	if len(path) > unixPathMax {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	}
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

func (e *env) tlsConfig() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: e.tlsServerName, InsecureSkipVerify: e.tlsSkipVerify}
	if e.caCert != "" {
		pem, err := os.ReadFile(e.caCert)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", e.caCert)
		}
	}
	if (e.clientCert == "") != (e.clientKey == "") {
		return nil, errors.New("a client certificate needs its key: give both -client-cert and -client-key")
	}
	if e.clientCert != "" {
		c, err := tls.LoadX509KeyPair(e.clientCert, e.clientKey)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{c}
	}
	return conf, nil
}

// meta holds the headers of an answer.
type meta struct {
	Index       uint64
	LastContact time.Duration
	KnownLeader bool
	NextToken   string
}

func (a *api) url(path string, q url.Values) string {
	if q == nil {
		q = url.Values{}
	}
	if a.namespace != "" && !q.Has("namespace") {
		q.Set("namespace", a.namespace)
	}
	if a.region != "" && !q.Has("region") {
		q.Set("region", a.region)
	}
	s := a.base + path
	if enc := q.Encode(); enc != "" {
		s += "?" + enc
	}
	return s
}

// stream sends a request and returns the answer's body if the status is a success; the caller closes it.
func (a *api) stream(ctx context.Context, method, path string, q url.Values, body io.Reader) (io.ReadCloser, meta, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.url(path, q), body)
	if err != nil {
		return nil, meta{}, err
	}
	if a.token != "" {
		req.Header.Set("X-Nomad-Token", a.token)
	}
	if f, ok := body.(interface{ Size() int64 }); ok {
		req.ContentLength = f.Size()
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range a.headers {
		req.Header[k] = v
	}
	resp, err := a.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			if errors.Is(ue.Err, context.Canceled) {
				return nil, meta{}, ue.Err
			}
			return nil, meta{}, a.unreachable(ue.Err)
		}
		return nil, meta{}, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode != a.accept {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		msg := strings.TrimSpace(string(b))
		if rest, plain := strings.CutPrefix(a.base, "http://"); plain && resp.StatusCode == http.StatusBadRequest && strings.Contains(msg, "HTTP request to an HTTPS server") {
			return nil, meta{}, fmt.Errorf("the agent at %s speaks TLS: set MUSTER_ADDR=https://%s and MUSTER_CACERT to the file of its CA certificate", a.base, rest)
		}
		if msg == "" {
			msg = http.StatusText(resp.StatusCode)
		}
		return nil, meta{}, &apiError{resp.StatusCode, msg}
	}
	m := meta{NextToken: resp.Header.Get("X-Nomad-NextToken")}
	m.Index, _ = strconv.ParseUint(resp.Header.Get("X-Nomad-Index"), 10, 64)
	if ms, err := strconv.ParseInt(resp.Header.Get("X-Nomad-LastContact"), 10, 64); err == nil {
		m.LastContact = time.Duration(ms) * time.Millisecond
	}
	m.KnownLeader = resp.Header.Get("X-Nomad-KnownLeader") == "true"
	return resp.Body, m, nil
}

// where returns the address that is asked, with the context that it comes from or belongs to.
func (a *api) where() string {
	if a.context == "" {
		return a.base
	}
	return fmt.Sprintf("%s (context %q)", a.base, a.context)
}

// ofContext formats the name of the context in use; "" for none.
func (e *env) ofContext(f string) string {
	if e.context == "" {
		return ""
	}
	return fmt.Sprintf(f, e.context)
}

// unreachable explains why no answer came, and what the user can set.
func (a *api) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of the agent at %s is of an unknown CA: set MUSTER_CACERT (or -ca-cert) to the file of the cluster's CA certificate", a.where())
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("the agent at %s does not speak TLS: set MUSTER_ADDR=http://%s", a.where(), strings.TrimPrefix(a.base, "https://"))
	case errors.Is(err, io.EOF) && (strings.HasSuffix(a.base, ":4647") || strings.HasSuffix(a.base, ":4648")):
		return fmt.Errorf("%s does not answer HTTP: 4647 and 4648 are ports for agents; the API has 4646", a.where())
	case errors.As(err, &name):
		return fmt.Errorf("the certificate of the agent at %s is for another name (%w): use a name that it has, or set MUSTER_TLS_SERVER_NAME", a.where(), err)
	}
	if a.context != "" {
		return fmt.Errorf("no agent answers at %s: %w (is one running? muster context list shows the others; -context, -address and MUSTER_ADDR come first)", a.where(), err)
	}
	return fmt.Errorf("no agent answers at %s: %w (is one running? set -address or MUSTER_ADDR)", a.base, err)
}

// call sends in as JSON (nil for no body) and decodes the answer into out (nil to ignore it).
func (a *api) call(ctx context.Context, method, path string, q url.Values, in, out any) (meta, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return meta{}, err
		}
		body = bytes.NewReader(b)
	}
	rc, m, err := a.stream(ctx, method, path, q, body)
	if err != nil {
		return m, err
	}
	defer rc.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, rc)
		return m, nil
	}
	b, err := io.ReadAll(rc)
	if err != nil {
		return m, err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return m, fmt.Errorf("the agent's answer to %s %s is not understood: %w", method, path, err)
	}
	return m, nil
}

func (a *api) get(ctx context.Context, path string, q url.Values, out any) (meta, error) {
	return a.call(ctx, http.MethodGet, path, q, nil, out)
}

func (a *api) put(ctx context.Context, path string, q url.Values, in, out any) (meta, error) {
	return a.call(ctx, http.MethodPut, path, q, in, out)
}

func (a *api) delete(ctx context.Context, path string, q url.Values, out any) (meta, error) {
	return a.call(ctx, http.MethodDelete, path, q, nil, out)
}

// dial opens a websocket.
func (a *api) dial(ctx context.Context, path string, q url.Values) (*websocket.Conn, error) {
	h := http.Header{}
	if a.token != "" {
		h.Set("X-Nomad-Token", a.token)
	}
	ws, resp, err := websocket.Dial(ctx, a.url(path, q), &websocket.DialOptions{HTTPClient: a.http, HTTPHeader: h})
	if err != nil {
		if resp != nil && resp.StatusCode >= 300 && resp.Body != nil {
			b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
			return nil, &apiError{resp.StatusCode, strings.TrimSpace(string(b))}
		}
		return nil, err
	}
	ws.SetReadLimit(4 << 20)
	return ws, nil
}
