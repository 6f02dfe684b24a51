package raftlog

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
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

// record keeps which files the raft log has, the term and the vote: one small record, in a file of two equal copies that
// takes its room from the disk when it is made, so that a full disk does not hinder an election. A write changes one copy,
// syncs, then the other, so that one of them is whole at every instant: a crash leaves the old record or the new one, and
// damage to either copy is outlived.
//
//	copies    n  n      n+1? n     n+1 n     n+1 n+1?    n+1 n+1
//	means     n         n          n+1       n+1         n+1         (? may be torn)
type record struct {
	mu   sync.Mutex
	file recordFile
	rec  contents
	seq  uint64 // of the newest write that was begun
	torn int    // the copy that a failed write left in doubt is written first the next time
}

// recordFile is what record needs of its file.
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

// Load opens the record in a directory, or begins one where no log is.
func (m *record) Load(dir string) (types.PersistentState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		return m.rec.State, nil
	}
	path := filepath.Join(dir, recordName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if found, _ := filepath.Glob(filepath.Join(dir, "*.wal")); len(found) > 0 {
			return types.PersistentState{}, fmt.Errorf("%w: %s is missing beside the files of a log", types.ErrCorrupt, path)
		}
		if err := beginRecord(dir, path); err != nil {
			return types.PersistentState{}, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return types.PersistentState{}, err
	}
	if err := m.read(f); err != nil {
		f.Close()
		return types.PersistentState{}, fmt.Errorf("%s: %w", path, err)
	}
	return m.rec.State, nil
}

// beginRecord makes a record that says nothing. It appears under its name when it is complete.
func beginRecord(dir, path string) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, recordBytes), 0)
	if err == nil {
		err = (&record{file: f}).write(contents{})
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(dir)
}

// read takes the newest whole copy and makes the other one equal to it.
func (m *record) read(f recordFile) error {
	var found [2]contents
	var seqs [2]uint64 // 0: not whole
	for i := range found {
		seqs[i], found[i] = readCopy(f, int64(i)*copyBytes)
	}
	newest := 0
	if seqs[1] > seqs[0] {
		newest = 1
	}
	if seqs[newest] == 0 {
		return fmt.Errorf("%w: neither copy of the record is whole", types.ErrCorrupt)
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

// write stores a record in both copies, the one in doubt first.
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

// copySum is the checksum of a copy: of all but the checksum itself.
func copySum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, b[copyHead:])
}

// readCopy reads a copy; its sequence is 0 if the copy is not whole.
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

// CommitState stores which files the log has.
func (m *record) CommitState(s types.PersistentState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return types.ErrClosed
	}
	return m.write(contents{State: s, Stable: m.rec.Stable})
}

// GetStable is the value of a key, or nil.
func (m *record) GetStable(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return nil, types.ErrClosed
	}
	return append([]byte(nil), m.rec.Stable[string(key)]...), nil
}

// SetStable stores a value; nil removes the key.
func (m *record) SetStable(key, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return types.ErrClosed
	}
	stable := map[string][]byte{string(key): value}
	for k, v := range m.rec.Stable {
		if k != string(key) {
			stable[k] = v
		}
	}
	if value == nil {
		delete(stable, string(key))
	}
	return m.write(contents{State: m.rec.State, Stable: stable})
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
