package member

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// pilot gives autopilot access to this cluster.
type pilot struct{ m *Members }

var _ autopilot.ApplicationIntegration = pilot{}

func newAutopilot(m *Members) *autopilot.Autopilot {
	return m.env.Replica.NewAutopilot(pilot{m}, autopilot.WithLogger(m.env.Log), autopilot.WithPromoter(patientPromoter{autopilot.DefaultPromoter()}), autopilot.WithUpdateInterval(2*time.Second), autopilot.WithReconcileInterval(5*time.Second))
}

// patientPromoter gives up a server only after deadServerAfter. Autopilot itself gives up a server that is not alive
// at its next look, so a server that restarts or is paused for some seconds would be given up, too.
type patientPromoter struct{ autopilot.Promoter }

// FilterFailedServerRemovals implements autopilot.Promoter. It keeps servers that left, and servers that have been
// unhealthy for deadServerAfter in this leader's view while a majority of the voters was healthy.
func (patientPromoter) FilterFailedServerRemovals(_ *autopilot.Config, st *autopilot.State, failed *autopilot.FailedServers) *autopilot.FailedServers {
	dead := func(x *autopilot.Server) bool {
		if x.NodeStatus == autopilot.NodeLeft {
			return true
		}
		seen := st.Servers[x.ID]
		return seen != nil && !seen.Health.Healthy && time.Since(seen.Health.StableSince) >= deadServerAfter
	}
	if st == nil || !majorityHealthy(st) {
		dead = func(x *autopilot.Server) bool { return x.NodeStatus == autopilot.NodeLeft }
	}
	alive := func(x *autopilot.Server) bool { return !dead(x) }
	failed.FailedVoters = slices.DeleteFunc(failed.FailedVoters, alive)
	failed.FailedNonVoters = slices.DeleteFunc(failed.FailedNonVoters, alive)
	return failed
}

func majorityHealthy(st *autopilot.State) bool {
	healthy := 0
	for _, id := range st.Voters {
		if x := st.Servers[id]; x != nil && x.Health.Healthy {
			healthy++
		}
	}
	return healthy > len(st.Voters)/2
}

// RunAutopilot monitors the health of servers, promotes stable ones and removes dead ones.
func (m *Members) RunAutopilot(ctx context.Context, term uint64) error {
	m.health = nil
	m.Autopilot.Start(ctx)
	<-ctx.Done()
	<-m.Autopilot.Stop()
	return nil
}

// AutopilotConfig returns autopilot's configuration: the stored one, or the default.
func (m *Members) AutopilotConfig() *autopilot.Config {
	c := m.env.Replica.Published().Snapshot.AutopilotConfig()
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

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p pilot) AutopilotConfig() *autopilot.Config { return p.m.AutopilotConfig() }

// NotifyState implements autopilot.ApplicationIntegration. It also corrects since when each server has been healthy or
// not, because autopilot v0.3.0 never changes that time: it compares the new health with itself.
func (p pilot) NotifyState(st *autopilot.State) {
	was := p.m.health
	p.m.health = make(map[raft.ServerID]autopilot.ServerHealth, len(st.Servers))
	for id, x := range st.Servers {
		if old, known := was[id]; known && old.Healthy == x.Health.Healthy {
			x.Health.StableSince = old.StableSince
		} else {
			x.Health.StableSince = time.Now()
		}
		p.m.health[id] = x.Health
	}
	if was := p.m.Unhealthy.Swap(!st.Healthy); was != !st.Healthy {
		p.m.env.Log.Info("health of the servers changed", "healthy", st.Healthy, "failure_tolerance", st.FailureTolerance)
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
			if string(id) == p.m.env.Self.ID {
				ch <- answer{id, p.m.ailed(id, p.m.env.Replica.Problem(0), p.m.OwnStats())}
				return
			}
			info, err := p.m.serverInfo(ctx, string(srv.Address))
			if err != nil {
				ch <- answer{id, nil}
				return
			}
			ch <- answer{id, p.m.ailed(id, info.Problem, &autopilot.ServerStats{LastContact: info.LastContact, LastTerm: info.LastTerm, LastIndex: info.LastIndex})}
			if srv.NodeStatus == autopilot.NodeFailed {
				p.m.reunite(string(id))
			}
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

// ail is what a server says of itself when it does not do its part, with its true time of contact.
type ail struct {
	why     string
	contact time.Duration
}

// ailed notes what a server says of itself. Autopilot has no word for a full disk: a server without contact is not
// healthy for it, and one that cannot store entries is no better.
func (m *Members) ailed(id raft.ServerID, why string, st *autopilot.ServerStats) *autopilot.ServerStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why == "" {
		delete(m.ailing, string(id))
		return st
	}
	if m.ailing == nil {
		m.ailing = map[string]ail{}
	}
	m.ailing[string(id)] = ail{why, st.LastContact}
	st.LastContact = -1
	return st
}

// Problem returns why this server does not do its part, or "". It asks the leader how far its log is.
func (m *Members) Problem(ctx context.Context) string {
	last := uint64(0)
	if addr, id := m.env.Replica.Leader(); id != m.env.Self.ID && addr != "" {
		if info, err := m.serverInfo(ctx, addr); err == nil {
			last = info.LastIndex
		}
	}
	return m.env.Replica.Problem(last)
}

// reunite exchanges gossip with a server that answers calls but is dead for gossip. Otherwise two servers that take each
// other for dead wait for a third to bring them together, about 20 s.
func (m *Members) reunite(id string) {
	if m.g == nil {
		return
	}
	for _, x := range m.g.Servers() {
		if x.ID == id && x.Status == gossip.Failed {
			if _, err := m.g.Join([]string{x.Addr}); err != nil {
				m.env.Log.Warn("a server answers calls, but not gossip", "server", x.Name, "addr", x.Addr, "error", err)
			}
		}
	}
}

// OwnStats returns the position of this server in raft's log.
func (m *Members) OwnStats() *autopilot.ServerStats {
	st := m.env.Replica.RaftStats()
	term, _ := strconv.ParseUint(st["last_log_term"], 10, 64)
	return &autopilot.ServerStats{LastContact: m.env.LastContact(), LastTerm: term, LastIndex: m.env.Replica.LastIndex()}
}

// KnownServers implements autopilot.ApplicationIntegration. It returns raft's servers with their status in gossip. A
// server that gossip has not seen yet is unknown, not absent, because autopilot removes absent servers at once.
func (p pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	m := p.m
	_, leader := m.env.Replica.Leader()
	out := map[raft.ServerID]*autopilot.Server{}
	pruned := m.givenUp()
	servers, _, _ := m.env.Replica.Configuration()
	for _, x := range servers {
		if pruned[string(x.ID)] {
			continue
		}
		st := autopilot.NodeUnknown
		if string(x.ID) == m.env.Self.ID {
			st = autopilot.NodeAlive
		}
		out[x.ID] = &autopilot.Server{ID: x.ID, Name: string(x.Address), Address: x.Address, NodeStatus: st,
			IsLeader: string(x.ID) == leader, RaftVersion: 3, NodeType: autopilot.NodeVoter}
	}
	if m.g == nil {
		return out
	}
	for _, x := range m.g.Servers() {
		if x.Region != m.env.Self.Region || pruned[x.ID] {
			continue
		}
		if old := out[raft.ServerID(x.ID)]; old != nil && x.Status != gossip.Alive && string(old.Address) != x.RaftAddr() {
			continue // the old address of a server that came back with another one
		}
		out[raft.ServerID(x.ID)] = autopilotServer(x, x.ID == leader)
	}
	return out
}

// givenUp returns the servers that autopilot has given up, except those that gossip sees alive again: they are forgiven.
func (m *Members) givenUp() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.g != nil && len(m.pruned) > 0 {
		for _, x := range m.g.Servers() {
			if x.Status == gossip.Alive && m.pruned[x.ID] {
				m.env.Log.Info("a server that was given up is back", "server", x.Name, "id", x.ID)
				delete(m.pruned, x.ID)
			}
		}
	}
	return maps.Clone(m.pruned)
}

func autopilotServer(m gossip.Member, leads bool) *autopilot.Server {
	st := autopilot.NodeAlive
	switch m.Status {
	case gossip.Left:
		st = autopilot.NodeLeft
	case gossip.Failed:
		st = autopilot.NodeFailed
	}
	return &autopilot.Server{ID: raft.ServerID(m.ID), Name: m.Name, Address: raft.ServerAddress(m.RaftAddr()), NodeStatus: st,
		Version: m.Version, RaftVersion: 3, IsLeader: leads, NodeType: autopilot.NodeVoter}
}

// RemoveFailedServer implements autopilot.ApplicationIntegration. The server is left out of KnownServers, so that
// autopilot removes it from raft as far as the quorum rules allow.
func (p pilot) RemoveFailedServer(srv *autopilot.Server) {
	p.m.env.Log.Warn("giving up a dead server", "server", srv.Name, "id", srv.ID)
	p.m.mu.Lock()
	p.m.pruned[string(srv.ID)] = true
	p.m.mu.Unlock()
	if p.m.g != nil {
		p.m.g.Forget(srv.Name)
	}
}

// Health returns autopilot's state for the API.
func (m *Members) Health() *methods.AutopilotHealthResponse {
	st := m.Autopilot.GetState()
	resp := &methods.AutopilotHealthResponse{}
	if st == nil {
		return resp
	}
	speaks := map[string]string{m.env.Self.ID: feature.Here().Formats()}
	for _, x := range m.All() {
		speaks[x.ID] = x.Speaks().Formats()
	}
	resp.Healthy, resp.FailureTolerance, resp.Leader = st.Healthy, st.FailureTolerance, string(st.Leader)
	for _, v := range st.Voters {
		resp.Voters = append(resp.Voters, string(v))
	}
	for _, id := range sortedServerIDs(st.Servers) {
		x := st.Servers[id]
		m.mu.Lock()
		ails, ill := m.ailing[string(id)]
		m.mu.Unlock()
		contact := x.Stats.LastContact
		if ill && contact < 0 {
			contact = ails.contact
		}
		resp.Servers = append(resp.Servers, methods.AutopilotServer{
			ID: string(id), Name: x.Server.Name, Address: string(x.Server.Address), SerfStatus: string(x.Server.NodeStatus), Version: x.Server.Version, Formats: speaks[string(id)],
			Leader: x.State == autopilot.RaftLeader, Healthy: x.Health.Healthy, Voter: x.State == autopilot.RaftVoter || x.State == autopilot.RaftLeader,
			LastContact: contact, LastTerm: x.Stats.LastTerm, LastIndex: x.Stats.LastIndex, StableSince: structs.LogTimeOf(x.Health.StableSince), Problem: ails.why,
		})
	}
	return resp
}
