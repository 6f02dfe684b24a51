package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/structs"
)

// snapshots is raft's store of snapshots in files, which only the owner of the data directory may read.
type snapshots struct {
	*raft.FileSnapshotStore
	dir  string
	exit func(why string) // ends the process
}

// openSnapshots opens the snapshots below dir, raft's directory.
func openSnapshots(dir string, log hclog.Logger, exit func(why string)) (*snapshots, error) {
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsRetained, log)
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	if err := fsync.Dir(dir); err != nil {
		return nil, err
	}
	s := &snapshots{store, filepath.Join(dir, "snapshots"), exit}
	return s, s.restrict()
}

// restrict takes the permissions of others from every directory.
func (s *snapshots) restrict() error {
	list, err := os.ReadDir(s.dir)
	for _, e := range list {
		if e.IsDir() {
			err = errors.Join(err, os.Chmod(filepath.Join(s.dir, e.Name()), 0o700))
		}
	}
	return errors.Join(err, os.Chmod(s.dir, 0o700))
}

// Create implements raft.SnapshotStore. The library syncs the files of a snapshot and the directory of all snapshots, but not
// the names of the files, which exist from here on.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.FileSnapshotStore.Create(v, index, term, c, ci, trans)
	if err == nil {
		if err = errors.Join(s.restrict(), fsync.Dir(filepath.Join(s.dir, sink.ID()+".tmp"))); err != nil {
			sink.Cancel()
		}
	}
	return syncedSink{sink, s.exit}, err
}

// syncedSink ends the process when a snapshot cannot be synced. Nothing was lost yet, but the log is on the same disk.
type syncedSink struct {
	raft.SnapshotSink
	exit func(why string)
}

// Close implements raft.SnapshotSink.
func (s syncedSink) Close() error {
	err := s.SnapshotSink.Close()
	if fsync.Failed(err) {
		s.exit(fmt.Sprintf("a snapshot could not be synced to disk: %v", err))
	}
	return err
}

// check returns an error if the readable snapshots and the log do not lead to the newest state: raft would panic at the
// first entry that it does not find.
func (s *snapshots) check(log raft.LogStore) error {
	list, err := s.List() // newest first
	if err != nil {
		return fmt.Errorf("list snapshots in %s: %w", s.dir, err)
	}
	first, err := log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	var damage error
	for _, m := range list {
		_, content, err := s.Open(m.ID) // verifies its checksum
		if err != nil {
			damage = errors.Join(damage, fmt.Errorf("snapshot %s: %w", m.ID, err))
			continue
		}
		content.Close()
		if damage != nil && first > m.Index+1 {
			return fmt.Errorf("a snapshot in %s is damaged (%w), and entries %d to %d are neither in an older one nor in the log; %s",
				s.dir, damage, m.Index+1, first-1, raftlog.Advice)
		}
		return nil
	}
	if damage != nil {
		return fmt.Errorf("no snapshot in %s is readable (%w), and the log begins with entry %d; %s", s.dir, damage, first, raftlog.Advice)
	}
	return nil
}

// TakeSnapshot opens a snapshot of the newest state, and writes it first if there is none.
func (r *Replica) TakeSnapshot() (*raft.SnapshotMeta, io.ReadCloser, error) {
	f := r.raft.Snapshot()
	err := f.Error()
	if err == nil {
		return f.Open()
	}
	if !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil, nil, err
	}
	list, lerr := r.stores.snaps.List()
	if lerr != nil {
		return nil, nil, lerr
	}
	if len(list) == 0 {
		return nil, nil, err
	}
	return r.stores.snaps.Open(list[0].ID)
}

// CheckState returns the format of a state, or an error if this build cannot read it.
func CheckState(r io.ReadCloser) (structs.Format, error) {
	f := newFSM()
	_, err := f.Restore(r)
	return f.Snapshot().Format(), err
}
