package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Patience of the wrapper.
const (
	leaderPatience = 5 * time.Second       // for a leader to appear before a call fails with CodeNoLeader
	leaderLook     = 10 * time.Millisecond // between looks
	verifyTimeout  = time.Second           // for a linearizable read to be confirmed
)

// wrap is the one way into every method: resolve the region, forward to the leader, authenticate, authorise (deny by
// default), answer, and confirm that a linearizable read was one. Measuring is rpc's, through figures.Call.
func (s *Server) wrap(next rpc.Handler) rpc.Handler {
	return func(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
		row := methods.Find(c.Method)
		if row == nil {
			return nil, structs.ErrPermissionDenied
		}
		if c.Region != "" && c.Region != s.cfg.Region {
			return s.toRegion(ctx, c)
		}
		if why := s.quarantine.Load(); why != nil && !row.Need.ServerCert && row.Need != (methods.Need{Anonymous: true}) {
			return nil, structs.Errorf(structs.CodeUnavailable, "this server is in quarantine: %s; ask another one", *why)
		}
		req, err := c.Request()
		if err != nil {
			return nil, err
		}
		if s.needsLeader(row, req) && !s.IsLeader() {
			reply, err := s.toLeader(ctx, row, c, next)
			if err == nil && row.Need.NodeSecret && c.Hops == 0 {
				// The leader has proven the node, but its session is here: this server may not know the node yet, and the
				// polls that would tell it are passed on as long as it does not.
				if a := nodeAuth(req); a != nil {
					s.nodes.heard(a.NodeID, c)
				}
			}
			return reply, err
		}
		return s.answer(ctx, row, c, next)
	}
}

// needsLeader reports whether only the leader may answer.
func (s *Server) needsLeader(row *methods.Row, req any) bool {
	if row.Side != methods.SideServer {
		return false
	}
	switch row.Kind {
	case methods.KindWrite:
		return true
	case methods.KindRead:
		q := queryOf(req)
		return q == nil || !q.Stale
	case methods.KindStream:
		return row.Name == methods.SnapshotRestore.Name || row.Name == methods.SnapshotSave.Name && !queryOf(req).Stale
	}
	return false
}

func queryOf(req any) *methods.Query {
	if q, ok := req.(interface{ QueryOpts() *methods.Query }); ok {
		return q.QueryOpts()
	}
	return nil
}

// answer handles a call here.
func (s *Server) answer(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler) (*rpc.Reply, error) {
	id, err := s.authenticate(row, c)
	if err != nil {
		s.figures.denied.Add(1)
		// A follower may not have heard of a new token yet.
		if (errors.Is(err, errTokenUnknown) || row.Need.NodeSecret && structs.CodeOf(err) == structs.CodeNotFound) && !s.IsLeader() && c.Hops == 0 && c.Stream() == nil && row.Side == methods.SideServer {
			if addr, _ := s.Leader(); addr != "" && addr != s.cfg.Advertise {
				return s.forward(ctx, c, addr)
			}
		}
		return nil, err
	}
	if err := s.authorise(row, c, id); err != nil {
		return nil, err
	}
	if !id.node.IsZero() && c.Hops == 0 {
		s.nodes.heard(id.node, c)
	}
	if row.Side == methods.SideNode {
		return s.passToNode(ctx, row, c, id)
	}
	ctx = context.WithValue(ctx, identityKey{}, id)
	verify := row.Kind == methods.KindRead && s.needsLeader(row, mustRequest(c))
	reply, err := next(ctx, c)
	if err != nil {
		return nil, err
	}
	if verify {
		if err := s.verifier.verify(ctx); err != nil {
			// The read may have been answered by a deposed leader: ask the new one.
			return s.toLeader(ctx, row, c, next)
		}
	}
	if reply != nil {
		if m, ok := reply.Value().(interface{ MetaRef() *methods.Meta }); ok {
			s.fillMeta(row, m.MetaRef())
		}
	}
	return reply, nil
}

func mustRequest(c *rpc.Call) any {
	req, _ := c.Request() // decoded before
	return req
}

// fillMeta completes what an answer says about itself. The index of a read stays 0 as long as nothing of its kind was ever
// written, as Nomad has it.
func (s *Server) fillMeta(row *methods.Row, m *methods.Meta) {
	if m.Index == 0 && row.Kind != methods.KindRead {
		m.Index = max(s.Published().Index, 1)
	}
	addr, _ := s.raft.LeaderWithID()
	m.KnownLeader = addr != ""
	m.LastContact = 0
	if !s.IsLeader() {
		m.LastContact = s.lastContact()
	}
}

// lastContact is how long ago this server heard from a leader.
func (s *Server) lastContact() time.Duration {
	if s.raft.State() == raft.Leader {
		return 0
	}
	t := s.raft.LastContact()
	if t.IsZero() {
		return time.Since(s.started)
	}
	return time.Since(t)
}

// toLeader sends a call to the leader, waiting a while for one. If this server becomes the leader meanwhile it answers.
func (s *Server) toLeader(ctx context.Context, row *methods.Row, c *rpc.Call, next rpc.Handler) (*rpc.Reply, error) {
	if c.Hops >= rpc.MaxHops {
		return nil, structs.ErrNoLeader
	}
	until := time.Now().Add(leaderPatience)
	var last error = structs.ErrNoLeader
	for {
		if s.IsLeader() {
			return s.answer(ctx, row, c, next)
		}
		if addr, id := s.Leader(); addr != "" && id != s.cfg.ID {
			reply, err := s.forward(ctx, c, addr)
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
	s.figures.forwarded.Add(1)
	return c.Forward(ctx, s.pool.To(addr))
}

// toRegion sends a call to any server of another region.
func (s *Server) toRegion(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
	var last error
	for _, addr := range s.gossip.serversOf(c.Region) {
		reply, err := s.forward(ctx, c, addr)
		if err == nil || structs.CodeOf(err) != structs.CodeUnavailable || c.Stream() != nil {
			return reply, err
		}
		last = err
	}
	if last != nil {
		return nil, last
	}
	return nil, structs.Errorf(structs.CodeInvalid, "no path to region %q; known are %v", c.Region, s.gossip.regions())
}

// verifier confirms leadership for reads. A read may only be confirmed by a round of heartbeats that began after it, so
// readers join the next round; while one round runs the next gathers everybody else.
type verifier struct {
	raft *raft.Raft

	mu      sync.Mutex
	next    *verifyRound
	running bool
}

type verifyRound struct {
	done chan struct{}
	err  error
}

func newVerifier(r *raft.Raft) *verifier { return &verifier{raft: r} }

func (v *verifier) verify(ctx context.Context) error {
	v.mu.Lock()
	if v.next == nil {
		v.next = &verifyRound{done: make(chan struct{})}
	}
	r := v.next
	if !v.running {
		v.running = true
		go v.run()
	}
	v.mu.Unlock()
	t := time.NewTimer(verifyTimeout)
	defer t.Stop()
	select {
	case <-r.done:
		return r.err
	case <-t.C:
		return structs.Errorf(structs.CodeNoLeader, "leadership was not confirmed within %s", verifyTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run does rounds until nobody waits.
func (v *verifier) run() {
	for {
		v.mu.Lock()
		r := v.next
		v.next = nil
		if r == nil {
			v.running = false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		r.err = v.raft.VerifyLeader().Error()
		close(r.done)
	}
}

// Call implements rpc.Metrics.
func (f *figures) Call(method string, peer rpc.Peer, code structs.ErrorCode, took time.Duration, in, out int) {
	f.calls.Add(1)
	if code != "" && code != structs.CodeDenied {
		f.failed.Add(1)
	}
}

// Refused implements rpc.Metrics.
func (f *figures) Refused(reason string) { f.refused.Add(1) }
