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

// scalingList lists jobs that have a group with a scaling policy.
func (s *Set) scalingList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ScalingListResponse, error) {
	ns := auth.NamespaceOf(c)
	may := visible(ctx, ns, acl.CapListScaling)
	resp := &methods.ScalingListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs)}, func(p *replica.Published) (structs.Index, error) {
		var err error
		resp.Jobs, resp.NextToken, err = list(s, &req.Query, lister[structs.Job]{kind: "job",
			key: jobToken,
			keep: func(j *structs.Job) bool {
				return may(j.Namespace) && slices.ContainsFunc(j.Groups, func(g *structs.Group) bool { return g.Scaling != nil })
			},
		}, p.Snapshot.Jobs(ns, req.Prefix))
		return p.Snapshot.TableIndex(state.Jobs), err
	})
}

// scalingGet finds a scaling policy by its id among the jobs that the caller may see.
func (s *Set) scalingGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.ScalingGetResponse, error) {
	may := visible(ctx, "*", acl.CapReadScaling)
	resp := &methods.ScalingGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs)}, func(p *replica.Published) (structs.Index, error) {
		resp.Job, resp.Group = nil, ""
		for j := range p.Snapshot.Jobs("", "") {
			for _, g := range j.Groups {
				if g.Scaling != nil && may(j.Namespace) && j.ScalingPolicyID(g) == req.Name {
					resp.Job, resp.Group = j, g.Name
					return max(j.ModifyIndex, 1), nil
				}
			}
		}
		return p.Snapshot.TableIndex(state.Jobs), nil
	})
}
