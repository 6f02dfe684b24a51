package replica

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/structs"
)

// formatFile, in the directory of the raft log, has the format that was last in force. The log says the same, but raft
// reads its entries only when the server is already running.
const formatFile = "format.json"

// formatNote is the content of formatFile.
type formatNote struct {
	Format structs.Format
	By     string // ClusterMeta.FormatBy
}

// Format returns the newest format that the leader may write: the one in force or, before the cluster has one, the oldest
// that this build speaks.
func (r *Replica) Format() structs.Format {
	if m := r.Published().Snapshot.ClusterMeta(); m != nil {
		return m.Format
	}
	return feature.Oldest
}

// keepFormat notes the format in force when it has changed, and requests a snapshot: releases that no longer read the
// old format need not replay entries of it.
func (m *machine) keepFormat() {
	meta := m.fsm.Snapshot().ClusterMeta()
	if meta == nil {
		return
	}
	now := formatNote{meta.Format, meta.FormatBy}
	if now == m.format {
		return
	}
	raised := m.format.Format != 0
	m.format = now
	m.r.log.Info("the format in force has changed", "format", now.Format, "by", now.By)
	if raised {
		m.logBytes.Store(m.r.cfg.Raft.SnapshotBytes)
	}
	if m.r.cfg.InMemory {
		return
	}
	if err := writeFormat(m.r.raftDir(), now); err != nil {
		m.r.log.Error("the format in force could not be noted; an older release would not refuse to start here", "error", err)
	}
}

func (r *Replica) raftDir() string { return filepath.Join(r.cfg.DataDir, "raft") }

func writeFormat(dir string, note formatNote) error {
	b, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return fsync.WriteFile(filepath.Join(dir, formatFile), b)
}

// checkFormat refuses to start with data that this build cannot read.
func (r *Replica) checkFormat() error {
	path := filepath.Join(r.raftDir(), formatFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var note formatNote
	if err == nil {
		err = json.Unmarshal(b, &note)
	}
	if err != nil {
		r.log.Warn("the note of the format in force cannot be read; going by the log and the snapshots", "file", path, "error", err)
		return nil
	}
	r.machine.format = note
	return feature.Check("the data in "+r.cfg.DataDir, note.Format, note.By)
}
