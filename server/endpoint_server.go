package server

import (
	"context"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/structs"
)

// registerServers serves what servers ask each other.
func (s *Server) registerServers() {
	handle(s, methods.ServerInfo, s.serverInfoHere)
	handle(s, methods.ServerKeyring, func(_ context.Context, _ *rpc.Call, req *methods.ServerKeyringRequest) (*methods.ServerKeyringResponse, error) {
		return s.members.KeyringHere(req)
	})
	handle(s, methods.ServerHashes, s.serverHashes)
	handle(s, methods.ServerHasNode, func(_ context.Context, _ *rpc.Call, req *methods.ServerHasNodeRequest) (*methods.ServerHasNodeResponse, error) {
		return &methods.ServerHasNodeResponse{Has: s.nodes.Find(req.NodeID) != nil}, nil
	})
	handle(s, methods.ServerAuthenticate, s.serverAuthenticate)
	handle(s, methods.ServerJoin, s.serverJoin)
}

// serverAuthenticate tells another server whether the leader knows a token or a node.
func (s *Server) serverAuthenticate(_ context.Context, _ *rpc.Call, req *methods.ServerAuthenticateRequest) (*methods.ServerAuthenticateResponse, error) {
	if !s.IsLeader() {
		return nil, structs.ErrNoLeader
	}
	var err error
	if req.Node.NodeID.IsZero() {
		_, err = s.auth.Resolve(req.Token)
	} else {
		_, err = s.auth.CheckNode(&req.Node)
	}
	if err != nil {
		return nil, err
	}
	return &methods.ServerAuthenticateResponse{}, nil
}

func (s *Server) serverInfoHere(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.ServerInfoResponse, error) {
	own := s.members.OwnStats()
	resp := &methods.ServerInfoResponse{
		ID: s.cfg.ID, Name: s.cfg.Name, Address: s.cfg.Advertise, Version: s.cfg.Version, Region: s.cfg.Region,
		Bootstrapped: s.replica.Bootstrapped(), LastIndex: own.LastIndex, LastTerm: own.LastTerm,
		LastContact: s.lastContact(), Now: structs.LogTimeOf(s.cfg.Now()),
	}
	if meta := s.Published().Snapshot.ClusterMeta(); meta != nil {
		resp.Cluster = meta.ID
	}
	return resp, nil
}

// serverJoin lets a server without gossip ask the leader to be added.
func (s *Server) serverJoin(ctx context.Context, c *rpc.Call, req *methods.ServerJoinRequest) (*methods.WriteResponse, error) {
	if req.ID == "" || !member.HostPort(req.Address) {
		return nil, structs.Errorf(structs.CodeInvalid, "joining takes an id and an address host:port, got %q and %q", req.ID, req.Address)
	}
	if err := s.members.AddServer(ctx, member.Joining(req, s.cfg.Region)); err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: s.Published().Index}, nil
}
