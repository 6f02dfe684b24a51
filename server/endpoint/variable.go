package endpoint

import (
	"context"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/keystore"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerVariables() {
	handle(s, methods.VariableGet, s.variableGet)
	handle(s, methods.VariableList, s.variableList)
	handle(s, methods.VariableSet, s.variableSet)
	handle(s, methods.VariableDelete, s.variableDelete)
	handle(s, methods.ServerSealKey, s.serverSealKey)
	handle(s, methods.SealKeyList, s.sealKeyList)
	handle(s, methods.SealKeyRotate, s.sealKeyRotate)
	handle(s, methods.SealKeyDelete, s.sealKeyDelete)
}

func variableMeta(v *structs.Variable) methods.VariableMeta {
	return methods.VariableMeta{Namespace: v.Namespace, Path: v.Path, CreateTime: v.CreateTime, ModifyTime: v.ModifyTime, CreateIndex: v.CreateIndex, ModifyIndex: v.ModifyIndex}
}

// opened returns a variable with its items.
func (s *Set) opened(ctx context.Context, v *structs.Variable) (*methods.Variable, error) {
	key, _, err := s.env.Keys.Fetch(ctx, v.KeyID)
	if err != nil {
		return nil, err
	}
	items, err := keystore.Unseal(key, v)
	if err != nil {
		return nil, err
	}
	return &methods.Variable{VariableMeta: variableMeta(v), Items: items}, nil
}

func (s *Set) variableGet(ctx context.Context, c *rpc.Call, req *methods.VariableGetRequest) (*methods.VariableGetResponse, error) {
	k := structs.VariableKey{Namespace: auth.NamespaceOf(c), Path: req.Path}
	resp := &methods.VariableGetResponse{}
	var found *structs.Variable
	err := s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnVariable(k)}, func(p *replica.Published) (structs.Index, error) {
		if found = p.Snapshot.Variable(k.Namespace, k.Path); found != nil {
			return found.ModifyIndex, nil
		}
		return max(1, p.Snapshot.TableIndex(state.Variables)), nil
	})
	if err == nil && found != nil {
		resp.Variable, err = s.opened(ctx, found)
	}
	return resp, err
}

// variableList lists the variables that the caller may list, without items. A task sees those that it may read.
func (s *Set) variableList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.VariableListResponse, error) {
	ns, id := auth.NamespaceOf(c), auth.Who(ctx)
	resp := &methods.VariableListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Variables)}, func(p *replica.Published) (structs.Index, error) {
		vs, next, err := list(s, &req.Query, lister[structs.Variable]{kind: "variable",
			key: func(v *structs.Variable) string {
				if ns == "*" {
					return v.Namespace + "!" + v.Path // sorts like the list, because '!' is smaller than any character of a name
				}
				return v.Path
			},
			keep: func(v *structs.Variable) bool {
				if id.Task != nil {
					return v.Namespace == id.Task.Namespace && structs.TaskMayRead(id.Task, id.TaskName, v.Path)
				}
				return id.ACL.AllowVariable(v.Namespace, v.Path, acl.CapVariableList)
			},
		}, p.Snapshot.Variables(ns, req.Prefix))
		resp.Variables, resp.NextToken = nil, next
		for _, v := range vs {
			resp.Variables = append(resp.Variables, variableMeta(v))
		}
		return max(1, p.Snapshot.TableIndex(state.Variables)), err
	})
}

// checkItems returns an error if the items of a variable are invalid.
func checkItems(items map[string]string) error {
	if len(items) == 0 {
		return structs.Errorf(structs.CodeInvalid, "variable missing required Items object")
	}
	size := 0
	for k, v := range items {
		if k == "" || len(k) > structs.VariableKeyMax {
			return structs.Errorf(structs.CodeInvalid, "the keys of a variable have 1 to %d bytes; one has %d", structs.VariableKeyMax, len(k))
		}
		size += len(k) + len(v)
	}
	if size > structs.VariableSizeMax {
		return structs.Errorf(structs.CodeInvalid, "variables are limited to %d KiB in total size; this one has %d bytes", structs.VariableSizeMax>>10, size)
	}
	return nil
}

func (s *Set) variableSet(ctx context.Context, c *rpc.Call, req *methods.VariableSetRequest) (*methods.VariableWriteResponse, error) {
	ns := auth.NamespaceOf(c)
	if err := structs.CheckVariablePath(req.Path); err != nil {
		return nil, err
	}
	if strings.Contains(ns, "*") {
		return nil, structs.Errorf(structs.CodeInvalid, "a variable is written in one namespace, not %q", ns)
	}
	if err := checkItems(req.Items); err != nil {
		return nil, err
	}
	if s.published().Snapshot.Namespace(ns) == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "variable %q is in namespace %q, which does not exist", req.Path, ns)
	}
	var res structs.Result
	for try := 0; ; try++ {
		id, key, err := s.env.Keys.Active(ctx)
		if err != nil {
			return nil, err
		}
		sealed, err := keystore.Seal(key, ns, req.Path, req.Items)
		if err != nil {
			return nil, err
		}
		res, err = s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.VariableSetCommand{
			Variable: &structs.Variable{Namespace: ns, Path: req.Path, KeyID: id, Sealed: sealed}, CAS: req.CAS, CASIndex: req.CASIndex,
		}})
		if err == nil {
			break
		}
		if code := structs.CodeOf(err); try == 2 || code != structs.CodeConflict && code != structs.CodeInvalid || s.published().Snapshot.ActiveSealKey() == id {
			return nil, err
		} // the key was rotated between sealing and the log
	}
	resp := &methods.VariableWriteResponse{Index: res.Index, Updated: res.Swapped}
	if !res.Swapped {
		var err error
		resp.Variable, err = s.conflict(ctx, ns, req.Path, res.Variable)
		return resp, err
	}
	// A later write may already have replaced what this one stored.
	resp.Variable = &methods.Variable{VariableMeta: variableMeta(res.Variable), Items: req.Items}
	return resp, nil
}

// conflict returns what a failed check-and-set found (nil: nothing), as far as the caller may see it. The variable in the
// published state may be a later one, which the check-and-set would not have failed for.
func (s *Set) conflict(ctx context.Context, ns, path string, v *structs.Variable) (*methods.Variable, error) {
	if v == nil {
		return &methods.Variable{VariableMeta: methods.VariableMeta{Namespace: ns, Path: path}}, nil
	}
	if !auth.Who(ctx).ACL.AllowVariable(ns, path, acl.CapVariableRead) {
		return &methods.Variable{VariableMeta: variableMeta(v)}, nil
	}
	return s.opened(ctx, v)
}

func (s *Set) variableDelete(ctx context.Context, c *rpc.Call, req *methods.VariableDeleteRequest) (*methods.VariableWriteResponse, error) {
	ns := auth.NamespaceOf(c)
	if req.Path == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "variable requires a path")
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.VariableDeleteCommand{
		Namespace: ns, Path: req.Path, CAS: req.CAS, CASIndex: req.CASIndex,
	}})
	if err != nil {
		return nil, err
	}
	resp := &methods.VariableWriteResponse{Index: res.Index, Updated: res.Swapped}
	if !res.Swapped {
		resp.Variable, err = s.conflict(ctx, ns, req.Path, res.Variable)
	}
	return resp, err
}
