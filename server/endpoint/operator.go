package endpoint

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// raftChangeTimeout bounds a change of raft's servers.
const raftChangeTimeout = 10 * time.Second

func (s *Set) registerOperator() {
	handle(s, methods.RaftConfiguration, s.raftConfiguration)
	handle(s, methods.RaftRemovePeer, s.raftRemovePeer)
	handle(s, methods.RaftTransfer, s.raftTransfer)
	handle(s, methods.SchedulerConfigGet, s.schedulerConfigGet)
	handle(s, methods.SchedulerConfigSet, s.schedulerConfigSet)
	handle(s, methods.AutopilotGet, s.autopilotGet)
	handle(s, methods.AutopilotSet, s.autopilotSet)
	handle(s, methods.AutopilotHealth, func(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.AutopilotHealthResponse, error) {
		return s.env.Members.Health(), nil
	})
	handle(s, methods.UpgradeStatus, s.upgradeStatus)
	handle(s, methods.UpgradeFinish, s.upgradeFinish)
	rpc.HandleStream(s.env.Registry, methods.SnapshotSave, s.snapshotSave)
	rpc.HandleStream(s.env.Registry, methods.SnapshotRestore, s.snapshotRestore)
	handle(s, methods.SystemGC, s.systemGC)
	handle(s, methods.SystemReconcile, func(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.WriteResponse, error) {
		// Summaries are computed when they are read, so there is nothing to repair.
		return &methods.WriteResponse{Index: s.published().Index}, nil
	})
	handle(s, methods.StatusLeader, func(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.StatusLeaderResponse, error) {
		addr, _ := s.env.Replica.Leader()
		return &methods.StatusLeaderResponse{Leader: addr}, nil
	})
	handle(s, methods.StatusPeers, func(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.StatusPeersResponse, error) {
		servers, err := s.env.Members.RaftServers()
		if err != nil {
			return nil, err
		}
		resp := &methods.StatusPeersResponse{}
		for _, x := range servers {
			resp.Peers = append(resp.Peers, string(x.Address))
		}
		slices.Sort(resp.Peers)
		return resp, nil
	})
	handle(s, methods.StatusRegions, func(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.StatusRegionsResponse, error) {
		return &methods.StatusRegionsResponse{Regions: s.env.Members.Regions()}, nil
	})
	handle(s, methods.StatusHash, func(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.StatusHashResponse, error) {
		snap := s.published().Snapshot
		h := snap.Hash()
		return &methods.StatusHashResponse{Server: s.env.Name, Index: snap.Index(), Hash: hex.EncodeToString(h[:]), Format: snap.Format()}, nil
	})
	handle(s, methods.SigningKeys, s.signingKeys)
	handle(s, methods.ACLAuthorize, s.aclAuthorize)
}

func (s *Set) raftConfiguration(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.RaftConfigurationResponse, error) {
	servers, at, err := s.env.Replica.Configuration()
	if err != nil {
		return nil, structs.Errorf(structs.CodeUnavailable, "raft configuration: %v", err)
	}
	names := map[string]string{}
	for _, m := range s.env.Members.All() {
		names[m.ID] = m.Name + "." + m.Region
	}
	names[s.env.ID] = s.env.Name + "." + s.env.Region
	_, leader := s.env.Replica.Leader()
	resp := &methods.RaftConfigurationResponse{Index: at}
	for _, x := range servers {
		name := names[string(x.ID)]
		if name == "" {
			name = "(unknown)"
		}
		resp.Servers = append(resp.Servers, methods.RaftServer{ID: string(x.ID), Name: name, Address: string(x.Address),
			Leader: string(x.ID) == leader, Voter: x.Suffrage == raft.Voter, Protocol: "3"})
	}
	return resp, nil
}

// peer finds a raft server by ID or address.
func (s *Set) peer(req *methods.RaftPeerRequest) (raft.Server, error) {
	servers, err := s.env.Members.RaftServers()
	if err != nil {
		return raft.Server{}, err
	}
	if (req.ID == "") == (req.Address == "") {
		return raft.Server{}, structs.Errorf(structs.CodeInvalid, "name a peer by either id or address")
	}
	for _, x := range servers {
		if req.ID != "" && string(x.ID) == req.ID || req.Address != "" && string(x.Address) == req.Address {
			return x, nil
		}
	}
	if req.ID != "" {
		return raft.Server{}, structs.Errorf(structs.CodeNotFound, "id %q was not found in the Raft configuration", req.ID)
	}
	return raft.Server{}, structs.Errorf(structs.CodeNotFound, "address %q was not found in the Raft configuration", req.Address)
}

func (s *Set) raftRemovePeer(ctx context.Context, c *rpc.Call, req *methods.RaftPeerRequest) (*methods.WriteResponse, error) {
	x, err := s.peer(req)
	if err != nil {
		return nil, err
	}
	if string(x.ID) == s.env.ID {
		// A leader that removes itself leaves the others to find out by a timeout.
		if err := s.env.Replica.TransferLeadership(); err != nil {
			return nil, structs.Errorf(structs.CodeUnprocessable, "raft peer %s leads, and no other server can take over: %v", x.ID, err)
		}
		return nil, structs.ErrNoLeader // nothing was written; the call is repeated at the next leader
	}
	at, err := s.env.Replica.RemoveServer(x.ID, raftChangeTimeout)
	if err != nil {
		return nil, structs.Errorf(structs.CodeUnprocessable, "removing raft peer %s: %v", x.ID, err)
	}
	s.env.Log.Warn("raft peer removed by an operator", "id", x.ID, "address", x.Address)
	return &methods.WriteResponse{Index: at}, nil
}

func (s *Set) raftTransfer(ctx context.Context, c *rpc.Call, req *methods.RaftPeerRequest) (*methods.WriteResponse, error) {
	transfer := s.env.Replica.TransferLeadership
	if req.ID != "" || req.Address != "" {
		x, err := s.peer(req)
		if err != nil {
			return nil, err
		}
		if string(x.ID) == s.env.ID {
			return nil, structs.Errorf(structs.CodeInvalid, "server %s leads already", x.ID)
		}
		transfer = func() error { return s.env.Replica.TransferLeadershipTo(x) }
	}
	if err := transfer(); err != nil {
		return nil, structs.Errorf(structs.CodeUnprocessable, "transferring leadership: %v", err)
	}
	return &methods.WriteResponse{Index: s.published().Index}, nil
}

func (s *Set) schedulerConfigGet(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.SchedulerConfigResponse, error) {
	resp := &methods.SchedulerConfigResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Scheduler)}, func(p *replica.Published) (structs.Index, error) {
		cfg := *p.Snapshot.SchedulerConfig()
		resp.FollowsDefault = cfg.Algorithm == ""
		cfg.Algorithm = cmp.Or(cfg.Algorithm, structs.AlgorithmDefault)
		resp.Config = &cfg
		resp.Levels, resp.Warnings = p.View.LevelKeys(cfg.TopologyLevels), levelWarnings(p)
		resp.Storages = s.saveStorages(p.Snapshot)
		return p.Snapshot.TableIndex(state.Scheduler), nil
	})
}

func (s *Set) schedulerConfigSet(ctx context.Context, c *rpc.Call, req *methods.SchedulerConfigRequest) (*methods.SwapResponse, error) {
	if req.Config == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing scheduler configuration")
	}
	cfg := *req.Config
	if cfg.Algorithm == "default" || req.FollowsDefault && cfg.Algorithm == structs.AlgorithmDefault {
		cfg.Algorithm = "" // what no user has chosen follows the default of later releases
	}
	if err := policy.Check(cfg.Algorithm); err != nil {
		return nil, err
	}
	if err := req.Config.Weights.Check(); err != nil {
		return nil, err
	}
	if err := checkpoint.CheckLimits(req.Config); err != nil {
		return nil, err
	}
	if err := structs.CheckTopologyLevels(req.Config.TopologyLevels); err != nil {
		return nil, err
	}
	if n := cfg.NodeLimit; n != 0 && n != s.published().Snapshot.SchedulerConfig().NodeLimit { // a stored one, of an older release, may be written back
		return nil, structs.Errorf(structs.CodeInvalid, "NodeLimitForFeasibilityChecks is %d: decisions look at every feasible node, so it would do nothing; leave it 0", n)
	}
	if f := req.Config.GPUFit; f != "" && !slices.Contains(structs.GPUFits, f) {
		return nil, structs.Errorf(structs.CodeInvalid, "%q is not a rule for choosing a GPU; want one of %s", f, strings.Join(structs.GPUFits, ", "))
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.SchedulerConfigCommand{Config: &cfg, CAS: req.CAS, CASIndex: req.CASIndex}})
	if err != nil {
		return nil, err
	}
	resp := &methods.SwapResponse{Index: res.Index, Updated: res.Swapped || !req.CAS}
	if resp.Updated {
		resp.Warnings = levelWarnings(s.published())
	}
	return resp, nil
}

func (s *Set) autopilotGet(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.AutopilotConfigResponse, error) {
	resp := &methods.AutopilotConfigResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Scheduler)}, func(p *replica.Published) (structs.Index, error) {
		in := s.env.Members.AutopilotConfig()
		resp.Config = &structs.AutopilotConfig{CleanupDeadServers: in.CleanupDeadServers, LastContactThreshold: int64(in.LastContactThreshold),
			MaxTrailingLogs: in.MaxTrailingLogs, MinQuorum: uint64(in.MinQuorum), ServerStabilizationTime: int64(in.ServerStabilizationTime)}
		if c := p.Snapshot.AutopilotConfig(); c != nil {
			resp.Config.CreateIndex, resp.Config.ModifyIndex = c.CreateIndex, c.ModifyIndex
		}
		return p.Snapshot.TableIndex(state.Autopilot), nil
	})
}

func (s *Set) autopilotSet(ctx context.Context, c *rpc.Call, req *methods.AutopilotConfigRequest) (*methods.SwapResponse, error) {
	x := req.Config
	if x == nil || x.LastContactThreshold < 0 || x.ServerStabilizationTime < 0 || x.MinQuorum > 100 {
		return nil, structs.Errorf(structs.CodeInvalid, "an autopilot configuration has durations of 0 or more and a quorum of at most 100")
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.AutopilotConfigCommand{Config: x, CAS: req.CAS, CASIndex: req.CASIndex}})
	if err != nil {
		return nil, err
	}
	return &methods.SwapResponse{Index: res.Index, Updated: res.Swapped || !req.CAS}, nil
}

func (s *Set) systemGC(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.WriteResponse, error) {
	if err := s.env.Collect(ctx); err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: s.published().Index}, nil
}

func (s *Set) signingKeys(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.SigningKeysResponse, error) {
	resp := &methods.SigningKeysResponse{Issuer: s.env.Issuer}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.SigningKeys)}, func(p *replica.Published) (structs.Index, error) {
		resp.Keys = nil
		for k := range p.Snapshot.SigningKeys() {
			if k.Published(s.env.Replica.Now()) {
				resp.Keys = append(resp.Keys, k)
			}
		}
		return p.Snapshot.TableIndex(state.SigningKeys), nil
	})
}

// aclAuthorize lets an agent check permissions for requests that it answers itself.
func (s *Set) aclAuthorize(ctx context.Context, c *rpc.Call, req *methods.ACLAuthorizeRequest) (*methods.WriteResponse, error) {
	id, err := s.env.Guard.Resolve(c.Token) // the wrapper ignores a bad token, because the method is open to all
	if err != nil {
		return nil, err
	}
	need := methods.Need{}
	switch req.What {
	case "agent":
		need.Agent = req.Level
	case "node":
		need.Node = req.Level
	case "operator":
		need.Operator = req.Level
	case "namespace":
		need.Namespace = req.Level
	}
	if !slices.Contains(methods.Local, need) {
		return nil, structs.Errorf(structs.CodeInvalid, "no agent answers a request that needs %.40q of %.40q", req.Level, req.What)
	}
	if err := auth.Allow(id, need, auth.NamespaceOf(c)); err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: s.published().Index}, nil
}
