// Package raftlog stores the raft log of a server, with its term and its vote, on disk.
package raftlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/migrate"
	"github.com/hashicorp/raft-wal/types"
	bolt "go.etcd.io/bbolt"

	"github.com/muster-sched/muster/internal/boltfile"
)

// The raft log is a write-ahead log in files of fixed size (raft/wal): one append and one sync a batch. A B-tree file
// (raft.db of older versions) writes and syncs twice, pages and then their root, and took five times the processor time
// and several times the wait; all that is written passes here, on every server.

const (
	// walSegmentBytes is the size of a file of the log, taken from the disk when the file is made.
	walSegmentBytes = 16 << 20
	walMoveBytes    = 4 << 20 // of one write while a log is copied
)

// Log is the write-ahead log with the lock that keeps other processes away.
type Log struct {
	*wal.WAL
	meta   *record  // the log does not close it
	sealed bool     // can be read, and takes no more entries
	lock   *os.File // nil: none
}

// StoreLog writes an entry.
func (r *Log) StoreLog(l *raft.Log) error { return r.StoreLogs([]*raft.Log{l}) }

// StoreLogs writes entries with one append and one sync.
func (r *Log) StoreLogs(ls []*raft.Log) error { return r.WAL.StoreLogs(withSums(ls)) }

// GetLog reads an entry.
func (r *Log) GetLog(index uint64, l *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library's codec panics on some numbers
			err = fmt.Errorf("%w: %v", types.ErrCorrupt, p)
		}
	}()
	if err := r.WAL.GetLog(index, l); err != nil {
		return err
	}
	return checkSum(l, index)
}

// Close closes the log and lets other processes have it.
func (r *Log) Close() error {
	r.WAL.DeleteRange(math.MaxUint64, math.MaxUint64) // removes nothing, and waits for a file that is being made
	err := errors.Join(r.WAL.Close(), r.meta.Close())
	if r.lock != nil {
		err = errors.Join(err, r.lock.Close())
	}
	return err
}

// Open opens the log in a raft directory, and takes over what an older version left there.
func Open(dir string, log hclog.Logger) (_ *Log, err error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("raft directory: %w", err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: another process holds it; is a server running on this data_dir? (%w)", lock.Name(), err)
	}
	path := filepath.Join(dir, "wal")
	if err := takeOver(dir, path, log); err != nil {
		return nil, err
	}
	w, err := openWAL(path, walFS{fs.New()}, log)
	if err != nil {
		return nil, err
	}
	if w.sealed {
		if w, err = copySealed(dir, path, w, log); err != nil {
			return nil, err
		}
	}
	w.lock = lock
	return w, nil
}

// openWAL opens a log, and reads it once: what is damaged is told here in one sentence, not by raft in the middle.
func openWAL(path string, vfs types.VFS, log hclog.Logger) (*Log, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("raft log: %w", err)
	}
	r := &Log{meta: &record{}}
	files := newWALFiler(path, vfs)
	w, err := wal.Open(path, wal.WithMetaStore(r.meta), wal.WithSegmentFiler(files),
		wal.WithSegmentSize(walSegmentBytes), wal.WithLogger(log.Named("wal")))
	if err != nil {
		r.meta.Close()
		return nil, fmt.Errorf("open the raft log in %s: %w%s", path, err, whenDamaged(err))
	}
	r.WAL, r.sealed = w, files.sealed
	if err := r.readAll(); err != nil {
		r.Close()
		return nil, fmt.Errorf("open the raft log in %s: %w%s", path, err, whenDamaged(err))
	}
	return r, nil
}

func (r *Log) readAll() error {
	first, err := r.FirstIndex()
	if err != nil {
		return err
	}
	last, err := r.LastIndex()
	if err != nil {
		return err
	}
	var e raft.Log
	for i := first; i <= last && i > 0; i++ {
		if err := r.GetLog(i, &e); err != nil {
			return fmt.Errorf("%w: entry %d: %v", types.ErrCorrupt, i, err)
		}
	}
	return nil
}

// whenDamaged says what an operator can do about a damaged log. Going on without what was lost would break the promise
// that an acknowledged write stays, because this server's vote and its log count towards the majority that holds it.
func whenDamaged(err error) string {
	if !errors.Is(err, types.ErrCorrupt) {
		return ""
	}
	return "; if other servers are well, remove this one from the cluster (muster operator raft remove-peer), remove its data_dir and start it to join as a new one; " +
		"a cluster of one server begins in an empty data_dir with muster operator snapshot restore"
}

// takeOver copies the log of an older version (raft.db) into a write-ahead log. The copy is complete when raft.db has
// been renamed, and in use only after that, so that a crash at any point loses nothing. The same names serve copySealed:
//
//	raft.db                      copy from the start
//	wal.new without raft.db, wal is complete: name it wal
//	wal                          in use; what lies beside it is not
func takeOver(dir, path string, log hclog.Logger) error {
	old, fresh := filepath.Join(dir, "raft.db"), path+".new"
	exists := func(p string) bool { _, err := os.Lstat(p); return err == nil }
	switch {
	case exists(old) && exists(path):
		return fmt.Errorf("both %s and %s are there, so an older version ran after a newer one; move the one that is out of date aside", old, path)
	case exists(old):
		if err := copyBolt(old, fresh, log); err != nil {
			return fmt.Errorf("take over %s: %w", old, err)
		}
		if err := syncDir(dir); err != nil {
			return err
		}
		if err := os.Rename(old, old+".migrated"); err != nil {
			return fmt.Errorf("take over %s: %w", old, err)
		}
		log.Info("the raft log of an older version was taken over; the old file is kept aside", "file", old+".migrated")
	case exists(path):
		return os.RemoveAll(path + ".full")
	case !exists(fresh):
		return nil
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("take over %s: %w", old, err)
	}
	return syncDir(dir)
}

// copySealed copies a log whose newest file takes no more entries, as the library does not go on to the next by itself.
func copySealed(dir, path string, w *Log, log hclog.Logger) (*Log, error) {
	log.Info("the raft log is copied, as its newest file was full when the server ended")
	err := errors.Join(copyLog(w, path+".new", log), w.Close(), syncDir(dir))
	if err == nil {
		err = errors.Join(os.RemoveAll(path+".full"), os.Rename(path, path+".full"), syncDir(dir))
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = errors.Join(syncDir(dir), os.RemoveAll(path+".full"))
	}
	if err != nil {
		return nil, fmt.Errorf("copy the raft log in %s, whose newest file is full: %w", path, err)
	}
	return openWAL(path, walFS{fs.New()}, log)
}

func copyBolt(old, fresh string, log hclog.Logger) (err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt panics on some broken files
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	from, err := raftboltdb.New(raftboltdb.Options{Path: old, MsgpackUseNewTimeFormat: true, BoltOptions: &bolt.Options{OpenFile: boltfile.OpenFile}})
	if err != nil {
		return err
	}
	defer from.Close()
	return copyLog(from, fresh, log)
}

// storedLog is a log with the term and the vote.
type storedLog interface {
	raft.LogStore
	raft.StableStore
}

// copyLog makes a log with the same entries, term and vote in a directory of its own.
func copyLog(from storedLog, fresh string, log hclog.Logger) error {
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	to, err := openWAL(fresh, walFS{fs.New()}, log)
	if err != nil {
		return err
	}
	return errors.Join(copyInto(to, from), to.Close())
}

// copyInto copies term, vote and entries; a server that never voted has no vote.
func copyInto(to, from storedLog) error {
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} { // numbers: stores differ in the order of their bytes
		n, err := from.GetUint64([]byte(key))
		if err == nil {
			err = to.SetUint64([]byte(key), n)
		}
		if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
			return fmt.Errorf("copy %s: %w", key, err)
		}
	}
	who, err := from.Get([]byte("LastVoteCand"))
	if err == nil && who != nil {
		err = to.Set([]byte("LastVoteCand"), who)
	}
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return fmt.Errorf("copy LastVoteCand: %w", err)
	}
	last, err := from.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	return migrate.CopyLogs(context.Background(), to, from, walMoveBytes, nil)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
