package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// InitCluster gives a new cluster its ID. If it has one, it writes nothing.
func (m *Members) InitCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	snap := m.env.Replica.Published().Snapshot
	if meta := snap.ClusterMeta(); meta == nil || meta.ID.IsZero() {
		var id structs.ClusterID
		rand.Read(id[:])
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
		init := &structs.ClusterInitCommand{ID: id, Format: m.firstFormat(ctx), By: feature.Here().Muster}
		if _, err := m.env.Apply(ctx, replica.LanePriority, structs.Command{Body: init}); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
	}
	return nil
}

// Times between comparisons of this server's wall clock with the other servers'.
const (
	clockEvery = 10 * time.Second
	clockFirst = 250 * time.Millisecond // until most servers have answered for the first time
)

// RunClock makes this server's clock follow the servers' median, if a majority answers (D11). Every server does so,
// because every server judges by that time whether a token has expired, and any of them may lead next.
func (m *Members) RunClock(ctx context.Context) {
	clock := m.env.Replica.Clock()
	for {
		m.compareClocks(ctx)
		wait := clockEvery
		if !clock.Agreed() {
			wait = clockFirst
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-clock.Jumped():
			t.Stop()
			if !clock.Agreed() { // the jump is known, and so is that the others do not answer
				select {
				case <-ctx.Done():
					return
				case <-time.After(clockFirst):
				}
			}
		case <-t.C:
		}
	}
}

// compareClocks asks the other servers for their wall clocks. Without a majority of clocks nothing is changed. A single
// server is its own majority; a server that belongs to no cluster yet is none.
func (m *Members) compareClocks(ctx context.Context) {
	if servers, err := m.RaftServers(); err != nil || len(servers) == 0 {
		return
	}
	clock := m.env.Replica.Clock()
	since, others := clock.Reading(), m.OtherServers()
	found := make(chan time.Duration, len(others))
	var wg sync.WaitGroup
	for _, addr := range others {
		wg.Go(func() {
			asked := m.env.Now()
			info, err := m.serverInfo(ctx, addr)
			if err != nil || info.Now == 0 {
				return
			}
			mid := asked.Add(m.env.Now().Sub(asked) / 2)
			found <- info.Now.Time().Sub(mid)
		})
	}
	wg.Wait()
	close(found)
	offsets := []time.Duration{0} // this server
	for d := range found {
		offsets = append(offsets, d)
	}
	if len(offsets) <= (len(others)+1)/2 {
		return
	}
	slices.Sort(offsets)
	median := offsets[(len(offsets)-1)/2]
	if clock.Consent(median, since) && median != 0 {
		m.env.Log.Warn("the wall clock here is off; log time follows the servers' median", "off_by", -median)
	}
}

func sortedServerIDs(m map[raft.ServerID]*autopilot.ServerState) []raft.ServerID {
	ids := make([]raft.ServerID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b raft.ServerID) int { return cmp.Compare(a, b) })
	return ids
}
