package endpoint

import (
	"context"
	"encoding/hex"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/structs"
)

// registerServers registers the methods that servers call on each other.
func (s *Set) registerServers() {
	handle(s, methods.ServerInfo, s.serverInfoHere)
	handle(s, methods.ServerKeyring, func(_ context.Context, _ *rpc.Call, req *methods.ServerKeyringRequest) (*methods.ServerKeyringResponse, error) {
		return s.env.Members.KeyringHere(req)
	})
	handle(s, methods.ServerHashes, s.serverHashes)
	handle(s, methods.ServerSilence, s.serverSilence)
	handle(s, methods.ServerHasNode, func(_ context.Context, _ *rpc.Call, req *methods.ServerHasNodeRequest) (*methods.ServerHasNodeResponse, error) {
		return &methods.ServerHasNodeResponse{Has: s.env.Nodes.Sessions.Find(req.NodeID) != nil}, nil
	})
	handle(s, methods.ServerNodeSign, func(ctx context.Context, _ *rpc.Call, req *methods.ServerNodeRequest) (*methods.ServerNodeSignResponse, error) {
		return &methods.ServerNodeSignResponse{Sign: string(s.env.Nodes.Probes.Look(ctx, req.NodeID))}, nil
	})
	handle(s, methods.ServerAnswering, func(ctx context.Context, _ *rpc.Call, req *methods.ServerAnsweringRequest) (*methods.ServerAnsweringResponse, error) {
		return &methods.ServerAnsweringResponse{NodeIDs: s.env.Nodes.Probes.Answering(ctx, req.NodeIDs)}, nil
	})
	handle(s, methods.ServerNodeDoubt, func(_ context.Context, _ *rpc.Call, req *methods.ServerNodeRequest) (*methods.EmptyResponse, error) {
		s.env.Nodes.Probes.Doubt(req.NodeID)
		return &methods.EmptyResponse{}, nil
	})
	handle(s, methods.ServerAuthenticate, s.serverAuthenticate)
	handle(s, methods.ServerJoin, s.serverJoin)
}

// serverAuthenticate reports to another server whether the leader knows a token or a node.
func (s *Set) serverAuthenticate(ctx context.Context, _ *rpc.Call, req *methods.ServerAuthenticateRequest) (*methods.ServerAuthenticateResponse, error) {
	if !s.env.IsLeader() {
		return nil, structs.ErrNoLeader
	}
	if req.Rights {
		now := auth.RightsIn(s.published().Snapshot)
		if s.env.Replica.VerifyRead(ctx) != nil {
			return nil, structs.ErrNoLeader // it may have been deposed before it looked
		}
		return &methods.ServerAuthenticateResponse{Epoch: now.Epoch, Index: now.Index}, nil
	}
	var err error
	switch {
	case req.Node.NodeID.IsZero():
		_, err = s.env.Guard.Resolve(req.Token)
	case req.Register:
		err = s.env.Guard.CheckRegistration(&req.Node, req.Introduction, false)
	default:
		_, err = s.env.Guard.CheckNode(&req.Node)
	}
	if err != nil {
		return nil, err
	}
	return &methods.ServerAuthenticateResponse{}, nil
}

func (s *Set) serverInfoHere(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.ServerInfoResponse, error) {
	own := s.env.Members.OwnStats()
	resp := &methods.ServerInfoResponse{
		ID: s.env.ID, Name: s.env.Name, Address: s.env.Advertise, Version: s.env.Version, Region: s.env.Region,
		Bootstrapped: s.env.Replica.Bootstrapped(), LastIndex: own.LastIndex, LastTerm: own.LastTerm,
		LastContact: s.env.LastContact(), Leaving: s.env.Members.Leaving(), Now: structs.LogTimeOf(s.env.Now()), Speaks: feature.Here(),
		Problem: s.env.Replica.Problem(0),
	}
	resp.Expect, resp.Raft, resp.Founders = s.env.Members.Founding()
	if meta := s.published().Snapshot.ClusterMeta(); meta != nil {
		resp.Cluster = meta.ID
	}
	return resp, nil
}

// serverJoin adds a server without gossip to raft.
func (s *Set) serverJoin(ctx context.Context, c *rpc.Call, req *methods.ServerJoinRequest) (*methods.WriteResponse, error) {
	if req.ID == "" || !member.HostPort(req.Address) {
		return nil, structs.Errorf(structs.CodeInvalid, "joining needs an ID and an address host:port, got %q and %q", req.ID, req.Address)
	}
	if err := s.env.Members.AddServer(ctx, member.Joining(req, s.env.Region)); err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: s.published().Index}, nil
}

// serverSilence answers another server that asks whether this one hears the leader of a term.
func (s *Set) serverSilence(_ context.Context, _ *rpc.Call, req *methods.ServerSilenceRequest) (*methods.ServerSilenceResponse, error) {
	resp := methods.ServerSilenceResponse(s.env.Replica.Silence(req.Term))
	return &resp, nil
}

// serverHashes returns the hashes of this server's state.
func (s *Set) serverHashes(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.ServerHashesResponse, error) {
	mine := s.env.Replica.Hashes()
	resp := &methods.ServerHashesResponse{Server: s.env.ID}
	for _, m := range mine.Marks {
		resp.Marks = append(resp.Marks, methods.StateMark{Index: m.Index, Format: m.Format, Hash: hex.EncodeToString(m.Hash[:])})
	}
	return resp, nil
}
