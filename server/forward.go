package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// Limits of forwarding.
const (
	leaderPatience = 5 * time.Second        // how long a call waits for a leader before it fails with CodeNoLeader
	probePatience  = 700 * time.Millisecond // for a leader that was replaced or is lost to answer a ping; then its session is closed
	leaderLook     = 10 * time.Millisecond  // time between checks for a leader
	repeatPauseMax = 200 * time.Millisecond // longest pause before a call that failed at the leader is sent again; pauses grow from leaderLook
	repeatBurst    = 4096                   // calls that may be repeated at once when a leader fails
	vouchTimeout   = time.Second            // for asking the leader about a caller or a call
	vouchesMax     = 32                     // concurrent questions to the leader; beyond it calls fail with CodeBusy
)

// mayBeStale reports whether a caller may be unknown only because this server's state lags: the token, the node or the
// newest start of its agent is not in it, and another server leads. The leader is then asked.
func (s *Server) mayBeStale(row *methods.Row, err error) bool {
	code := structs.CodeOf(err)
	unknown := auth.TokenUnknown(err) || row.Need.NodeSecret && (code == structs.CodeNotFound || code == structs.CodeFenced)
	return unknown && !s.IsLeader()
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
		if r, ok := req.(*methods.NodeRegisterRequest); ok {
			ask.Register, ask.Introduction = true, r.Introduction
		}
	}
	_, err := askLeader(ctx, s, leader, methods.ServerAuthenticate, ask)
	if code := structs.CodeOf(err); err != nil && (code == structs.CodeDenied || code == structs.CodeNotFound) {
		s.metrics.denied.Add(1)
	}
	return err
}

// askLeader asks the leader at addr, for at most vouchTimeout, what changes nothing and may be asked again, of another leader
// too. The error is ErrNoLeader if this one is frozen or cut off.
func askLeader[Req, Resp any](ctx context.Context, s *Server, addr string, m rpc.Method[Req, Resp], ask *Req) (*Resp, error) {
	within, cancel := context.WithTimeout(ctx, vouchTimeout)
	defer cancel()
	resp, err := rpc.Invoke(within, s.pool.To(addr), m, rpc.Header{}, ask)
	if code := structs.CodeOf(err); err != nil && ctx.Err() == nil && (code == structs.CodeTimeout || code == structs.CodeUnknown) {
		return nil, structs.ErrNoLeader
	}
	return resp, err
}

// toLeader forwards a call to the leader and waits up to leaderPatience for one. If this server becomes the leader
// meanwhile, it answers. If this server could not authenticate the caller, the leader must know the caller (vouch).
func (s *Server) toLeader(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, proven bool) (*rpc.Reply, error) {
	if c.Hops >= rpc.MaxHops {
		return nil, structs.ErrNoLeader
	}
	until := time.Now().Add(leaderPatience)
	var last error = structs.ErrNoLeader
	s.retries.Called()
	wait := leaderLook
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
			reply, err := s.tryLeader(ctx, row, c, addr, &proven)
			if err == nil {
				return reply, nil
			}
			if !repeatable(row, c, err) || ctx.Err() != nil || !s.retries.Retry() {
				return nil, err
			}
			wait = min(2*wait, repeatPauseMax)
			if structs.CodeOf(err) == structs.CodeUnknown {
				until = time.Now().Add(leaderPatience) // a blocking read may have waited for long
			}
			last = err
		}
		if time.Now().After(until) {
			return nil, last
		}
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return nil, ctx.Err()
		}
	}
}

// tryLeader forwards a call to the leader at addr. proven says, and is set when, the leader knows the caller.
func (s *Server) tryLeader(ctx context.Context, row *methods.Row, c *rpc.Call, addr string, proven *bool) (*rpc.Reply, error) {
	if !*proven {
		if err := s.vouch(ctx, row, c, addr); err != nil {
			return nil, err
		}
		*proven = true
	}
	if row.Name == methods.NodeHeartbeat.Name {
		return s.forward(ctx, c, s.vital.To(addr))
	}
	return s.forward(ctx, c, s.pool.To(addr))
}

// repeatable reports whether a call that failed at the leader may be sent again: nothing was done, or it is a read.
func repeatable(row *methods.Row, c *rpc.Call, err error) bool {
	if c.Stream() != nil {
		return false
	}
	switch structs.CodeOf(err) {
	case structs.CodeNoLeader, structs.CodeUnavailable:
		return true
	case structs.CodeUnknown:
		return row.Kind == methods.KindRead
	}
	return false
}

// watchLeader helps the calls in flight when the leader changes. A leader that was killed resets its connections, but one
// that is frozen or cut off does not, and the pings of a session take 45 s to notice. So the old leader is probed: unless
// it answers, its session is closed. Reads are then repeated at the new leader, and writes end with CodeUnknown. An old
// leader that is alive answers the calls itself. Repeating reads whenever the leader changes would multiply the work of
// a cluster whose leaders change because they are overloaded.
func (s *Server) watchLeader(ctx context.Context) {
	changes := s.replica.LeaderChanges()
	before := ""
	for {
		addr, id := s.Leader()
		if addr != before && before != "" {
			s.pool.Probe(before, probePatience)
			s.vital.Probe(before, probePatience)
		}
		if before = addr; id == s.cfg.ID {
			before = "" // a server does not call itself
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}

// forward sends a call to another server without decoding it.
func (s *Server) forward(ctx context.Context, c *rpc.Call, to rpc.Caller) (*rpc.Reply, error) {
	s.metrics.forwarded.Add(1)
	return c.Forward(ctx, to)
}

// toRegion forwards a call to any server of another region. Tokens belong to one region, so a token that is unknown
// here is left for that server to check first. Callers that can be refused here are: those without a token if this
// region has no anonymous policy, malformed and expired tokens, and nodes and servers, which belong to one region only.
func (s *Server) toRegion(ctx context.Context, row *methods.Row, c *rpc.Call) (*rpc.Reply, error) {
	_, err := s.auth.Authenticate(row, c)
	if row.Need.NodeSecret || row.Need.ServerCert {
		err = structs.Denied("a call in region %q: nodes and servers belong to one region", s.cfg.Region)
	}
	if err != nil && !auth.TokenUnknown(err) {
		s.metrics.denied.Add(1)
		return nil, err
	}
	var last error
	for _, addr := range s.members.ServersOf(c.Region) {
		reply, err := s.forward(ctx, c, s.regions.to(c.Region).To(addr))
		if err == nil || structs.CodeOf(err) != structs.CodeUnavailable || c.Stream() != nil {
			return reply, err
		}
		last = err
	}
	if last != nil {
		return nil, last
	}
	known := s.members.Regions()
	if slices.Contains(known, c.Region) {
		return nil, structs.Errorf(structs.CodeUnavailable, "no server of region %q answers", c.Region)
	}
	return nil, structs.Errorf(structs.CodeInvalid, "no path to region %q; known are %v", c.Region, known)
}
