package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// rowReader reads the rows of a trace one by one; io.EOF at the end.
type rowReader[R any] interface {
	Next() (R, error)
	Close() error
}

// inOrder returns the rows of a trace by submission time, rows of equal time in the order of the file. A trace is read
// once to its end before the replay starts, so that an error in its last line is reported before hours of simulation. A
// sorted trace is then read again during the replay and needs no memory; any other is kept in memory.
type inOrder[R any] struct {
	open    func() (rowReader[R], error)
	src     rowReader[R] // nil: rows are in memory
	kept    []R
	left    int64         // rows still to return; -1: all
	Rows    int64         // rows that can be replayed
	LeftOut int64         // rows that cannot be replayed
	Origin  time.Duration // the first submission
}

// openInOrder reads the trace once. limit is how many rows to return, 0 for all.
func openInOrder[R any](name string, limit int64, open func() (rowReader[R], error), submit func(*R) time.Duration) (*inOrder[R], error) {
	t := &inOrder[R]{open: open, left: -1}
	if limit > 0 {
		t.left = limit
	}
	sorted, last := true, time.Duration(0)
	err := t.each(func(r *R) {
		at := submit(r)
		if t.Rows == 0 {
			t.Origin = at
		}
		sorted = sorted && (t.Rows == 0 || at >= last)
		last, t.Origin = at, min(t.Origin, at)
		t.Rows++
	})
	if err == nil && t.Rows == 0 {
		err = fmt.Errorf("%s: there is no job in it that could be replayed", name)
	}
	if err != nil {
		return nil, err
	}
	if sorted {
		t.src, err = open()
		return t, err
	}
	t.kept = make([]R, 0, t.Rows)
	if err := t.each(func(r *R) { t.kept = append(t.kept, *r) }); err != nil {
		return nil, err
	}
	bySubmission(t.kept, submit)
	return t, nil
}

// bySubmission sorts rows by submission time; rows of equal time keep their order.
func bySubmission[R any](rows []R, submit func(*R) time.Duration) {
	slices.SortStableFunc(rows, func(a, b R) int { return cmp.Compare(submit(&a), submit(&b)) })
}

// each calls f for every row of the trace.
func (t *inOrder[R]) each(f func(*R)) error {
	src, err := t.open()
	if err != nil {
		return err
	}
	defer src.Close()
	for {
		r, err := src.Next()
		switch {
		case errors.Is(err, io.EOF):
			if x, ok := src.(interface{ skipped() int64 }); ok {
				t.LeftOut = x.skipped()
			}
			return nil
		case err != nil:
			return err
		}
		f(&r)
	}
}

// Next returns the next row.
func (t *inOrder[R]) Next() (R, error) {
	var none R
	if t.left == 0 {
		return none, io.EOF
	}
	if t.left > 0 {
		t.left--
	}
	if t.src != nil {
		return t.src.Next()
	}
	if len(t.kept) == 0 {
		return none, io.EOF
	}
	r := t.kept[0]
	t.kept = t.kept[1:]
	return r, nil
}

// Close closes the trace.
func (t *inOrder[R]) Close() error {
	if t.src == nil {
		return nil
	}
	return t.src.Close()
}
