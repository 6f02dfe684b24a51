package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// permitsMax bounds the questions to the leader about calls that nodes and agents answer; beyond it calls fail with
// CodeBusy.
const permitsMax = 1024

// toAgent makes a call that a node or an agent answers, such as exec and logs. No one checks the caller after this
// server, and the state of a follower may be old: it would let a token in that was revoked, or by a policy that was
// changed. So the leader decides, and confirms that it leads. Without a leader these calls fail.
func (s *Server) toAgent(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, known bool) (*rpc.Reply, error) {
	node, err := s.permit(ctx, row, c, known)
	if err != nil {
		if structs.CodeOf(err) == structs.CodeDenied {
			s.metrics.denied.Add(1)
		}
		return nil, err
	}
	if row.Kind == methods.KindStream {
		held, done := s.whilePermitted(ctx, row, c)
		defer done()
		reply, err := s.passOn(held, row, c, next, node)
		if revoked, _ := context.Cause(held).(*structs.Error); revoked != nil && ctx.Err() == nil {
			return nil, revoked
		}
		return reply, err
	}
	return s.passOn(ctx, row, c, next, node)
}

// passOn has a call answered by this agent, or by the node that permit returned.
func (s *Server) passOn(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, node structs.NodeID) (*rpc.Reply, error) {
	if row.Side == methods.SideAgent {
		return next(ctx, c)
	}
	return s.toNode(ctx, c, node)
}

const (
	permitLook = time.Second      // how often a stream's server looks whether rights have changed
	permitAge  = 10 * time.Second // how often it asks again although none have: tokens expire, too
)

// whilePermitted returns a context that ends, with the refusal as its cause, when the caller of a stream loses the right
// to it: what was opened is not kept open. While no leader can be asked, it continues. Call done in the end.
func (s *Server) whilePermitted(ctx context.Context, row *methods.Row, c *rpc.Call) (held context.Context, done func()) {
	held, end := context.WithCancelCause(ctx)
	go func() {
		var decided auth.Rights // those of the last decision
		var at time.Time
		for pause(held, permitLook) {
			now, known := auth.RightsIn(s.Published().Snapshot), true
			if !s.IsLeader() {
				now, known, _ = s.newestRights(held)
			}
			if !known || now == decided && time.Since(at) < permitAge {
				continue
			}
			switch _, err := s.askPermit(held, row, c); {
			case err == nil:
				decided, at = now, time.Now()
			case structs.CodeOf(err) == structs.CodeDenied:
				s.metrics.denied.Add(1)
				end(structs.Errorf(structs.CodeDenied, "%s ends, because the right to it was taken away: %v", row.Name, err))
				return
			}
		}
	}()
	return held, func() { end(nil) }
}

// permit returns the node that answers a call, if the newest state allows the caller to make it. It waits up to
// leaderPatience for a leader. known says that this server knows the caller; strangers may ask the leader less.
func (s *Server) permit(ctx context.Context, row *methods.Row, c *rpc.Call, known bool) (structs.NodeID, error) {
	asking, limit := &s.metrics.permitting, int64(permitsMax)
	if !known {
		asking, limit = &s.metrics.vouching, vouchesMax
	}
	defer asking.Add(-1)
	if asking.Add(1) > limit {
		return structs.NodeID{}, structs.Errorf(structs.CodeBusy, "too many calls to nodes wait for the leader; try again")
	}
	until := time.Now().Add(leaderPatience)
	for {
		node, err := s.askPermit(ctx, row, c)
		if code := structs.CodeOf(err); err == nil || code != structs.CodeNoLeader && code != structs.CodeUnavailable && code != structs.CodeUnknown {
			return node, err
		}
		if time.Now().After(until) {
			return node, err
		}
		if !pause(ctx, leaderLook) {
			return node, ctx.Err()
		}
	}
}

// askPermit asks the leader once. An error with CodeNoLeader, CodeUnavailable or CodeUnknown is no decision.
func (s *Server) askPermit(ctx context.Context, row *methods.Row, c *rpc.Call) (structs.NodeID, error) {
	if s.IsLeader() {
		return s.decidePermit(ctx, row, c)
	}
	addr, id := s.Leader()
	if addr == "" || id == s.cfg.ID {
		return structs.NodeID{}, structs.ErrNoLeader
	}
	req, err := c.Request()
	if err != nil {
		return structs.NodeID{}, err
	}
	ask := &methods.ServerAuthorizeRequest{Method: row.Name, Token: c.Token, Namespace: c.Namespace}
	ask.AllocID, ask.NodeID, ask.Task = nodeTarget(req)
	resp, err := askLeader(ctx, s, addr, methods.ServerAuthorize, ask)
	if err != nil {
		return structs.NodeID{}, err
	}
	return resp.Node, nil
}

// decidePermit decides about a call at the leader.
func (s *Server) decidePermit(ctx context.Context, row *methods.Row, c *rpc.Call) (node structs.NodeID, err error) {
	id, err := s.auth.Authenticate(row, c)
	if err != nil {
		return node, err
	}
	if err := s.auth.Authorise(row, c, id); err != nil {
		return node, err
	}
	if row.Side == methods.SideNode {
		if node, err = s.nodeFor(ctx, row, c, id); err != nil {
			return node, err
		}
	}
	if s.replica.VerifyRead(ctx) != nil {
		return node, structs.ErrNoLeader // it may have been deposed before it decided
	}
	return node, nil
}

// serverAuthorize answers another server's question about a call.
func (s *Server) serverAuthorize(ctx context.Context, _ *rpc.Call, req *methods.ServerAuthorizeRequest) (*methods.ServerAuthorizeResponse, error) {
	row := methods.Find(req.Method)
	if row == nil || row.Side == methods.SideServer {
		return nil, structs.Errorf(structs.CodeInvalid, "%.80q is no method that a node or an agent answers", req.Method)
	}
	if !s.IsLeader() {
		return nil, structs.ErrNoLeader
	}
	body, err := rpc.Encode(struct {
		AllocID structs.AllocID
		NodeID  structs.NodeID
		Task    string
	}{req.AllocID, req.NodeID, req.Task})
	if err != nil {
		return nil, err
	}
	c, err := s.reg.NewCall(rpc.Header{Method: req.Method, Token: req.Token, Namespace: req.Namespace}, body)
	if err != nil {
		return nil, err
	}
	node, err := s.decidePermit(ctx, row, c)
	if err != nil {
		return nil, err
	}
	return &methods.ServerAuthorizeResponse{Node: node}, nil
}
