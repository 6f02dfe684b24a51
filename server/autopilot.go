package server

import (
	"context"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// pilot tells autopilot about this cluster.
type pilot struct{ s *Server }

var _ autopilot.ApplicationIntegration = pilot{}

func newAutopilot(s *Server) *autopilot.Autopilot {
	return s.replica.NewAutopilot(pilot{s}, autopilot.WithLogger(s.log), autopilot.WithUpdateInterval(2*time.Second), autopilot.WithReconcileInterval(5*time.Second))
}

// runAutopilot watches the health of servers, promotes stable ones and removes dead ones.
func (s *Server) runAutopilot(ctx context.Context, term uint64) error {
	s.autopilot.Start(ctx)
	<-ctx.Done()
	<-s.autopilot.Stop()
	return nil
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p pilot) AutopilotConfig() *autopilot.Config {
	c := p.s.Published().Snapshot.AutopilotConfig()
	if c == nil {
		c = &structs.AutopilotConfig{CleanupDeadServers: true, LastContactThreshold: int64(200 * time.Millisecond),
			MaxTrailingLogs: 250, ServerStabilizationTime: int64(10 * time.Second)}
	}
	return &autopilot.Config{
		CleanupDeadServers:      c.CleanupDeadServers,
		LastContactThreshold:    time.Duration(c.LastContactThreshold),
		MaxTrailingLogs:         c.MaxTrailingLogs,
		MinQuorum:               uint(c.MinQuorum),
		ServerStabilizationTime: time.Duration(c.ServerStabilizationTime),
	}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p pilot) NotifyState(st *autopilot.State) {
	if was := p.s.metrics.unhealthy.Swap(!st.Healthy); was != !st.Healthy {
		p.s.log.Info("health of the servers changed", "healthy", st.Healthy, "failure_tolerance", st.FailureTolerance)
	}
}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	type answer struct {
		id raft.ServerID
		st *autopilot.ServerStats
	}
	ch := make(chan answer, len(servers))
	for id, srv := range servers {
		go func() {
			if string(id) == p.s.cfg.ID {
				ch <- answer{id, p.s.ownStats()}
				return
			}
			info, err := p.s.serverInfo(ctx, string(srv.Address))
			if err != nil {
				ch <- answer{id, nil}
				return
			}
			ch <- answer{id, &autopilot.ServerStats{LastContact: info.LastContact, LastTerm: info.LastTerm, LastIndex: info.LastIndex}}
		}()
	}
	out := map[raft.ServerID]*autopilot.ServerStats{}
	for range servers {
		select {
		case a := <-ch:
			if a.st != nil {
				out[a.id] = a.st
			}
		case <-ctx.Done():
			return out
		}
	}
	return out
}

func (s *Server) ownStats() *autopilot.ServerStats {
	st := s.RaftStats()
	term, _ := strconv.ParseUint(st["last_log_term"], 10, 64)
	return &autopilot.ServerStats{LastContact: s.lastContact(), LastTerm: term, LastIndex: s.replica.LastIndex()}
}

// KnownServers implements autopilot.ApplicationIntegration: raft's servers, with what gossip believes of them. A server
// that gossip has not seen yet is unknown, not absent, so that a leader elected a moment ago removes nobody.
func (p pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	s := p.s
	_, leader := s.Leader()
	out := map[raft.ServerID]*autopilot.Server{}
	s.gossip.mu.Lock()
	pruned := make(map[string]bool, len(s.gossip.pruned))
	for id := range s.gossip.pruned {
		pruned[id] = true
	}
	s.gossip.mu.Unlock()
	servers, _, _ := s.replica.Configuration()
	for _, x := range servers {
		if pruned[string(x.ID)] {
			continue
		}
		st := autopilot.NodeUnknown
		if string(x.ID) == s.cfg.ID {
			st = autopilot.NodeAlive
		}
		out[x.ID] = &autopilot.Server{ID: x.ID, Name: string(x.Address), Address: x.Address, NodeStatus: st,
			IsLeader: string(x.ID) == leader, RaftVersion: 3, NodeType: autopilot.NodeVoter}
	}
	if s.gossip.g == nil {
		return out
	}
	for _, m := range s.gossip.g.Members() {
		if m.Role != gossip.RoleServer || m.Region != s.cfg.Region || pruned[m.ID] {
			continue
		}
		if old := out[raft.ServerID(m.ID)]; old != nil && m.Status != gossip.Alive && string(old.Address) != m.RaftAddr() {
			continue // an old address of a server that came back elsewhere
		}
		out[raft.ServerID(m.ID)] = autopilotServer(m, m.ID == leader)
	}
	return out
}

func autopilotServer(m gossip.Member, leads bool) *autopilot.Server {
	st := autopilot.NodeAlive
	switch m.Status {
	case gossip.Left:
		st = autopilot.NodeLeft
	case gossip.Failed:
		st = autopilot.NodeUnknown
		if time.Since(m.Since) > deadServerAfter {
			st = autopilot.NodeFailed
		}
	}
	return &autopilot.Server{ID: raft.ServerID(m.ID), Name: m.Name, Address: raft.ServerAddress(m.RaftAddr()), NodeStatus: st,
		Version: m.Version, RaftVersion: 3, IsLeader: leads, NodeType: autopilot.NodeVoter}
}

// RemoveFailedServer implements autopilot.ApplicationIntegration: the server becomes unknown here, whereupon autopilot
// removes it from raft as far as the quorum rules allow.
func (p pilot) RemoveFailedServer(srv *autopilot.Server) {
	p.s.log.Warn("giving up a dead server", "server", srv.Name, "id", srv.ID)
	p.s.gossip.mu.Lock()
	p.s.gossip.pruned[string(srv.ID)] = true
	p.s.gossip.mu.Unlock()
	if p.s.gossip.g != nil {
		p.s.gossip.g.Forget(srv.Name)
	}
}

// health is autopilot's state as the API tells it.
func (s *Server) health() *methods.AutopilotHealthResponse {
	st := s.autopilot.GetState()
	resp := &methods.AutopilotHealthResponse{}
	if st == nil {
		return resp
	}
	resp.Healthy, resp.FailureTolerance, resp.Leader = st.Healthy, st.FailureTolerance, string(st.Leader)
	for _, v := range st.Voters {
		resp.Voters = append(resp.Voters, string(v))
	}
	for _, id := range sortedServerIDs(st.Servers) {
		x := st.Servers[id]
		resp.Servers = append(resp.Servers, methods.AutopilotServer{
			ID: string(id), Name: x.Server.Name, Address: string(x.Server.Address), SerfStatus: string(x.Server.NodeStatus), Version: x.Server.Version,
			Leader: x.State == autopilot.RaftLeader, Healthy: x.Health.Healthy, Voter: x.State == autopilot.RaftVoter || x.State == autopilot.RaftLeader,
			LastContact: x.Stats.LastContact, LastTerm: x.Stats.LastTerm, LastIndex: x.Stats.LastIndex, StableSince: structs.LogTimeOf(x.Health.StableSince),
		})
	}
	return resp
}
