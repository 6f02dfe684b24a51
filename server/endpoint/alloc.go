package endpoint

import (
	"context"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerAllocs() {
	handle(s, methods.AllocGet, s.allocGet)
	handle(s, methods.AllocList, s.allocList)
	handle(s, methods.AllocStop, s.allocStop)
	handle(s, methods.AllocSuspend, s.allocSuspend)
	handle(s, methods.AllocTransition, s.allocTransition)
	handle(s, methods.EvalGet, s.evalGet)
	handle(s, methods.EvalList, s.evalList)
	handle(s, methods.EvalCount, s.evalCount)
	handle(s, methods.EvalAllocs, s.evalAllocs)
	handle(s, methods.EvalDelete, s.evalDelete)
}

// reportOf returns an evaluation's report about a group, or nil.
func reportOf(e *structs.Evaluation, group structs.GroupName) *structs.GroupReport {
	if e == nil {
		return nil
	}
	for _, list := range [][]*structs.GroupReport{e.PlacedGroups, e.FailedGroups} {
		for _, r := range list {
			if r.Group == group {
				return r
			}
		}
	}
	return nil
}

func (s *Set) allocGet(ctx context.Context, c *rpc.Call, req *methods.AllocGetRequest) (*methods.AllocGetResponse, error) {
	resp, may := &methods.AllocGetResponse{}, visible(ctx, "*", acl.CapReadJob)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnAlloc(req.AllocID)}, func(p *replica.Published) (structs.Index, error) {
		*resp = methods.AllocGetResponse{Meta: resp.Meta}
		a := p.Snapshot.AllocByID(req.AllocID)
		if a == nil || !may(a.Namespace) {
			return p.Snapshot.TableIndex(state.Allocs), nil
		}
		resp.Alloc, resp.Job = a, a.Job
		resp.Eval = p.Snapshot.EvalByID(a.EvalID)
		resp.Report = reportOf(resp.Eval, a.Group)
		resp.Place = placeText(p, p.Snapshot.NodeByID(a.NodeID))
		resp.Gang = reachedBy(p, p.Snapshot.RosterByKey(structs.RosterKey{Job: structs.JobKey{Namespace: a.Namespace, ID: a.JobID}, Group: a.Group}))
		return a.ModifyIndex, nil
	})
}

func (s *Set) allocList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.AllocListResponse, error) {
	may := visible(ctx, auth.NamespaceOf(c), acl.CapReadJob)
	resp := &methods.AllocListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Allocs)}, func(p *replica.Published) (structs.Index, error) {
		seq := p.Snapshot.Allocs()
		if req.Prefix != "" {
			var err error
			if seq, err = p.Snapshot.AllocsByPrefix(req.Prefix); err != nil {
				return 0, err
			}
		}
		as, next, err := list(s, &req.Query, lister[structs.Allocation]{kind: "alloc",
			key:  func(a *structs.Allocation) string { return a.ID.String() },
			keep: func(a *structs.Allocation) bool { return may(a.Namespace) },
		}, seq)
		if err != nil {
			return 0, err
		}
		resp.Allocs, resp.NextToken, resp.Jobs = as, next, jobsOf(as)
		return p.Snapshot.TableIndex(state.Allocs), nil
	})
}

func (s *Set) allocStop(ctx context.Context, c *rpc.Call, req *methods.AllocStopRequest) (*methods.JobRegisterResponse, error) {
	a, err := s.AllocFor(ctx, req.AllocID, acl.CapAllocLifecycle)
	if err != nil {
		return nil, err
	}
	tr := structs.Transition{Migrate: !req.Reschedule, Reschedule: req.Reschedule, NoShutdownDelay: req.NoShutdownDelay}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.AllocTransitionCommand{
		IDs: []structs.AllocID{a.ID}, Transition: tr, Trigger: structs.TriggerAllocStop,
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}

func (s *Set) allocTransition(ctx context.Context, c *rpc.Call, req *methods.AllocTransitionRequest) (*methods.WriteResponse, error) {
	if len(req.IDs) == 0 || len(req.IDs) > 4096 {
		return nil, structs.Errorf(structs.CodeInvalid, "a transition names 1 to 4096 allocations, not %d", len(req.IDs))
	}
	return s.write(ctx, &structs.AllocTransitionCommand{IDs: req.IDs, Transition: req.Transition, Trigger: structs.TriggerNodeDrain})
}

func (s *Set) evalGet(ctx context.Context, c *rpc.Call, req *methods.EvalGetRequest) (*methods.EvalGetResponse, error) {
	resp, may := &methods.EvalGetResponse{}, visible(ctx, "*", acl.CapReadJob)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnEval(req.EvalID)}, func(p *replica.Published) (structs.Index, error) {
		*resp = methods.EvalGetResponse{Meta: resp.Meta}
		e := p.Snapshot.EvalByID(req.EvalID)
		if e == nil || !may(e.Namespace) {
			return p.Snapshot.TableIndex(state.Evals), nil
		}
		resp.Eval = withDeployment(p.Snapshot, e)
		if req.Related {
			seen := map[structs.EvalID]bool{e.ID: true}
			next := []structs.EvalID{e.PreviousEval, e.NextEval, e.BlockedEval, e.Successor}
			for len(next) > 0 && len(resp.Related) < 100 {
				id := next[0]
				next = next[1:]
				if id.IsZero() || seen[id] {
					continue
				}
				seen[id] = true
				if r := p.Snapshot.EvalByID(id); r != nil {
					resp.Related = append(resp.Related, r)
					next = append(next, r.PreviousEval, r.NextEval, r.BlockedEval, r.Successor)
				}
			}
		}
		return e.ModifyIndex, nil
	})
}

func (s *Set) evalList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.EvalListResponse, error) {
	resp := &methods.EvalListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Evals)}, func(p *replica.Published) (structs.Index, error) {
		es, next, err := s.evalPage(ctx, c, &req.Query, p, req.Options)
		resp.Evals, resp.NextToken = es, next
		return p.Snapshot.TableIndex(state.Evals), err
	})
}

func (s *Set) evalPage(ctx context.Context, c *rpc.Call, q *methods.Query, p *replica.Published, opts map[string]string) ([]*structs.Evaluation, string, error) {
	may := visible(ctx, auth.NamespaceOf(c), acl.CapReadJob)
	seq := p.Snapshot.Evals()
	if q.Prefix != "" {
		var err error
		if seq, err = p.Snapshot.EvalsByPrefix(q.Prefix); err != nil {
			return nil, "", err
		}
	}
	job, status := opts["job"], opts["status"]
	es, next, err := list(s, q, lister[structs.Evaluation]{kind: "eval",
		key: func(e *structs.Evaluation) string { return e.ID.String() },
		keep: func(e *structs.Evaluation) bool {
			return may(e.Namespace) && (job == "" || e.JobID == job) && (status == "" || string(e.Status) == status)
		},
	}, seq)
	return withDeployments(p.Snapshot, es), next, err
}

func (s *Set) evalCount(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.CountResponse, error) {
	resp := &methods.CountResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Evals)}, func(p *replica.Published) (structs.Index, error) {
		match, err := s.filter("eval", req.Filter)
		if err != nil {
			return 0, err
		}
		may := visible(ctx, auth.NamespaceOf(c), acl.CapReadJob)
		resp.Count = 0
		for e := range p.Snapshot.Evals() {
			if !may(e.Namespace) {
				continue
			}
			if match != nil {
				ok, err := match(e)
				if err != nil {
					return 0, err
				}
				if !ok {
					continue
				}
			}
			resp.Count++
		}
		return p.Snapshot.TableIndex(state.Evals), nil
	})
}

func (s *Set) evalAllocs(ctx context.Context, c *rpc.Call, req *methods.EvalGetRequest) (*methods.AllocListResponse, error) {
	resp, may := &methods.AllocListResponse{}, visible(ctx, "*", acl.CapReadJob)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnEvalAllocs(req.EvalID)}, func(p *replica.Published) (structs.Index, error) {
		as := slices.DeleteFunc(slices.Clone(p.Snapshot.AllocsByEval(req.EvalID)), func(a *structs.Allocation) bool { return !may(a.Namespace) })
		idx := allocsIndex(p.Snapshot, as)
		var err error
		resp.Allocs, resp.NextToken, err = s.newestAllocs(&req.Query, as)
		resp.Jobs = jobsOf(resp.Allocs)
		return idx, err
	})
}

// evalDeleteMax bounds the evaluations that one log entry deletes.
const evalDeleteMax = 7281

// evalDelete deletes evaluations by ID or filter, in entries of bounded size. A filter selects only terminal ones.
func (s *Set) evalDelete(ctx context.Context, c *rpc.Call, req *methods.EvalDeleteRequest) (*methods.CountResponse, error) {
	snap := s.published().Snapshot
	if (len(req.IDs) == 0) == (req.Filter == "") {
		return nil, structs.Errorf(structs.CodeInvalid, "evaluations must be deleted by either ID or filter")
	}
	if !snap.SchedulerConfig().PauseBroker {
		return nil, structs.Errorf(structs.CodeInvalid, "eval broker is enabled; eval broker must be paused to delete evals")
	}
	ids := req.IDs
	if req.Filter != "" {
		match, err := s.filter("eval", req.Filter)
		if err != nil {
			return nil, err
		}
		for e := range snap.Evals() {
			ok, err := match(e)
			if err != nil {
				return nil, err
			}
			if ok && e.Terminal() {
				ids = append(ids, e.ID)
			}
		}
	}
	for _, id := range ids {
		if snap.EvalByID(id) == nil {
			return nil, structs.Errorf(structs.CodeNotFound, "eval not found: %s", id)
		}
	}
	resp := &methods.CountResponse{}
	for part := range slices.Chunk(ids, evalDeleteMax) {
		res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.EvalDeleteCommand{IDs: part}})
		if err != nil {
			return nil, err
		}
		resp.Count += len(part)
		resp.Meta.Index = res.Index
	}
	return resp, nil
}
