package member

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// InitCluster gives a new cluster its ID and its signing key. If both exist, it writes nothing.
func (m *Members) InitCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	snap := m.env.Replica.Published().Snapshot
	if meta := snap.ClusterMeta(); meta == nil || meta.ID.IsZero() {
		var id structs.ClusterID
		rand.Read(id[:])
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
		if _, err := m.env.Apply(ctx, replica.LanePriority, structs.Command{Body: &structs.ClusterInitCommand{ID: id}}); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
	}
	if snap.ActiveSigningKey() == nil {
		key, err := newSigningKey()
		if err != nil {
			return err
		}
		if _, err := m.env.Apply(ctx, replica.LanePriority, structs.Command{Body: &structs.SigningKeyCommand{Key: key}}); err != nil {
			return fmt.Errorf("write the signing key: %w", err)
		}
	}
	return nil
}

func newSigningKey() (*structs.SigningKey, error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	p8, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		return nil, err
	}
	pk, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, err
	}
	var seed structs.Seed
	rand.Read(seed[:])
	return &structs.SigningKey{ID: structs.DeriveID[structs.ClusterID](seed, "signing-key", "", 0).String(),
		Algorithm: "EdDSA", Private: p8, Public: pk, Active: true}, nil
}

// clockEvery is the time between comparisons of the leader's wall clock with the other servers'.
const clockEvery = 10 * time.Second

// RunClock sets log time to follow the servers' median clock, if a majority answers (D11).
func (m *Members) RunClock(ctx context.Context, term uint64) error {
	t := time.NewTicker(clockEvery)
	defer t.Stop()
	for {
		others := m.OtherServers()
		offsets := []time.Duration{0} // first: this server
		for _, addr := range others {
			asked := m.env.Now()
			info, err := m.serverInfo(ctx, addr)
			if err != nil || info.Now == 0 {
				continue
			}
			mid := asked.Add(m.env.Now().Sub(asked) / 2)
			offsets = append(offsets, info.Now.Time().Sub(mid))
		}
		// Without a majority of clocks nothing is changed. A single server is its own majority.
		if len(offsets) > (len(others)+1)/2 {
			slices.Sort(offsets)
			median := offsets[(len(offsets)-1)/2]
			if m.env.Replica.Clock().Consent(median) && median != 0 {
				m.env.Log.Warn("the wall clock here is off; log time follows the servers' median", "off_by", -median)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.env.Replica.Clock().Jumped():
		case <-t.C:
		}
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
