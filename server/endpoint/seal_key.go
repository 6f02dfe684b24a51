package endpoint

import (
	"context"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/keystore"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) serverSealKey(_ context.Context, _ *rpc.Call, req *methods.SealKeyRequest) (*methods.SealKeyResponse, error) {
	return s.env.Keys.Answer(req)
}

func (s *Set) sealKeyList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.SealKeyListResponse, error) {
	resp := &methods.SealKeyListResponse{}
	err := s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.SealKeys), watch.OnTable(state.SigningKeys), watch.OnTable(state.Variables)}, func(p *replica.Published) (structs.Index, error) {
		resp.Keys = keystore.Infos(p.Snapshot)
		return max(1, p.Snapshot.TableIndex(state.SealKeys), p.Snapshot.TableIndex(state.SigningKeys), p.Snapshot.TableIndex(state.Variables)), nil
	})
	if err != nil || len(resp.Keys) == 0 {
		return resp, err
	}
	return resp, s.env.Keys.Look(ctx, resp.Keys, s.env.Members.ServerName)
}

func (s *Set) sealKeyRotate(ctx context.Context, _ *rpc.Call, req *methods.SealKeyRotateRequest) (*methods.SealKeyRotateResponse, error) {
	return s.env.Keys.Rotate(ctx, auth.Who(ctx).By, req.Full)
}

func (s *Set) sealKeyDelete(ctx context.Context, _ *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.env.Keys.Remove(ctx, auth.Who(ctx).By, req.Name)
}
