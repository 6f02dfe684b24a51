package edge

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Defaults of the limits on connections.
const (
	PerClientDefault = 100
	TotalDefault     = 16384 // at most half of the descriptors that the process may open
)

// refusalLogEvery is the least time between two log lines about refused connections.
const refusalLogEvery = time.Minute

// Conns limits the open connections of the HTTP API, over all of its listeners: by client, so that none keeps the others
// out, and in total, so that the process keeps descriptors for its log and its peers. A client is an IP address, a user
// of this machine at a unix socket, or a task at its own. A connection beyond a limit is closed at once. The total does
// not bind root and the agent's own user, who have to reach an agent under attack.
type Conns struct {
	perClient, total int // 0: no limit
	log              hclog.Logger

	mu      sync.Mutex
	open    map[string]int // by client; guarded by mu, as all below
	all     int
	refused int // since the last log line
	logged  time.Time
}

// NewConns returns the limits. perClient 0 is PerClientDefault and negative no limit; total 0 is TotalDefault.
func NewConns(perClient, total int, log hclog.Logger) *Conns {
	if perClient == 0 {
		perClient = PerClientDefault
	}
	if total <= 0 {
		total = TotalDefault
		if n := descriptorMax(); n/2 < TotalDefault {
			total = int(n / 2)
		}
	}
	return &Conns{perClient: max(perClient, 0), total: total, log: log, open: map[string]int{}}
}

// Listener returns l with the limits. A name other than "" is the only client of l, which sets the limit for it itself.
func (c *Conns) Listener(l net.Listener, name string) net.Listener {
	return &limited{Listener: l, conns: c, name: name}
}

type limited struct {
	net.Listener
	conns *Conns
	name  string
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, client: l.name}
		perClient, total := 0, l.conns.total
		if l.name == "" {
			c.identify()
			perClient = l.conns.perClient
			if c.peer != nil && (c.peer.UID == 0 || int(c.peer.UID) == os.Geteuid()) {
				total = 0
			}
		}
		if !l.conns.admit(c.client, perClient, total) {
			nc.Close()
			continue
		}
		c.done = sync.OnceFunc(func() { l.conns.release(c.client) })
		return c, nil
	}
}

func (c *Conns) admit(client string, perClient, total int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, setting, limit := c.open[client], "http_max_conns_per_client", perClient
	if perClient == 0 || of < perClient {
		of, setting, limit = c.all, "http_max_conns", total
	}
	if limit == 0 || of < limit {
		c.open[client]++
		c.all++
		return true
	}
	c.refused++
	if now := time.Now(); now.Sub(c.logged) >= refusalLogEvery {
		c.log.Warn("connections to the HTTP API were refused: raise "+setting+" in the block limits if the client is no attacker", "client", client, "open", of, "limit", limit, "refused", c.refused)
		c.logged, c.refused = now, 0
	}
	return false
}

func (c *Conns) release(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.open[client]--; c.open[client] <= 0 {
		delete(c.open, client)
	}
}

// Peer is the user that a process at the other end of a unix socket runs as.
type Peer struct{ UID, GID uint32 }

// conn is an accepted connection.
type conn struct {
	net.Conn
	client string
	peer   *Peer // at the other end of a unix socket, or nil
	done   func()
}

// identify finds out whose connection it is.
func (c *conn) identify() {
	if uc, ok := c.Conn.(*net.UnixConn); ok {
		c.client = "unknown user"
		if c.peer = peerOf(uc); c.peer != nil {
			c.client = "uid " + strconv.FormatUint(uint64(c.peer.UID), 10)
		}
		return
	}
	c.client = c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(c.client); err == nil {
		c.client = host
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.done()
	return c.Conn.Close()
}

type clientKey struct{}

// Context adds what is known of a connection to the context of its requests. It is the ConnContext of an http.Server.
func Context(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if c, ok := nc.(*conn); ok {
		return context.WithValue(ctx, clientKey{}, c)
	}
	return ctx
}

// User returns the user at the other end of a unix socket, as the kernel identifies them, or nil.
func User(ctx context.Context) *Peer {
	if c, ok := ctx.Value(clientKey{}).(*conn); ok {
		return c.peer
	}
	return nil
}
