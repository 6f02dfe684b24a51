package agent

import (
	"context"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
)

// logins issues short-lived tokens to users of this machine, whom the kernel identifies at the unix socket, so that a
// login node needs no tokens of theirs. A request with a token keeps it.
type logins struct {
	a  *Agent
	mu sync.Mutex
	by map[uint32]login // by uid; guarded by mu; at most loginsMax
}

type login struct {
	token string
	until time.Time
}

const loginsMax = 4096

func newLogins(a *Agent) *logins { return &logins{a: a, by: map[uint32]login{}} }

// handler adds a token to requests that came through the unix socket without one.
func (l *logins) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if conn != nil && conn.Network() == "unix" && l.a.cfg.ACL && l.a.client != nil &&
			r.Header.Get("X-Nomad-Token") == "" && r.Header.Get("X-Muster-Token") == "" && r.Header.Get("Authorization") == "" {
			l.a.asTask(r)
			if cred := edge.User(r.Context()); cred != nil {
				if t := l.token(r.Context(), cred); t != "" {
					r.Header.Set("X-Nomad-Token", t)
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// connContext stores who is at the other end of a connection in the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if tc, ok := c.(*taskConn); ok {
		ctx, c = context.WithValue(ctx, taskKey{}, tc.l.task), tc.Conn
	}
	return edge.Context(ctx, c)
}

func (l *logins) token(ctx context.Context, cred *unix.Ucred) string {
	l.mu.Lock()
	have, ok := l.by[cred.Uid]
	l.mu.Unlock()
	if ok && time.Now().Before(have.until) {
		return have.token
	}
	req := &methods.ACLPeerLoginRequest{NodeAuth: l.a.client.Auth(), UID: int64(cred.Uid), GID: int64(cred.Gid)}
	if u, err := user.LookupId(strconv.Itoa(int(cred.Uid))); err == nil {
		req.User = u.Username
		if ids, err := u.GroupIds(); err == nil {
			for _, id := range ids {
				if g, err := user.LookupGroupId(id); err == nil {
					req.Groups = append(req.Groups, g.Name)
				}
			}
		}
	}
	resp, err := rpc.Invoke(ctx, l.a.back, methods.ACLPeerLogin, rpc.Header{Region: l.a.cfg.Region}, req)
	if err != nil {
		l.a.log.Warn("login of a local user", "uid", cred.Uid, "error", err)
		return ""
	}
	t := login{resp.Secret.String(), time.Now().Add(resp.TTL / 2)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.by) >= loginsMax {
		clear(l.by)
	}
	l.by[cred.Uid] = t
	return t.token
}
