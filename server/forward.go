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
	leaderPatience = 5 * time.Second       // wait for a leader before a call fails with CodeNoLeader
	leaderLook     = 10 * time.Millisecond // between two looks for one
	vouchTimeout   = time.Second           // of the question whether the leader knows a caller
	vouchesMax     = 32                    // such questions at a time; beyond it a call fails with CodeBusy
)

// mayBeStale reports whether a caller may only be unknown because this server's state lags: it does not know the token
// or the node, and another server leads. Then the leader is asked. Methods that nodes and agents answer are not passed
// to the leader, so callers of those are refused.
func (s *Server) mayBeStale(row *methods.Row, err error) bool {
	unknown := auth.TokenUnknown(err) || row.Need.NodeSecret && structs.CodeOf(err) == structs.CodeNotFound
	return unknown && row.Side == methods.SideServer && !s.IsLeader()
}

// vouch asks the leader whether it knows the caller of a call, in a message of a few bytes: the call itself is only
// forwarded if it does. The number of questions in flight is bounded, so that callers who invent tokens cost little.
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
		ask.Node = *auth.NodeAuth(req) // authenticateNode has found one
	}
	ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
	defer cancel()
	_, err := rpc.Invoke(ctx, s.pool.To(leader), methods.ServerAuthenticate, rpc.Header{}, ask)
	if code := structs.CodeOf(err); err != nil && (code == structs.CodeDenied || code == structs.CodeNotFound) {
		s.metrics.denied.Add(1)
	}
	return err
}

// toLeader sends a call to the leader and waits up to leaderPatience for one. If this server becomes the leader
// meanwhile, it answers. A caller that this server could not authenticate must be known to the leader (vouch).
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

// forward sends a call on to another server, unread.
func (s *Server) forward(ctx context.Context, c *rpc.Call, addr string) (*rpc.Reply, error) {
	s.metrics.forwarded.Add(1)
	return c.Forward(ctx, s.pool.To(addr))
}

// toRegion sends a call to any server of another region. Tokens belong to one region, so a token that is unknown here is
// for that server to check, which does it before anything else. Whoever can be refused here is: a caller without a
// token where this region has no anonymous policy, a malformed or an expired token, and nodes and servers, which are
// members of one region only.
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
