package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Conn connects the node to the servers.
type Conn interface {
	rpc.Caller
	// SetServers replaces the server addresses.
	SetServers(addrs []string)
	// Failed reports that a call to the current server ended with err; the next call uses another server. Calls in
	// progress fail too: soon if err is that a deadline passed and the server does not answer a ping, after a minute
	// or so if it answers, and at once after any other error.
	Failed(err error)
	// Close closes the connection; calls in progress fail.
	Close() error
}

// Connector makes a Conn. back answers the calls that servers make to the node.
type Connector func(back *rpc.Registry) (Conn, error)

// DialConfig configures Dial.
type DialConfig struct {
	Servers []string     // initial RPC addresses; at least one
	Dial    rpc.Dialer   // nil is plain TCP
	Log     hclog.Logger // or nil
}

// Dial returns a Connector that uses a session to one server at a time. When the session or its server fails, the next
// call goes to another one. The order is random, so that nodes spread over the servers.
func Dial(cfg DialConfig) Connector {
	return func(back *rpc.Registry) (Conn, error) {
		if len(cfg.Servers) == 0 {
			return nil, errors.New("client: no server address was configured; set client.servers or server_join")
		}
		c := &dialed{retries: rpc.NewBudget(retryBurst), pool: rpc.NewPool(rpc.PoolConfig{Dial: cfg.Dial, Registry: back, Log: cfg.Log})}
		c.mu.static = slices.Clone(cfg.Servers)
		c.SetServers(nil)
		return c, nil
	}
}

// dialed is a Conn over sessions.
type dialed struct {
	pool    *rpc.Pool
	retries *rpc.Budget
	mu      struct {
		sync.Mutex
		static []string  // as configured: always included
		addrs  []string  // in the order of the attempts
		at     int       // the one in use
		moved  time.Time // when Failed last abandoned a server
	}
}

// SetServers implements Conn. The server in use stays in use while it is listed.
func (c *dialed) SetServers(addrs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want := slices.Concat(addrs, c.mu.static)
	var next []string
	for _, a := range c.mu.addrs {
		if slices.Contains(want, a) {
			next = append(next, a)
		}
	}
	for _, i := range rand.Perm(len(want)) {
		if a := want[i]; a != "" && !slices.Contains(next, a) {
			next = append(next, a)
		}
	}
	cur := ""
	if c.mu.at < len(c.mu.addrs) {
		cur = c.mu.addrs[c.mu.at]
	}
	c.mu.addrs = next
	c.mu.at = max(0, slices.Index(next, cur))
}

func (c *dialed) current() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.addrs[c.mu.at]
}

// next switches away from a failed server, unless another call already has.
func (c *dialed) next(from string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.addrs[c.mu.at] == from {
		c.mu.at = (c.mu.at + 1) % len(c.mu.addrs)
	}
}

// failedRest is how long a new server is kept before it may be abandoned in turn. Many nodes may share a Conn and
// report the same failure one after another.
const failedRest = 500 * time.Millisecond

// Limits of the session to a server that missed a deadline.
const (
	probePatience = callPatience / 2 // to answer a ping; then the session is closed
	leftBehind    = time.Minute      // that the session stays if the ping was answered, and up to half as long again
)

// Failed implements Conn. A server that missed a deadline may be frozen or merely have too much to do. If it answers a
// ping, its session stays for a while, and so does the poll on it. Otherwise all agents of a late server poll again at
// once, which takes time from servers that had too little, and the next deadlines pass as well. The poll does not stay
// for long: heartbeats now go to another server, so nothing would notice that the first one lost its leader.
func (c *dialed) Failed(err error) {
	c.mu.Lock()
	if time.Since(c.mu.moved) < failedRest {
		c.mu.Unlock()
		return
	}
	c.mu.moved = time.Now()
	c.mu.Unlock()
	cur := c.current()
	c.next(cur)
	switch {
	case c.current() == cur: // there is no other server
	case structs.CodeOf(err) == structs.CodeTimeout:
		c.pool.Probe(cur, probePatience)
		time.AfterFunc(leftBehind+rand.N(leftBehind/2), func() {
			if c.current() != cur {
				c.pool.Drop(cur)
			}
		})
	default:
		c.pool.Drop(cur)
	}
}

// Close implements Conn.
func (c *dialed) Close() error { return c.pool.Close() }

// elsewhere reports whether a failed call may be repeated on another server: it was not sent, or the server cannot
// answer.
func elsewhere(err error) bool {
	code := structs.CodeOf(err)
	return code == structs.CodeUnavailable
}

// retryBurst is how many calls may be repeated at once; it lets every loop of an agent find another server.
const retryBurst = 100

// attempts returns how many servers one call tries.
func (c *dialed) attempts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(len(c.mu.addrs), 7)
}

func try[T any](ctx context.Context, c *dialed, call func(to rpc.Caller) (T, error)) (T, error) {
	var out T
	var err error
	c.retries.Called()
	for n := range c.attempts() {
		if n > 0 && !c.retries.Retry() {
			return out, err
		}
		addr := c.current()
		out, err = call(c.pool.To(addr))
		if err == nil || ctx.Err() != nil {
			return out, err
		}
		if code := structs.CodeOf(err); code == structs.CodeUnavailable || code == structs.CodeUnknown {
			c.next(addr)
		}
		if !elsewhere(err) {
			return out, err
		}
	}
	return out, err
}

// Invoke implements rpc.Caller.
func (c *dialed) Invoke(ctx context.Context, h rpc.Header, req, resp any) error {
	_, err := try(ctx, c, func(to rpc.Caller) (struct{}, error) { return struct{}{}, to.Invoke(ctx, h, req, resp) })
	return err
}

// InvokeRaw implements rpc.Caller.
func (c *dialed) InvokeRaw(ctx context.Context, h rpc.Header, body []byte) ([]byte, error) {
	return try(ctx, c, func(to rpc.Caller) ([]byte, error) { return to.InvokeRaw(ctx, h, body) })
}

// Open implements rpc.Caller.
func (c *dialed) Open(ctx context.Context, h rpc.Header, req any) (*rpc.Stream, error) {
	return try(ctx, c, func(to rpc.Caller) (*rpc.Stream, error) { return to.Open(ctx, h, req) })
}

// InProcess connects to a server in this process. make receives the Caller through which that server calls the node.
func InProcess(make func(back rpc.Caller) rpc.Caller) Connector {
	return func(back *rpc.Registry) (Conn, error) {
		return inProcess{make(back.Local(rpc.Peer{Role: "server"}, nil))}, nil
	}
}

type inProcess struct{ rpc.Caller }

func (inProcess) SetServers([]string) {}
func (inProcess) Failed(error)        {}
func (inProcess) Close() error        { return nil }

// retry returns growing pauses with jitter, from min to max.
type retry struct{ d, min, max time.Duration }

func (b *retry) next() time.Duration {
	b.d = min(max(2*b.d, b.min), b.max)
	return b.d/2 + rand.N(b.d/2+1)
}

func (b *retry) reset() { b.d = 0 }

// pause sleeps for d. It returns false if ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
