package server

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

func (s *Server) serverSealKey(_ context.Context, _ *rpc.Call, req *methods.SealKeyRequest) (*methods.SealKeyResponse, error) {
	return s.keys.Answer(req)
}

func (s *Server) sealKeyList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.SealKeyListResponse, error) {
	resp := &methods.SealKeyListResponse{}
	return resp, s.hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.SealKeys), watch.OnTable(state.Variables)}, func(p *replica.Published) (structs.Index, error) {
		resp.Keys = keystore.Infos(p.Snapshot)
		return max(1, p.Snapshot.TableIndex(state.SealKeys), p.Snapshot.TableIndex(state.Variables)), nil
	})
}

func (s *Server) sealKeyRotate(ctx context.Context, _ *rpc.Call, req *methods.SealKeyRotateRequest) (*methods.SealKeyRotateResponse, error) {
	return s.keys.Rotate(ctx, auth.Who(ctx).By, req.Full)
}

func (s *Server) sealKeyDelete(ctx context.Context, _ *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.keys.Remove(ctx, auth.Who(ctx).By, req.Name)
}
