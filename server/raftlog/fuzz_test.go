package raftlog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// FuzzFrames reads any bytes as a file of the log: what is read lies within the file, and reading what was read gives the
// same commits.
func FuzzFrames(f *testing.F) {
	b := make([]byte, fileHead)
	entry := append([]byte{frameEntry, 0, 0, 0, 8, 0, 0, 0}, "12345678"...)
	b = append(b, entry...)
	f.Add(binary.LittleEndian.AppendUint32(append(bytes.Clone(b), frameCommit, 0, 0, 0), crc32.Checksum(b, castagnoli)))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		commits, end, stop := readFrames(b)
		if end > len(b) || stop < 0 || commits < 0 {
			t.Fatalf("%d commits, end %d, stop %d of %d", commits, end, stop, len(b))
		}
		if again, _, _ := readFrames(b[:end]); again != commits {
			t.Fatalf("%d commits, and %d in the part with them", commits, again)
		}
		wholeWriteBehind(b)
		readCopy(memoryFile{bytes.NewReader(b)}, 0)
	})
}

// memoryFile is the part of a file that readCopy uses.
type memoryFile struct{ *bytes.Reader }

func (memoryFile) WriteAt([]byte, int64) (int, error) { return 0, ErrClosed }
func (memoryFile) Sync() error                        { return nil }
func (memoryFile) Close() error                       { return nil }
