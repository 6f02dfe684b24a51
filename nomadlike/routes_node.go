package nomadlike

import (
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func nodeRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/nodes", rpc: methods.NodeList.Name, handle: nodeList},
		{methods: "GET", pattern: "/v1/node/{id}", rpc: methods.NodeGet.Name, handle: nodeGet},
		{methods: "GET", pattern: "/v1/node/{id}/allocations", rpc: methods.NodeAllocs.Name, handle: nodeAllocs},
		{methods: "PUT,POST", pattern: "/v1/node/{id}/drain", rpc: methods.NodeDrain.Name, handle: nodeDrain},
		{methods: "PUT,POST", pattern: "/v1/node/{id}/taints", rpc: methods.NodeTaint.Name, handle: nodeTaint},
		{methods: "PUT,POST", pattern: "/v1/node/{id}/eligibility", rpc: methods.NodeEligibility.Name, handle: nodeEligibility},
		{methods: "PUT,POST", pattern: "/v1/node/{id}/evaluate", rpc: methods.NodeEvaluate.Name, handle: nodeEvaluate},
		{methods: "PUT,POST", pattern: "/v1/node/{id}/purge", rpc: methods.NodePurge.Name, handle: nodePurge},
		{methods: "GET", pattern: "/v1/node/pools", rpc: methods.PoolList.Name, handle: poolList},
		{methods: "PUT,POST", pattern: "/v1/node/pools", rpc: methods.PoolUpsert.Name, handle: poolUpsert},
		{methods: "GET", pattern: "/v1/node/pool/{name}", rpc: methods.PoolGet.Name, handle: poolGet},
		{methods: "PUT,POST", pattern: "/v1/node/pool/{name}", rpc: methods.PoolUpsert.Name, handle: poolUpsert},
		{methods: "DELETE", pattern: "/v1/node/pool/{name}", rpc: methods.PoolDelete.Name, handle: poolDelete},
		{methods: "GET", pattern: "/v1/node/pool/{name}/nodes", rpc: methods.PoolNodes.Name, handle: poolNodes},
		{methods: "GET", pattern: "/v1/node/pool/{name}/jobs", rpc: methods.PoolJobs.Name, handle: poolJobs},
		{methods: "GET", pattern: "/v1/namespaces", rpc: methods.NamespaceList.Name, handle: namespaceList},
		{methods: "PUT,POST", pattern: "/v1/namespace", rpc: methods.NamespaceUpsert.Name, handle: namespaceUpsert},
		{methods: "PUT,POST", pattern: "/v1/namespaces", rpc: methods.NamespaceUpsert.Name, handle: namespaceUpsert},
		{methods: "GET", pattern: "/v1/namespace/{name}", rpc: methods.NamespaceGet.Name, handle: namespaceGet},
		{methods: "PUT,POST", pattern: "/v1/namespace/{name}", rpc: methods.NamespaceUpsert.Name, handle: namespaceUpsert},
		{methods: "DELETE", pattern: "/v1/namespace/{name}", rpc: methods.NamespaceDelete.Name, handle: namespaceDelete},
	}
}

func nodeList(c *call) (any, error) {
	resources, err := c.flag("resources")
	if err != nil {
		return nil, err
	}
	os, err := c.flag("os")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.NodeList, &methods.ListRequest{}, func(resp *methods.NodeListResponse) []*wire.NodeListStub {
		return nodeStubs(resp.Nodes, resources, os)
	})
}

func nodeStubs(in []*structs.Node, resources, os bool) []*wire.NodeListStub {
	out := make([]*wire.NodeListStub, 0, len(in))
	for _, n := range in {
		out = append(out, wire.NodeStubFromStructs(n, os, resources))
	}
	return out
}

func nodeGet(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.NodeGet, &methods.NodeGetRequest{NodeID: id})
	if err != nil {
		return nil, err
	}
	if resp.Node == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "node not found")
	}
	n := wire.NodeFromStructs(resp.Node)
	n.Topology, n.Reliability = resp.Place, wire.NodeReliabilityOf(resp.Risk)
	return n, nil
}

func nodeAllocs(c *call) (any, error) {
	id, _ := pathID[structs.NodeID](c, "node") // an unknown node has no allocations
	return invokeList(c, methods.NodeAllocs, &methods.NodeGetRequest{NodeID: id}, func(resp *methods.AllocListResponse) []*wire.Allocation {
		linkJobs(resp.Allocs, resp.Jobs)
		return each(resp.Allocs, func(a *structs.Allocation) *wire.Allocation {
			return wire.AllocFromStructs(a, resp.Reports[a.EvalID.String()+"/"+string(a.Group)])
		})
	})
}

// nodeAnswer returns the body of the answer to a write to a node.
func (c *call) nodeAnswer(resp *methods.NodeWriteResponse) any {
	c.index(resp.Index)
	ids := []string{}
	for _, id := range resp.EvalIDs {
		ids = append(ids, id.String())
	}
	return map[string]any{
		"EvalIDs": ids, "EvalCreateIndex": uint64(resp.EvalCreateIndex), "NodeModifyIndex": uint64(resp.NodeModifyIndex),
		"HeartbeatTTL": 0, "Index": uint64(resp.Index),
	}
}

func nodeDrain(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	var body struct {
		NodeID    string
		DrainSpec *struct {
			Deadline         time.Duration
			IgnoreSystemJobs bool
		}
		MarkEligible bool
		Meta         map[string]string
	}
	if err := c.body(&body); err != nil {
		return nil, err
	}
	req := &methods.NodeDrainRequest{NodeID: id, MarkEligible: body.MarkEligible, Meta: body.Meta}
	if body.DrainSpec != nil {
		req.Strategy = &structs.DrainStrategy{Deadline: body.DrainSpec.Deadline, IgnoreSystemJobs: body.DrainSpec.IgnoreSystemJobs, Meta: body.Meta}
	}
	resp, err := invoke(c, methods.NodeDrain, req)
	if err != nil {
		return nil, err
	}
	return c.nodeAnswer(resp), nil
}

func nodeEligibility(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	var body struct {
		NodeID      string
		Eligibility string
	}
	if err := c.body(&body); err != nil {
		return nil, err
	}
	e := structs.Eligibility(body.Eligibility)
	if e != structs.NodeEligible && e != structs.NodeIneligible {
		return nil, structs.Errorf(structs.CodeInvalid, "invalid scheduling eligibility %q: want \"eligible\" or \"ineligible\"", clip(body.Eligibility, 40))
	}
	resp, err := invoke(c, methods.NodeEligibility, &methods.NodeEligibilityRequest{NodeID: id, Eligibility: e})
	if err != nil {
		return nil, err
	}
	return c.nodeAnswer(resp), nil
}

// nodeTaint sets taints and removes others. An entry to remove without effect removes all taints of its key.
func nodeTaint(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	var body struct{ Add, Remove []wire.Taint }
	if err := c.body(&body); err != nil {
		return nil, err
	}
	req := &methods.NodeTaintRequest{NodeID: id}
	for _, t := range body.Add {
		req.Add = append(req.Add, structs.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	for _, t := range body.Remove {
		req.Remove = append(req.Remove, structs.Taint{Key: t.Key, Effect: t.Effect})
	}
	resp, err := invoke(c, methods.NodeTaint, req)
	if err != nil {
		return nil, err
	}
	return c.nodeAnswer(resp), nil
}

func nodeEvaluate(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.NodeEvaluate, &methods.NodeGetRequest{NodeID: id})
	if err != nil {
		return nil, err
	}
	return c.nodeAnswer(resp), nil
}

func nodePurge(c *call) (any, error) {
	id, err := pathID[structs.NodeID](c, "node")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.NodePurge, &methods.NodeGetRequest{NodeID: id})
	if err != nil {
		return nil, err
	}
	return c.nodeAnswer(resp), nil
}

func poolList(c *call) (any, error) {
	return invokeList(c, methods.PoolList, &methods.ListRequest{}, func(resp *methods.PoolListResponse) []*wire.NodePool {
		return each(resp.Pools, wire.PoolFromStructs)
	})
}

func poolGet(c *call) (any, error) {
	resp, err := invoke(c, methods.PoolGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Pool == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "node pool not found")
	}
	return wire.PoolFromStructs(resp.Pool), nil
}

// named sets the name of an object from the path, and refuses a body with another name.
func (c *call) named(name *string, kind string) error {
	said := c.params["name"]
	if said == "" {
		return nil
	}
	if *name == "" {
		*name = said
	}
	if *name != said {
		return structs.Errorf(structs.CodeInvalid, "%s name does not match: path says %q, body says %q", kind, clip(said, 100), clip(*name, 100))
	}
	return nil
}

func poolUpsert(c *call) (any, error) {
	var body wire.NodePool
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if err := c.named(&body.Name, "Node pool"); err != nil {
		return nil, err
	}
	pool := body.ToStructs()
	return c.written(invoke(c, methods.PoolUpsert, &methods.PoolUpsertRequest{Name: string(pool.Name), Pool: pool}))
}

// written answers a write with its index only.
func (c *call) written(resp *methods.WriteResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return nil, nil
}

func poolDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.PoolDelete, &methods.NameRequest{Name: c.params["name"]}))
}

func poolNodes(c *call) (any, error) {
	resources, err := c.flag("resources")
	if err != nil {
		return nil, err
	}
	os, err := c.flag("os")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.PoolNodes, &methods.NamedListRequest{Name: c.params["name"]}, func(resp *methods.NodeListResponse) []*wire.NodeListStub {
		return nodeStubs(resp.Nodes, resources, os)
	})
}

func poolJobs(c *call) (any, error) {
	return invokeList(c, methods.PoolJobs, &methods.NamedListRequest{Name: c.params["name"]}, jobStubs(true))
}

func namespaceList(c *call) (any, error) {
	return invokeList(c, methods.NamespaceList, &methods.ListRequest{}, func(resp *methods.NamespaceListResponse) []*wire.Namespace {
		return each(resp.Namespaces, wire.NamespaceFromStructs)
	})
}

func namespaceGet(c *call) (any, error) {
	resp, err := invoke(c, methods.NamespaceGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Namespace == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "Namespace not found")
	}
	return wire.NamespaceFromStructs(resp.Namespace), nil
}

func namespaceUpsert(c *call) (any, error) {
	var body wire.Namespace
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if name := c.params["name"]; name != "" {
		if body.Name == "" {
			body.Name = name
		}
		if body.Name != name {
			return nil, structs.Errorf(structs.CodeInvalid, "Namespace name does not match request path: path says %q, body says %q", name, body.Name)
		}
	}
	if strings.TrimSpace(body.Name) == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "namespace name is missing")
	}
	ns, err := body.ToStructs()
	if err != nil {
		return nil, err
	}
	return c.written(invoke(c, methods.NamespaceUpsert, &methods.NamespaceUpsertRequest{Namespace: ns}))
}

func namespaceDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.NamespaceDelete, &methods.NameRequest{Name: c.params["name"]}))
}
