package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// logRetryFor is how long an unwritable log (disk full) may block a task before output is dropped.
const logRetryFor = 10 * time.Second

// pump moves a task's output from its pipe into rotated files. It uses splice: what the kernel has taken from the pipe
// it has put into the file, so that killing the supervisor at any instant neither loses nor repeats a byte.
type pump struct {
	cfg  Log
	dir  *logDir
	name string   // base name without index
	file *os.File // nil before the first byte
	idx  int
	size int64
	lost atomic.Int64
}

// logDir is an open directory of logs, shared by the streams of a task. No symbolic link inside it is followed: a task
// may be able to write there.
type logDir struct {
	path  string
	fd    int
	users atomic.Int32
}

// logDirs are the directories of a task's logs while its pumps are started.
type logDirs []*logDir

// of opens the directory of a log, once. It is read when there is something to write.
func (l *logDirs) of(cfg Log) (*logDir, error) {
	path := filepath.Dir(cfg.Base)
	for _, d := range *l {
		if d.path == path {
			return d, nil
		}
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open log directory %s: %w", path, err)
	}
	d := &logDir{path: path, fd: fd}
	d.users.Store(1) // for the list
	*l = append(*l, d)
	return d, nil
}

func (l *logDirs) close() {
	for _, d := range *l {
		d.release()
	}
}

func (d *logDir) release() {
	if d.users.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

func (d *logDir) list() []string {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1) // without a stat of each
	if err != nil {
		return nil
	}
	return names
}

// newPump makes the pump of a log. Its newest file is opened, or created, when there is something to write.
func newPump(cfg Log, dir *logDir) *pump {
	if cfg.MaxFiles <= 0 {
		cfg.MaxFiles = 10
	}
	if cfg.MaxSize <= 0 {
		cfg.MaxSize = 10 << 20
	}
	dir.users.Add(1)
	return &pump{cfg: cfg, dir: dir, name: filepath.Base(cfg.Base)}
}

// indexes returns the numbers of the log's files among names.
func (p *pump) indexes(names []string) []int {
	var out []int
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, p.name+"."); ok {
			if n, err := strconv.Atoi(rest); err == nil && n >= 0 && strconv.Itoa(n) == rest {
				out = append(out, n)
			}
		}
	}
	return out
}

func (p *pump) open() error {
	if p.file == nil {
		for _, i := range p.indexes(p.dir.list()) {
			p.idx = max(p.idx, i)
		}
	}
	fd, err := unix.Openat(p.dir.fd, p.name+"."+strconv.Itoa(p.idx), unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	f := os.NewFile(uintptr(fd), p.name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	if p.file != nil {
		p.file.Close()
	}
	p.file, p.size = f, st.Size()
	return nil
}

func (p *pump) rotate() error {
	p.idx++
	if err := p.open(); err != nil {
		p.idx--
		return err
	}
	for _, i := range p.indexes(p.dir.list()) {
		if i <= p.idx-p.cfg.MaxFiles {
			unix.Unlinkat(p.dir.fd, p.name+"."+strconv.Itoa(i), 0)
		}
	}
	return nil
}

func (p *pump) close() {
	if p.file != nil {
		p.file.Close()
	}
	p.dir.release()
}

// step moves what the pipe holds now. It returns unix.EAGAIN when the pipe is empty and 0 at its end.
func (p *pump) step(pipe int) (int64, error) {
	if p.file == nil { // a task without output needs no files
		poll := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}
		switch n, err := unix.Poll(poll, 0); {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, unix.EAGAIN
		case poll[0].Revents&unix.POLLIN == 0:
			return 0, nil
		}
		if err := p.open(); err != nil {
			return 0, err
		}
	}
	for p.size >= p.cfg.MaxSize {
		if err := p.rotate(); err != nil {
			return 0, err
		}
	}
	want := min(p.cfg.MaxSize-p.size, 1<<20)
	off := p.size
	// Fd would switch the descriptor to blocking mode: irrelevant for regular files, and no one else uses it.
	n, err := unix.Splice(pipe, nil, int(p.file.Fd()), &off, int(want), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if n > 0 {
		p.size += n
	}
	return n, err
}

// run pumps until the pipe ends, or until stop is closed and the pipe is empty.
func (p *pump) run(pipe *os.File, stop <-chan struct{}) {
	defer p.close()
	defer pipe.Close()
	rc, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	var failing time.Time
	for {
		var n int64
		var serr error
		rerr := rc.Read(func(fd uintptr) bool {
			n, serr = p.step(int(fd))
			if serr != unix.EAGAIN {
				return true
			}
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
		stopped := errors.Is(rerr, os.ErrDeadlineExceeded)
		if rerr != nil && !stopped {
			return
		}
		switch {
		case stopped, serr == unix.EAGAIN:
			// Stopping: what is in the pipe now is the rest.
			if !p.drain(rc) {
				return
			}
			return
		case serr == unix.EINTR:
		case serr != nil:
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > logRetryFor {
				p.discard(rc)
				continue
			}
			select {
			case <-stop:
				p.discard(rc)
			case <-time.After(200 * time.Millisecond):
			}
		case n == 0:
			return
		default:
			failing = time.Time{}
		}
	}
}

func (p *pump) drain(rc interface {
	Control(func(uintptr)) error
}) bool {
	ok := true
	rc.Control(func(fd uintptr) {
		for {
			n, err := p.step(int(fd))
			if err == unix.EINTR {
				continue
			}
			if n <= 0 || err != nil {
				ok = n == 0 && err == nil
				return
			}
		}
	})
	return ok
}

// discard drops and counts what the pipe holds, so that the task can continue.
func (p *pump) discard(rc interface {
	Control(func(uintptr)) error
}) {
	rc.Control(func(fd uintptr) {
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(int(fd), buf)
			if n <= 0 || err != nil {
				return
			}
			p.lost.Add(int64(n))
		}
	})
}

// pumping is a running pump.
type pumping struct {
	*pump
	pipe *os.File
	stop chan struct{}
	end  chan struct{}
}

// finish ends the pump once the pipe is empty, within limit.
func (p *pumping) finish(limit time.Duration) {
	close(p.stop)
	p.pipe.SetReadDeadline(time.Unix(1, 0))
	select {
	case <-p.end:
	case <-time.After(limit):
	}
}

func startPump(cfg Log, dir *logDir, pipe *os.File) *pumping {
	p := newPump(cfg, dir)
	r := &pumping{pump: p, pipe: pipe, stop: make(chan struct{}), end: make(chan struct{})}
	go func() {
		defer close(r.end)
		p.run(pipe, r.stop)
	}()
	return r
}
