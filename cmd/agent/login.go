package agent

import (
	"context"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/edge"
)

// loginPause is how long a refused login is not tried again.
const loginPause = 2 * time.Second

// loginTime limits a login.
const loginTime = 10 * time.Second

// loginsMax limits the remembered logins. At the limit all are forgotten.
const loginsMax = 4096

// logins gets short-lived tokens for users of this machine, whom the kernel identifies at the unix socket, so that they
// need no tokens of their own at a login node. A request with a token keeps it.
type logins struct {
	a  *Agent
	mu sync.Mutex
	by map[uint32]*login // by uid; guarded by mu
}

// login is the newest result of a user's login.
type login struct {
	mu      sync.Mutex // held during a login, so that each user has one at a time
	token   string     // "" if it was refused
	refused string     // why
	until   time.Time  // when to log in again
}

func newLogins(a *Agent) *logins { return &logins{a: a, by: map[uint32]*login{}} }

// handler adds a token to requests that came through the unix socket without one.
func (l *logins) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if conn != nil && conn.Network() == "unix" && l.a.cfg.ACL && l.a.client != nil &&
			r.Header.Get("X-Nomad-Token") == "" && r.Header.Get("X-Muster-Token") == "" && r.Header.Get("Authorization") == "" {
			l.a.asTask(r)
			if cred := edge.User(r.Context()); cred != nil {
				token, refused := l.of(cred.UID).get(r.Context(), l.a, cred)
				if token != "" {
					r.Header.Set("X-Nomad-Token", token)
				} else {
					r = r.WithContext(nomadlike.WithLoginRefused(r.Context(), refused))
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (l *logins) of(uid uint32) *login {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.by) >= loginsMax {
		clear(l.by)
	}
	if l.by[uid] == nil {
		l.by[uid] = &login{}
	}
	return l.by[uid]
}

// get returns the user's token, or why there is none.
func (l *login) get(ctx context.Context, a *Agent, cred *edge.Peer) (token, refused string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until) {
		return l.token, l.refused
	}
	resp, err := a.login(ctx, cred)
	if err != nil {
		a.log.Warn("a local user could not log in", "uid", cred.UID, "error", err)
		l.token, l.refused, l.until = "", err.Error(), time.Now().Add(loginPause)
	} else {
		l.token, l.refused, l.until = resp.Secret.String(), "", time.Now().Add(resp.TTL/2)
	}
	return l.token, l.refused
}

// login asks the servers for a token of a local user.
func (a *Agent) login(ctx context.Context, cred *edge.Peer) (*methods.ACLPeerLoginResponse, error) {
	req := &methods.ACLPeerLoginRequest{NodeAuth: a.client.Auth(), UID: int64(cred.UID), GID: int64(cred.GID)}
	if u, err := user.LookupId(strconv.Itoa(int(cred.UID))); err == nil {
		req.User = u.Username
		if ids, err := u.GroupIds(); err == nil {
			for _, id := range ids {
				if g, err := user.LookupGroupId(id); err == nil {
					req.Groups = append(req.Groups, g.Name)
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loginTime) // the result is for later requests too
	defer cancel()
	return rpc.Invoke(ctx, a.back, methods.ACLPeerLogin, rpc.Header{Region: a.cfg.Region}, req)
}

// connContext stores who is at the other end of a connection in the context of its requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if tc, ok := c.(*taskConn); ok {
		ctx, c = context.WithValue(ctx, taskKey{}, tc.l.task), tc.Conn
	}
	return edge.Context(ctx, c)
}
