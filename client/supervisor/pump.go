package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/logfile"
	"github.com/muster-sched/muster/client/taskfs"
)

// logRetryFor is how long an unwritable log (disk full) may block a task before output is dropped.
const logRetryFor = 10 * time.Second

// pump moves a task's output from its pipe into rotated files. It uses splice: what the kernel has taken from the pipe
// it has put into the file, so that killing the supervisor at any instant neither loses nor repeats a byte.
type pump struct {
	cfg  Log
	dir  *logDir
	log  logfile.Rotated
	lost atomic.Int64
}

// logDir is an open directory of logs, shared by the streams of a task.
type logDir struct {
	*taskfs.Dir
	path  string
	users atomic.Int32
}

// logDirs are the directories of a task's logs while its pumps are started.
type logDirs []*logDir

// of opens the directory of a log, once.
func (l *logDirs) of(cfg Log) (*logDir, error) {
	path := filepath.Dir(cfg.Base)
	for _, d := range *l {
		if d.path == path {
			return d, nil
		}
	}
	dir, _, err := logfile.Place(cfg.Base)
	if err != nil {
		return nil, fmt.Errorf("open log directory: %w", err)
	}
	d := &logDir{Dir: dir, path: path}
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
		d.Close()
	}
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
	return &pump{cfg: cfg, dir: dir, log: logfile.Rotated{Dir: dir.Dir, Base: filepath.Base(cfg.Base), Keep: cfg.MaxFiles}}
}

func (p *pump) close() {
	p.log.Close()
	p.dir.release()
}

// step moves what the pipe holds now. It returns unix.EAGAIN when the pipe is empty and 0 at its end.
func (p *pump) step(pipe int) (int64, error) {
	if p.log.File == nil { // a task without output needs no files
		poll := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}
		switch n, err := unix.Poll(poll, 0); {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, unix.EAGAIN
		case poll[0].Revents&unix.POLLIN == 0:
			return 0, nil
		}
		if err := p.log.Use(p.log.Newest()); err != nil {
			return 0, fmt.Errorf("open log: %w", err)
		}
	}
	for p.log.Size >= p.cfg.MaxSize {
		if err := p.log.Next(); err != nil {
			return 0, fmt.Errorf("open log: %w", err)
		}
	}
	want := min(p.cfg.MaxSize-p.log.Size, 1<<20)
	off := p.log.Size
	// Fd would switch the descriptor to blocking mode: irrelevant for regular files, and no one else uses it.
	n, err := unix.Splice(pipe, nil, int(p.log.File.Fd()), &off, int(want), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	p.log.Wrote(n, time.Now())
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
