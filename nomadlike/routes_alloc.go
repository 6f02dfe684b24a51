package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func allocRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/allocations", rpc: methods.AllocList.Name, handle: allocList},
		{methods: "GET", pattern: "/v1/allocation/{id}", rpc: methods.AllocGet.Name, handle: allocGet},
		{methods: "PUT,POST", pattern: "/v1/allocation/{id}/stop", rpc: methods.AllocStop.Name, handle: allocStop},
		{methods: "PUT,POST", pattern: "/v1/allocation/{id}/suspend", rpc: methods.AllocSuspend.Name, handle: allocSuspend(false)},
		{methods: "PUT,POST", pattern: "/v1/allocation/{id}/resume", rpc: methods.AllocSuspend.Name, handle: allocSuspend(true)},
		{methods: "GET", pattern: "/v1/allocation/{id}/checks", rpc: methods.ClientChecks.Name, handle: clientChecks},
		{methods: "GET", pattern: "/v1/allocation/{id}/services", rpc: methods.ServiceAlloc.Name, handle: allocServices},
		{methods: "GET", pattern: "/v1/evaluations", rpc: methods.EvalList.Name, handle: evalList},
		{methods: "DELETE", pattern: "/v1/evaluations", rpc: methods.EvalDelete.Name, handle: evalDelete},
		{methods: "GET", pattern: "/v1/evaluations/count", rpc: methods.EvalCount.Name, handle: evalCount},
		{methods: "GET", pattern: "/v1/evaluation/{id}", rpc: methods.EvalGet.Name, handle: evalGet},
		{methods: "GET", pattern: "/v1/evaluation/{id}/allocations", rpc: methods.EvalAllocs.Name, handle: evalAllocs},
	}
}

func allocStubs(resp *methods.AllocListResponse, resources, states bool) []*wire.AllocationListStub {
	linkJobs(resp.Allocs, resp.Jobs)
	out := make([]*wire.AllocationListStub, 0, len(resp.Allocs))
	for _, a := range resp.Allocs {
		out = append(out, wire.AllocStubFromStructs(a, resources, states))
	}
	return out
}

type jobVersionKey struct {
	key     structs.JobKey
	version uint64
}

// linkJobs restores the jobs of allocations that were decoded from the wire. Allocations of this process have their
// jobs and are shared with the store, so they are not changed.
func linkJobs(allocs []*structs.Allocation, jobs []*structs.Job) {
	by := make(map[jobVersionKey]*structs.Job, len(jobs))
	for _, j := range jobs {
		by[jobVersionKey{j.Key(), j.Version}] = j
	}
	for i, a := range allocs {
		if a.Job == nil {
			c := *a
			c.Job = by[jobVersionKey{a.JobKey(), a.JobVersion}]
			allocs[i] = &c
		}
	}
}

func allocList(c *call) (any, error) {
	resources, err := c.flag("resources")
	if err != nil {
		return nil, err
	}
	states := true
	if c.r.URL.Query().Has("task_states") {
		if states, err = c.flag("task_states"); err != nil {
			return nil, err
		}
	}
	return invokeList(c, methods.AllocList, &methods.ListRequest{}, func(resp *methods.AllocListResponse) []*wire.AllocationListStub {
		return allocStubs(resp, resources, states)
	})
}

// pathID parses the id in the path. Clients expand prefixes themselves, through a list.
func pathID[T ~[16]byte](c *call, what string) (T, error) {
	id, err := structs.ParseID[T](c.params["id"])
	if err != nil || id == (T{}) {
		return id, structs.Errorf(structs.CodeNotFound, "%s not found", what)
	}
	return id, nil
}

func allocGet(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.AllocGet, &methods.AllocGetRequest{AllocID: id})
	if err != nil {
		return nil, err
	}
	if resp.Alloc == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "alloc not found")
	}
	a := *resp.Alloc
	if a.Job == nil {
		a.Job = resp.Job
	}
	out := wire.AllocFromStructs(&a, resp.Report)
	out.Topology, out.GangTopology = resp.Place, resp.Gang
	return out, nil
}

func allocStop(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	req := &methods.AllocStopRequest{AllocID: id}
	if req.NoShutdownDelay, err = c.flag("no_shutdown_delay"); err != nil {
		return nil, err
	}
	if req.Reschedule, err = c.flag("reschedule"); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.AllocStop, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return map[string]any{"EvalID": resp.EvalID.String(), "Index": uint64(resp.Index)}, nil
}

func evalList(c *call) (any, error) {
	return invokeList(c, methods.EvalList, &methods.ListRequest{Options: c.options("job", "status")}, evalsOf)
}

// options extracts endpoint flags from the query.
func (c *call) options(names ...string) map[string]string {
	var out map[string]string
	for _, n := range names {
		if v := c.r.URL.Query().Get(n); v != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[n] = v
		}
	}
	return out
}

func evalCount(c *call) (any, error) {
	resp, err := invoke(c, methods.EvalCount, &methods.ListRequest{Options: c.options("job", "status")})
	if err != nil {
		return nil, err
	}
	return &wire.EvalCountResponse{Count: resp.Count}, nil
}

func evalDelete(c *call) (any, error) {
	var body wire.EvalDeleteRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if (len(body.EvalIDs) == 0) == (body.Filter == "") {
		return nil, structs.Errorf(structs.CodeInvalid, "evals must be deleted by either ID or filter: give EvalIDs or Filter, not both")
	}
	req := &methods.EvalDeleteRequest{Filter: body.Filter}
	for _, s := range body.EvalIDs {
		id, err := structs.ParseID[structs.EvalID](s)
		if err != nil {
			return nil, err
		}
		req.IDs = append(req.IDs, id)
	}
	resp, err := invoke(c, methods.EvalDelete, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.EvalDeleteResponse{Count: resp.Count, Index: uint64(resp.Index)}, nil
}

func evalGet(c *call) (any, error) {
	id, err := pathID[structs.EvalID](c, "eval")
	if err != nil {
		return nil, err
	}
	related, err := c.flag("related")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.EvalGet, &methods.EvalGetRequest{EvalID: id, Related: related})
	if err != nil {
		return nil, err
	}
	if resp.Eval == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "eval not found")
	}
	return wire.EvalFromStructs(resp.Eval, "", resp.Related), nil
}

func evalAllocs(c *call) (any, error) {
	id, err := pathID[structs.EvalID](c, "eval")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.EvalAllocs, &methods.EvalGetRequest{EvalID: id}, func(resp *methods.AllocListResponse) []*wire.AllocationListStub {
		return allocStubs(resp, true, true)
	})
}
