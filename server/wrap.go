package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/admit"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// wrap is the only way to a method. It authenticates the caller, forwards the call to the leader or another region,
// authorises it against the table (deny by default), admits it (package admit), calls the handler, and confirms
// linearizable reads, in this order. Nothing is forwarded or stored for a caller that was not authenticated.
// metrics.Call measures calls.
func (s *Server) wrap(next rpc.Handler) rpc.Handler {
	return func(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
		row := methods.Find(c.Method)
		if row == nil {
			return nil, structs.ErrPermissionDenied
		}
		c.Inside = s.auth.Inside(c) // no other caller may claim it, and it is forwarded
		if c.Region != "" && c.Region != s.cfg.Region {
			return s.toRegion(ctx, row, c)
		}
		if why := s.replica.Quarantined(); why != "" && !row.Need.ServerCert && row.Need != (methods.Need{Anonymous: true}) {
			return nil, structs.Errorf(structs.CodeUnavailable, "this server is in quarantine: %s; ask another one", why)
		}
		id, unproven := s.auth.Authenticate(row, c)
		if unproven != nil && !s.mayBeStale(row, unproven) {
			s.metrics.denied.Add(1)
			return nil, unproven
		}
		req, err := c.Request()
		if err != nil {
			return nil, err
		}
		if row.Side != methods.SideServer && s.cfg.ACL {
			return s.toAgent(ctx, row, c, next, unproven == nil)
		}
		here := s.IsLeader() || !s.needsLeader(row, req)
		if here && unproven == nil {
			behind, err := s.oldRights(ctx, row)
			if err != nil {
				return nil, err
			}
			if behind {
				return s.toLeader(ctx, row, c, next, true)
			}
			reply, err := s.answer(ctx, row, c, next, id)
			if auth.TokenUnknown(err) && !s.IsLeader() { // the method is open to all, and its handler looked for the token in a state that lags
				if addr, _ := s.Leader(); addr == "" {
					return nil, structs.ErrNoLeader
				}
				return s.toLeader(ctx, row, c, next, false)
			}
			if err != nil && structs.CodeOf(err) == structs.CodeNoLeader && s.needsLeader(row, req) && repeatable(row, c, err) {
				return s.toLeader(ctx, row, c, next, true) // this server has stopped leading meanwhile, and nothing was done
			}
			return reply, err
		}
		if addr, _ := s.Leader(); here && addr == "" {
			if auth.TokenUnknown(unproven) {
				return nil, structs.ErrNoLeader // this server may not have its state yet: "token not found" would be final
			}
			return nil, unproven // no leader to ask, and none is needed for the answer
		}
		reply, err := s.toLeader(ctx, row, c, next, unproven == nil)
		if err == nil && row.Need.NodeSecret && c.Hops == 0 {
			// The leader has authenticated the node, but the node's session is here. The state of this server may not
			// have the node yet.
			if a := auth.NodeAuth(req); a != nil {
				s.nodes.Sessions.Heard(a.NodeID, c)
			}
		}
		return reply, err
	}
}

// needsLeader reports whether only the leader may answer.
func (s *Server) needsLeader(row *methods.Row, req any) bool {
	if row.Side != methods.SideServer {
		return false
	}
	q, read := req.(methods.ReadRequest)
	stale := read && q.QueryOpts().Stale
	switch row.Kind {
	case methods.AtLeader:
		return true
	case methods.KindRead:
		return !stale
	case methods.KindStream:
		return row.Name == methods.SnapshotRestore.Name || row.Name == methods.SnapshotSave.Name && !stale
	}
	return false
}

// answer handles a call of an authenticated caller. A query whose caller's rights may have changed meanwhile is repeated.
func (s *Server) answer(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, id *auth.Identity) (*rpc.Reply, error) {
	ctx = watch.Since(ctx, time.Now())
	for {
		reply, err := s.answerOnce(ctx, row, c, next, id)
		if !errors.Is(err, watch.ErrRightsChanged) {
			return reply, err
		}
		if id, err = s.auth.Authenticate(row, c); err != nil {
			s.metrics.denied.Add(1)
			return nil, err
		}
	}
}

func (s *Server) answerOnce(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler, id *auth.Identity) (*rpc.Reply, error) {
	if err := s.auth.Authorise(row, c, id); err != nil {
		if structs.CodeOf(err) == structs.CodeDenied {
			s.metrics.denied.Add(1)
		}
		return nil, err
	}
	ofNode, register := !id.Node.IsZero() && c.Hops == 0, row.Name == methods.NodeRegister.Name
	if ofNode && !register { // the registration of an agent may be refused in favour of another's
		s.nodes.Sessions.Heard(id.Node, c)
	}
	if !id.Node.IsZero() && !register {
		s.nodes.Beats.Heard(id.Node)
	}
	if row.Side == methods.SideNode {
		return s.passToNode(ctx, row, c, id)
	}
	req, err := c.Request()
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.enter(ctx, row)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := s.charge(row, c, id); err != nil {
		return nil, err
	}
	ctx, proposed := noteProposals(auth.With(ctx, id))
	reply, err := next(ctx, c)
	if !proposed.Load() && s.mustConfirm(row, req, err) && s.replica.VerifyRead(ctx) != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// A deposed leader may have answered from its state: ask the new one.
		leave()
		return s.toLeader(ctx, row, c, next, true)
	}
	if err != nil {
		return nil, err
	}
	if ofNode && register {
		s.nodes.Sessions.Heard(id.Node, c)
	}
	if reply != nil {
		if m, ok := reply.Value().(methods.ReadResponse); ok {
			s.fillMeta(row, m.MetaRef())
		}
	}
	return reply, nil
}

// mustConfirm reports whether a call that proposed nothing was answered from the state of a leader, so that it counts
// only if this server still leads: reads, and writes that were refused, or found nothing to do ("there is no such job").
// A command in the log needs no confirmation.
func (s *Server) mustConfirm(row *methods.Row, req any, err error) bool {
	switch structs.CodeOf(err) {
	case structs.CodeNoLeader, structs.CodeUnavailable, structs.CodeUnknown, structs.CodeTimeout, structs.CodeBusy, structs.CodeTooLarge:
		return false // it says nothing about the state
	}
	if !s.needsLeader(row, req) || row.Kind == methods.KindStream {
		return false
	}
	return err != nil || row.Kind == methods.KindRead || !row.Need.NodeSecret && !outsideLog[row.Name]
}

// outsideLog are calls to the leader that do more than to propose commands. They are not repeated once they succeeded.
// Calls of nodes do not count either, because their next heartbeat finds the new leader.
var outsideLog = map[string]bool{
	methods.RaftTransfer.Name:   true,
	methods.RaftRemovePeer.Name: true,
	methods.ServerJoin.Name:     true,
	methods.JobCheckpoint.Name:  true,
	methods.SystemGC.Name:       true,
}

// enter admits a call to this server. A stream gives its place back at once, and a blocking query when it begins to wait
// (Hub.Read).
func (s *Server) enter(ctx context.Context, row *methods.Row) (held context.Context, leave func(), err error) {
	if admit.Held(ctx) {
		return ctx, func() {}, nil
	}
	leave, err = s.gate.Enter(ctx, classOf(row))
	if err != nil {
		return nil, nil, err
	}
	leave = sync.OnceFunc(leave)
	if row.Kind == methods.KindStream {
		leave()
	}
	return admit.Hold(ctx, leave), leave, nil
}

// charge counts the bytes of a user's write against the caller's allowance. What it asks for is charged by its handler.
func (s *Server) charge(row *methods.Row, c *rpc.Call, id *auth.Identity) error {
	payer := id.Payer()
	if payer == "" || classOf(row) != admit.Write {
		return nil
	}
	body, err := c.Body()
	if err != nil {
		return err
	}
	return s.allowance.Bytes(payer, len(body))
}

// classOf returns the class of a call for admission. Calls that anybody may make are those by which others find out how
// the server does; they cost nothing.
func classOf(row *methods.Row) admit.Class {
	switch n := row.Need; {
	case n.NodeSecret, n.ServerCert, n.Anonymous:
		return admit.Node
	case n.Operator != "", n.Agent != "", n.Node != "", n.Management:
		return admit.Operator
	case row.Kind == methods.AtLeader:
		return admit.Write
	}
	return admit.Read
}

// EnterUser admits a request of a user to the HTTP API, so that decoding and encoding count as a part of its work. Calls
// with the context that it returns need no place of their own.
func (s *Server) EnterUser(ctx context.Context, write bool) (held context.Context, leave func(), err error) {
	class := admit.Read
	if write {
		class = admit.Write
	}
	if leave, err = s.gate.Enter(ctx, class); err != nil {
		return ctx, nil, err
	}
	leave = sync.OnceFunc(leave)
	return admit.Hold(ctx, leave), leave, nil
}

// fillMeta completes the metadata of a response. As in Nomad, the index of a read stays 0 until something of its kind
// has been written.
func (s *Server) fillMeta(row *methods.Row, m *methods.Meta) {
	if m.Index == 0 && row.Kind != methods.KindRead {
		m.Index = max(s.Published().Index, 1)
	}
	addr, _ := s.Leader()
	m.KnownLeader = addr != ""
	m.LastContact = 0
	if !s.IsLeader() {
		m.LastContact = s.lastContact()
	}
}

// lastContact returns the time since this server heard from a leader, or since its start if it never has.
func (s *Server) lastContact() time.Duration {
	ago, ever := s.replica.LastContact()
	if !ever {
		return time.Since(s.started)
	}
	return ago
}
