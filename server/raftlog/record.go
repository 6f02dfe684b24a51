package raftlog

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/raft-wal/types"
)

const (
	recordName  = "meta"
	copyBytes   = 1 << 20 // one of the two copies
	copyHead    = 24      // magic, sequence, length, checksum
	copyMagic   = "mstrwal1"
	recordBytes = 2 * copyBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record holds the term, the vote and the list of a write-ahead log's files, for both backends. It is a file of two
// equal copies whose blocks are allocated at creation, so that a full disk does not prevent an election. A write
// changes one copy and syncs, then changes the other, so one copy is intact at any time. A crash leaves the old or the
// new record, and damage to one copy does no harm.
//
//	copies    n  n      n+1? n     n+1 n     n+1 n+1?    n+1 n+1
//	means     n         n          n+1       n+1         n+1         (? may be torn)
type record struct {
	mu   sync.Mutex
	file recordFile
	rec  contents
	seq  uint64 // of the newest attempt to write
	torn int    // the copy to write first, because a failed write may have torn it
}

// recordFile is an os.File or a fake.
type recordFile interface {
	ReadAt(b []byte, off int64) (int, error)
	WriteAt(b []byte, off int64) (int, error)
	Sync() error
	Close() error
}

type contents struct {
	State  types.PersistentState
	Stable map[string][]byte
}

// Load opens the record in a directory.
func (m *record) Load(dir string) (types.PersistentState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		return m.rec.State, nil
	}
	path := filepath.Join(dir, recordName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return types.PersistentState{}, fmt.Errorf("%w: %s is missing", ErrDamaged, path)
	}
	if err != nil {
		return types.PersistentState{}, err
	}
	if err := m.read(f); err != nil {
		f.Close()
		return types.PersistentState{}, fmt.Errorf("%s: %w", path, err)
	}
	return m.rec.State, nil
}

// beginRecord writes an empty record into the directory of a new log.
func beginRecord(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, recordName), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(make([]byte, recordBytes), 0); err == nil {
		err = (&record{file: f}).write(contents{})
	}
	return errors.Join(err, f.Close())
}

// read takes the newest intact copy and makes the other one equal to it.
func (m *record) read(f recordFile) error {
	var found [2]contents
	var seqs [2]uint64 // 0: not intact
	for i := range found {
		seqs[i], found[i] = readCopy(f, int64(i)*copyBytes)
	}
	newest := 0
	if seqs[1] > seqs[0] {
		newest = 1
	}
	if seqs[newest] == 0 {
		return fmt.Errorf("%w: neither copy of the record is intact", ErrDamaged)
	}
	m.file, m.rec, m.seq, m.torn = f, found[newest], seqs[newest], 1-newest
	if seqs[0] == seqs[1] {
		return nil
	}
	if err := m.write(m.rec); err != nil {
		m.file = nil
		return err
	}
	return nil
}

// write stores a record in both copies, starting with the one that may be torn.
func (m *record) write(rec contents) error {
	payload, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if len(payload) > copyBytes-copyHead {
		return fmt.Errorf("the raft log has too many files (%d) for its record; snapshots should have removed most", len(rec.State.Segments))
	}
	m.seq++
	b := make([]byte, copyHead, copyHead+len(payload))
	copy(b, copyMagic)
	binary.LittleEndian.PutUint64(b[8:], m.seq)
	binary.LittleEndian.PutUint32(b[16:], uint32(len(payload)))
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[20:], copySum(b))
	first := m.torn
	for _, i := range []int{first, 1 - first} {
		m.torn = i
		if _, err := m.file.WriteAt(b, int64(i)*copyBytes); err != nil {
			return err
		}
		if err := m.file.Sync(); err != nil {
			return err
		}
	}
	m.rec = rec
	return nil
}

// copySum returns the checksum of a copy, excluding the checksum itself.
func copySum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, b[copyHead:])
}

// readCopy reads a copy. Its sequence is 0 if the copy is not intact.
func readCopy(f recordFile, at int64) (uint64, contents) {
	b := make([]byte, copyHead)
	if n, _ := f.ReadAt(b, at); n < len(b) {
		return 0, contents{}
	}
	size := binary.LittleEndian.Uint32(b[16:])
	if string(b[:8]) != copyMagic || size > copyBytes-copyHead {
		return 0, contents{}
	}
	b = append(b, make([]byte, size)...)
	if n, _ := f.ReadAt(b[copyHead:], at+copyHead); n < int(size) {
		return 0, contents{}
	}
	var rec contents
	if copySum(b) != binary.LittleEndian.Uint32(b[20:]) || json.Unmarshal(b[copyHead:], &rec) != nil {
		return 0, contents{}
	}
	return binary.LittleEndian.Uint64(b[8:]), rec
}

// CommitState stores the list of the log's files.
func (m *record) CommitState(s types.PersistentState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return ErrClosed
	}
	return m.write(contents{State: s, Stable: m.rec.Stable})
}

// Get returns the value of a key, or nil.
func (m *record) Get(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return nil, ErrClosed
	}
	return slices.Clone(m.rec.Stable[string(key)]), nil
}

// Set stores a value; nil removes the key.
func (m *record) Set(key, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return ErrClosed
	}
	stable := maps.Clone(m.rec.Stable)
	if stable == nil {
		stable = map[string][]byte{}
	}
	stable[string(key)] = slices.Clone(value)
	if value == nil {
		delete(stable, string(key))
	}
	return m.write(contents{State: m.rec.State, Stable: stable})
}

// GetUint64 returns the number of a key, or 0.
func (m *record) GetUint64(key []byte) (uint64, error) {
	b, err := m.Get(key)
	if err != nil || b == nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("the value of %q is not a number", key)
	}
	return binary.LittleEndian.Uint64(b), nil
}

// SetUint64 stores a number.
func (m *record) SetUint64(key []byte, n uint64) error {
	return m.Set(key, binary.LittleEndian.AppendUint64(nil, n))
}

// GetStable is unused; the write-ahead log's interface for this record requires it.
func (m *record) GetStable(key []byte) ([]byte, error) { return m.Get(key) }

// SetStable is unused, like GetStable.
func (m *record) SetStable(key, value []byte) error { return m.Set(key, value) }

// stable returns all values.
func (m *record) stable() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rec.Stable)
}

// Close closes the file.
func (m *record) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return nil
	}
	f := m.file
	m.file = nil
	return f.Close()
}
