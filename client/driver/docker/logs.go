package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/logfile"
)

// How logs get from the engine into the task's files.
//
// Naively, one would copy the engine's stream into the files. But the agent may be killed at any instant, and the copy
// must continue without a gap and without duplicates. The engine stamps each message with a time. So a copier records
// in a small file: the stamp of the last message it wrote, how many messages with that stamp it had written, and the
// length of the log files at that time. The next copier asks for messages from that stamp on, skips that many, and then
// skips as many bytes as the files have grown since the record: the same messages come in the same order, so these are
// the bytes that had been written already.
//
// The engine keeps engineLogFiles files of engineLogMiB, whether or not the agent copies. A task that writes more than
// that while no agent runs, or faster than the engine can be read, loses the oldest output.

// positionSuffix ends the names of the files with log positions.
const positionSuffix = ".pos"

func (d *Driver) positionFile(taskID string) string {
	return filepath.Join(d.opt.StateDir, taskID+positionSuffix)
}

// Defaults of log limits.
const (
	logFilesDefault = 10
	logSizeDefault  = 10 << 20
)

// The engine's copy of a task's output. Files are large because a follower loses files that are rotated away twice
// before it has read them.
const (
	engineLogMiB   = 64
	engineLogFiles = "2"
)

// engineLog configures how the engine keeps a task's output until it is copied.
func engineLog() container.LogConfig {
	return container.LogConfig{Type: "local", Config: map[string]string{"max-size": strconv.Itoa(engineLogMiB) + "m", "max-file": engineLogFiles, "compress": "false"}}
}

// position is how far a log was copied.
type position struct {
	Begun bool   // Files are in this state, or newer
	Since string // stamp of the last message written; "" before the first
	Seen  int    // messages with that stamp that were written
	Files [2]struct {
		Index int
		Size  int64
	}
}

// copier copies one container's output.
type copier struct {
	d    *Driver
	task taskState
	ctx  context.Context
	stop context.CancelFunc
	over chan struct{} // closed when everything was copied, or the copier gave up

	mu     sync.Mutex         // guards ending and unhook
	ending bool               // the container has ended: there will be no more output
	unhook context.CancelFunc // ends a following read
	pos    position
	out    [2]*logFile // stdout, stderr; nil discards
	skip   [2]int64    // bytes of the stream that the files already have
}

// copyLogs returns the copier of a container's output, and starts it if there is none.
func (d *Driver) copyLogs(s *taskState) *copier {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.copies[s.Container]; c != nil {
		return c
	}
	c := &copier{d: d, task: *s, over: make(chan struct{})}
	c.ctx, c.stop = context.WithCancel(d.ctx)
	d.copies[s.Container] = c
	if s.Logs.StdoutBase == "" && s.Logs.StderrBase == "" {
		close(c.over)
		return c
	}
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		defer close(c.over)
		c.run()
	}()
	return c
}

// stopCopying stops the copier of a container's output and forgets it.
func (d *Driver) stopCopying(container string) {
	d.mu.Lock()
	c := d.copies[container]
	delete(d.copies, container)
	d.mu.Unlock()
	if c != nil {
		c.stop()
		<-c.over
	}
}

// logsPatience limits the wait for the rest of the output of an ended container.
const logsPatience = 10 * time.Second

// finish waits until everything was copied. The container has ended.
func (c *copier) finish(ctx context.Context) {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	timer := time.NewTimer(logsPatience)
	defer timer.Stop()
	hung := time.AfterFunc(time.Second, func() { // the engine should have ended the stream
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.unhook != nil {
			c.unhook()
		}
	})
	defer hung.Stop()
	select {
	case <-c.over:
	case <-ctx.Done():
	case <-timer.C:
		c.d.log.Warn("the engine does not give the last of a task's output", "task", c.task.TaskID)
		c.stop()
	}
}

func (c *copier) isEnding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending
}

// run copies until the container has ended and everything was read.
func (c *copier) run() {
	defer c.closeFiles()
	if err := c.open(); err != nil {
		c.d.log.Error("a task's output is not collected", "task", c.task.TaskID, "error", err)
		return
	}
	defer c.note()
	pause := backMin
	for c.ctx.Err() == nil {
		last := c.isEnding() // read before the copy: if set, the copy is complete
		moved, err := c.read(!last)
		if last && err == nil || gone(err) {
			return
		}
		if moved {
			pause = backMin
		}
		if !last && c.isEnding() {
			continue // once more, to the end
		}
		select {
		case <-time.After(pause):
		case <-c.ctx.Done():
		}
		pause = min(2*pause, backMax)
	}
}

// open opens the files where the last copier stopped.
func (c *copier) open() error {
	if b, err := os.ReadFile(c.d.positionFile(c.task.TaskID)); err == nil {
		if err := json.Unmarshal(b, &c.pos); err != nil {
			return fmt.Errorf("%s: %w", c.d.positionFile(c.task.TaskID), err)
		}
	}
	l := c.task.Logs
	for i, base := range []string{l.StdoutBase, l.StderrBase} {
		if base == "" {
			continue
		}
		f, err := newLogFile(base, l.MaxFiles, l.MaxFileSize)
		if err != nil {
			return err
		}
		c.out[i] = f
		p := &c.pos.Files[i]
		if !c.pos.Begun { // files of the previous run are continued, not skipped
			p.Index = f.Newest()
			p.Size = f.Length(p.Index)
		}
		if c.skip[i], err = f.open(p.Index, p.Size); err != nil {
			return err
		}
	}
	if !c.pos.Begun {
		c.pos.Begun = true
		return c.save()
	}
	return nil
}

func (c *copier) closeFiles() {
	for _, f := range c.out {
		if f != nil {
			f.close()
		}
	}
}

// note saves the position. While bytes are skipped the old position stays: the skipped bytes are counted from it.
func (c *copier) note() {
	if c.skip[0] > 0 || c.skip[1] > 0 {
		return
	}
	if err := c.save(); err != nil {
		c.d.log.Debug("how far a task's output was copied could not be noted", "task", c.task.TaskID, "error", err)
	}
}

func (c *copier) save() error {
	for i, f := range c.out {
		if f != nil {
			c.pos.Files[i].Index, c.pos.Files[i].Size = f.Index, f.Size
		}
	}
	b, err := json.Marshal(c.pos)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.d.opt.StateDir, 0o700); err != nil {
		return err
	}
	// Not synced: it must survive the agent, not the machine.
	tmp := c.d.positionFile(c.task.TaskID) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.d.positionFile(c.task.TaskID))
}

// saveEvery is the interval at which the position is saved while output comes; it is also saved at each pause.
const saveEvery = 500 * time.Millisecond

// read copies what the engine has from the last position, and with follow continues until the container ends.
func (c *copier) read(follow bool) (moved bool, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if follow {
		c.mu.Lock()
		c.unhook = cancel
		c.mu.Unlock()
	}
	opt := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: follow, Since: c.pos.Since}
	body, err := c.d.api.ContainerLogs(ctx, c.task.Container, opt)
	if err != nil {
		return false, err
	}
	defer body.Close()
	leave, stamp := c.pos.Seen, c.pos.Since // number of messages to skip, and their stamp
	messages := make(chan message)
	done := make(chan error, 1)
	go func() { // ends with the body
		done <- split(body, c.task.TTY, func(m message) bool {
			select {
			case messages <- m:
				return true
			case <-ctx.Done():
				return false
			}
		})
		close(messages)
	}()
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	unsaved := false
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				if unsaved {
					c.note()
				}
				return moved, <-done
			}
			if m.stamp == stamp && leave > 0 {
				leave--
				continue
			}
			leave = 0
			if err := c.write(m); err != nil {
				return moved, err
			}
			moved, unsaved = true, true
		case <-tick.C:
			if unsaved {
				c.note()
				unsaved = false
			}
		}
	}
}

// write writes one message.
func (c *copier) write(m message) error {
	if m.stamp == c.pos.Since {
		c.pos.Seen++
	} else {
		c.pos.Since, c.pos.Seen = m.stamp, 1
	}
	data := m.data
	if n := min(c.skip[m.stream], int64(len(data))); n > 0 {
		c.skip[m.stream] -= n
		data = data[n:]
	}
	f := c.out[m.stream]
	if f == nil || len(data) == 0 {
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, m.stamp)
	if err != nil {
		at = time.Now()
	}
	rotated, err := f.write(data, at)
	if err != nil {
		// A full disk must not block the task's output for ever: the message is lost, and the next one is tried again.
		c.d.log.Warn("a task's output could not be written", "task", c.task.TaskID, "error", err)
		return nil
	}
	if rotated { // the saved position must never be more than one file behind
		c.note()
	}
	return nil
}

// message is one piece of output, usually a line.
type message struct {
	stream int // 0 standard output, 1 standard error
	stamp  string
	data   []byte
}

// frameMax limits a frame, and pieceMax a piece of a line: the engine cuts longer lines at 16 KiB.
const (
	frameMax = 16 << 20
	pieceMax = 16 << 10
)

// stampForm is the engine's format of stamps: fixed width.
const stampForm = "2006-01-02T15:04:05.000000000Z"

// split cuts the engine's stream into messages until it ends, or until take returns false. Without a terminal it
// consists of frames: a byte for the stream, three zeros, four bytes of length, then stamp, blank and data. With a
// terminal it has only stamp, blank and data, and a message ends with its line or after pieceMax bytes: a task that
// never ends a line must not fill the memory.
func split(r io.Reader, tty bool, take func(message) bool) error {
	in := bufio.NewReaderSize(r, 64<<10)
	last := ""
	for {
		var m message
		if tty {
			head, err := in.Peek(len(stampForm) + 1)
			if len(head) == 0 {
				return endOf(err)
			}
			stamp, ok := stampOf(head)
			if ok {
				last = stamp
				_, _ = in.Discard(len(head))
			}
			m.stamp = last // the rest of a line has the stamp of its beginning
			if m.data, err = piece(in); len(m.data) == 0 && err != nil && !ok {
				return endOf(err)
			}
		} else {
			var head [8]byte
			if _, err := io.ReadFull(in, head[:]); err != nil {
				return endOf(err)
			}
			n := binary.BigEndian.Uint32(head[4:])
			if n > frameMax || head[0] > 2 {
				return fmt.Errorf("docker: the log stream holds a frame of kind %d with %d bytes", head[0], n)
			}
			if head[0] == 2 {
				m.stream = 1
			}
			text := make([]byte, n)
			if _, err := io.ReadFull(in, text); err != nil {
				return err // truncated: the next read begins before it
			}
			stamp, data, ok := bytes.Cut(text, []byte{' '})
			if !ok || len(stamp) < len("2006-01-02T15:04:05Z") || stamp[4] != '-' {
				data, stamp = text, nil
			}
			m.stamp, m.data = string(stamp), data
		}
		if !take(m) {
			return nil
		}
	}
}

// stampOf returns the stamp at the beginning of a terminal message.
func stampOf(head []byte) (string, bool) {
	if len(head) != len(stampForm)+1 || head[len(stampForm)] != ' ' || head[len(stampForm)-1] != 'Z' {
		return "", false
	}
	_, err := time.Parse(time.RFC3339Nano, string(head[:len(stampForm)]))
	return string(head[:len(stampForm)]), err == nil
}

// piece reads up to the end of a line, or pieceMax bytes of it. A line of exactly that length includes its end.
func piece(in *bufio.Reader) ([]byte, error) {
	var out []byte
	for len(out) <= pieceMax {
		if len(out) == pieceMax {
			if b, _ := in.Peek(1); len(b) == 0 || b[0] != '\n' {
				break
			}
		}
		if _, err := in.Peek(1); err != nil {
			return out, err
		}
		b, _ := in.Peek(min(in.Buffered(), max(1, pieceMax-len(out))))
		end := bytes.IndexByte(b, '\n')
		if end >= 0 {
			b = b[:end+1]
		}
		out = append(out, b...)
		_, _ = in.Discard(len(b))
		if end >= 0 {
			break
		}
	}
	return out, nil
}

func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// logFile is a rotated log. A container that is root can write to its directory.
type logFile struct {
	logfile.Rotated
	size int64 // at which a file is full
}

// newLogFile opens the directory of a log.
func newLogFile(base string, files int, size int64) (*logFile, error) {
	if files <= 0 {
		files = logFilesDefault
	}
	if size <= 0 {
		size = logSizeDefault
	}
	dir, name, err := logfile.Place(base)
	if err != nil {
		return nil, err
	}
	return &logFile{logfile.Rotated{Dir: dir, Base: name, Keep: files, Flag: os.O_APPEND}, size}, nil
}

// open opens the newest file for appending and returns how many bytes there are beyond a position.
func (l *logFile) open(index int, size int64) (beyond int64, err error) {
	last := max(l.Newest(), index)
	for i := index; i <= last; i++ {
		beyond += l.Length(i)
	}
	return max(0, beyond-size), l.Use(last)
}

// write appends what the task wrote at that time, and starts the next file when one is full.
func (l *logFile) write(data []byte, at time.Time) (rotated bool, err error) {
	for len(data) > 0 {
		if l.Size >= l.size {
			if err := l.Next(); err != nil {
				return rotated, err
			}
			rotated = true
		}
		n, err := l.File.Write(data[:min(int64(len(data)), l.size-l.Size)])
		l.Wrote(int64(n), at)
		data = data[n:]
		if err != nil {
			return rotated, err
		}
	}
	return rotated, nil
}

func (l *logFile) close() {
	l.Close()
	l.Dir.Close()
}
