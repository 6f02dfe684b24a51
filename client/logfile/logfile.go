// Package logfile writes a task's rotated log with the times of its parts, and reads files that are being written: a rotated log as one continuous
// stream, or a single file. Tasks may be able to write to the directory, so all access is through package taskfs.
package logfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

// Origins of an offset.
const (
	Start = "start" // offset counts from the oldest byte that still exists
	End   = "end"   // offset counts back from the newest
)

// Events that a frame may have instead of data.
const (
	Deleted   = "file deleted"   // files were removed by rotation before they could be read: a gap
	Truncated = "file truncated" // reading continues from the file's beginning
)

// ChunkSize limits the data in one frame.
const ChunkSize = 64 << 10

// Intervals at which a follower looks for new data: short while there is some, longer while there is none.
const (
	pollMin = 10 * time.Millisecond
	pollMax = 200 * time.Millisecond
)

// Options say what to read.
type Options struct {
	Origin string // Start or End; "" is Start
	Offset int64  // not negative
	Follow bool   // continue at the end of the data
	// Done, when closed, ends a follower as soon as it has read everything; nil: never.
	Done <-chan struct{}
	// Limit is the most bytes to read, 0 for no limit.
	Limit int64
	// Since leaves out what was written before, Times has each frame of a log carry when its data was. Neither is for a
	// single file. What is older than the index of a log (see times.go) has no time and is not left out.
	Since time.Time
	Times bool
}

// Frame is a piece of a file. Data is valid only during the call.
type Frame struct {
	File   string
	Offset int64 // of the first byte of Data in File
	Data   []byte
	Event  string // "" with data
	Time   int64  // with Options.Times: when Data was written, in Unix nanoseconds; 0: not known
}

func (o Options) check() error {
	if o.Origin != "" && o.Origin != Start && o.Origin != End {
		return fmt.Errorf("origin %q: want %q or %q", o.Origin, Start, End)
	}
	if o.Offset < 0 {
		return fmt.Errorf("offset %d must not be negative", o.Offset)
	}
	return nil
}

// Indexes lists the files base.N that exist in a directory, lowest first.
func Indexes(dir *taskfs.Dir, base string) ([]int, error) {
	names, err := dir.Names(0)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, n := range names {
		if rest, ok := strings.CutPrefix(n, base+"."); ok {
			if i, err := strconv.Atoi(rest); err == nil && i >= 0 && strconv.Itoa(i) == rest {
				out = append(out, i)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// name returns the name of a log's file.
func name(base string, index int) string { return base + "." + strconv.Itoa(index) }

// stream is one call of Log or File.
type stream struct {
	ctx  context.Context
	opt  Options
	emit func(Frame) error
	left int64
	buf  []byte
	wait time.Duration

	index *times // of the file that is read; nil: no times are wanted
	load  func() // reads the records that were added to it
}

func newStream(ctx context.Context, o Options, emit func(Frame) error) *stream {
	left := o.Limit
	if left <= 0 {
		left = 1<<63 - 1
	}
	return &stream{ctx: ctx, opt: o, emit: emit, left: left, buf: make([]byte, ChunkSize), wait: pollMin}
}

var errLimit = errors.New("limit reached")

// copy emits the file from off to its current end and returns the new offset.
func (s *stream) copy(f *os.File, name string, off int64) (int64, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			return off, err
		}
		n, err := f.ReadAt(s.buf[:min(int64(len(s.buf)), s.left)], off)
		if n > 0 {
			s.wait = pollMin
			if eerr := s.parts(name, off, s.buf[:n]); eerr != nil {
				return off, eerr
			}
			off += int64(n)
			if s.left -= int64(n); s.left == 0 {
				return off, errLimit
			}
		}
		if errors.Is(err, io.EOF) {
			return off, nil
		}
		if err != nil {
			return off, err
		}
	}
}

// parts emits what was read at an offset, in a frame for each time if they are wanted.
func (s *stream) parts(name string, off int64, data []byte) error {
	if s.index == nil {
		return s.emit(Frame{File: name, Offset: off, Data: data})
	}
	s.load()
	if s.opt.Follow && s.index.late(off, time.Now()) {
		if _, err := s.pause(); err != nil {
			return err
		}
		s.load()
	}
	for len(data) > 0 {
		at, end := s.index.part(off)
		n := min(int64(len(data)), end-off)
		if err := s.emit(Frame{File: name, Offset: off, Data: data[:n], Time: at}); err != nil {
			return err
		}
		data, off = data[n:], off+n
	}
	return nil
}

// pause waits for more data. last is true if Done has been closed: one more read, then the end.
func (s *stream) pause() (last bool, err error) {
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	s.wait = min(s.wait*2, pollMax)
	select {
	case <-s.ctx.Done():
		return false, s.ctx.Err()
	case <-s.opt.Done:
		return true, nil
	case <-timer.C:
		return false, nil
	}
}

// Log reads the rotated log base.0, base.1, ... in dir as one stream. Without Follow it ends at the newest byte; with
// it, when ctx or Done end it. A log that does not exist yet is empty for a follower and os.ErrNotExist otherwise. An
// error of emit is returned unchanged.
func Log(ctx context.Context, dir *taskfs.Dir, base string, o Options, emit func(Frame) error) error {
	if err := o.check(); err != nil {
		return err
	}
	if base == "" || strings.ContainsAny(base, "/\x00") {
		return fmt.Errorf("log name %q: want a name without a directory", base)
	}
	s := newStream(ctx, o, emit)
	err := s.log(dir, base)
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

func (s *stream) log(dir *taskfs.Dir, base string) error {
	idx, off, err := s.seek(dir, base)
	if err != nil {
		return err
	}
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	last := false
	for {
		file := name(base, idx)
		if f == nil {
			if f, err = dir.Open(file); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err == nil {
				if off, err = clip(f, off); err != nil {
					return err
				}
				if s.opt.Times {
					index := new(times)
					s.index, s.load = index, func() { index.load(dir, base, idx) }
				}
			}
		}
		// The writer finishes a file before it creates the next: so look for the next first, and read after that.
		all, err := Indexes(dir, base)
		if err != nil {
			return err
		}
		if f == nil && slices.Contains(all, idx) {
			continue // created between the two looks; later files must wait until it has been read
		}
		next := -1
		for _, i := range all {
			if i > idx {
				next = i
				break
			}
		}
		if f != nil {
			if off, err = s.copy(f, file, off); err != nil {
				return err
			}
		}
		if next >= 0 {
			if f != nil {
				f.Close()
				f = nil
			}
			if next != idx+1 {
				if err := s.emit(Frame{File: name(base, idx+1), Event: Deleted}); err != nil {
					return err
				}
			}
			idx, off = next, 0
			continue
		}
		if !s.opt.Follow || last {
			return nil
		}
		if last, err = s.pause(); err != nil {
			return err
		}
	}
}

// seek finds the place to begin.
func (s *stream) seek(dir *taskfs.Dir, base string) (idx int, off int64, err error) {
	all, err := Indexes(dir, base)
	if err != nil {
		return 0, 0, err
	}
	if len(all) == 0 {
		if !s.opt.Follow {
			return 0, 0, fmt.Errorf("log %s: %w", base, os.ErrNotExist)
		}
		return 0, 0, nil
	}
	sizes := make([]int64, len(all))
	var total int64
	for i, n := range all {
		st, err := dir.Stat(name(base, n))
		if err != nil {
			continue // rotated away just now
		}
		sizes[i] = st.Size()
		total += st.Size()
	}
	pos := min(s.opt.Offset, total)
	if s.opt.Origin == End {
		pos = total - pos
	}
	if !s.opt.Since.IsZero() {
		pos = max(pos, s.older(dir, base, all, sizes))
	}
	for i, n := range all {
		if pos < sizes[i] || i == len(all)-1 {
			return n, pos, nil
		}
		pos -= sizes[i]
	}
	return all[len(all)-1], 0, nil
}

// older returns how many bytes of the files were written before Options.Since.
func (s *stream) older(dir *taskfs.Dir, base string, all []int, sizes []int64) (before int64) {
	for i, n := range all {
		st, err := dir.Stat(name(base, n))
		if err != nil || st.ModTime().Before(s.opt.Since) {
			before += sizes[i]
			continue
		}
		var t times
		t.load(dir, base, n)
		off, ok := t.since(s.opt.Since)
		switch {
		case ok:
			return before + min(off, sizes[i])
		case len(t.all) == 0: // without an index
			return before
		}
		before += sizes[i]
	}
	return before
}

// clip returns an offset that is not beyond the end of a file.
func clip(f *os.File, off int64) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return min(off, st.Size()), nil
}

// Source is an open file that may be removed or replaced while it is read.
type Source struct {
	File  *os.File
	Name  string      // in frames
	Leads func() bool // whether its path leads to it
}

// File reads a single file. A follower survives its truncation and ends when it is deleted.
func File(ctx context.Context, src Source, o Options, emit func(Frame) error) error {
	if err := o.check(); err != nil {
		return err
	}
	s := newStream(ctx, o, emit)
	off, err := clip(src.File, o.Offset)
	if err != nil {
		return err
	}
	if o.Origin == End {
		size, _ := clip(src.File, math.MaxInt64)
		off = max(0, size-off)
	}
	last := false
	for {
		if off, err = s.copy(src.File, src.Name, off); err != nil {
			if errors.Is(err, errLimit) {
				return nil
			}
			return err
		}
		if !o.Follow || last {
			return nil
		}
		if last, err = s.pause(); err != nil {
			return err
		}
		size, err := clip(src.File, math.MaxInt64)
		if err != nil {
			return err
		}
		if size < off {
			off = 0
			if err := emit(Frame{File: src.Name, Event: Truncated}); err != nil {
				return err
			}
		}
		if !src.Leads() {
			if _, err := s.copy(src.File, src.Name, off); err != nil && !errors.Is(err, errLimit) {
				return err
			}
			return emit(Frame{File: src.Name, Event: Deleted})
		}
	}
}
