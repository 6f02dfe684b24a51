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

// walFS creates the files of the log. If the disk has no room for a whole file, it creates a sparse one. Writes then
// fail while the disk is full, and succeed once it has room, without a restart.
type walFS struct{ *fs.FS }

// Create creates a file of the given size.
func (w walFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := w.create(dir, name, size)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return f, err
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if f, err = w.create(dir, name, 0); err != nil {
		return nil, err
	}
	return f, os.Truncate(filepath.Join(dir, name), int64(size))
}

// create is the library's Create, for files that only their owner may read. The library lets everybody read them.
func (w walFS) create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := w.FS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(dir, name), ownerOnly); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

const ownerOnly = 0o600 // mode of the files of the log

// closeModes changes the mode of files that an older release created.
func closeModes(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if info, err := e.Info(); err != nil {
			return err
		} else if info.Mode().IsRegular() && info.Mode().Perm() != ownerOnly {
			if err := os.Chmod(filepath.Join(dir, e.Name()), ownerOnly); err != nil {
				return err
			}
		}
	}
	return nil
}

// walFiler checks the newest file of the log before it is used.
type walFiler struct {
	*segment.Filer
	dir    string
	sealed bool // the newest file is full, and a crash came before the next one was created: it can be read, but not appended to
}

func newWALFiler(dir string, vfs types.VFS) *walFiler {
	return &walFiler{Filer: segment.NewFiler(dir, vfs), dir: dir}
}

// RecoverTail opens the newest file. The library drops everything after the last readable write, because a crash may
// have torn it.
func (f *walFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	path := filepath.Join(f.dir, segment.FileName(info))
	if err := checkTail(path, int64(info.SizeLimit)); err != nil {
		return nil, err
	}
	if err := syncDir(f.dir); err != nil { // the file may have been created just before a crash
		return nil, err
	}
	w, err := f.Filer.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	f.sealed, _, err = w.Sealed()
	return w, err
}

// A file consists of frames: eight bytes for kind and length (or checksum), then that many bytes, padded to a multiple
// of eight. A commit frame ends a write and holds the checksum of everything since the previous commit. docs/adr/0005
// says which assumptions of the library are checked here.
const (
	frameHead   = 8
	fileHead    = 32
	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

// checkTail refuses a file that is damaged before its end. A crash tears only the last write, which was never
// acknowledged. An intact write after something unreadable proves that acknowledged data is lost, and a server that has
// lost it must not vote.
func checkTail(path string, size int64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	commits, _, stop := readFrames(b)
	if int64(len(b)) < size {
		if commits > 1 {
			return fmt.Errorf("%w: %s has %d bytes, but was created with %d", ErrDamaged, path, len(b), size)
		}
		return os.Truncate(path, size) // the crash came while the file was created
	}
	if wholeWriteBehind(b) {
		return fmt.Errorf("%w: %s cannot be read at byte %d, before its end", ErrDamaged, path, stop)
	}
	return nil
}

// wholeWriteBehind reports whether an intact write follows what can be read from the beginning.
func wholeWriteBehind(b []byte) bool {
	_, at, _ := readFrames(b)
	for ; at+frameHead <= len(b); at += frameHead {
		if b[at] == frameEntry && wholeWrite(b, at) {
			return true
		}
	}
	return false
}

// readFrames reads frames until one is invalid or a commit's checksum is wrong. It returns the number of valid commits,
// where the last of them ends, and where it stopped.
func readFrames(b []byte) (commits, end, stop int) {
	sum, at := 0, min(fileHead, len(b)) // the first checksum includes the file's header
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

// wholeWrite reports whether entries that end in a commit with a valid checksum begin at from.
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
