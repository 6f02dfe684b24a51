package memnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is one end of a connection.
type conn struct {
	h             *Host
	local, remote Addr
	in, out       *half
	peer          *conn
}

// half is one direction of a connection. Readers and writers that block wait for `changed`.
type half struct {
	n        *Network
	from, to string

	mu      sync.Mutex
	chunks  []chunk
	size    int           // bytes in chunks
	changed chan struct{} // closed and replaced at each change
	wclosed bool          // no more writes; readers get what is there, then EOF
	rclosed bool          // no reader any more
	rerr    error         // the reader's end is broken
	werr    error         // the writer's end is broken
	rd, wd  deadline
}

type chunk struct {
	b  []byte
	at time.Time // when it arrives
}

type deadline struct {
	t     time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.t.IsZero() && !time.Now().Before(d.t) }

func newHalf(n *Network, from, to string) *half {
	return &half{n: n, from: from, to: to, changed: make(chan struct{})}
}

func (h *half) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wakeLocked()
}

func (h *half) wakeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *half) read(b []byte) (int, error) {
	for {
		linked := h.n.linked(h.from, h.to)
		h.mu.Lock()
		switch {
		case h.rerr != nil:
			h.mu.Unlock()
			return 0, h.rerr
		case h.rclosed:
			h.mu.Unlock()
			return 0, net.ErrClosed
		case h.rd.passed():
			h.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			h.mu.Unlock()
			return 0, nil
		}
		if len(h.chunks) > 0 && linked && !h.chunks[0].at.After(time.Now()) {
			n := copy(b, h.chunks[0].b)
			h.chunks[0].b = h.chunks[0].b[n:]
			if len(h.chunks[0].b) == 0 {
				h.chunks[0] = chunk{}
				h.chunks = h.chunks[1:]
			}
			h.size -= n
			h.wakeLocked()
			h.mu.Unlock()
			return n, nil
		}
		if len(h.chunks) == 0 && h.wclosed && linked {
			h.mu.Unlock()
			return 0, io.EOF
		}
		changed := h.changed
		h.mu.Unlock()
		<-changed
	}
}

func (h *half) write(b []byte) (int, error) {
	h.n.mu.Lock()
	delay := h.n.delay
	h.n.mu.Unlock()
	done := 0
	for {
		h.mu.Lock()
		switch {
		case h.werr != nil:
			h.mu.Unlock()
			return done, h.werr
		case h.wclosed:
			h.mu.Unlock()
			return done, net.ErrClosed
		case h.rclosed:
			h.mu.Unlock()
			return done, io.ErrClosedPipe
		case h.wd.passed():
			h.mu.Unlock()
			return done, os.ErrDeadlineExceeded
		case len(b) == 0:
			h.mu.Unlock()
			return done, nil
		}
		if room := connBuffer - h.size; room > 0 {
			n := min(room, len(b))
			at := time.Now().Add(delay)
			if len(h.chunks) > 0 && h.chunks[len(h.chunks)-1].at.After(at) {
				at = h.chunks[len(h.chunks)-1].at
			}
			h.chunks = append(h.chunks, chunk{append([]byte(nil), b[:n]...), at})
			h.size += n
			b = b[n:]
			done += n
			h.wakeLocked()
			h.mu.Unlock()
			if delay > 0 {
				time.AfterFunc(time.Until(at), h.wake)
			}
			if len(b) == 0 {
				// All data is on its way: the other end may have read it, answered and closed by now, which is no
				// failure of this write.
				return done, nil
			}
			continue
		}
		changed := h.changed
		h.mu.Unlock()
		<-changed
	}
}

func (h *half) setDeadline(d *deadline, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.t = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, h.wake)
	}
	h.wakeLocked()
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, c.opError("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	return n, c.opError("write", err)
}

func (c *conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Source: c.local, Addr: c.remote, Err: err}
}

// Close ends both directions; what was written before is still delivered.
func (c *conn) Close() error {
	c.h.n.mu.Lock()
	delete(c.h.conns, c)
	delete(c.h.n.stale, c)
	c.h.n.mu.Unlock()
	c.in.mu.Lock()
	c.in.rclosed = true
	c.in.chunks, c.in.size = nil, 0
	c.in.stopLocked(&c.in.rd)
	c.in.wakeLocked()
	c.in.mu.Unlock()
	c.out.mu.Lock()
	c.out.wclosed = true
	c.out.stopLocked(&c.out.wd)
	c.out.wakeLocked()
	c.out.mu.Unlock()
	return nil
}

func (h *half) stopLocked(d *deadline) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// reset makes this end fail as a reset connection does.
func (c *conn) reset() {
	c.in.mu.Lock()
	if c.in.rerr == nil {
		c.in.rerr = syscall.ECONNRESET
	}
	c.in.wakeLocked()
	c.in.mu.Unlock()
	c.out.mu.Lock()
	if c.out.werr == nil {
		c.out.werr = syscall.ECONNRESET
	}
	c.out.wakeLocked()
	c.out.mu.Unlock()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.rd, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.wd, t)
	return nil
}
