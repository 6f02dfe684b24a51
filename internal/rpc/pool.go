package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/structs"
)

// Dialer connects to an address. With TLS it completes the handshake and returns a *tls.Conn.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// PoolConfig configures a Pool.
type PoolConfig struct {
	Dial       Dialer         // NetDialer, TLSDialer, or a test's dialer
	Registry   *Registry      // serves calls that arrive over sessions dialled here, or nil
	Timeout    time.Duration  // to connect, including the handshake; 0: 5 s
	MaxStreams int            // calls that the other side may have in progress; 0: DefaultMaxStreams
	Log        hclog.Logger   // or nil
	OnSession  func(*Session) // called for each new session, or nil
}

// Pool keeps one session per address. It dials when a session is first needed, and again after it was lost. Apart from
// those of its sessions, its goroutines are the dials in progress, at most one per address.
type Pool struct {
	cfg PoolConfig

	mu struct {
		sync.Mutex
		sessions map[string]*Session
		dials    map[string]*dialing
		closed   bool
	}
}

type dialing struct {
	done chan struct{}
	s    *Session
	err  error
}

// NewPool returns an empty pool.
func NewPool(cfg PoolConfig) *Pool {
	if cfg.Timeout <= 0 {
		cfg.Timeout = HandshakeTimeout
	}
	if cfg.Dial == nil {
		cfg.Dial = NetDialer()
	}
	p := &Pool{cfg: cfg}
	p.mu.sessions = map[string]*Session{}
	p.mu.dials = map[string]*dialing{}
	return p
}

// NetDialer returns a dialer for TCP without TLS.
func NetDialer() Dialer {
	d := &net.Dialer{}
	return func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

// Session returns the live session to addr, and dials if there is none. Callers that arrive during a dial share it.
func (p *Pool) Session(ctx context.Context, addr string) (*Session, error) {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil, structs.Errorf(structs.CodeUnavailable, "connect to %s: shutting down", addr)
	}
	if s := p.mu.sessions[addr]; s != nil {
		if s.Err() == nil && !s.m.leaving() {
			p.mu.Unlock()
			return s, nil
		}
		delete(p.mu.sessions, addr)
	}
	d := p.mu.dials[addr]
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		p.mu.dials[addr] = d
		go p.dial(addr, d)
	}
	p.mu.Unlock()
	select {
	case <-d.done:
		return d.s, d.err
	case <-ctx.Done():
		return nil, ctxError(ctx, "connect to "+addr)
	}
}

func (p *Pool) dial(addr string, d *dialing) {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Timeout)
	defer cancel()
	s, err := p.connect(ctx, addr)
	p.mu.Lock()
	delete(p.mu.dials, addr)
	closed := p.mu.closed
	if err == nil && !closed {
		p.mu.sessions[addr] = s
	}
	p.mu.Unlock()
	switch {
	case err != nil:
		d.err = structs.Errorf(structs.CodeUnavailable, "connect to %s: %v", addr, err)
	case closed:
		s.Close()
		d.err = structs.Errorf(structs.CodeUnavailable, "connect to %s: shutting down", addr)
	default:
		d.s = s
		go p.reap(addr, s)
		time.AfterFunc(muteBefore, func() { p.doubt(addr, s) })
	}
	close(d.done)
	if d.s != nil && p.cfg.OnSession != nil {
		p.cfg.OnSession(d.s)
	}
}

// How long a new session may be mute before its peer is asked for a sign of life, and after that before doubt looks at it.
const (
	muteBefore = time.Second
	muteAfter  = 500 * time.Millisecond
)

// doubt ends a session on which nothing has arrived if HTTP is served at its address. An HTTP server waits for the end of
// a line, so that calls would only end by their deadline, without a reason.
func (p *Pool) doubt(addr string, s *Session) {
	if !s.m.mute() {
		return
	}
	s.Ping()
	time.AfterFunc(muteAfter, func() {
		if !s.m.mute() {
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-s.Closed():
				cancel()
			case <-ctx.Done():
			}
		}()
		if is, _ := AnswersHTTP(ctx, p.cfg.Dial, addr); is && s.m.mute() {
			s.m.close(errHTTP)
		}
	})
}

// reap removes a session from the pool when it ends.
func (p *Pool) reap(addr string, s *Session) {
	<-s.Closed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.sessions[addr] == s {
		delete(p.mu.sessions, addr)
	}
}

func (p *Pool) connect(ctx context.Context, addr string) (*Session, error) {
	conn, err := p.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if d, ok := ctx.Deadline(); ok {
		conn.SetDeadline(d)
	}
	if _, err := conn.Write([]byte{byteRPC}); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	r := bufio.NewReaderSize(conn, fragment)
	s := newSession(conn, true, peerOf(conn, addr), p.cfg.Registry, p.cfg.MaxStreams, p.cfg.Log)
	s.m.start(r)
	return s, nil
}

// Probe closes the session to addr, if there is one, unless its peer answers within patience. The calls on it then fail
// without waiting for the ordinary pings.
func (p *Pool) Probe(addr string, patience time.Duration) {
	p.mu.Lock()
	s := p.mu.sessions[addr]
	p.mu.Unlock()
	if s != nil {
		s.m.probe(patience)
	}
}

// Drop closes the session to addr, if there is one.
func (p *Pool) Drop(addr string) {
	p.mu.Lock()
	s := p.mu.sessions[addr]
	delete(p.mu.sessions, addr)
	p.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// Close closes every session. Later calls fail.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.mu.closed = true
	sessions := p.mu.sessions
	p.mu.sessions = map[string]*Session{}
	p.mu.Unlock()
	for _, s := range sessions {
		s.Close()
	}
	return nil
}

// To returns a Caller for addr that reconnects when needed.
func (p *Pool) To(addr string) Caller { return pooled{p, addr} }

type pooled struct {
	p    *Pool
	addr string
}

func (c pooled) Invoke(ctx context.Context, h Header, req, resp any) error {
	return invoke(ctx, c, h, req, resp)
}

// InvokeRaw dials a second time if the pooled session turns out to be dead before the call was sent.
func (c pooled) InvokeRaw(ctx context.Context, h Header, body []byte) (out []byte, err error) {
	for range 2 {
		s, serr := c.p.Session(ctx, c.addr)
		if serr != nil {
			return nil, serr
		}
		out, err = s.InvokeRaw(ctx, h, body)
		if !s.wasDead(err) {
			return out, err
		}
	}
	return out, err
}

func (c pooled) Open(ctx context.Context, h Header, req any) (st *Stream, err error) {
	for range 2 {
		s, serr := c.p.Session(ctx, c.addr)
		if serr != nil {
			return nil, serr
		}
		st, err = s.Open(ctx, h, req)
		if !s.wasDead(err) {
			return st, err
		}
	}
	return st, err
}

// wasDead reports whether a call failed because the session had ended before the call was sent.
func (s *Session) wasDead(err error) bool {
	return err != nil && s.Err() != nil && !s.isHTTP() && errors.Is(err, &structs.Error{Code: structs.CodeUnavailable})
}

func (c pooled) String() string { return fmt.Sprintf("rpc to %s", c.addr) }
