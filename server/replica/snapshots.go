package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/server/raftlog"
)

// tmpSuffix ends the name of a snapshot's directory until it is complete.
const tmpSuffix = ".tmp"

// snapshots is raft's store of snapshots in files, which only the owner of the data directory may read.
type snapshots struct {
	*raft.FileSnapshotStore
	dir     string
	exit    func(why string)                // ends the process
	decoded atomic.Pointer[decodedSnapshot] // the newest snapshot that was closed with its decoded state, until it is restored
}

// decodedSnapshot names a snapshot and has its state.
type decodedSnapshot struct {
	id    string
	state *State
}

// openSnapshots opens the snapshots below dir, raft's directory, and removes those that a crash left incomplete.
func openSnapshots(dir string, log hclog.Logger, exit func(why string)) (*snapshots, error) {
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsRetained, log)
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	if err := fsync.Dir(dir); err != nil {
		return nil, err
	}
	s := &snapshots{FileSnapshotStore: store, dir: filepath.Join(dir, "snapshots"), exit: exit}
	left, err := filepath.Glob(filepath.Join(s.dir, "*"+tmpSuffix))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return s, errors.Join(err, s.restrict())
}

// restrict takes the permissions of others from every directory.
func (s *snapshots) restrict() error {
	list, err := os.ReadDir(s.dir)
	for _, e := range list {
		if e.IsDir() {
			err = errors.Join(err, ignoreMissing(os.Chmod(filepath.Join(s.dir, e.Name()), 0o700)))
		}
	}
	return errors.Join(err, os.Chmod(s.dir, 0o700))
}

// ignoreMissing returns err unless it says that a file is gone: snapshots are also renamed and removed meanwhile.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Create implements raft.SnapshotStore.
func (s *snapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	return &sink{store: s, create: func() (raft.SnapshotSink, error) { return s.create(v, index, term, c, ci, trans) }}, nil
}

// create makes the directory of a snapshot. The library syncs the files of a snapshot and the directory of all snapshots,
// but not the names of the files, which exist from here on.
func (s *snapshots) create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	file, err := s.FileSnapshotStore.Create(v, index, term, c, ci, trans)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.restrict(), fsync.Dir(filepath.Join(s.dir, file.ID()+tmpSuffix))); err != nil {
		return nil, errors.Join(err, file.Cancel())
	}
	return file, nil
}

// Open implements raft.SnapshotStore. The content of a snapshot that is about to be restored and has been decoded comes
// with its state.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	open := func() (io.ReadCloser, error) {
		_, content, err := s.FileSnapshotStore.Open(id) // verifies its checksum
		return content, err
	}
	if d := s.decoded.Load(); d != nil && d.id == id {
		list, err := s.List()
		if err != nil {
			return nil, nil, err
		}
		if i := slices.IndexFunc(list, func(m *raft.SnapshotMeta) bool { return m.ID == id }); i >= 0 {
			return list[i], &decoded{state: d.state, open: open}, nil
		}
	}
	return s.FileSnapshotStore.Open(id)
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
