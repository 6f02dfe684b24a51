package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// walFS makes the files of the log. Where a disk has no room for a whole file it makes one without room: then each write
// asks the disk, fails while it is full, and succeeds when it is not, without a start anew.
type walFS struct{ *fs.FS }

// Create makes a file of the given size.
func (w walFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := w.FS.Create(dir, name, size)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return f, err
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if f, err = w.FS.Create(dir, name, 0); err != nil {
		return nil, err
	}
	return f, os.Truncate(filepath.Join(dir, name), int64(size))
}

// walFiler looks at the newest file of the log before it is used.
type walFiler struct {
	*segment.Filer
	dir    string
	sealed bool // the newest file is full, and a crash came before the next one: it can be read, and takes no more entries
}

func newWALFiler(dir string, vfs types.VFS) *walFiler {
	return &walFiler{Filer: segment.NewFiler(dir, vfs), dir: dir}
}

// RecoverTail opens the newest file. The library drops what follows the last readable write, as a crash may have torn it.
func (f *walFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	path := filepath.Join(f.dir, segment.FileName(info))
	if err := checkTail(path, int64(info.SizeLimit)); err != nil {
		return nil, err
	}
	if err := syncDir(f.dir); err != nil { // it may have been made just before a crash
		return nil, err
	}
	w, err := f.Filer.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	f.sealed, _, err = w.Sealed()
	return w, err
}

// The frames of a file: eight bytes of kind and length (or checksum), then so many bytes, filled up to eight. A commit ends
// a write and has the checksum of what lies between it and the commit before. docs/adr/0005 says what was not believed.
const (
	frameHead   = 8
	fileHead    = 32
	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

// checkTail refuses a file that is damaged before its end. A crash tears only the last write, which nobody was told of;
// a whole write behind something unreadable proves that what was told is lost, and a server that forgets it may not vote.
func checkTail(path string, size int64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	commits, _, stop := readFrames(b)
	if int64(len(b)) < size {
		if commits > 1 {
			return fmt.Errorf("%w: %s has %d bytes and was made with %d", ErrDamaged, path, len(b), size)
		}
		return os.Truncate(path, size) // the crash came while it was made
	}
	if wholeWriteBehind(b) {
		return fmt.Errorf("%w: %s cannot be read at byte %d, before its end", ErrDamaged, path, stop)
	}
	return nil
}

// wholeWriteBehind reports whether a whole write lies behind what can be read from the beginning.
func wholeWriteBehind(b []byte) bool {
	_, at, _ := readFrames(b)
	for ; at+frameHead <= len(b); at += frameHead {
		if b[at] == frameEntry && wholeWrite(b, at) {
			return true
		}
	}
	return false
}

// readFrames reads on until something is no frame, or a commit's checksum is wrong: how many commits were right, where the
// last of them ends, where it stopped.
func readFrames(b []byte) (commits, end, stop int) {
	sum, at := 0, min(fileHead, len(b)) // the first checksum is also of the file's head
	for end = at; at+frameHead <= len(b); {
		switch b[at] {
		case frameEntry, frameIndex:
			at += frameSize(b[at:])
		case frameCommit:
			if crc32.Checksum(b[sum:at], castagnoli) != binary.LittleEndian.Uint32(b[at+4:]) {
				return commits, end, at
			}
			at += frameHead
			commits, end, sum = commits+1, at, at
		default:
			return commits, end, at
		}
	}
	return commits, end, at
}

func frameSize(b []byte) int {
	return frameHead + (int(binary.LittleEndian.Uint32(b[4:]))+7)&^7
}

// wholeWrite reports whether entries up to a commit with the right checksum begin here.
func wholeWrite(b []byte, from int) bool {
	at := from
	for at+frameHead <= len(b) {
		switch b[at] {
		case frameEntry, frameIndex:
			at += frameSize(b[at:])
		case frameCommit:
			return at > from && crc32.Checksum(b[from:at], castagnoli) == binary.LittleEndian.Uint32(b[at+4:])
		default:
			return false
		}
	}
	return false
}
