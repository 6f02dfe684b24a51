// Package nodes keeps what a server knows about nodes beyond the state: their heartbeat deadlines, the sessions over
// which they can be called, and their latest reports.
package nodes

import (
	"sync"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Nodes is what one server knows of nodes.
type Nodes struct {
	Sessions *Sessions
	Reports  *Observations
	Beats    *Heartbeats
	Probes   *Prober
}

// Sessions maps nodes to connections. A node is called over the session that it keeps to one of the servers, so agents
// need no port of their own.
type Sessions struct {
	mu   sync.Mutex
	byID map[structs.NodeID]rpc.Caller
	lost func(structs.NodeID) // called when the only session of a node here has ended
}

// NewSessions returns an empty map.
func NewSessions() *Sessions {
	return &Sessions{byID: map[structs.NodeID]rpc.Caller{}, lost: func(structs.NodeID) {}}
}

// Heard records the connection of an authenticated call of a node.
func (n *Sessions) Heard(id structs.NodeID, c *rpc.Call) {
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
		n.ended(id, sess)
	}()
}

// ended forgets a session that has ended.
func (n *Sessions) ended(id structs.NodeID, sess *rpc.Session) {
	n.mu.Lock()
	last := n.byID[id] == rpc.Caller(sess)
	if last {
		delete(n.byID, id)
	}
	lost := n.lost
	n.mu.Unlock()
	if last {
		lost(id)
	}
}

// Find returns the connection of a node, or nil.
func (n *Sessions) Find(id structs.NodeID) rpc.Caller {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.byID[id]
	if s, ok := c.(*rpc.Session); ok && s.Err() != nil {
		return nil
	}
	return c
}

// open returns the open sessions over the network by node.
func (n *Sessions) open() map[structs.NodeID]*rpc.Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[structs.NodeID]*rpc.Session, len(n.byID))
	for id, c := range n.byID {
		if s, ok := c.(*rpc.Session); ok {
			out[id] = s
		}
	}
	return out
}

// Count returns the number of nodes that can be called.
func (n *Sessions) Count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.byID)
}
