package ranks

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// exitLog is the exit code of a task whose log cannot be opened.
const exitLog = 73 // EX_CANTCREAT of sysexits.h

// logs are the files to which the output of ranks is appended, opened with the rights of the task's user. A file of one
// rank gets its bytes unchanged; one that all ranks share gets whole lines that begin with the rank, like the task's
// own log.
type logs struct {
	out, err []*logFile     // by local rank; nil for none
	begun    [][]*rankLines // by local rank: writers that may hold an unfinished line for a shared file
}

// logFile is an open log. A failed write is skipped, and reported once.
type logFile struct {
	path   string
	shared bool // by all ranks
	mu     sync.Mutex
	f      *os.File
	failed bool // the failure was reported
}

// open opens the files of n ranks, beginning with first.
func (how manner) open(n, first int) (*logs, error) {
	l := &logs{out: make([]*logFile, n), err: make([]*logFile, n), begun: make([][]*rankLines, n)}
	byPath := map[string]*logFile{}
	expand := func(template string, rank int) (string, error) {
		return structs.ExpandPath(template, func(word byte) (string, bool) {
			switch word {
			case 't':
				return strconv.Itoa(rank), true
			case '%':
				return "%", true
			}
			return "", false
		})
	}
	one := func(template string, rank int) (*logFile, error) {
		path, err := expand(template, rank)
		if err != nil {
			return nil, fmt.Errorf("log path %q: %w", template, err)
		}
		if f := byPath[path]; f != nil {
			return f, nil
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666) // reduced by the umask
		if err != nil {
			return nil, fmt.Errorf("the task's log cannot be written as its user (uid %d): %w", os.Getuid(), err)
		}
		byPath[path] = &logFile{path: path, f: f}
		return byPath[path], nil
	}
	for i := range n {
		var err error
		if how.logPath != "" {
			if l.out[i], err = one(how.logPath, first+i); err != nil {
				return nil, err
			}
			l.err[i] = l.out[i]
		}
		if how.errorPath != "" {
			if l.err[i], err = one(how.errorPath, first+i); err != nil {
				return nil, err
			}
		}
		if n > 1 {
			for _, f := range []*logFile{l.out[i], l.err[i]} {
				if f != nil && i > 0 && (f == l.out[i-1] || f == l.err[i-1]) {
					f.shared = true
				}
			}
		}
	}
	return l, nil
}

// tee returns a writer to w and to the log of a rank, in the file's form. A shared file gets the same lines as the
// task's own log, which w passes on whole.
func (l *logs) tee(w io.Writer, local int, stderr bool) io.Writer {
	f := l.out[local]
	if stderr {
		f = l.err[local]
	}
	if f == nil {
		return w
	}
	if r, ok := w.(*rankLines); ok && f.shared {
		own := &rankLines{to: &lines{w: f}, label: r.label}
		l.begun[local] = append(l.begun[local], own)
		return io.MultiWriter(w, own)
	}
	return io.MultiWriter(w, f)
}

// flush writes an ended rank's unfinished line.
func (l *logs) flush(local int) {
	for _, r := range l.begun[local] {
		r.flush()
	}
}

// Write implements io.Writer. It never fails: the task continues without its log.
func (f *logFile) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.f.Write(b); err != nil && !f.failed {
		f.failed = true
		fmt.Fprintf(os.Stderr, "the log %s cannot be written: %s\n", f.path, strings.TrimPrefix(err.Error(), "write "+f.path+": "))
	}
	return len(b), nil
}
