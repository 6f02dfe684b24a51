package raftlog

import (
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/go-hclog"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// The wal backend appends to files of fixed size, with one append and one sync for each batch. ADR 0005 lists which
// cases the library leaves open and where this package handles them.

// openWAL opens the files in a directory, or creates the first one.
func (l *Log) openWAL(path string, o Options, log hclog.Logger) error {
	if err := closeModes(path); err != nil {
		return err
	}
	files := newWALFiler(path, walFS{fs.New()})
	w, err := wal.Open(path, wal.WithMetaStore(l.rec), wal.WithSegmentFiler(files), wal.WithSegmentSize(o.SegmentBytes), wal.WithLogger(log.Named("wal")))
	if err != nil {
		return asDamage(err)
	}
	l.entries, l.sealed = w, files.sealed
	l.closeEntries = func() error {
		_ = w.DeleteRange(math.MaxUint64, math.MaxUint64) // removes nothing, but waits for a file that is being created
		return w.Close()
	}
	return nil
}

// asDamage turns the library's error of damage into ErrDamaged.
func asDamage(err error) error {
	if errors.Is(err, types.ErrCorrupt) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
