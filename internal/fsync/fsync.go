// Package fsync recognises the error of a failed sync, and writes files and names that survive a crash.
//
// After a failed sync no one knows what the disk holds: the kernel may have dropped the pages that it could not write, and a second
// sync then succeeds without them. So a process whose sync has failed must end and read the disk again.
package fsync

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
)

// Op is the operation in the *fs.PathError of a failed sync, as os.File.Sync names it.
const Op = "sync"

// Error returns err as the error of a sync of a file, or nil.
func Error(path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: Op, Path: path, Err: err}
}

// Failed reports whether an error is that of a failed sync, or has one among its causes.
func Failed(err error) bool {
	if at, ok := err.(*fs.PathError); ok && at.Op == Op {
		return true
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return Failed(x.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(x.Unwrap(), Failed)
	}
	return false
}

// Dir syncs a directory, so that names that were created, renamed or removed in it survive a crash.
func Dir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Commit returns the error of a commit of bbolt as that of a sync, unless it says that a write failed: bbolt returns
// the bare number of fdatasync, and words without a number when it cannot sync a file that it has grown.
func Commit(path string, err error) error {
	var at *fs.PathError
	var number syscall.Errno
	if err == nil || errors.As(err, &at) && at.Op != Op {
		return err
	}
	if errors.As(err, &number) || strings.HasPrefix(err.Error(), "file sync error") {
		return Error(path, err)
	}
	return err
}

// WriteFile replaces a file. A crash leaves the old or the new content, and once WriteFile has returned the new one.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, content, 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(dir)); err != nil {
		return err
	}
	return Dir(dir)
}

// MkdirAll creates a directory unless it exists, for its owner only, with its parents. Once MkdirAll has returned, its name
// survives a crash.
func MkdirAll(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return Dir(filepath.Dir(path))
}
