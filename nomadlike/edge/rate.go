package edge

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/gcra"
	"github.com/muster-sched/muster/structs"
)

const (
	burstTime    = 4 * time.Second // requests of this time may come at once
	wrongAtOnce  = 16              // requests of one client with wrong tokens that are delayed at a time
	rateLogEvery = time.Minute
)

// RateLimits limit the requests of a client, which is an IP address, a user at a unix socket or a task at its own, and
// of a token. Zero is no limit.
type RateLimits struct {
	PerClient, PerToken int           // requests a second
	WrongToken          time.Duration // delay of the answer to a token that does not exist
}

// Rates counts requests.
type Rates struct {
	limits RateLimits
	log    hclog.Logger
	taken  *gcra.Limiter // by client and token

	mu     sync.Mutex
	wrong  map[string]int // delayed requests by client; guarded by mu
	logged time.Time      // guarded by mu
}

// NewRates returns the limits.
func NewRates(l RateLimits, log hclog.Logger) *Rates {
	return &Rates{limits: l, log: log, taken: gcra.New(), wrong: map[string]int{}}
}

// Take counts a request. If its client or token has sent too many, it returns an error and the time after which to try
// again. Root at the unix socket is not limited, so that an operator gets in.
func (r *Rates) Take(req *http.Request, token string) (time.Duration, error) {
	if u := User(req.Context()); u != nil && u.UID == 0 {
		return 0, nil
	}
	client := clientOf(req)
	if wait := r.taken.Take("client "+client, 1, gcra.Rate{PerSecond: r.limits.PerClient, Burst: burstTime}); wait > 0 {
		return wait, r.refuse(client, "this client sends", r.limits.PerClient, "http_max_rate_per_client")
	}
	if token == "" {
		return 0, nil
	}
	if wait := r.taken.Take("token "+token, 1, gcra.Rate{PerSecond: r.limits.PerToken, Burst: burstTime}); wait > 0 {
		return wait, r.refuse(client, "this token is used for", r.limits.PerToken, "http_max_rate_per_token")
	}
	return 0, nil
}

func (r *Rates) refuse(client, who string, rate int, setting string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.logged) >= rateLogEvery {
		r.logged = now
		r.log.Warn("requests to the HTTP API were refused: raise "+setting+" in the block limits if the client is no attacker", "client", client, "rate", rate)
	}
	return structs.Errorf(structs.CodeBusy, "%s more than %d requests a second to this agent (%s in the block limits of its configuration); try again later", who, rate, setting)
}

// Wrong delays the answer to a request whose token does not exist, so that guessing is slow. A client that has too many
// such requests at once gets an error without delay.
func (r *Rates) Wrong(req *http.Request) error {
	if r.limits.WrongToken <= 0 {
		return nil
	}
	client := clientOf(req)
	r.mu.Lock()
	if r.wrong[client] >= wrongAtOnce {
		r.mu.Unlock()
		return structs.Errorf(structs.CodeBusy, "this client has sent %d requests at once with tokens that do not exist; try again later", wrongAtOnce)
	}
	r.wrong[client]++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.wrong[client]--; r.wrong[client] <= 0 {
			delete(r.wrong, client)
		}
	}()
	sleep(req.Context(), r.limits.WrongToken)
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// clientOf names the client of a request.
func clientOf(req *http.Request) string {
	if c, ok := req.Context().Value(clientKey{}).(*conn); ok {
		return c.client
	}
	if host, _, err := net.SplitHostPort(req.RemoteAddr); err == nil {
		return host
	}
	return req.RemoteAddr
}
