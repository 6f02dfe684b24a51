package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"slices"

	"github.com/hashicorp/raft"
	berrors "go.etcd.io/bbolt/errors"
)

// sumBytes is the length of the checksum after the extensions of each entry. A damaged entry is never applied or sent
// to another server. The libraries do not check enough: raft-wal verifies only the last write when it opens a file,
// bbolt nothing.
const sumBytes = 4

var errEntry = fmt.Errorf("%w: an entry does not match its checksum", ErrDamaged)

// entrySum returns the checksum of an entry.
func entrySum(l *raft.Log, extensions []byte) uint32 {
	var b [20]byte
	binary.LittleEndian.PutUint64(b[:], l.Index)
	binary.LittleEndian.PutUint64(b[8:], l.Term)
	binary.LittleEndian.PutUint32(b[16:], uint32(l.Type))
	sum := crc32.Checksum(b[:], castagnoli)
	return crc32.Update(crc32.Update(sum, castagnoli, l.Data), castagnoli, extensions)
}

// withSums returns copies of entries with checksums. The originals are shared with raft and stay unchanged.
func withSums(ls []*raft.Log) []*raft.Log {
	entries, out := make([]raft.Log, len(ls)), make([]*raft.Log, len(ls))
	for i, l := range ls {
		e := &entries[i]
		*e, out[i] = *l, e
		e.Extensions = binary.LittleEndian.AppendUint32(slices.Clip(l.Extensions), entrySum(l, l.Extensions))
	}
	return out
}

// checkSum verifies an entry that was read, and removes its checksum.
func checkSum(l *raft.Log, index uint64) error {
	n := len(l.Extensions) - sumBytes
	if n < 0 || l.Index != index || entrySum(l, l.Extensions[:n]) != binary.LittleEndian.Uint32(l.Extensions[n:]) {
		return errEntry
	}
	if l.Extensions = l.Extensions[:n]; n == 0 {
		l.Extensions = nil
	}
	return nil
}

// guard is deferred by every call of a backend. It turns a panic about damaged bytes, or a fault while a mapped file is
// read, into ErrDamaged, and maps both backends' errors to ErrClosed and ErrDamaged.
func guard(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			*err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
		if errors.Is(*err, berrors.ErrDatabaseNotOpen) {
			*err = ErrClosed
		}
		*err = asDamage(*err)
	}
}
