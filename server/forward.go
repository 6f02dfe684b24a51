package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// Limits of forwarding.
const (
	leaderPatience = 5 * time.Second       // how long a call waits for a leader before it fails with CodeNoLeader
	leaderLook     = 10 * time.Millisecond // time between checks for a leader
	vouchTimeout   = time.Second           // for asking the leader about a caller
	vouchesMax     = 32                    // concurrent questions to the leader; beyond it calls fail with CodeBusy
)

// mayBeStale reports whether a caller may be unknown only because this server's state lags: the token or node is not in
// it, and another server leads. The leader is then asked. Methods that nodes and agents answer are not forwarded to the
// leader, so their unknown callers are refused.
func (s *Server) mayBeStale(row *methods.Row, err error) bool {
	unknown := auth.TokenUnknown(err) || row.Need.NodeSecret && structs.CodeOf(err) == structs.CodeNotFound
	return unknown && row.Side == methods.SideServer && !s.IsLeader()
}

// vouch asks the leader whether it knows the caller of a call. The message has a few bytes; the call itself is only
// forwarded if the leader does. The number of questions in flight is bounded, so that callers with invented tokens cost
// little.
func (s *Server) vouch(ctx context.Context, row *methods.Row, c *rpc.Call, leader string) error {
	defer s.metrics.vouching.Add(-1)
	if s.metrics.vouching.Add(1) > vouchesMax {
		return structs.Errorf(structs.CodeBusy, "too many calls at once by callers that this server does not know; try again")
	}
	ask := &methods.ServerAuthenticateRequest{Token: c.Token}
	if row.Need.NodeSecret {
		req, err := c.Request()
		if err != nil {
			return err
		}
		ask.Node = *auth.NodeAuth(req) // authenticateNode found it
	}
	ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
	defer cancel()
	_, err := rpc.Invoke(ctx, s.pool.To(leader), methods.ServerAuthenticate, rpc.Header{}, ask)
	if code := structs.CodeOf(err); err != nil && (code == structs.CodeDenied || code == structs.CodeNotFound) {
		s.metrics.denied.Add(1)
	}
	return err
}

// toLeader forwards a call to the leader and waits up to leaderPatience for one. If this server becomes the leader
// meanwhile, it answers. If this server could not authenticate the caller, the leader must know the caller (vouch).
func (s *Server) toLeader(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, proven bool) (*rpc.Reply, error) {
	if c.Hops >= rpc.MaxHops {
		return nil, structs.ErrNoLeader
	}
	until := time.Now().Add(leaderPatience)
	var last error = structs.ErrNoLeader
	for {
		if s.IsLeader() {
			id, err := s.auth.Authenticate(row, c)
			if err != nil {
				s.metrics.denied.Add(1)
				return nil, err
			}
			return s.answer(ctx, row, c, next, id)
		}
		if addr, id := s.Leader(); addr != "" && id != s.cfg.ID {
			var reply *rpc.Reply
			var err error
			if !proven {
				err = s.vouch(ctx, row, c, addr)
			}
			if err == nil {
				proven = true
				reply, err = s.forward(ctx, c, addr)
			}
			if err == nil {
				return reply, nil
			}
			code := structs.CodeOf(err)
			again := code == structs.CodeNoLeader || code == structs.CodeUnavailable || code == structs.CodeUnknown && row.Kind == methods.KindRead
			if !again || c.Stream() != nil || ctx.Err() != nil {
				return nil, err
			}
			last = err
		}
		if time.Now().After(until) {
			return nil, last
		}
		if !pause(ctx, leaderLook) {
			return nil, ctx.Err()
		}
	}
}

// forward sends a call to another server without decoding it.
func (s *Server) forward(ctx context.Context, c *rpc.Call, addr string) (*rpc.Reply, error) {
	s.metrics.forwarded.Add(1)
	return c.Forward(ctx, s.pool.To(addr))
}

// toRegion forwards a call to any server of another region. Tokens belong to one region, so a token that is unknown
// here is left for that server to check first. Callers that can be refused here are: those without a token if this
// region has no anonymous policy, malformed and expired tokens, and nodes and servers, which belong to one region only.
func (s *Server) toRegion(ctx context.Context, row *methods.Row, c *rpc.Call) (*rpc.Reply, error) {
	_, err := s.auth.Authenticate(row, c)
	if row.Need.NodeSecret || row.Need.ServerCert {
		err = structs.ErrPermissionDenied
	}
	if err != nil && !auth.TokenUnknown(err) {
		s.metrics.denied.Add(1)
		return nil, err
	}
	var last error
	for _, addr := range s.members.ServersOf(c.Region) {
		reply, err := s.forward(ctx, c, addr)
		if err == nil || structs.CodeOf(err) != structs.CodeUnavailable || c.Stream() != nil {
			return reply, err
		}
		last = err
	}
	if last != nil {
		return nil, last
	}
	return nil, structs.Errorf(structs.CodeInvalid, "no path to region %q; known are %v", c.Region, s.members.Regions())
}
