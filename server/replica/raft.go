package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/server/raftlog"
)

// Raft's own limits.
const (
	raftMaxAppend      = 512              // entries in one append, and in one batch for the state machine
	raftLogCache       = 1024             // newest entries kept decoded in memory, at most
	raftLogCacheBytes  = 16 << 20         // their data, at most
	raftPool           = 3                // idle connections kept to each other server
	raftIOTimeout      = 10 * time.Second // for one raft message; scaled by size for snapshots
	snapshotsRetained  = 2
	peersFile          = "peers.json" // an operator's recovery of a cluster that lost its majority
	snapshotLook       = time.Second
	raftMaxInflightRPC = 128
)

// stores are raft's storage.
type stores struct {
	log     raft.LogStore
	stable  raft.StableStore
	snaps   raft.SnapshotStore
	files   *snapshots // snaps, or nil if it is in memory
	backend string
	close   func() error
}

func (r *Replica) openStores() (*stores, error) {
	c := &r.cfg
	if c.InMemory {
		mem := raft.NewInmemStore()
		return &stores{log: r.watch(mem), stable: mem, backend: "inmem", snaps: raft.NewInmemSnapshotStore(), close: func() error { return nil }}, nil
	}
	dir := r.raftDir()
	if err := fsync.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("raft directory: %w", err)
	}
	if err := r.checkFormat(); err != nil {
		return nil, err
	}
	log, err := raftlog.Open(dir, c.Raft.Log, r.log)
	if err != nil {
		return nil, err
	}
	snaps, err := openSnapshots(dir, r.log.Named("snapshots"), r.cfg.Exit)
	if err == nil {
		err = snaps.check(log)
	}
	if err != nil {
		log.Close()
		return nil, err
	}
	st := &stores{log: r.watch(log), stable: raftlog.Patient(log, &r.disk, c.Raft.StoreTimeout, r.cfg.Exit), snaps: snaps, files: snaps, backend: string(log.Backend()), close: log.Close}
	if !c.Raft.NoLogCache {
		st.log = raftlog.Cache(st.log, raftLogCache, raftLogCacheBytes)
	}
	return st, nil
}

func (r *Replica) watch(store raft.LogStore) raft.LogStore {
	if f := r.cfg.Testing.StoreLogs; f != nil {
		store = testStore{store, f}
	}
	return raftlog.Watch(store, &r.disk, r.cfg.Raft.StoreTimeout, r.cfg.Exit)
}

// testStore asks a test whether a write succeeds.
type testStore struct {
	raft.LogStore
	err func() error
}

func (s testStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s testStore) StoreLogs(ls []*raft.Log) error {
	if err := s.err(); err != nil {
		return err
	}
	return s.LogStore.StoreLogs(ls)
}

// Start opens the stores and starts raft, which replays their contents.
func (r *Replica) Start(conns raft.StreamLayer) error {
	st, err := r.openStores()
	if err != nil {
		return err
	}
	r.stores = st
	rc := r.cfg.Raft
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(r.cfg.ID)
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout, conf.CommitTimeout = rc.Heartbeat, rc.Heartbeat, rc.Heartbeat, rc.Commit
	conf.MaxAppendEntries = raftMaxAppend
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.TrailingLogs = rc.TrailingLogs
	conf.SnapshotInterval, conf.SnapshotThreshold = rc.SnapshotEvery, rc.SnapshotEntries
	conf.Logger = r.log.Named("raft")
	conf.NoLegacyTelemetry = true
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          conns,
		MaxPool:         raftPool,
		MaxRPCsInFlight: raftMaxInflightRPC,
		Timeout:         raftIOTimeout,
		Logger:          r.log.Named("raft-net"),
	})
	r.transport = newTransport(trans, &r.disk)
	if st.files != nil {
		r.transport.receive = r.receive
	}
	r.transport.start()
	if err := r.recoverPeers(conf, st, trans); err != nil {
		return err
	}
	if r.raft, err = raft.NewRaft(conf, r.machine, st.log, st.stable, st.snaps, r.transport); err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	r.verifier = newVerifier(r.raft)
	has, err := raft.HasExistingState(st.log, st.stable, st.snaps)
	if err != nil {
		return fmt.Errorf("read raft state: %w", err)
	}
	r.bootstrapped.Store(has)
	if !has && r.cfg.Bootstrap {
		return r.Bootstrap([]raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}})
	}
	return nil
}

// Bootstrap creates a cluster of the given servers. Servers that bootstrap with the same list form one cluster.
func (r *Replica) Bootstrap(peers []raft.Server) error {
	err := r.raft.BootstrapCluster(raft.Configuration{Servers: peers}).Error()
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap cluster of %d: %w", len(peers), err)
	}
	r.bootstrapped.Store(true)
	r.log.Info("cluster bootstrapped", "servers", len(peers))
	return nil
}

// recoverPeers applies an operator's peers.json, then renames it so that it is applied only once.
func (r *Replica) recoverPeers(conf *raft.Config, st *stores, trans raft.Transport) error {
	if r.cfg.InMemory {
		return nil
	}
	path := filepath.Join(r.raftDir(), peersFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	peers, err := raft.ReadConfigJSON(path)
	if err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	r.log.Warn("recovering the raft configuration", "file", path, "servers", len(peers.Servers))
	if err := raft.RecoverCluster(conf, recoverFSM{newFSM()}, st.log, st.stable, st.snaps, trans, peers); err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	if err := os.Rename(path, path+".applied"); err != nil {
		return fmt.Errorf("recovered, but %s cannot be renamed aside: %w", path, err)
	}
	return nil
}

// runSnapshots requests a snapshot when the log has grown by many bytes; raft itself counts entries.
func (r *Replica) runSnapshots(ctx context.Context) {
	var last time.Time
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if r.machine.logBytes.Load() < r.cfg.Raft.SnapshotBytes || time.Since(last) < r.cfg.Raft.SnapshotEvery {
			continue
		}
		last = time.Now()
		if err := r.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
			r.log.Error("snapshot failed; the log keeps growing", "error", err)
		}
	}
}
