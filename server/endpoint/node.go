package endpoint

import (
	"context"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// registerNodeUsers registers methods for users about nodes, pools and namespaces.
func (s *Set) registerNodeUsers() {
	handle(s, methods.NodeGet, s.nodeGet)
	handle(s, methods.NodeList, s.nodeList)
	handle(s, methods.NodeAllocs, s.nodeAllocs)
	handle(s, methods.NodeDrain, s.nodeDrain)
	handle(s, methods.NodeLeave, func(ctx context.Context, c *rpc.Call, req *methods.NodeLeaveRequest) (*methods.NodeWriteResponse, error) {
		if req.Look {
			n, err := s.nodeNamed(req.NodeID)
			if err != nil {
				return nil, err
			}
			return &methods.NodeWriteResponse{Index: n.ModifyIndex, NodeModifyIndex: n.ModifyIndex, Eligible: n.Eligibility == structs.NodeEligible}, nil
		}
		return s.nodeDrain(ctx, c, &methods.NodeDrainRequest{NodeID: req.NodeID, Strategy: &req.Strategy, Meta: req.Strategy.Meta})
	})
	handle(s, methods.NodeEligibility, s.nodeEligibility)
	handle(s, methods.NodeTaint, s.nodeTaint)
	handle(s, methods.NodeEvaluate, s.nodeEvaluate)
	handle(s, methods.NodePurge, s.nodePurge)
	handle(s, methods.NodeIntroduce, s.nodeIntroduce)
	handle(s, methods.PoolGet, s.poolGet)
	handle(s, methods.PoolList, s.poolList)
	handle(s, methods.PoolNodes, s.poolNodes)
	handle(s, methods.PoolJobs, s.poolJobs)
	handle(s, methods.PoolUpsert, s.poolUpsert)
	handle(s, methods.PoolDelete, s.poolDelete)
	handle(s, methods.NamespaceGet, s.namespaceGet)
	handle(s, methods.NamespaceList, s.namespaceList)
	handle(s, methods.NamespaceUpsert, s.namespaceUpsert)
	handle(s, methods.NamespaceDelete, s.namespaceDelete)
}

func (s *Set) nodeGet(ctx context.Context, c *rpc.Call, req *methods.NodeGetRequest) (*methods.NodeGetResponse, error) {
	resp := &methods.NodeGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnNode(req.NodeID)}, func(p *replica.Published) (structs.Index, error) {
		n := p.Snapshot.NodeByID(req.NodeID)
		resp.Node, resp.Place = n.WithoutSecret(), placeText(p, n)
		if n == nil {
			return p.Snapshot.TableIndex(state.Nodes), nil
		}
		resp.Risk = s.env.Decide.NodeRisk(p.Snapshot, n, s.env.Replica.Now())
		return n.ModifyIndex, nil
	})
}

func (s *Set) nodeList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.NodeListResponse, error) {
	resp := &methods.NodeListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Nodes)}, func(p *replica.Published) (structs.Index, error) {
		seq := p.Snapshot.Nodes()
		if req.Prefix != "" {
			var err error
			if seq, err = p.Snapshot.NodesByPrefix(req.Prefix); err != nil {
				return 0, err
			}
		}
		ns, next, err := list(s, &req.Query, nodeLister(), seq)
		resp.Nodes, resp.NextToken = secretless(ns), next
		return p.Snapshot.TableIndex(state.Nodes), err
	})
}

func nodeLister() lister[structs.Node] {
	return lister[structs.Node]{kind: "node", key: func(n *structs.Node) string { return n.ID.String() }}
}

func secretless(ns []*structs.Node) []*structs.Node {
	out := make([]*structs.Node, len(ns))
	for i, n := range ns {
		out[i] = n.WithoutSecret()
	}
	return out
}

// nodeAllocs lists a node's allocations in the namespaces that the caller may read.
func (s *Set) nodeAllocs(ctx context.Context, c *rpc.Call, req *methods.NodeGetRequest) (*methods.AllocListResponse, error) {
	may := visible(ctx, "*", acl.CapReadJob)
	resp := &methods.AllocListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnNodeAllocs(req.NodeID)}, func(p *replica.Published) (structs.Index, error) {
		as := slices.Clone(p.Snapshot.AllocsByNode(req.NodeID))
		idx := allocsIndex(p.Snapshot, as)
		as = slices.DeleteFunc(as, func(a *structs.Allocation) bool { return !may(a.Namespace) })
		var err error
		resp.Allocs, resp.NextToken, err = s.newestAllocs(&req.Query, as)
		resp.Jobs = jobsOf(resp.Allocs)
		return idx, err
	})
}

func (s *Set) nodeNamed(id structs.NodeID) (*structs.Node, error) {
	n := s.published().Snapshot.NodeByID(id)
	if n == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "node not found")
	}
	return n, nil
}

func (s *Set) nodeWrite(ctx context.Context, body structs.CommandBody) (*methods.NodeWriteResponse, error) {
	res, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: body})
	if err != nil {
		return nil, err
	}
	resp := &methods.NodeWriteResponse{Index: res.Index, EvalIDs: res.Evals, NodeModifyIndex: res.Index}
	if len(res.Evals) > 0 {
		resp.EvalCreateIndex = res.Index
	}
	return resp, nil
}

func (s *Set) nodeDrain(ctx context.Context, c *rpc.Call, req *methods.NodeDrainRequest) (*methods.NodeWriteResponse, error) {
	if _, err := s.nodeNamed(req.NodeID); err != nil {
		return nil, err
	}
	event := &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain strategy set"}
	var strategy *structs.DrainStrategy
	if req.Strategy != nil {
		d := *req.Strategy
		d.ForceAt, d.StartedAt = 0, 0
		strategy = &d
		if why := req.Meta["message"]; why != "" {
			event.Message += ": " + why
		}
	} else {
		event.Message = "Node drain canceled"
		if req.MarkEligible {
			event.Message = "Node drain canceled; node marked eligible"
		}
	}
	return s.nodeWrite(ctx, &structs.NodeDrainCommand{ID: req.NodeID, Strategy: strategy, MarkEligible: req.MarkEligible, Meta: req.Meta, Event: event})
}

func (s *Set) nodeEligibility(ctx context.Context, c *rpc.Call, req *methods.NodeEligibilityRequest) (*methods.NodeWriteResponse, error) {
	n, err := s.nodeNamed(req.NodeID)
	if err != nil {
		return nil, err
	}
	switch req.Eligibility {
	case structs.NodeEligible:
		if n.Drain != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "can not set node's scheduling eligibility to eligible while it is draining")
		}
	case structs.NodeIneligible:
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "invalid scheduling eligibility %q; want eligible or ineligible", req.Eligibility)
	}
	if n.Eligibility == req.Eligibility {
		return &methods.NodeWriteResponse{Index: s.published().Index, NodeModifyIndex: n.ModifyIndex}, nil
	}
	return s.nodeWrite(ctx, &structs.NodeEligibilityCommand{ID: req.NodeID, Eligibility: req.Eligibility,
		Event: &structs.NodeEvent{Subsystem: "Cluster", Message: "Node marked as " + string(req.Eligibility) + " for scheduling"}})
}

func (s *Set) nodeTaint(ctx context.Context, c *rpc.Call, req *methods.NodeTaintRequest) (*methods.NodeWriteResponse, error) {
	n, err := s.nodeNamed(req.NodeID)
	if err != nil {
		return nil, err
	}
	if len(req.Add)+len(req.Remove) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "the request has no taint to add or remove")
	}
	if _, err := n.Retaint(req.Add, req.Remove, 1); err != nil {
		return nil, err
	}
	var done []string
	for _, t := range req.Add {
		done = append(done, "set "+t.String())
	}
	for _, t := range req.Remove {
		done = append(done, "took off "+strings.TrimSuffix(t.Key+":"+t.Effect, ":"))
	}
	return s.nodeWrite(ctx, &structs.NodeTaintCommand{ID: req.NodeID, Add: req.Add, Remove: req.Remove,
		Event: &structs.NodeEvent{Subsystem: "Cluster", Message: "Taints changed: " + strings.Join(done, ", ")}})
}

// nodeEvaluate requests a new decision about every job with an allocation on a node, and about system jobs.
func (s *Set) nodeEvaluate(ctx context.Context, c *rpc.Call, req *methods.NodeGetRequest) (*methods.NodeWriteResponse, error) {
	n, err := s.nodeNamed(req.NodeID)
	if err != nil {
		return nil, err
	}
	snap := s.published().Snapshot
	seen := map[structs.JobKey]bool{}
	var evals []*structs.Evaluation
	add := func(j *structs.Job) {
		if j == nil || seen[j.Key()] || len(evals) >= 1000 {
			return
		}
		seen[j.Key()] = true
		e := NewEvalOf(j, structs.TriggerNodeUpdate)
		e.NodeID, e.NodeIndex = n.ID, n.ModifyIndex
		evals = append(evals, e)
	}
	for _, a := range snap.AllocsByNode(n.ID) {
		if !a.Terminal() {
			add(snap.JobByKey(a.JobKey()))
		}
	}
	for j := range snap.Jobs("*", "") {
		if (j.Type == structs.JobSystem || j.Type == structs.JobSysBatch) && j.Placeable() && (j.NodePool == n.Pool || j.NodePool == structs.NodePoolAll) {
			add(j)
		}
	}
	if len(evals) == 0 {
		return &methods.NodeWriteResponse{Index: s.published().Index, NodeModifyIndex: n.ModifyIndex}, nil
	}
	resp, err := s.nodeWrite(ctx, &structs.EvalUpsertCommand{Evals: evals})
	if err == nil {
		resp.NodeModifyIndex = n.ModifyIndex
	}
	return resp, err
}

func (s *Set) nodePurge(ctx context.Context, c *rpc.Call, req *methods.NodeGetRequest) (*methods.NodeWriteResponse, error) {
	if _, err := s.nodeNamed(req.NodeID); err != nil {
		return nil, err
	}
	return s.nodeWrite(ctx, &structs.NodePurgeCommand{IDs: []structs.NodeID{req.NodeID}})
}

func (s *Set) poolGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.PoolGetResponse, error) {
	resp := &methods.PoolGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Pools)}, func(p *replica.Published) (structs.Index, error) {
		resp.Pool = p.Snapshot.Pool(structs.PoolName(req.Name))
		if resp.Pool == nil {
			return p.Snapshot.TableIndex(state.Pools), nil
		}
		return max(resp.Pool.ModifyIndex, 1), nil
	})
}

func (s *Set) poolList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.PoolListResponse, error) {
	id := auth.Who(ctx)
	resp := &methods.PoolListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Pools)}, func(p *replica.Published) (structs.Index, error) {
		ps, next, err := list(s, &req.Query, lister[structs.NodePool]{kind: "pool",
			key: func(x *structs.NodePool) string { return string(x.Name) },
			keep: func(x *structs.NodePool) bool {
				return strings.HasPrefix(string(x.Name), req.Prefix) && id.ACL.AllowNodePool(x.Name, "read")
			},
		}, p.Snapshot.Pools())
		resp.Pools, resp.NextToken = ps, next
		return p.Snapshot.TableIndex(state.Pools), err
	})
}

// poolNodes lists a pool's nodes; "all" lists every node. The caller needs node read in addition to the pool's
// permission.
func (s *Set) poolNodes(ctx context.Context, c *rpc.Call, req *methods.NamedListRequest) (*methods.NodeListResponse, error) {
	if err := auth.Allow(auth.Who(ctx), methods.Need{Node: "read"}, ""); err != nil {
		return nil, err
	}
	resp := &methods.NodeListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Nodes)}, func(p *replica.Published) (structs.Index, error) {
		l := nodeLister()
		if pool := structs.PoolName(req.Name); pool != structs.NodePoolAll {
			l.keep = func(n *structs.Node) bool { return n.Pool == pool }
		}
		ns, next, err := list(s, &req.Query, l, p.Snapshot.Nodes())
		resp.Nodes, resp.NextToken = secretless(ns), next
		return p.Snapshot.TableIndex(state.Nodes), err
	})
}

func (s *Set) poolJobs(ctx context.Context, c *rpc.Call, req *methods.NamedListRequest) (*methods.JobListResponse, error) {
	ns := auth.NamespaceOf(c)
	may, pool := visible(ctx, ns, acl.CapListJobs), structs.PoolName(req.Name)
	resp := &methods.JobListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs)}, func(p *replica.Published) (structs.Index, error) {
		jobs, next, err := list(s, &req.Query, lister[structs.Job]{kind: "job",
			key: jobToken,
			keep: func(j *structs.Job) bool {
				return may(j.Namespace) && (pool == structs.NodePoolAll || j.NodePool == pool)
			},
		}, p.Snapshot.Jobs(ns, req.Prefix))
		if err != nil {
			return 0, err
		}
		resp.Jobs, resp.NextToken = make([]methods.JobListItem, len(jobs)), next
		for i, j := range jobs {
			resp.Jobs[i] = methods.JobListItem{Job: j, Summary: Summarize(p.Snapshot, j)}
		}
		return p.Snapshot.TableIndex(state.Jobs), nil
	})
}

func (s *Set) poolUpsert(ctx context.Context, c *rpc.Call, req *methods.PoolUpsertRequest) (*methods.WriteResponse, error) {
	p := req.Pool
	if p == nil || string(p.Name) != req.Name {
		return nil, structs.Errorf(structs.CodeInvalid, "the request names pool %q but carries another one", req.Name)
	}
	if err := validName("node pool", string(p.Name), 128); err != nil {
		return nil, err
	}
	if len(p.Description) > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "description longer than 256")
	}
	if err := policy.Check(p.Algorithm); err != nil {
		return nil, err
	}
	if err := p.Weights.Check(); err != nil {
		return nil, err
	}
	if p.MaxCheckpoints < 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "max_checkpoints is %d; want a number from 1, or 0 for no limit", p.MaxCheckpoints)
	}
	return s.write(ctx, &structs.PoolUpsertCommand{Pools: []*structs.NodePool{p}})
}

func (s *Set) poolDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.write(ctx, &structs.PoolDeleteCommand{Names: []structs.PoolName{structs.PoolName(req.Name)}})
}

func (s *Set) namespaceGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.NamespaceGetResponse, error) {
	if !auth.Who(ctx).ACL.AllowNamespace(req.Name) {
		return nil, structs.Denied("a capability in namespace %q", req.Name)
	}
	resp := &methods.NamespaceGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Namespaces)}, func(p *replica.Published) (structs.Index, error) {
		resp.Namespace = p.Snapshot.Namespace(req.Name)
		if resp.Namespace == nil {
			return p.Snapshot.TableIndex(state.Namespaces), nil
		}
		return max(resp.Namespace.ModifyIndex, 1), nil
	})
}

func (s *Set) namespaceList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.NamespaceListResponse, error) {
	id := auth.Who(ctx)
	resp := &methods.NamespaceListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Namespaces)}, func(p *replica.Published) (structs.Index, error) {
		ns, next, err := list(s, &req.Query, lister[structs.Namespace]{kind: "namespace",
			key: func(x *structs.Namespace) string { return x.Name },
			keep: func(x *structs.Namespace) bool {
				return strings.HasPrefix(x.Name, req.Prefix) && id.ACL.AllowNamespace(x.Name)
			},
		}, p.Snapshot.Namespaces())
		resp.Namespaces, resp.NextToken = ns, next
		return p.Snapshot.TableIndex(state.Namespaces), err
	})
}

func (s *Set) namespaceUpsert(ctx context.Context, c *rpc.Call, req *methods.NamespaceUpsertRequest) (*methods.WriteResponse, error) {
	n := req.Namespace
	if n == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing namespace")
	}
	if err := validName("namespace", n.Name, 128); err != nil || strings.Contains(n.Name, "_") || strings.Contains(n.Name, ".") {
		return nil, structs.Errorf(structs.CodeInvalid, "invalid name %q. Must match regex ^[a-zA-Z0-9-]{1,128}$", n.Name)
	}
	if len(n.Description) > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "description longer than 256")
	}
	if err := checkNamespace(n); err != nil {
		return nil, err
	}
	return s.write(ctx, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{n}})
}

func (s *Set) namespaceDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.write(ctx, &structs.NamespaceDeleteCommand{Names: []string{req.Name}})
}
