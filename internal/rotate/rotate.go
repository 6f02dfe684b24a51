// Package rotate writes files of which another begins when they are too large or too old.
package rotate

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say where a file is and when another one begins.
type Options struct {
	Path     string        // ends with / for a directory, in which the file has the name Name
	Name     string        // "muster.log"
	MaxBytes int64         // 0: no limit
	MaxAge   time.Duration // 0: no limit
	Keep     int           // older files that are kept, named NAME-TIME.EXT in the same directory; 0: all, negative: none
}

// File is a file to which lines are appended.
type File struct {
	o   Options // its Path is the file's
	now func() time.Time

	mu     sync.Mutex
	f      *os.File  // guarded by mu
	size   int64     // of f
	opened time.Time // when f was opened
}

var _ io.WriteCloser = (*File)(nil)

// Open opens a file for appending, and makes its directory.
func Open(o Options) (*File, error) {
	if strings.HasSuffix(o.Path, "/") {
		o.Path = filepath.Join(o.Path, o.Name)
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o755); err != nil {
		return nil, err
	}
	r := &File{o: o, now: time.Now}
	return r, r.open()
}

// Path returns where the newest file is.
func (r *File) Path() string { return r.o.Path }

func (r *File) open() error {
	f, err := os.OpenFile(r.o.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	r.f, r.size, r.opened = f, st.Size(), r.now()
	return nil
}

// Write appends one line. If a new file cannot be opened, it continues in the old one.
func (r *File) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return 0, os.ErrClosed
	}
	full := r.o.MaxBytes > 0 && r.size > 0 && r.size+int64(len(b)) > r.o.MaxBytes
	if full || (r.o.MaxAge > 0 && r.size > 0 && r.now().Sub(r.opened) >= r.o.MaxAge) {
		r.rotate()
	}
	n, err := r.f.Write(b)
	r.size += int64(n)
	return n, err
}

func (r *File) rotate() {
	ext := filepath.Ext(r.o.Path)
	base := strings.TrimSuffix(r.o.Path, ext)
	old := fmt.Sprintf("%s-%019d%s", base, r.now().UnixNano(), ext) // fixed width: names sort by time
	if err := os.Rename(r.o.Path, old); err != nil {
		return
	}
	before := r.f
	if err := r.open(); err != nil {
		_ = os.Rename(old, r.o.Path)
		return
	}
	before.Close()
	if r.o.Keep == 0 {
		return
	}
	list, _ := filepath.Glob(base + "-[0-9]*" + ext)
	slices.Sort(list)
	for len(list) > max(0, r.o.Keep) {
		_ = os.Remove(list[0])
		list = list[1:]
	}
}

// Close closes the log.
func (r *File) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f == nil {
		return nil
	}
	err := r.f.Close()
	r.f = nil
	return err
}
