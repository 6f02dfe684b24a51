package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// registerNodes registers the methods that agents call.
func (s *Set) registerNodes() {
	handle(s, methods.NodeRegister, s.nodeRegister)
	handle(s, methods.NodeHeartbeat, s.nodeHeartbeat)
	handle(s, methods.NodePoll, s.nodePoll)
	handle(s, methods.NodeObserve, s.nodeObserve)
	handle(s, methods.NodeEvent, s.nodeEvent)
	handle(s, methods.NodeServers, s.nodeServers)
	handle(s, methods.NodeSaveTurn, s.NodeSaveTurn)
	handle(s, methods.NodeIdentity, s.nodeIdentity)
}

func (s *Set) beat(id structs.NodeID) time.Duration {
	return s.env.Nodes.Beats.Beat(id)
}

// nodeRegister writes what a node reports about itself, and makes the node ready.
func (s *Set) nodeRegister(ctx context.Context, c *rpc.Call, req *methods.NodeRegisterRequest) (*methods.NodeRegisterResponse, error) {
	n := req.Node
	if err := s.validateNode(n); err != nil {
		return nil, err
	}
	if err := feature.CheckCalls("node "+n.Name, req.RPC); err != nil {
		return nil, err
	}
	snap := s.published().Snapshot
	old := snap.NodeByID(n.ID)
	if err := s.mayClaim(old, n); err != nil {
		return nil, err
	}
	resp := &methods.NodeRegisterResponse{RPC: feature.RPC, Format: snap.Format()}
	if old == nil || !sameReport(old, n) {
		res, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: registration(old, req)})
		if err != nil {
			return nil, err
		}
		s.levels.note()
		resp.Index = res.Index
		old = s.published().Snapshot.NodeByID(n.ID)
	}
	ttl := s.beat(n.ID)
	if old != nil && old.Status != structs.NodeReady && n.Status == structs.NodeReady && !s.refusedBy(req.Cluster) {
		res, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By,
			Body: &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady, Event: readyEvent(old)}})
		if err != nil {
			return nil, err
		}
		resp.Index = res.Index
	}
	snap = s.published().Snapshot
	if resp.Index == 0 {
		resp.Index = snap.Index()
	}
	if meta := snap.ClusterMeta(); meta != nil {
		resp.Cluster, resp.RestoreEpoch = meta.ID, meta.RestoreEpoch
	}
	resp.Gossip = s.env.Members.Advice(snap.NodeCount())
	resp.HeartbeatTTL, resp.Servers, resp.Now = ttl, s.env.Members.Servers(), s.env.Replica.Now()
	return resp, nil
}

// refusedBy reports whether a node of a cluster will refuse the answers of this one. Its agent says so with the next
// heartbeat.
func (s *Set) refusedBy(cluster structs.ClusterID) bool {
	meta := s.published().Snapshot.ClusterMeta()
	return !cluster.IsZero() && meta != nil && cluster != meta.ID
}

// registration returns the command of a registration. A new node uses its introduction up; for others it is ignored.
func registration(old *structs.Node, req *methods.NodeRegisterRequest) *structs.NodeRegisterCommand {
	cmd := &structs.NodeRegisterCommand{Node: req.Node}
	if old == nil && req.Introduction != "" {
		cmd.Introduction = auth.Hash(req.Introduction)
	}
	return cmd
}

// Limits of introduction tokens.
const (
	introTTL      = 30 * time.Minute // if the request names none
	introTTLMax   = 24 * time.Hour
	introKeyBytes = 32
)

// nodeIntroduce makes a token by which one new node may register.
func (s *Set) nodeIntroduce(ctx context.Context, c *rpc.Call, req *methods.NodeIntroduceRequest) (*methods.NodeIntroduceResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	if req.TTL == 0 {
		req.TTL = introTTL
	}
	if req.TTL < time.Second || req.TTL > introTTLMax {
		return nil, structs.Errorf(structs.CodeInvalid, "an introduction token lives 1s to %s, not %s", introTTLMax, req.TTL)
	}
	if len(req.NodeName) > 128 || len(req.Pool) > 128 {
		return nil, structs.Errorf(structs.CodeInvalid, "names of nodes and node pools have at most 128 characters")
	}
	b := make([]byte, introKeyBytes)
	rand.Read(b) // never fails
	token := base64.RawURLEncoding.EncodeToString(b)
	intro := &structs.Introduction{Hash: auth.Hash(token), NodeName: req.NodeName, Pool: req.Pool, ExpiresAt: s.env.Replica.Now().Add(req.TTL)}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.IntroduceCommand{Introduction: intro}})
	if err != nil {
		return nil, err
	}
	return &methods.NodeIntroduceResponse{Index: res.Index, Token: token, ExpiresAt: intro.ExpiresAt}, nil
}

// mayClaim decides between two agents with the id and secret of one node (ADR 0019). The one that sends heartbeats
// keeps the node: a copied disk must not stop the machine it was copied from. An agent at the same place is a restart,
// because the data directory is locked: the other one has ended.
func (s *Set) mayClaim(old, n *structs.Node) error {
	if old == nil || old.Start.IsZero() || old.Start == n.Start || old.Place != "" && old.Place == n.Place {
		return nil
	}
	if !old.InTouch() {
		return nil
	}
	switch s.env.Nodes.Beats.Claim(n.ID, n.Start) {
	case nodes.ClaimOpen:
		return structs.Errorf(structs.CodeBusy, "the agent at %s speaks for node %s; this one may take the node over when that one has been silent for one heartbeat interval", old.HTTPAddr, n.ID)
	case nodes.ClaimTaken:
		return structs.Errorf(structs.CodeFenced, "the agent at %s (node name %q) speaks for node %s and is alive", old.HTTPAddr, old.Name, n.ID)
	}
	return nil
}

// readyEvent returns the event for a node that becomes ready again; nil for a new node.
func readyEvent(n *structs.Node) *structs.NodeEvent {
	if n.Status == structs.NodeInit {
		return nil
	}
	return &structs.NodeEvent{Subsystem: "Cluster", Message: "Node reregistered by heartbeat"}
}

// refusesMax limits how much of an agent's reason not to obey is kept, in bytes.
const refusesMax = 400

// refusal returns the description of a node whose agent obeys no answer.
func refusal(why string) string {
	return "the agent refuses these servers, so nothing is placed here: " + strings.ToValidUTF8(why[:min(len(why), refusesMax)], "")
}

// nodeHeartbeat records a heartbeat. It writes only if the node's status changes.
func (s *Set) nodeHeartbeat(ctx context.Context, c *rpc.Call, req *methods.NodeHeartbeatRequest) (*methods.NodeHeartbeatResponse, error) {
	p := s.published()
	n := p.Snapshot.NodeByID(req.NodeID)
	resp := &methods.NodeHeartbeatResponse{Index: p.Index, Servers: s.env.Members.Servers(), Now: s.env.Replica.Now(), Gossip: s.env.Members.Advice(p.Snapshot.NodeCount()), Format: p.Snapshot.Format()}
	if n == nil {
		resp.Unknown = true
		return resp, nil
	}
	want := req.Status
	switch want {
	case structs.NodeReady, structs.NodeInit, structs.NodeDown:
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "a node reports itself ready, initializing or down, not %q", want)
	}
	if want == structs.NodeDown {
		s.env.Nodes.Beats.Left(n.ID)
	} else {
		resp.HeartbeatTTL = s.beat(n.ID)
		for _, text := range s.levels.look(s.env.Now(), func() []string { return levelWarnings(p) }) {
			s.env.Log.Warn("the levels of the topology do not fit the nodes", "warning", text)
		}
	}
	desc := ""
	if want == structs.NodeInit && req.Refuses != "" {
		desc = refusal(req.Refuses)
	}
	if n.Status != want && !(want == structs.NodeInit && n.Status == structs.NodeReady) || desc != "" && n.StatusDesc != desc {
		cmd := &structs.NodeStatusCommand{ID: n.ID, Status: want, Desc: desc}
		if desc != "" {
			cmd.Event = &structs.NodeEvent{Subsystem: "Cluster", Message: "Node is not ready: " + desc}
		} else if want == structs.NodeDown {
			cmd.Desc = "the agent left"
			cmd.Event = &structs.NodeEvent{Subsystem: "Cluster", Message: "Node left"}
		} else if want == structs.NodeReady {
			cmd.Event = readyEvent(n)
		}
		res, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: cmd})
		if err != nil {
			return nil, err
		}
		resp.Index = res.Index
	}
	return resp, nil
}

// nodePollMax bounds the allocations that one answer carries in full. The rest follows with the next poll, because the
// answer's index is that of the last one sent.
const nodePollMax = 512

// nodePoll waits until the allocations of a node change. Any server answers, unless its state is older than what the
// agent has seen.
func (s *Set) nodePoll(ctx context.Context, c *rpc.Call, req *methods.NodePollRequest) (*methods.NodePollResponse, error) {
	resp := &methods.NodePollResponse{}
	var stale error
	err := s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnNodePoll(req.NodeID), watch.OnNode(req.NodeID)}, func(p *replica.Published) (structs.Index, error) {
		resp.Refs, resp.Changed, resp.Jobs, resp.Rosters, stale = nil, nil, nil, nil, nil
		snap := p.Snapshot
		if meta := snap.ClusterMeta(); meta != nil {
			resp.Cluster, resp.RestoreEpoch = meta.ID, meta.RestoreEpoch
		}
		if resp.RestoreEpoch < req.RestoreEpoch {
			stale = structs.Errorf(structs.CodeUnavailable, "this server is on an older history (restore epoch %d, seen %d); ask another one", resp.RestoreEpoch, req.RestoreEpoch)
			return 0, stale
		}
		if resp.RestoreEpoch == req.RestoreEpoch && p.Index < req.SeenState {
			stale = structs.Errorf(structs.CodeUnavailable, "this server has applied entries up to %d, and the node has seen %d; ask another one", p.Index, req.SeenState)
			return 0, stale
		}
		resp.StateIndex = p.Index
		min := req.MinIndex
		if resp.RestoreEpoch > req.RestoreEpoch {
			min = 0
		}
		allocs := snap.AllocsOf(req.NodeID)
		var top structs.Index = 1
		old := uint64(0)                // Known over what belonged here at min and still does
		gangs := snap.RosterCount() > 0 // without gangs, the jobs of allocations need not be looked at
		for a := range allocs {
			top = max(top, a.AllocIndex)
			if a.AllocIndex > min {
				resp.Changed = append(resp.Changed, a)
			}
			if a.CreateIndex <= min {
				old += knownAs(a)
			}
			if !gangs {
				continue
			}
			if r := rosterOf(snap, a); r != nil {
				top = max(top, r.ModifyIndex)
				if r.ModifyIndex > min && !slices.Contains(resp.Rosters, r) {
					resp.Rosters = append(resp.Rosters, r)
				}
			}
		}
		resp.Partial = min != 0 && req.Known != 0 && old == req.Known
		if resp.Partial && len(resp.Changed) == 0 && len(resp.Rosters) == 0 {
			resp.Known = old
			return top, nil // nothing to report: keep waiting
		}
		resp.Changed, top = clipChanged(resp.Changed, top)
		resp.Known = 0
		for a := range allocs {
			if a.CreateIndex <= top {
				resp.Known += knownAs(a)
			}
			if !resp.Partial {
				resp.Refs = append(resp.Refs, methods.AllocRef{ID: a.ID, AllocIndex: a.AllocIndex})
			}
		}
		if resp.Partial {
			for _, a := range resp.Changed {
				resp.Refs = append(resp.Refs, methods.AllocRef{ID: a.ID, AllocIndex: a.AllocIndex})
			}
		}
		jobs := map[jobVersionKey]bool{}
		for _, a := range resp.Changed {
			if k := (jobVersionKey{a.JobKey(), a.JobVersion}); a.Job != nil && !jobs[k] {
				jobs[k] = true
				resp.Jobs = append(resp.Jobs, a.Job)
			}
		}
		if resp.RestoreEpoch > req.RestoreEpoch && top <= req.MinIndex {
			return req.MinIndex + 1, nil // answer at once, because the agent is on an older history
		}
		return top, nil
	})
	if err == nil {
		err = stale
	}
	if err != nil {
		return nil, err
	}
	if resp.RestoreEpoch > req.RestoreEpoch {
		resp.Meta.Index = 1
		for _, r := range resp.Refs {
			resp.Meta.Index = max(resp.Meta.Index, r.AllocIndex)
		}
	}
	return resp, nil
}

// rosterOf returns the roster of an allocation that should run, or nil.
func rosterOf(snap *state.Snapshot, a *structs.Allocation) *structs.Roster {
	if a.Job == nil || a.Terminal() {
		return nil
	}
	if g := a.Job.Group(a.Group); g == nil || g.Gang == nil {
		return nil
	}
	r := snap.RosterByKey(structs.RosterKey{Job: a.JobKey(), Group: a.Group})
	if r == nil || r.Rank(a.ID) < 0 {
		return nil
	}
	return r
}

// knownAs returns an allocation's share of NodePollResponse.Known. The creation index distinguishes an allocation that
// was collected and created again under the same ID.
func knownAs(a *structs.Allocation) uint64 {
	return binary.BigEndian.Uint64(a.ID[:8])*0x9e3779b97f4a7c15 ^ binary.BigEndian.Uint64(a.ID[8:]) + uint64(a.CreateIndex)
}

// nodeObserve records what an agent has observed about its allocations.
func (s *Set) nodeObserve(ctx context.Context, c *rpc.Call, req *methods.NodeObserveRequest) (*methods.WriteResponse, error) {
	snap, now := s.published().Snapshot, s.env.Replica.Now()
	for i := range req.Updates {
		u := &req.Updates[i]
		// What starts or ends in the future is an error of the agent's clock: it would be young, and kept from preemption, until then.
		u.StartedAt, u.FinishedAt = min(u.StartedAt, now), min(u.FinishedAt, now)
		a := snap.AllocByID(u.ID)
		if a != nil && a.NodeID != req.NodeID {
			return nil, structs.Errorf(structs.CodeDenied, "allocation %s is not on node %s", u.ID, req.NodeID)
		}
		switch u.Client {
		case structs.ClientPending, structs.ClientRunning, structs.ClientComplete, structs.ClientFailed:
		default:
			return nil, structs.Errorf(structs.CodeInvalid, "allocation %s: %q is not a client status that an agent reports", u.ID, u.Client)
		}
		if err := structs.CheckServices(u.ID, u.Services); err != nil {
			return nil, err
		}
		if u.GangPort < 0 || u.GangPort > 65535 {
			return nil, structs.Errorf(structs.CodeInvalid, "allocation %s: %d is not a port", u.ID, u.GangPort)
		}
	}
	body, err := c.Body()
	if err != nil {
		return nil, err
	}
	idx, err := s.env.Nodes.Reports.Add(ctx, nodes.Report{Node: req.NodeID, Start: req.Start, Number: req.Number, Bytes: len(body), Updates: req.Updates})
	if err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: idx}, nil
}

// nodeEvent appends events to the node's history.
func (s *Set) nodeEvent(ctx context.Context, c *rpc.Call, req *methods.NodeEventRequest) (*methods.WriteResponse, error) {
	if len(req.Events) == 0 {
		return &methods.WriteResponse{}, nil
	}
	if len(req.Events) > structs.NodeEventsKept {
		req.Events = req.Events[len(req.Events)-structs.NodeEventsKept:]
	}
	ids := make([]structs.NodeID, len(req.Events))
	for i := range ids {
		ids[i] = req.NodeID
	}
	res, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: &structs.NodeEventCommand{IDs: ids, Events: req.Events}})
	if err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: res.Index}, nil
}

func (s *Set) nodeServers(ctx context.Context, c *rpc.Call, req *methods.NodeServersRequest) (*methods.NodeServersResponse, error) {
	return &methods.NodeServersResponse{Servers: s.env.Members.Servers()}, nil
}

// clipChanged limits an answer to the oldest changes. It returns them and the index up to which the agent has then seen
// all.
func clipChanged(changed []*structs.Allocation, top structs.Index) ([]*structs.Allocation, structs.Index) {
	if len(changed) <= nodePollMax {
		return changed, top
	}
	sortAllocsByIndex(changed)
	cut := nodePollMax
	// Changes with the same index stay together, or the next poll would miss the rest of them.
	for cut < len(changed) && changed[cut].AllocIndex == changed[cut-1].AllocIndex {
		cut++
	}
	return changed[:cut], changed[cut-1].AllocIndex
}
