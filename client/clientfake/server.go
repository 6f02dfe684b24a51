// Package clientfake provides fake servers for tests of the agent. They answer the calls of nodes as real servers do, but
// keep everything in memory and have neither raft nor a scheduler: a test places and stops allocations itself.
package clientfake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Server imitates the servers of a cluster, as nodes see them.
type Server struct {
	TTL  time.Duration // of heartbeats
	Most int           // allocations that one answer to a poll has in full; 0 is no limit
	reg  *rpc.Registry

	mu      sync.Mutex
	cluster structs.ClusterID
	epoch   uint64
	index   structs.Index
	nodes   map[structs.NodeID]*structs.Node
	beats   map[structs.NodeID]int
	back    map[structs.NodeID]rpc.Caller // calls a node
	allocs  map[structs.AllocID]*structs.Allocation
	seen    map[structs.AllocID][]structs.AllocObserved // every report, in order
	events  []structs.NodeEvent
	drains  []structs.DrainStrategy
	out     map[structs.NodeID]bool // nodes that were drained
	changed chan struct{}           // closed at every change
	fault   func(method string) error
	answer  func(*methods.NodePollResponse) // changes answers to polls
	nextID  uint64
	servers []string
	calls   map[string]int
	hubs    map[structs.NodeID]*hub
	rosters map[structs.RosterKey]*structs.Roster
	queued  bool           // no allocation may save its state now
	format  structs.Format // that the servers say is in force
}

// New makes empty servers.
func New() *Server {
	s := &Server{
		TTL: 2 * time.Second, reg: rpc.NewRegistry(nil, nil), index: 10,
		nodes: map[structs.NodeID]*structs.Node{}, beats: map[structs.NodeID]int{}, back: map[structs.NodeID]rpc.Caller{},
		allocs: map[structs.AllocID]*structs.Allocation{}, seen: map[structs.AllocID][]structs.AllocObserved{},
		changed: make(chan struct{}), out: map[structs.NodeID]bool{}, calls: map[string]int{}, hubs: map[structs.NodeID]*hub{}, rosters: map[structs.RosterKey]*structs.Roster{},
	}
	s.cluster = structs.DeriveID[structs.ClusterID](structs.Seed{1}, "cluster", "", 0)
	s.reg.Wrap(func(next rpc.Handler) rpc.Handler {
		return func(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
			s.mu.Lock()
			fault := s.fault
			s.calls[c.Method]++
			s.mu.Unlock()
			if fault != nil {
				if err := fault(c.Method); err != nil {
					return nil, err
				}
			}
			return next(ctx, c)
		}
	})
	rpc.Handle(s.reg, methods.NodeRegister, s.register)
	rpc.Handle(s.reg, methods.NodeHeartbeat, s.heartbeat)
	rpc.Handle(s.reg, methods.NodePoll, s.poll)
	rpc.Handle(s.reg, methods.NodeObserve, s.observe)
	rpc.Handle(s.reg, methods.NodeEvent, s.event)
	rpc.Handle(s.reg, methods.NodeLeave, s.leave)
	rpc.Handle(s.reg, methods.NodeSaveTurn, s.saveTurn)
	return s
}

// Registry returns the methods of the servers.
func (s *Server) Registry() *rpc.Registry { return s.reg }

// InProcess returns a caller for a node in this process that back reaches.
func (s *Server) InProcess(back rpc.Caller) rpc.Caller {
	return s.reg.Local(rpc.Peer{Role: "client"}, back)
}

// touch creates a new index. The caller holds mu.
func (s *Server) touch() structs.Index {
	s.index++
	close(s.changed)
	s.changed = make(chan struct{})
	return s.index
}

var errSecret = structs.Errorf(structs.CodeDenied, "the node's secret is wrong")

// LetSave sets whether allocations that end, or whose interval has passed, may save their state; initially they may.
func (s *Server) LetSave(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = !now
}

func (s *Server) saveTurn(_ context.Context, _ *rpc.Call, req *methods.NodeSaveTurnRequest) (*methods.SaveTurn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.auth(req.NodeAuth); err != nil {
		return nil, err
	}
	if s.queued {
		return &methods.SaveTurn{Before: 5, Limit: 2, Where: "storage x", Again: 100 * time.Millisecond}, nil
	}
	return &methods.SaveTurn{Now: true}, nil
}

// auth checks a node's secret. The caller holds mu.
func (s *Server) auth(a methods.NodeAuth) (*structs.Node, error) {
	n := s.nodes[a.NodeID]
	if n == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "node %s is not registered", a.NodeID)
	}
	if n.SecretID != a.Secret {
		return nil, errSecret
	}
	return n, nil
}

func (s *Server) register(_ context.Context, c *rpc.Call, req *methods.NodeRegisterRequest) (*methods.NodeRegisterResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.nodes[req.Node.ID]; old != nil && old.SecretID != req.Node.SecretID {
		return nil, errSecret
	}
	n := *req.Node
	if !req.Cluster.IsZero() && req.Cluster != s.cluster {
		n.Status = structs.NodeInit
	}
	s.nodes[n.ID] = &n
	s.back[req.Node.ID] = c.Back
	return &methods.NodeRegisterResponse{Index: s.touch(), HeartbeatTTL: s.TTL, Cluster: s.cluster, RestoreEpoch: s.epoch, Servers: s.servers, Format: s.format}, nil
}

func (s *Server) heartbeat(_ context.Context, c *rpc.Call, req *methods.NodeHeartbeatRequest) (*methods.NodeHeartbeatResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[req.NodeID] == nil {
		return &methods.NodeHeartbeatResponse{HeartbeatTTL: s.TTL, Unknown: true}, nil
	}
	n, err := s.auth(req.NodeAuth)
	if err != nil {
		return nil, err
	}
	s.beats[n.ID]++
	s.back[n.ID] = c.Back
	if req.Status != n.Status || req.Refuses != n.StatusDesc {
		next := *n
		next.Status, next.StatusDesc = req.Status, req.Refuses
		s.nodes[n.ID] = &next
		s.touch()
	}
	return &methods.NodeHeartbeatResponse{Index: s.index, HeartbeatTTL: s.TTL, Servers: s.servers, Format: s.format}, nil
}

func (s *Server) poll(ctx context.Context, _ *rpc.Call, req *methods.NodePollRequest) (*methods.NodePollResponse, error) {
	wait := req.MaxWait
	if wait <= 0 {
		wait = 5 * time.Minute
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		if _, err := s.auth(req.NodeAuth); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if req.RestoreEpoch == s.epoch && s.index < req.SeenState {
			s.mu.Unlock()
			return nil, structs.Errorf(structs.CodeUnavailable, "an older state than the node has seen")
		}
		resp := s.list(req)
		changed, answer, epoch := s.hub(req.NodeID).changed, s.answer, s.epoch
		s.mu.Unlock()
		if answer != nil {
			answer(resp)
			return resp, nil
		}
		if req.MinIndex == 0 || resp.Index > req.MinIndex || req.RestoreEpoch < epoch {
			return resp, nil
		}
		select {
		case <-changed:
		case <-deadline.C:
			return resp, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hub is the state that polls of one node wait for.
type hub struct {
	index   structs.Index // last change of the node's allocations
	allocs  map[structs.AllocID]bool
	changed chan struct{}
}

// hub returns a node's hub. The caller holds mu.
func (s *Server) hub(id structs.NodeID) *hub {
	h := s.hubs[id]
	if h == nil {
		h = &hub{index: 1, allocs: map[structs.AllocID]bool{}, changed: make(chan struct{})}
		s.hubs[id] = h
	}
	return h
}

// publish makes a change visible to a node. The caller holds mu.
func (s *Server) publish(node structs.NodeID, index structs.Index) {
	h := s.hub(node)
	h.index = index
	close(h.changed)
	h.changed = make(chan struct{})
}

// publishAll makes a change visible to every node. The caller holds mu.
func (s *Server) publishAll(index structs.Index) {
	for id := range s.hubs {
		s.publish(id, index)
	}
}

// list returns the allocations of a node, at the index of their last change. The caller holds mu.
func (s *Server) list(req *methods.NodePollRequest) *methods.NodePollResponse {
	h, min := s.hub(req.NodeID), req.MinIndex
	if req.RestoreEpoch < s.epoch { // an index of another history
		min = 0
	}
	resp := &methods.NodePollResponse{Cluster: s.cluster, RestoreEpoch: s.epoch, StateIndex: s.index}
	resp.Index = h.index
	for _, id := range slices.SortedFunc(maps.Keys(h.allocs), func(a, b structs.AllocID) int { return slices.Compare(a[:], b[:]) }) {
		a := s.allocs[id]
		resp.Refs = append(resp.Refs, methods.AllocRef{ID: id, AllocIndex: a.AllocIndex})
		if a.AllocIndex > min {
			resp.Changed = append(resp.Changed, a)
		}
	}
	if most := s.Most; most > 0 && len(resp.Changed) > most { // the oldest first; the rest comes with the next poll
		slices.SortFunc(resp.Changed, func(a, b *structs.Allocation) int { return cmp.Compare(a.AllocIndex, b.AllocIndex) })
		resp.Changed = resp.Changed[:most]
		resp.Index = resp.Changed[most-1].AllocIndex
	}
	for _, a := range resp.Changed {
		if !slices.ContainsFunc(resp.Jobs, func(j *structs.Job) bool { return j.Key() == a.Job.Key() && j.Version == a.Job.Version }) {
			resp.Jobs = append(resp.Jobs, a.Job)
		}
	}
	for _, ro := range s.rosters {
		if ro.ModifyIndex > min && slices.ContainsFunc(ro.Members, func(m structs.RosterMember) bool { return m.Node == req.NodeID }) {
			resp.Rosters = append(resp.Rosters, ro)
		}
	}
	return resp
}

func (s *Server) observe(_ context.Context, _ *rpc.Call, req *methods.NodeObserveRequest) (*methods.WriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.auth(req.NodeAuth); err != nil {
		return nil, err
	}
	for _, u := range req.Updates {
		s.seen[u.ID] = append(s.seen[u.ID], u)
		a := s.allocs[u.ID]
		if a == nil || a.ClientTerminal() {
			continue
		}
		next := *a
		next.Client, next.ClientDesc, next.TaskStates = u.Client, u.ClientDesc, u.TaskStates
		if u.Lapsed { // as Apply does
			next.Client = structs.ClientLost
		}
		next.Saved = next.Saved.Newer(u.Saved)
		next.Frozen = u.Frozen
		next.StartedAt, next.FinishedAt, next.NetworkIP = u.StartedAt, u.FinishedAt, u.NetworkIP
		s.allocs[u.ID] = &next
	}
	return &methods.WriteResponse{Index: s.touch()}, nil
}

func (s *Server) leave(_ context.Context, _ *rpc.Call, req *methods.NodeLeaveRequest) (*methods.NodeWriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.auth(req.NodeAuth); err != nil {
		return nil, err
	}
	if req.Look {
		return &methods.NodeWriteResponse{Index: s.index, Eligible: !s.out[req.NodeID]}, nil
	}
	s.out[req.NodeID] = true
	s.drains = append(s.drains, req.Strategy)
	return &methods.NodeWriteResponse{Index: s.touch()}, nil
}

// Enable makes a drained node eligible again, as an operator does.
func (s *Server) Enable(id structs.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.out, id)
}

// Drains returns the drains that nodes have asked for.
func (s *Server) Drains() []structs.DrainStrategy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.drains)
}

func (s *Server) event(_ context.Context, _ *rpc.Call, req *methods.NodeEventRequest) (*methods.WriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, req.Events...)
	return &methods.WriteResponse{Index: s.touch()}, nil
}
