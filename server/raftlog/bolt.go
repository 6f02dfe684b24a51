package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/muster-sched/muster/internal/boltfile"
	"github.com/muster-sched/muster/internal/fsync"
)

// The boltdb backend keeps the entries in a B-tree file. A commit writes the changed pages and syncs, then writes the
// root and syncs again. The library trusts its file; checkBolt does not.

const boltName = "raft.db"

// beginBolt creates a file without entries.
func beginBolt(path string, o Options) error {
	db, err := newBolt(filepath.Join(path, boltName), o)
	if err != nil {
		return err
	}
	return db.Close()
}

// openBolt opens the file in a directory.
func (l *Log) openBolt(path string, o Options) (err error) {
	defer guard(&err)()
	file := filepath.Join(path, boltName)
	if st, err := os.Stat(file); errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
		return fmt.Errorf("%w: %s is missing or empty", ErrDamaged, file)
	}
	if err := checkBolt(file); err != nil {
		return err
	}
	db, err := newBolt(file, o)
	if err != nil {
		return err
	}
	end, err := openEnd(path, db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	l.entries = boltEntries{db, file, end}
	l.closeEntries = func() error { return errors.Join(db.Close(), end.Close()) }
	return nil
}

// endName is the file that holds the index of the last acknowledged entry, with a checksum. A flipped bit can turn a page
// number in the tree into that of an older copy of the page. That is a sound tree without the newest entries.
//
// The file is written after a commit without a sync, and with a sync before entries are removed from the newer end. So it
// never names an entry that a power cut may take. A missing or torn one, as an earlier build or a crash leaves it, names none.
const endName = "end"

// openEnd opens the file and refuses a log that ends before it.
func openEnd(path string, log *raftboltdb.BoltStore) (_ *os.File, err error) {
	f, err := os.OpenFile(filepath.Join(path, endName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	last, err := log.LastIndex()
	if err != nil {
		return nil, err
	}
	if acknowledged := readEnd(f); last < acknowledged {
		return nil, fmt.Errorf("%w: %s ends with entry %d, but entry %d was acknowledged", ErrDamaged, filepath.Join(path, boltName), last, acknowledged)
	}
	return f, writeEnd(f, last)
}

// readEnd returns an index that the log must reach, or 0.
func readEnd(f *os.File) uint64 {
	var b [12]byte
	if _, err := f.ReadAt(b[:], 0); err != nil || crc32.Checksum(b[:8], castagnoli) != binary.LittleEndian.Uint32(b[8:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func writeEnd(f *os.File, index uint64) error {
	b := binary.LittleEndian.AppendUint64(nil, index)
	_, err := f.WriteAt(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), 0)
	return err
}

func newBolt(file string, o Options) (*raftboltdb.BoltStore, error) {
	var opened *os.File
	defer func() {
		if p := recover(); p != nil { // bbolt leaves the file open and mapped, and the mapping would keep the lock
			syscall.Flock(int(opened.Fd()), syscall.LOCK_UN)
			opened.Close()
			panic(p)
		}
	}()
	return raftboltdb.New(raftboltdb.Options{Path: file, MsgpackUseNewTimeFormat: true, BoltOptions: &bolt.Options{
		Timeout: time.Second, NoFreelistSync: o.NoFreelistSync, FreelistType: bolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			opened, err = os.OpenFile(name, flag, mode)
			return opened, err
		},
	}})
}

// checkBolt verifies a file before the library opens it. It refuses damaged pages, which the library would follow
// anywhere; missing buckets, which the library would replace with empty ones; and gaps between entries.
func checkBolt(file string) error {
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second, OpenFile: boltfile.OpenFile})
	var errno syscall.Errno
	switch {
	case errors.Is(err, berrors.ErrTimeout), errors.As(err, &errno): // the error says nothing about the contents
		return err
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrDamaged, file, err)
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		logs := tx.Bucket([]byte("logs"))
		if logs == nil || tx.Bucket([]byte("conf")) == nil {
			return fmt.Errorf("%w: %s lacks a bucket", ErrDamaged, file)
		}
		last := uint64(0)
		return logs.ForEach(func(k, _ []byte) error {
			if len(k) != 8 || binary.BigEndian.Uint64(k) == 0 || last > 0 && binary.BigEndian.Uint64(k) != last+1 {
				return fmt.Errorf("%w: %s has key %x after entry %d", ErrDamaged, file, k, last)
			}
			last = binary.BigEndian.Uint64(k)
			return nil
		})
	})
}

// boltEntries refuses gaps, as the wal backend does, so that a missing entry always means damage.
type boltEntries struct {
	*raftboltdb.BoltStore
	file string
	end  *os.File
}

// DeleteRange removes entries in one commit.
func (b boltEntries) DeleteRange(first, last uint64) error {
	oldest, errFirst := b.FirstIndex()
	newest, err := b.LastIndex()
	if err = errors.Join(err, errFirst); err != nil {
		return err
	}
	if last >= newest {
		left := uint64(0)
		if first > oldest {
			left = min(first-1, newest)
		}
		if err := errors.Join(writeEnd(b.end, left), b.end.Sync()); err != nil {
			return err
		}
	}
	return fsync.Commit(b.file, b.BoltStore.DeleteRange(first, last))
}

// StoreLogs writes entries in one commit.
func (b boltEntries) StoreLogs(es []*raft.Log) error {
	last, err := b.LastIndex()
	if err != nil {
		return err
	}
	for _, e := range es {
		if last > 0 && e.Index != last+1 {
			return fmt.Errorf("entry %d does not follow entry %d", e.Index, last)
		}
		last = e.Index
	}
	if err := fsync.Commit(b.file, b.BoltStore.StoreLogs(es)); err != nil {
		return err
	}
	_ = writeEnd(b.end, last) // the entries are stored; without it, damage that shortens the log may go unnoticed
	return nil
}
