// Package raftlog stores a server's raft log, term and vote on disk.
//
// A backend holds the entries: append-only files (wal) or a B-tree file (boltdb). Both share everything else: a
// checksum for each entry, a check of the whole log at the start, the record of term and vote, the lock and the
// watchdog. Damage always ends in an error that says what to do. A log is never shortened silently, except by a last
// write of the wal backend that a crash may have torn.
//
//	raft/lock             held while a process has the log open
//	raft/wal, boltdb      the log; one of them
//	raft/wal.tmp          incomplete: a log in the making; may be removed at any time
//	raft/wal.new          complete: takes its name as soon as the log that it replaces is out of the way
//	raft/wal.backup       the log that a migration replaced
package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// Backend is the kind of storage that holds the entries.
type Backend string

// The backends; the values are those of server.raft_logstore.backend.
const (
	WAL    Backend = "wal"    // github.com/hashicorp/raft-wal
	BoltDB Backend = "boltdb" // github.com/hashicorp/raft-boltdb
)

// Default is the backend of a new server, the faster one (docs/adr/0016).
const Default = WAL

// SegmentBytes is the default size of a file of the wal backend.
const SegmentBytes = 16 << 20

// Options select and tune a backend.
type Options struct {
	Backend        Backend // "" is Default
	SegmentBytes   int     // wal: size of new files, allocated when they are created; 0 is SegmentBytes
	NoFreelistSync bool    // boltdb: do not write the list of free pages with each commit; rebuild it at the start
}

func (o *Options) setDefaults() error {
	if o.Backend == "" {
		o.Backend = Default
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = SegmentBytes
	}
	if o.Backend != WAL && o.Backend != BoltDB {
		return fmt.Errorf("raft log backend %q: want %s or %s", o.Backend, WAL, BoltDB)
	}
	return nil
}

// ErrDamaged is the error of a log that has lost data; ErrClosed is the error of a closed log.
var (
	ErrDamaged = errors.New("the raft log is damaged")
	ErrClosed  = types.ErrClosed
)

// Log is an open log. It is a raft.LogStore and a raft.StableStore.
type Log struct {
	raft.StableStore               // rec
	rec              *record       // term and vote
	entries          raft.LogStore // the backend's
	backend          Backend
	closeEntries     func() error
	sealed           bool     // wal: readable, but no entry can be added
	lock             *os.File // or nil
}

// Open opens the log in a raft directory, or creates one. It refuses a directory that holds a log of another backend.
func Open(dir string, o Options, log hclog.Logger) (_ *Log, err error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	have, err := settle(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, string(o.Backend))
	switch have {
	case "":
		if err := begin(dir, o, log); err != nil {
			return nil, fmt.Errorf("create a raft log in %s: %w", path, err)
		}
	case o.Backend:
	default:
		return nil, fmt.Errorf("%s holds a raft log of backend %s, but the configuration says %s; convert it with `muster operator raft migrate-backend -to %s %s`, "+
			"or set server.raft_logstore.backend to %q", dir, have, o.Backend, o.Backend, dir, have)
	}
	l, err := openBackend(path, o, log)
	if err == nil && l.sealed {
		log.Info("copying the raft log, because a crash left its newest file full")
		err = replace(l, dir, o, log, nil)
		if err = errors.Join(err, os.RemoveAll(path+".backup")); err == nil {
			l, err = openBackend(path, o, log)
		}
	}
	if err != nil {
		return nil, err
	}
	l.lock = lock
	return l, nil
}

// lockDir locks a raft directory against other processes.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("raft directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: another process holds it; is a server running on this data_dir? (%w)", lock.Name(), err)
	}
	return lock, nil
}

// openBackend opens a log and reads it once, so that damage is reported here and not later by raft.
func openBackend(path string, o Options, log hclog.Logger) (_ *Log, err error) {
	rec := &record{}
	l := &Log{StableStore: rec, rec: rec, backend: o.Backend}
	defer func() {
		if err != nil {
			rec.Close()
			err = fmt.Errorf("open the raft log in %s: %w%s", path, err, advice(err))
		}
	}()
	if _, err := rec.Load(path); err != nil {
		return nil, err
	}
	if o.Backend == BoltDB {
		err = l.openBolt(path, o)
	} else {
		err = l.openWAL(path, o, log)
	}
	if err != nil {
		return nil, err
	}
	if err := l.readAll(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// readAll reads every entry and returns an error if one is damaged.
func (l *Log) readAll() error {
	first, last, err := l.bounds()
	if err != nil {
		return err
	}
	var e raft.Log
	for i := first; i <= last && i > 0; i++ {
		if err := l.GetLog(i, &e); err != nil {
			return fmt.Errorf("%w: entry %d: %w", ErrDamaged, i, err)
		}
	}
	return nil
}

func (l *Log) bounds() (first, last uint64, err error) {
	if first, err = l.FirstIndex(); err == nil {
		last, err = l.LastIndex()
	}
	return first, last, err
}

// Backend returns the backend that holds the entries.
func (l *Log) Backend() Backend { return l.backend }

// IsMonotonic reports that the log has no gaps. Raft then empties it before it continues after a snapshot.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex returns the index of the first entry, or 0.
func (l *Log) FirstIndex() (uint64, error) { return l.entries.FirstIndex() }

// LastIndex returns the index of the last entry, or 0.
func (l *Log) LastIndex() (uint64, error) { return l.entries.LastIndex() }

// DeleteRange removes entries from either end.
func (l *Log) DeleteRange(low, high uint64) (err error) {
	defer guard(&err)()
	return l.entries.DeleteRange(low, high)
}

// StoreLog writes an entry.
func (l *Log) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs writes entries in one commit.
func (l *Log) StoreLogs(es []*raft.Log) (err error) {
	defer guard(&err)()
	return l.entries.StoreLogs(withSums(es))
}

// GetLog reads an entry.
func (l *Log) GetLog(index uint64, e *raft.Log) (err error) {
	defer guard(&err)()
	*e = raft.Log{} // a damaged field name must not leave an older value in place
	if err := l.entries.GetLog(index, e); err != nil {
		return err
	}
	return checkSum(e, index)
}

// Close closes the log and releases it to other processes.
func (l *Log) Close() error {
	err := errors.Join(l.closeEntries(), l.rec.Close())
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}

// advice returns what an operator can do about a damaged log.
func advice(err error) string {
	if !errors.Is(err, ErrDamaged) {
		return ""
	}
	return "; " + Advice
}

// Advice is what an operator can do about a log or snapshots that lack entries. The server must not continue without
// them: its vote counted towards the majority that acknowledged them.
const Advice = "if other servers are well, remove this one from the cluster (muster operator raft remove-peer), remove its data_dir and start it to join as a new one; " +
	"a cluster of one server begins in an empty data_dir with muster operator snapshot restore"
