package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	tailLines     = 10  // that -tail shows
	bytesPerLine  = 120 // assumed length of a line when reading from the end, as in Nomad
	tailBytesMax  = 16 << 20
	defaultTailKB = 64
)

type allocLogsOptions struct {
	*env
	task                      string
	job, stderr, stdout, both bool
	follow, tail              bool
	lines, bytes              int64
	json                      bool
	since                     string
	timestamps                bool
	rank                      int      // -1: all
	mark                      *logMark // where to continue reading; or nil
}

// logMark is a position in a log: a file and an offset in it.
type logMark struct {
	file  int // its number
	next  int64
	begun bool // anything was read
	moved bool // anything was read since the last check
	gap   bool // files were removed before they were read: the task writes faster than its output is transferred
}

// pass removes from a frame what was read before, and advances the mark.
func (m *logMark) pass(f *wire.StreamFrame) {
	n, err := strconv.Atoi(f.File[strings.LastIndexByte(f.File, '.')+1:])
	if err != nil || len(f.Data) == 0 {
		return
	}
	end := f.Offset + int64(len(f.Data))
	if n < m.file || n == m.file && end <= m.next {
		f.Data = nil
		return
	}
	if n == m.file && f.Offset < m.next {
		f.Data = f.Data[m.next-f.Offset:]
	}
	m.gap = m.gap || n > m.file+1 || n > m.file && !m.begun
	m.file, m.next, m.moved, m.begun = n, end, true, true
}

func newAllocLogs(e *env) *cobra.Command {
	o := &allocLogsOptions{env: e, rank: -1}
	c := e.verb("logs [options] ALLOCATION [TASK]", "Print what a task wrote", "Print what a task of an allocation wrote, from the start or from the end, and follow it: its stdout to stdout and its\nstderr to stderr. -stdout or -stderr select one of them, -both puts them together into stdout.", `
muster alloc logs 8ba85cef
muster alloc logs -f -tail -n 50 8ba85cef
muster alloc logs -stderr -task server 8ba85cef
muster alloc logs -since 10m -timestamps 8ba85cef
muster alloc logs -f -job example`, 1, 2, o.run)
	f := c.Flags()
	o.flags(c)
	f.IntVar(&o.rank, "rank", -1, "of a task that runs in ranks: only the lines of this one")
	return e.ofAlloc(c, &o.job)
}

// flags adds the flags that logs of allocations and of jobs have in common.
func (o *allocLogsOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.task, "task", "", "the task; needed only when there are several")
	f.BoolVar(&o.stderr, "stderr", false, "stderr only")
	f.BoolVar(&o.stdout, "stdout", false, "stdout only")
	f.BoolVar(&o.both, "both", false, "stdout and stderr together, in stdout")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	f.BoolVar(&o.tail, "tail", false, "the end only: 10 lines, or as many as -n or -c say")
	f.Int64VarP(&o.lines, "lines", "n", 0, "with -tail: how many lines")
	f.Int64VarP(&o.bytes, "bytes", "c", 0, "with -tail: how many bytes")
	f.StringVar(&o.since, "since", "", "only what was written since a time (2026-01-31T12:00:00Z) or a span before now (10m, 7d)")
	f.BoolVar(&o.timestamps, "timestamps", false, "put before each line when it was written (UTC)")
	f.BoolVar(&o.json, "json", false, "print frames of the API, one JSON object a line")
}

func (o *allocLogsOptions) run(ctx context.Context, args []string) error {
	name, err := taskFlagOrArg(o.task, args)
	if err != nil {
		return err
	}
	if (o.stderr && o.stdout) || o.both {
		o.both = true
	}
	if err := o.check(); err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	return o.print(ctx, a, al, name, o.out, o.env.err)
}

func (o *allocLogsOptions) check() error {
	switch {
	case o.lines < 0 || o.bytes < 0:
		return errors.New("-n and -c want a number that is not negative")
	case o.rank < -1:
		return fmt.Errorf("-rank %d: ranks count from 0", o.rank)
	case o.rank >= 0 && o.json:
		return errors.New("-json prints frames as they come, of all ranks: leave out -rank")
	}
	return nil
}

// print writes the logs of one allocation: what the task wrote to stderr goes to errw, unless both are put together.
func (o *allocLogsOptions) print(ctx context.Context, a *api, al *wire.Allocation, name string, w, errw io.Writer) error {
	task, err := pickTask(al, name)
	if err != nil {
		return err
	}
	if o.stderr != o.stdout && !o.both {
		typ := "stdout"
		if o.stderr {
			typ = "stderr"
		}
		err := o.stream(ctx, a, al, task, typ, w)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if o.both || o.json {
		errw = w
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make([]error, 2)
	for i, to := range []struct {
		typ string
		w   io.Writer
	}{{"stdout", w}, {"stderr", errw}} {
		wg.Go(func() { errs[i] = o.stream(ctx, a, al, task, to.typ, &lineWriter{mu: &mu, w: to.w}) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if errs[0] != nil && errs[1] != nil && errs[0].Error() == errs[1].Error() { // of the request, not of a stream
		return errs[0]
	}
	return errors.Join(errs...)
}

// rankFilter passes on the lines of one rank, without their label.
type rankFilter struct {
	w      io.Writer
	label  []byte
	before int // length of the stamp before the label
	buf    []byte
}

// Write implements io.Writer.
func (r *rankFilter) Write(b []byte) (int, error) {
	if text := r.pick(b); len(text) > 0 {
		if _, err := r.w.Write(text); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// pick returns the rank's complete lines of the input so far.
func (r *rankFilter) pick(b []byte) (out []byte) {
	r.buf = append(r.buf, b...)
	end := bytes.LastIndexByte(r.buf, '\n') + 1
	for line := range bytes.Lines(r.buf[:end]) {
		n := min(r.before, len(line))
		if text, mine := bytes.CutPrefix(line[n:], r.label); mine {
			out = append(append(out, line[:n]...), text...)
		}
	}
	r.buf = append(r.buf[:0], r.buf[end:]...)
	return out
}

// lineWriter passes on whole lines only, so that two streams do not mix within a line. A carriage return, with which
// progress bars begin their line again, counts as an end.
type lineWriter struct {
	mu  *sync.Mutex
	w   io.Writer
	buf []byte
	err error // the first error of w
}

func (l *lineWriter) Write(b []byte) (int, error) {
	l.buf = append(l.buf, b...)
	i := bytes.LastIndexAny(l.buf, "\r\n")
	if i < 0 && len(l.buf) < 64<<10 {
		return len(b), nil
	}
	if i < 0 {
		i = len(l.buf) - 1
	}
	l.mu.Lock()
	_, err := l.w.Write(l.buf[:i+1])
	l.mu.Unlock()
	l.err = cmp.Or(l.err, err)
	l.buf = append(l.buf[:0], l.buf[i+1:]...)
	return len(b), err
}

func (l *lineWriter) flush() {
	l.mu.Lock()
	_, _ = l.w.Write(l.buf) // the stream has ended: an error has no reader
	l.mu.Unlock()
	l.buf = nil
}

func (o *allocLogsOptions) stream(ctx context.Context, a *api, al *wire.Allocation, task, typ string, w io.Writer) error {
	q := ns(al.Namespace)
	q.Set("task", task)
	q.Set("type", typ)
	lines := int64(0)
	if o.tail || o.lines > 0 || o.bytes > 0 {
		lines = o.lines
		if lines == 0 && o.bytes == 0 {
			lines = tailLines
		}
		offset := o.bytes
		if lines > 0 {
			offset = min(max(lines*bytesPerLine, defaultTailKB<<10), tailBytesMax)
		}
		q.Set("origin", "end")
		q.Set("offset", strconv.FormatInt(offset, 10))
	}
	queryFlag(q, "follow", o.follow)
	queryFlag(q, "timestamps", o.timestamps)
	if o.since != "" {
		q.Set("since", days(o.since))
	}
	if o.rank >= 0 {
		r := &rankFilter{w: w, label: []byte(strconv.Itoa(o.rank) + ": ")}
		if o.timestamps {
			r.before = wire.StampLen
		}
		w = r
	}
	err := o.copyFrames(ctx, a, "/v1/client/fs/logs/"+al.ID, q, w, lines, o.json, o.mark)
	if r, ok := w.(*rankFilter); ok {
		w = r.w
	}
	if lw, ok := w.(*lineWriter); ok {
		lw.flush()
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("logs of task %q: %w", task, err)
	}
	return err
}

// copyFrames copies a stream of file frames to w. With lines > 0 only that many of the existing lines are shown, and
// everything after them. mark, if not nil, leaves out what was read before.
func (e *env) copyFrames(ctx context.Context, a *api, path string, q url.Values, w io.Writer, lines int64, asJSON bool, mark *logMark) error {
	rc, _, err := a.stream(ctx, "GET", path, q, nil)
	if err != nil {
		return err
	}
	defer rc.Close()
	if asJSON {
		_, err := io.Copy(w, rc)
		return err
	}
	dec := json.NewDecoder(rc)
	var held []byte
	holding := lines > 0
	var stamper wire.Stamper
	stamps := q.Get("timestamps") == "true"
	timed := stamps || q.Has("since")
	release := func() error {
		if !holding {
			return nil
		}
		holding = false
		var err error
		if r, ok := w.(*rankFilter); ok {
			_, err = r.w.Write(lastLines(r.pick(held), lines))
		} else {
			_, err = w.Write(lastLines(held, lines))
		}
		held = nil
		return err
	}
	for {
		var f wire.StreamFrame
		if err := dec.Decode(&f); err != nil {
			if rerr := release(); rerr != nil {
				return rerr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if mark != nil {
			mark.pass(&f)
		}
		if timed && f.Time == 0 && len(f.Data) > 0 {
			e.hint("The node does not know when the first lines were written: they are older than its agent's keeping of times.")
			timed = false
		}
		if stamps {
			f.Data = stamper.Stamp(f.Data, f.Time)
		}
		if f.FileEvent != "" && f.FileEvent != "truncated" && len(f.Data) == 0 {
			e.hint("[%s]", f.FileEvent)
		}
		switch {
		case holding && len(f.Data) == 0, holding && len(held) > tailBytesMax:
			held = append(held, f.Data...)
			err = release()
		case holding:
			held = append(held, f.Data...)
			// The existing content is sent without pauses; when following, show it as soon as it is complete.
			if q.Get("follow") == "true" && len(f.Data) < 32<<10 {
				err = release()
			}
		default:
			_, err = w.Write(f.Data)
		}
		if err != nil {
			return err
		}
	}
}

// lastLines returns the last n lines of b; an unfinished last line counts as one.
func lastLines(b []byte, n int64) []byte {
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	for i := end - 1; i >= 0; i-- {
		if b[i] == '\n' {
			if n--; n == 0 {
				return b[i+1:]
			}
		}
	}
	return b
}
