package member

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
)

// How a cluster is founded. Gossip says which servers wait for it, but every agent that has the gossip key can say that of
// itself or of an address where nothing answers. Naively, the servers would wait for all that gossip names: one false
// member, and they wait for ever. So only servers count that answer here and prove to be servers (serverInfo), and only
// what they say of themselves. Then the servers might count different ones, each those that it reaches, and create two
// clusters. So each also says whom it counts, and a cluster is created only once all that are counted count the same.

// Limits of asking the servers that gossip names.
const (
	foundTimeout = 2 * time.Second // for the answer of one
	foundAsked   = 128             // at once
)

// found creates a cluster when bootstrap_expect servers reach each other and none belongs to one. All of them use the
// same sorted list, so they agree whichever is first.
func (m *Members) found(ctx context.Context) {
	own := m.env.Self
	if own.Expect < 2 || m.env.Replica.Bootstrapped() {
		return
	}
	var named []gossip.Member
	for _, x := range m.g.Servers() {
		if x.Region == own.Region && x.Status == gossip.Alive && x.Expect > 0 && x.ID != own.ID { // without Expect it joins later
			named = append(named, x)
		}
	}
	peers := map[string]*methods.ServerInfoResponse{}
	var absent []string
	for i, info := range m.ask(ctx, named) {
		switch x := named[i]; {
		case info == nil:
			absent = append(absent, fmt.Sprintf("%s at %s", x.Name, x.RaftAddr()))
		case info.Bootstrapped:
			// It created the cluster with us in it, or belongs to an older one whose leader will add us.
			m.env.Log.Info("a cluster exists already; waiting for its leader", "server", info.Name)
			m.env.Replica.SetBootstrapped()
			return
		case info.Expect > 0:
			peers[info.ID] = info
		}
	}
	ids := []string{own.ID}
	for id, info := range peers {
		if info.Expect != own.Expect {
			m.awaiting("servers disagree about bootstrap_expect", "here", own.Expect, "server", info.Name, "there", info.Expect)
			m.founders.Store(nil)
			return
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	m.founders.Store(&ids)
	slices.Sort(absent)
	if len(ids) < own.Expect {
		m.awaiting("too few servers answer and prove to be servers", "have", len(ids), "want", own.Expect, "others", strings.Join(absent, ", "))
		return
	}
	servers := make([]raft.Server, len(ids))
	for i, id := range ids {
		servers[i] = raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(own.RaftAddr())}
		if info := peers[id]; info != nil {
			if !slices.Equal(info.Founders, ids) {
				m.awaiting("the servers do not all reach each other yet", "server", info.Name, "reaches", len(info.Founders), "want", len(ids))
				return
			}
			servers[i].Address = raft.ServerAddress(info.Raft)
		}
	}
	if err := m.env.Replica.Bootstrap(servers); err != nil {
		m.env.Log.Error("bootstrapping the cluster failed", "error", err)
	}
}

// ask asks the servers that gossip names for their identity. The answer is nil of those that do not give one, do not
// prove to be servers, or are not who gossip says.
func (m *Members) ask(ctx context.Context, named []gossip.Member) []*methods.ServerInfoResponse {
	out := make([]*methods.ServerInfoResponse, len(named))
	slots := make(chan struct{}, foundAsked)
	var asked sync.WaitGroup
	for i, x := range named {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, foundTimeout) // for each: members that do not answer must not use up the time of others
			defer cancel()
			if info, err := m.serverInfo(ctx, x.RaftAddr()); err == nil && info.ID == x.ID && info.Raft == x.RaftAddr() && info.Region == x.Region {
				out[i] = info
			}
		})
	}
	asked.Wait()
	return out
}

// awaiting logs why no cluster is founded, once until that changes.
func (m *Members) awaiting(why string, args ...any) {
	if text := fmt.Sprint(append([]any{why}, args...)...); text != m.waits {
		m.waits = text
		m.env.Log.Info("waiting to bootstrap the cluster: "+why, args...)
	}
}

// Founding returns bootstrap_expect of this server, its raft address, and the servers that would found the cluster, as
// seen from here.
func (m *Members) Founding() (expect int, addr string, founders []string) {
	if f := m.founders.Load(); f != nil {
		founders = *f
	}
	return m.env.Self.Expect, m.env.Self.RaftAddr(), founders
}
