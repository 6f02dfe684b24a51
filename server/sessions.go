package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// nodeSessions knows over which connection a node can be called. A node is called over the session that it keeps to
// one of the servers, so that agents need no port of their own.
type nodeSessions struct {
	mu   sync.Mutex
	byID map[structs.NodeID]rpc.Caller
}

func newNodeSessions() *nodeSessions { return &nodeSessions{byID: map[structs.NodeID]rpc.Caller{}} }

// heard notes the connection of a proven call of a node.
func (n *nodeSessions) heard(id structs.NodeID, c *rpc.Call) {
	var to rpc.Caller
	if c.Session != nil {
		to = c.Session
	} else {
		to = c.Back
	}
	if to == nil {
		return
	}
	n.mu.Lock()
	old := n.byID[id]
	n.byID[id] = to
	n.mu.Unlock()
	if old == to || c.Session == nil {
		return
	}
	sess := c.Session
	go func() { // ends with the session
		<-sess.Closed()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.byID[id] == rpc.Caller(sess) {
			delete(n.byID, id)
		}
	}()
}

// find is the connection of a node, or nil.
func (n *nodeSessions) find(id structs.NodeID) rpc.Caller {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.byID[id]
	if s, ok := c.(*rpc.Session); ok && s.Err() != nil {
		return nil
	}
	return c
}

func (n *nodeSessions) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byID)
}

// probeTimeout bounds the question to another server whether a node is connected to it.
const probeTimeout = 2 * time.Second

// toNode passes a call on to the node it is about: over its session to this server, else through the server that has
// one.
func (s *Server) toNode(ctx context.Context, c *rpc.Call, node structs.NodeID) (*rpc.Reply, error) {
	if to := s.nodes.find(node); to != nil {
		s.metrics.forwarded.Add(1)
		return c.Forward(ctx, to)
	}
	unreachable := structs.Errorf(structs.CodeUnavailable, "node %s is not connected to any server", node)
	if c.Hops > 0 {
		return nil, unreachable
	}
	type hit struct{ addr string }
	others := s.gossip.otherServers()
	// Gossip may not have told of everybody yet; raft knows its members.
	if f := s.replica.Raft().GetConfiguration(); f.Error() == nil {
		for _, p := range f.Configuration().Servers {
			if a := string(p.Address); string(p.ID) != s.cfg.ID && !slices.Contains(others, a) {
				others = append(others, a)
			}
		}
	}
	found := make(chan hit, len(others))
	pctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for _, addr := range others {
		go func() {
			resp, err := rpc.Invoke(pctx, s.pool.To(addr), methods.ServerHasNode, rpc.Header{}, &methods.ServerHasNodeRequest{NodeID: node})
			if err != nil || !resp.Has {
				addr = ""
			}
			found <- hit{addr}
		}()
	}
	for range others {
		if h := <-found; h.addr != "" {
			return s.forward(ctx, c, h.addr)
		}
	}
	return nil, unreachable
}
