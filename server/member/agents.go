package member

import (
	"time"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// GossipNodesDefault is the size of a fleet whose agents gossip by default: the number of nodes in the state.
const GossipNodesDefault = 2000

// adviceMax limits the servers that an agent is given to join.
const adviceMax = 5

// Advice returns whether an agent should gossip, and with whom. Agents gossip while the region has at most GossipNodes
// nodes; more leave, and join again below nine tenths of it. Between the two nothing changes, so the answer depends on the
// number of nodes alone and all servers agree.
func (m *Members) Advice(fleet int) methods.GossipAdvice {
	limit := m.env.Gossip.Nodes
	if limit == 0 {
		limit = GossipNodesDefault
	}
	switch {
	case m.g == nil || fleet > limit:
		return methods.GossipAdvice{Leave: true}
	case fleet*10 > limit*9:
		return methods.GossipAdvice{}
	}
	now := time.Now()
	k := m.advice.Load()
	if k == nil || now.Sub(k.at) >= serversFresh {
		k = &knownJoin{now, []string{m.g.Addr()}}
		for _, x := range m.g.Servers() {
			if len(k.list) < adviceMax && x.Region == m.env.Self.Region && x.Status == gossip.Alive && x.ID != m.env.Self.ID {
				k.list = append(k.list, x.Addr)
			}
		}
		m.advice.Store(k)
	}
	return methods.GossipAdvice{Join: k.list}
}

// knownJoin caches the gossip addresses of servers, which every answer to a heartbeat carries.
type knownJoin struct {
	at   time.Time
	list []string
}

// NodeAddr returns the gossip address of a node's agent, or "" if it does not gossip.
func (m *Members) NodeAddr(id structs.NodeID) string {
	if m.g == nil {
		return ""
	}
	x, ok := m.g.Node(id.String())
	if !ok || x.Status == gossip.Left {
		return ""
	}
	return x.Addr
}

// NodeMembers returns the nodes whose agents gossip and are alive.
func (m *Members) NodeMembers() (out []structs.NodeID) {
	if m.g == nil {
		return nil
	}
	for _, s := range m.g.Nodes() {
		if id, err := structs.ParseID[structs.NodeID](s); err == nil {
			out = append(out, id)
		}
	}
	return out
}

// SetNode announces the node of the client part in this process.
func (m *Members) SetNode(id structs.NodeID) {
	if m.g == nil {
		return
	}
	if err := m.g.SetNode(id.String()); err != nil {
		m.env.Log.Warn("the other servers do not know yet which node runs in this process", "error", err)
	}
}
