package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// rotatingFile is a log file that is rotated when it is too large or too old. Older files are named NAME-TIME.EXT in
// the same directory.
type rotatingFile struct {
	path     string
	maxBytes int64         // 0: no limit
	maxAge   time.Duration // 0: no limit
	keep     int           // older files kept; 0: all, negative: none
	now      func() time.Time

	mu     sync.Mutex
	f      *os.File  // guarded by mu
	size   int64     // of f
	opened time.Time // when f was opened
}

var _ io.WriteCloser = (*rotatingFile)(nil)

func openLog(path string, maxBytes int64, maxAge time.Duration, keep int) (*rotatingFile, error) {
	if strings.HasSuffix(path, "/") {
		path = filepath.Join(path, "muster.log")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("log_file: %w", err)
	}
	r := &rotatingFile{path: path, maxBytes: maxBytes, maxAge: maxAge, keep: keep, now: time.Now}
	return r, r.open()
}

func (r *rotatingFile) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("log_file: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("log_file: %w", err)
	}
	r.f, r.size, r.opened = f, st.Size(), r.now()
	return nil
}

// Write appends one line. If a new file cannot be opened, it continues in the old one.
func (r *rotatingFile) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return 0, os.ErrClosed
	}
	full := r.maxBytes > 0 && r.size > 0 && r.size+int64(len(b)) > r.maxBytes
	if full || (r.maxAge > 0 && r.size > 0 && r.now().Sub(r.opened) >= r.maxAge) {
		r.rotate()
	}
	n, err := r.f.Write(b)
	r.size += int64(n)
	return n, err
}

func (r *rotatingFile) rotate() {
	ext := filepath.Ext(r.path)
	base := strings.TrimSuffix(r.path, ext)
	old := fmt.Sprintf("%s-%019d%s", base, r.now().UnixNano(), ext) // fixed width: names sort by time
	if err := os.Rename(r.path, old); err != nil {
		return
	}
	before := r.f
	if err := r.open(); err != nil {
		_ = os.Rename(old, r.path)
		return
	}
	before.Close()
	if r.keep == 0 {
		return
	}
	list, _ := filepath.Glob(base + "-[0-9]*" + ext)
	slices.Sort(list)
	for len(list) > max(0, r.keep) {
		_ = os.Remove(list[0])
		list = list[1:]
	}
}

// Close closes the log.
func (r *rotatingFile) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return nil
	}
	err := r.f.Close()
	r.f = nil
	return err
}

// unreadLog writes to a pipe that may have lost its reader. It then reports that once and drops further output without
// an error, so that a log file next to it continues.
type unreadLog struct {
	w      io.Writer
	unread chan<- struct{} // buffered
}

func (u unreadLog) Write(p []byte) (int, error) {
	if _, err := u.w.Write(p); errors.Is(err, syscall.EPIPE) {
		select {
		case u.unread <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}
