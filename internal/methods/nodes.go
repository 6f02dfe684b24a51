package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Requests and responses about nodes that servers answer, to users and to agents.
type (
	// NodeGetRequest names a node.
	NodeGetRequest struct {
		Query
		NodeID structs.NodeID
	}
	// NodeGetResponse is a node without its secret; nil when absent.
	NodeGetResponse struct {
		Meta
		Node  *structs.Node
		Place string // in the topology, as "rack r3, leaf l2"; "" if it has none
		Risk  *structs.NodeRisk
	}
	// NodeListResponse lists nodes without their secrets.
	NodeListResponse struct {
		Meta
		Nodes []*structs.Node
	}
	// NodeDrainRequest sets or (nil Strategy) clears a drain.
	NodeDrainRequest struct {
		NodeID       structs.NodeID
		Strategy     *structs.DrainStrategy
		MarkEligible bool
		Meta         map[string]string
	}
	// NodeLeaveRequest is sent by a node that drains itself, because its agent stops or because of a fault.
	NodeLeaveRequest struct {
		NodeAuth
		Strategy structs.DrainStrategy
		Look     bool // do not drain; only report whether the node takes work
	}
	// NodeEligibilityRequest switches placement on or off.
	NodeEligibilityRequest struct {
		NodeID      structs.NodeID
		Eligibility structs.Eligibility
	}
	// NodeTaintRequest adds and removes taints.
	NodeTaintRequest struct {
		NodeID      structs.NodeID
		Add, Remove []structs.Taint
	}
	// NodeWriteResponse answers writes to nodes.
	NodeWriteResponse struct {
		Index           structs.Index
		EvalIDs         []structs.EvalID
		EvalCreateIndex structs.Index
		NodeModifyIndex structs.Index
		Eligible        bool // answer to NodeLeaveRequest.Look: the node accepts new work
	}

	// NodeAuth proves which node sends a request.
	NodeAuth struct {
		NodeID structs.NodeID
		Secret structs.SecretID
		Start  structs.StartID // of the agent; CodeFenced if another agent has registered the node since
	}
	// NodeRegisterRequest registers a node. Node.SecretID is its secret. If another agent has registered the node, the
	// answer is CodeBusy until it is certain whether that agent lives, and CodeFenced if it does.
	NodeRegisterRequest struct {
		Node         *structs.Node
		Introduction string // token for the first registration; "": none
		RPC          uint64 // feature.RPC of the agent
		// Cluster is the one that the node belongs to, zero if it has obeyed none yet. In another cluster it does not become
		// ready: the agent will refuse the answers.
		Cluster structs.ClusterID
	}
	// NodeIntroduceRequest asks for an introduction token.
	NodeIntroduceRequest struct {
		NodeName string           // of the node that may use it; "": any
		Pool     structs.PoolName // of that node; "": any
		TTL      time.Duration    // 0: 30 minutes; at most a day
	}
	// NodeIntroduceResponse is the token. The servers keep only its hash.
	NodeIntroduceResponse struct {
		Index     structs.Index
		Token     string
		ExpiresAt structs.LogTime
	}
	// GossipAdvice says whether an agent should gossip. Neither field set: it stays as it is.
	GossipAdvice struct {
		Join  []string // gossip addresses of servers
		Leave bool     // it should stop
	}
	// NodeRegisterResponse answers a registration.
	NodeRegisterResponse struct {
		Index        structs.Index
		HeartbeatTTL time.Duration // the next heartbeat must come within it
		Cluster      structs.ClusterID
		RestoreEpoch uint64
		Servers      []string // RPC addresses of all servers
		Now          structs.LogTime
		RPC          uint64 // feature.RPC of the leader
		Gossip       GossipAdvice
		Format       structs.Format // at least in force when the registration was written; 0: of an older server
	}
	// NodeHeartbeatRequest reports that a node is alive. It is logged only if the node's status must change.
	NodeHeartbeatRequest struct {
		NodeAuth
		Status structs.NodeStatus // the node's own view: ready, or down when it leaves
		// Refuses says why the agent obeys no answer of these servers, "" while it does. Status is initializing then.
		Refuses string
	}
	// NodeHeartbeatResponse answers a heartbeat.
	NodeHeartbeatResponse struct {
		Index        structs.Index
		HeartbeatTTL time.Duration
		Servers      []string
		Unknown      bool // the servers do not know the node: it must register again
		Now          structs.LogTime
		Gossip       GossipAdvice
		Format       structs.Format // in force. If it is newer than that of the registration, the node registers again: what it reports was left out in part
	}
	// NodePollRequest waits for the allocations of a node to change (D13, D14).
	NodePollRequest struct {
		NodeAuth
		Query
		RestoreEpoch uint64        // newest one seen; a server on an older history refuses to answer
		SeenState    structs.Index // StateIndex of the last answer; a server whose state is older refuses to answer
		Known        uint64        // from the last answer, if the node has acted on all of it; 0: send all refs
	}
	// AllocRef is one allocation that belongs on a node.
	AllocRef struct {
		ID         structs.AllocID
		AllocIndex structs.Index
	}
	// NodePollResponse is the set of allocations that belong on a node: refs to all, and in full those changed after
	// MinIndex. An agent stops allocations that are missing in Refs only if the answer's history (cluster, restore
	// epoch, index) is not older than what it has seen. If no allocation that the agent knows was removed, Partial is
	// set and Refs has only the changed ones. Otherwise a node with many allocations would receive refs to all of them
	// for each new one.
	NodePollResponse struct {
		Meta
		Cluster      structs.ClusterID
		RestoreEpoch uint64
		StateIndex   structs.Index // index of the state that was read; Index is that of the newest change in the answer
		Partial      bool
		Known        uint64 // checksum over what belongs on the node as of Index, for the next request
		Refs         []AllocRef
		Changed      []*structs.Allocation
		Jobs         []*structs.Job    // each version that Changed refers to, once
		Rosters      []*structs.Roster // changed after MinIndex, with members on the node
	}
	// NodeObserveRequest reports what an agent has observed.
	NodeObserveRequest struct {
		NodeAuth
		Number  uint64 // rises with each report since the agent started, so that a late one does not replace a newer one
		Updates []structs.AllocObserved
	}
	// NodeEventRequest reports events of a node.
	NodeEventRequest struct {
		NodeAuth
		Events []structs.NodeEvent
	}
	// NodeSaveTurnRequest asks whether an allocation may save its state now, before it ends.
	NodeSaveTurnRequest struct {
		NodeAuth
		AllocID  structs.AllocID
		Periodic bool // it runs on: the interval of its checkpoint block has passed
	}
	// NodeIdentityRequest asks for the token of one identity of a task on the node.
	NodeIdentityRequest struct {
		NodeAuth
		AllocID        structs.AllocID
		Task, Identity string
	}
	// NodeIdentityResponse is a signed token.
	NodeIdentityResponse struct {
		Token           string
		Issued, Expires structs.LogTime
	}
	// SaveTurn answers whether it may, and if not, what it waits for.
	SaveTurn struct {
		Now    bool
		Before int64           // allocations ahead of it that have not saved their state
		Limit  int64           // allocations that may save at the same time; 0: unknown
		Where  string          // the scope of the limit: "storage lustre1"
		Again  time.Duration   // pause before the next request
		Due    structs.LogTime // of a periodic save: when its turn began; 0: when the agent says
	}
	// NodeServersRequest asks for the servers' addresses.
	NodeServersRequest struct{ NodeAuth }
	// NodeServersResponse lists the servers' RPC addresses, leader first.
	NodeServersResponse struct{ Servers []string }
)
