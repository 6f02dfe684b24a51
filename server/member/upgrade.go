package member

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Upgrade reports which format is in force, what every server of raft speaks, voter or not, and which format an operator
// could put in force. Only the leader may ask.
func (m *Members) Upgrade(ctx context.Context) (*methods.UpgradeStatusResponse, error) {
	servers, err := m.RaftServers()
	if err != nil {
		return nil, err
	}
	snap := m.env.Replica.Published().Snapshot
	meta := snap.ClusterMeta()
	if meta == nil {
		return nil, structs.Errorf(structs.CodeUnavailable, "the cluster has no identity yet; retry in a second")
	}
	resp := &methods.UpgradeStatusResponse{Format: meta.Format, By: meta.FormatBy, Servers: m.askAll(ctx, servers)}
	resp.Next, resp.Why = nextFormat(meta.Format, feature.Newest, resp.Servers)
	for _, g := range feature.Gates {
		resp.Gates = append(resp.Gates, methods.UpgradeGate{Name: g.Name, Allows: g.Allows, Format: g.Format, Open: snap.Has(g)})
	}
	return resp, nil
}

// FinishUpgrade puts the newest format in force that all servers speak. It waits for servers that are joining, and they
// for it.
func (m *Members) FinishUpgrade(ctx context.Context, by structs.Submitter) (*methods.UpgradeFinishResponse, error) {
	m.joining.Lock()
	defer m.joining.Unlock()
	st, err := m.Upgrade(ctx)
	if err != nil {
		return nil, err
	}
	if st.Why != "" {
		return nil, structs.Errorf(structs.CodeConflict, "the upgrade cannot be finished: %s", st.Why)
	}
	if st.Next == st.Format {
		return &methods.UpgradeFinishResponse{Index: m.env.Replica.Published().Index, Format: st.Format}, nil
	}
	cmd := &structs.UpgradeFinishCommand{Format: st.Next, By: feature.Here().Muster}
	res, err := m.env.Apply(ctx, replica.LanePriority, structs.Command{By: by, Body: cmd})
	if err != nil {
		return nil, err
	}
	m.env.Log.Info("the upgrade is finished; there is no way back to an older release", "format", st.Next, "was", st.Format)
	return &methods.UpgradeFinishResponse{Index: res.Index, Format: st.Next}, nil
}

// nextFormat returns the newest format that all servers speak, up to the newest of this build, or why none newer than now
// can be put in force.
func nextFormat(now, newest structs.Format, servers []methods.UpgradeServer) (next structs.Format, why string) {
	next = newest
	var silent, older []string
	for _, s := range servers {
		switch {
		case s.Error != "":
			silent = append(silent, fmt.Sprintf("server %s does not answer (%s)", s.Name, s.Error))
		case s.Speaks.Newest < newest:
			older = append(older, fmt.Sprintf("server %s runs Muster %s, which speaks %s", s.Name, s.Speaks.Muster, s.Speaks))
			next = min(next, s.Speaks.Newest)
		}
	}
	switch {
	case len(silent) > 0:
		return now, strings.Join(silent, "; ") + "; start it, or remove it with `muster operator raft remove-peer`"
	case next > now:
		return next, ""
	case len(older) > 0 && newest > now:
		return now, strings.Join(older, "; ") + fmt.Sprintf("; start the new release on every server, which speaks format %d", newest)
	}
	return now, ""
}

// askAll asks servers what they speak, all at once.
func (m *Members) askAll(ctx context.Context, servers []raft.Server) []methods.UpgradeServer {
	out := make([]methods.UpgradeServer, len(servers))
	_, leader := m.env.Replica.Leader()
	var wg sync.WaitGroup
	for i, x := range servers {
		out[i] = methods.UpgradeServer{ID: string(x.ID), Name: m.nameOf(x), Address: string(x.Address), Voter: x.Suffrage == raft.Voter, Leader: string(x.ID) == leader}
		if string(x.ID) == m.env.Self.ID {
			out[i].Speaks = feature.Here()
			continue
		}
		wg.Go(func() {
			info, err := m.serverInfo(ctx, string(x.Address))
			if err != nil {
				out[i].Error = err.Error()
				return
			}
			out[i].Speaks = info.Speaks
		})
	}
	wg.Wait()
	return out
}

func (m *Members) nameOf(x raft.Server) string {
	if string(x.ID) == m.env.Self.ID {
		return m.env.Name
	}
	for _, o := range m.All() {
		if o.ID == string(x.ID) {
			return o.Name
		}
	}
	return string(x.Address)
}

// firstFormat returns the format of a new cluster: the newest that all its servers speak. A server that does not answer
// counts by what it reported in gossip, and otherwise as one that speaks only the oldest format.
func (m *Members) firstFormat(ctx context.Context) structs.Format {
	servers, err := m.RaftServers()
	if err != nil {
		return feature.Oldest
	}
	reported := map[string]structs.Format{}
	for _, o := range m.All() {
		if o.Role == gossip.RoleServer {
			reported[o.ID] = o.Newest
		}
	}
	first := feature.Newest
	for _, s := range m.askAll(ctx, servers) {
		newest := s.Speaks.Newest
		if s.Error != "" {
			newest = reported[s.ID]
		}
		first = min(first, newest)
	}
	return max(first, feature.Oldest)
}

// speaksHere returns an error unless a server can follow this cluster.
func (m *Members) speaksHere(s structs.Speaks) error {
	now := m.env.Replica.Format()
	if s.Reads(now) {
		return feature.CheckCalls("it", s.RPC)
	}
	return structs.Errorf(structs.CodeConflict, "the cluster is at format %d, and it runs Muster %s, which speaks %s; start another release there", now, s.Muster, s)
}
