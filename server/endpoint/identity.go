package endpoint

import (
	"context"

	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// nodeIdentity signs an identity of a task on the calling node. What the token says comes from the state alone: a node
// can get tokens of the tasks that servers placed on it, and of no others.
func (s *Set) nodeIdentity(ctx context.Context, _ *rpc.Call, req *methods.NodeIdentityRequest) (*methods.NodeIdentityResponse, error) {
	a := s.published().Snapshot.AllocByID(req.AllocID)
	if a == nil || a.Job == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "allocation %s is not known", req.AllocID.Short())
	}
	if a.NodeID != req.NodeID {
		return nil, structs.Errorf(structs.CodeDenied, "allocation %s is not on node %s", a.ID.Short(), req.NodeID)
	}
	if a.ClientTerminal() {
		return nil, structs.Errorf(structs.CodeInvalid, "allocation %s has ended: its tasks have no identity", a.ID.Short())
	}
	spec, err := identityOf(a, req.Task, req.Identity)
	if err != nil {
		return nil, err
	}
	id, key, err := s.env.Keys.Signing(ctx)
	if err != nil {
		return nil, err
	}
	resp := &methods.NodeIdentityResponse{Issued: s.env.Replica.Now()}
	resp.Token, resp.Expires, err = identity.Sign(id, key, s.env.Issuer, s.env.Region, a, req.Task, spec, resp.Issued)
	return resp, err
}

// identityOf returns an identity that a task of an allocation asks for.
func identityOf(a *structs.Allocation, task, name string) (*identity.Spec, error) {
	if g := a.Job.Group(a.Group); g != nil {
		for _, t := range g.Tasks {
			if t.Name != task {
				continue
			}
			for _, raw := range t.Identities {
				spec, err := identity.Parse(raw)
				if err == nil && spec.Name != name {
					continue
				}
				return spec, err
			}
		}
	}
	return nil, structs.Errorf(structs.CodeInvalid, "task %q of allocation %s has no identity %q", task, a.ID.Short(), name)
}
