package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// registerRelays registers the methods that nodes and agents answer. The wrapper forwards their calls before a handler
// runs.
func (s *Server) registerRelays() {
	forwardToNode(s, methods.ClientFSList)
	forwardToNode(s, methods.ClientFSStat)
	forwardStreamToNode(s, methods.ClientFSStream)
	forwardStreamToNode(s, methods.ClientLogs)
	forwardStreamToNode(s, methods.ClientExec)
	forwardStreamToNode(s, methods.ClientForward)
	forwardToNode(s, methods.ClientStats)
	forwardToNode(s, methods.ClientRestart)
	forwardToNode(s, methods.ClientSignal)
	forwardToNode(s, methods.ClientCheckpoint)
	forwardToNode(s, methods.ClientGC)
	forwardToNode(s, methods.ClientGCAll)
	forwardToNode(s, methods.ClientChecks)
	forwardToNode(s, methods.ClientHostStats)
	forwardToNode(s, methods.ClientGPURelease)
	forwardToNode(s, methods.ClientMetaRead)
	forwardToNode(s, methods.ClientMetaApply)
	forwardStreamToNode(s, methods.ClientMonitor)
	rpc.HandleStream(s.reg, methods.AgentMonitor, s.agentMonitor)
	rpc.Handle(s.reg, methods.ServerAuthorize, s.serverAuthorize)
}

func forwardToNode[Req, Resp any](s *Server, m rpc.Method[Req, Resp]) {
	rpc.Handle(s.reg, m, func(context.Context, *rpc.Call, *Req) (*Resp, error) {
		return nil, structs.Errorf(structs.CodeInternal, "%s was not forwarded to a node", m.Name)
	})
}

func forwardStreamToNode[Req any](s *Server, m rpc.StreamMethod[Req]) {
	rpc.HandleStream(s.reg, m, func(context.Context, *rpc.Call, *Req, *rpc.Stream) error {
		return structs.Errorf(structs.CodeInternal, "%s was not forwarded to a node", m.Name)
	})
}

// nodeTarget returns the allocation or node, and the task, that a call to a node names.
func nodeTarget(req any) (structs.AllocID, structs.NodeID, string) {
	switch r := req.(type) {
	case *methods.AllocNodeRequest:
		return r.AllocID, r.NodeID, r.Task
	case *methods.FSRequest:
		return r.AllocID, structs.NodeID{}, ""
	case *methods.FSStreamRequest:
		return r.AllocID, structs.NodeID{}, ""
	case *methods.LogsRequest:
		return r.AllocID, structs.NodeID{}, r.Task
	case *methods.ExecRequest:
		return r.AllocID, structs.NodeID{}, r.Task
	case *methods.ForwardRequest:
		return r.AllocID, structs.NodeID{}, ""
	case *methods.AllocRestartRequest:
		return r.AllocID, structs.NodeID{}, r.Task
	case *methods.AllocSignalRequest:
		return r.AllocID, structs.NodeID{}, r.Task
	case *methods.GPUReleaseRequest:
		return structs.AllocID{}, r.NodeID, ""
	case *methods.NodeMetaRequest:
		return structs.AllocID{}, r.NodeID, ""
	case *methods.MonitorRequest:
		return structs.AllocID{}, r.NodeID, ""
	}
	return structs.AllocID{}, structs.NodeID{}, ""
}

// passToNode forwards a call to the node that answers it. It is for servers without access control; see toAgent.
func (s *Server) passToNode(ctx context.Context, row *methods.Row, c *rpc.Call, id *auth.Identity) (*rpc.Reply, error) {
	node, err := s.nodeFor(ctx, row, c, id)
	if err != nil {
		if structs.CodeOf(err) == structs.CodeNotFound && !s.IsLeader() && c.Hops == 0 {
			if addr, _ := s.Leader(); addr != "" {
				return s.forward(ctx, c, s.pool.To(addr)) // the allocation or node may be too new for this server
			}
		}
		return nil, err
	}
	return s.toNode(ctx, c, node)
}

// nodeFor returns the node that answers a call, if the caller may make it in the namespace of its allocation.
func (s *Server) nodeFor(ctx context.Context, row *methods.Row, c *rpc.Call, id *auth.Identity) (structs.NodeID, error) {
	var none structs.NodeID
	req, err := c.Request()
	if err != nil {
		return none, err
	}
	allocID, node, task := nodeTarget(req)
	if row.Need.Namespace != "" {
		if allocID.IsZero() {
			return none, structs.Errorf(structs.CodeInvalid, "missing allocation ID")
		}
		a, err := s.endpoints.AllocFor(auth.With(ctx, id), allocID, row.Need.Namespace)
		if err != nil {
			return none, err
		}
		if loose := unisolated(c.Method, a, task); loose != "" && !id.ACL.AllowNamespaceOp(a.Namespace, acl.CapAllocNodeExec) {
			return none, structs.Denied("namespace capability %s in namespace %q: task %q runs without isolation", acl.CapAllocNodeExec, a.Namespace, loose)
		}
		node = a.NodeID
	}
	if node.IsZero() {
		return none, structs.Errorf(structs.CodeInvalid, "missing node ID")
	}
	if s.Published().Snapshot.NodeByID(node) == nil {
		return none, structs.Errorf(structs.CodeNotFound, "Unknown node %q", node)
	}
	return node, nil
}

// unisolated returns a task that a call enters and that can see the whole machine, or "". The tasks of an allocation
// share its network, so a forwarded connection may lead to any of them.
func unisolated(method string, a *structs.Allocation, task string) string {
	var g *structs.Group
	if a.Job != nil {
		g = a.Job.Group(a.Group)
	}
	switch {
	case method == methods.ClientExec.Name:
		if g == nil || g.Task(task) == nil || g.Task(task).Driver == "raw_exec" {
			return cmp.Or(task, "?")
		}
	case method == methods.ClientForward.Name && g == nil:
		return "?"
	case method == methods.ClientForward.Name:
		for _, t := range g.Tasks {
			if t.Driver == "raw_exec" {
				return t.Name
			}
		}
	}
	return ""
}

// agentMonitor streams the log of a server, selected by name; "" is this one and "leader" the leader.
func (s *Server) agentMonitor(ctx context.Context, c *rpc.Call, req *methods.MonitorRequest, st *rpc.Stream) error {
	name := req.ServerName
	if name == "" || name == s.cfg.Name || name == s.cfg.Name+"."+s.cfg.Region || name == s.cfg.ID || name == "leader" && s.IsLeader() {
		if s.cfg.Monitor == nil {
			return structs.Errorf(structs.CodeUnsupported, "this server does not serve its log")
		}
		return s.cfg.Monitor(ctx, req, st)
	}
	addr := ""
	if name == "leader" {
		addr, _ = s.Leader()
	}
	for _, m := range s.Members() {
		if m.Role == gossip.RoleServer && (m.Name == name || m.Name+"."+m.Region == name || m.ID == name) {
			addr = m.RPC
		}
	}
	if addr == "" {
		return structs.Errorf(structs.CodeNotFound, "unknown server %q", name)
	}
	_, err := s.forward(ctx, c, s.pool.To(addr))
	return err
}

// probeTimeout bounds the question to other servers whether a node is connected to them.
const probeTimeout = 2 * time.Second

// toNode forwards a call to its node over the node's session to this server, or through the server that has one.
func (s *Server) toNode(ctx context.Context, c *rpc.Call, node structs.NodeID) (*rpc.Reply, error) {
	if to := s.nodes.Sessions.Find(node); to != nil {
		s.metrics.forwarded.Add(1)
		return c.Forward(ctx, to)
	}
	unreachable := structs.Errorf(structs.CodeUnavailable, "node %s is not connected to any server", node)
	if c.Hops > 0 {
		return nil, unreachable
	}
	type hit struct{ addr string }
	others := s.members.OtherServers()
	// Gossip may not know all servers yet; raft does.
	servers, _, _ := s.replica.Configuration()
	for _, p := range servers {
		if a := string(p.Address); string(p.ID) != s.cfg.ID && !slices.Contains(others, a) {
			others = append(others, a)
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
			return s.forward(ctx, c, s.pool.To(h.addr))
		}
	}
	return nil, unreachable
}
