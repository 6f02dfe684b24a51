package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/structs"
)

// Raft's own limits.
const (
	raftMaxAppend      = 512              // entries of one append, and of one batch for the state machine
	raftLogCache       = 1024             // newest entries kept decoded in memory
	raftPool           = 3                // connections kept to each other server
	raftIOTimeout      = 10 * time.Second // of one raft message, snapshots scaled by size
	snapshotsRetained  = 2
	peersFile          = "peers.json" // operator's recovery of a cluster that lost its majority
	snapshotLook       = time.Second
	raftMaxInflightRPC = 128
)

// stores are what raft keeps its log in.
type stores struct {
	log     raft.LogStore
	stable  raft.StableStore
	snaps   raft.SnapshotStore
	backend string
	close   func() error
}

func (s *Server) openStores() (*stores, error) {
	c := &s.cfg
	if c.InMemory {
		mem := raft.NewInmemStore()
		return &stores{log: s.watch(mem), stable: mem, backend: "inmem", snaps: raft.NewInmemSnapshotStore(), close: func() error { return nil }}, nil
	}
	dir := filepath.Join(c.DataDir, "raft")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("raft directory: %w", err)
	}
	log, err := raftlog.Open(dir, c.Raft.Log, s.log)
	if err != nil {
		return nil, err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsRetained, s.log.Named("snapshots"))
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	st := &stores{log: s.watch(log), stable: raftlog.Patient(log, c.Raft.StoreTimeout, s.exit), snaps: snaps, backend: string(log.Backend()), close: log.Close}
	if !c.Raft.NoLogCache {
		if st.log, err = raft.NewLogCache(raftLogCache, st.log); err != nil {
			log.Close()
			return nil, err
		}
	}
	return st, nil
}

func (s *Server) watch(store raft.LogStore) raft.LogStore {
	return raftlog.Watch(store, s.cfg.Raft.StoreTimeout, s.exit)
}

// startRaft opens the stores and starts raft, which replays what they hold.
func (s *Server) startRaft() error {
	st, err := s.openStores()
	if err != nil {
		return err
	}
	s.stores = st
	rc := s.cfg.Raft
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(s.cfg.ID)
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout, conf.CommitTimeout = rc.Heartbeat, rc.Election, rc.Lease, rc.Commit
	conf.MaxAppendEntries = raftMaxAppend
	conf.BatchApplyCh = true
	conf.ShutdownOnRemove = false
	conf.TrailingLogs = rc.TrailingLogs
	conf.SnapshotInterval, conf.SnapshotThreshold = rc.SnapshotEvery, rc.SnapshotEntries
	conf.Logger = s.log.Named("raft")
	conf.NoLegacyTelemetry = true
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          s.rpc.RaftConns(),
		MaxPool:         raftPool,
		MaxRPCsInFlight: raftMaxInflightRPC,
		Timeout:         raftIOTimeout,
		Logger:          s.log.Named("raft-net"),
	})
	s.transport = trans
	if err := s.recoverPeers(conf, st, trans); err != nil {
		return err
	}
	if s.raft, err = raft.NewRaft(conf, s.machine, st.log, st.stable, st.snaps, quietTransport{trans}); err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	has, err := raft.HasExistingState(st.log, st.stable, st.snaps)
	if err != nil {
		return fmt.Errorf("read raft state: %w", err)
	}
	s.bootstrapped.Store(has)
	if !has && s.cfg.BootstrapExpect == 1 {
		return s.bootstrap([]raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}})
	}
	return nil
}

// bootstrap founds a cluster of the given servers. Servers that bootstrap with the same list agree.
func (s *Server) bootstrap(peers []raft.Server) error {
	err := s.raft.BootstrapCluster(raft.Configuration{Servers: peers}).Error()
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap cluster of %d: %w", len(peers), err)
	}
	s.bootstrapped.Store(true)
	s.log.Info("cluster founded", "servers", len(peers))
	return nil
}

// recoverPeers applies an operator's peers.json and renames it aside, so that it acts once and nothing is lost.
func (s *Server) recoverPeers(conf *raft.Config, st *stores, trans raft.Transport) error {
	if s.cfg.InMemory {
		return nil
	}
	path := filepath.Join(s.cfg.DataDir, "raft", peersFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	peers, err := raft.ReadConfigJSON(path)
	if err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	s.log.Warn("recovering the raft configuration", "file", path, "servers", len(peers.Servers))
	scratch := &machine{s: nil, fsm: newFSM()}
	if err := raft.RecoverCluster(conf, recoverFSM{scratch}, st.log, st.stable, st.snaps, trans, peers); err != nil {
		return fmt.Errorf("recover from %s: %w", path, err)
	}
	if err := os.Rename(path, path+".applied"); err != nil {
		return fmt.Errorf("recovered, but %s cannot be renamed aside: %w", path, err)
	}
	return nil
}

// exit ends the process because going on would be wrong.
func (s *Server) exit(why string) {
	s.log.Error("ending the process", "why", why)
	if s.cfg.Exit != nil {
		s.cfg.Exit(why)
		return
	}
	os.Exit(1)
}

// runSnapshots asks for a snapshot when the log has grown by many bytes; raft itself counts entries.
func (s *Server) runSnapshots(ctx context.Context) {
	var last time.Time
	for pause(ctx, snapshotLook) {
		if s.machine.logBytes.Load() < s.cfg.Raft.SnapshotBytes || time.Since(last) < s.cfg.Raft.SnapshotEvery {
			continue
		}
		last = time.Now()
		if err := s.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown) {
			s.log.Error("snapshot failed; the log keeps growing", "error", err)
		}
	}
}

// serverID is the id in the data directory, made if there is none.
func serverID(cfg *Config) (string, error) {
	if cfg.ID != "" {
		return cfg.ID, nil
	}
	var seed structs.Seed
	rand.Read(seed[:])
	fresh := structs.DeriveID[structs.NodeID](seed, "server", cfg.Name, 0).String()
	if cfg.InMemory {
		return fresh, nil
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(cfg.DataDir, "server-id")
	b, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if _, err := structs.ParseID[structs.NodeID](id); err != nil || id == "" {
			return "", fmt.Errorf("%s does not hold an id; restore it, or remove the whole data directory to join as a new server", path)
		}
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(fresh+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return fresh, nil
}

// recoverFSM lets raft.RecoverCluster rebuild state without publishing any.
type recoverFSM struct{ m *machine }

func (r recoverFSM) Apply(l *raft.Log) any { return r.m.scratchApply(l) }

func (r recoverFSM) Snapshot() (raft.FSMSnapshot, error) {
	return scratchSnapshot{r.m.fsm.Snapshot()}, nil
}

func (r recoverFSM) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	_, err := r.m.fsm.Restore(rc)
	return err
}
