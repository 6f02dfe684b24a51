package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// pipe carries the messages of a Stream in order, in both directions, with limits. It is a mux stream, or one end of a
// pair in this process.
type pipe interface {
	// send queues one message and waits while there is no room. fin marks the last one.
	send(ctx context.Context, msg []byte, fin bool) error
	// recv returns the next message, at most limit bytes, or io.EOF after the peer's last one.
	recv(ctx context.Context, limit int) ([]byte, error)
	// reset ends both directions at once; data that the peer has not read is dropped.
	reset(r resetReason)
	// onGone registers cancel to be called once the peer gives up or the connection is lost, unless stop is called
	// first.
	onGone(cancel func()) (stop func())
}

// First byte of every message that is not a request.
const (
	tagData  = 0
	tagError = 1 // an encoded wireError follows, and nothing after it
)

type wireError struct {
	Code       structs.ErrorCode `codec:"c"`
	Msg        string            `codec:"m"`
	RetryAfter time.Duration     `codec:"r,omitempty"`
}

func encodeError(err error) []byte {
	e := &structs.Error{Code: structs.CodeInternal, Msg: "failed"}
	errors.As(err, &e)
	w := wireError{e.Code, e.Msg, e.RetryAfter}
	if len(w.Msg) > MaxHeader/2 {
		w.Msg = w.Msg[:MaxHeader/2] + "..."
	}
	b, _ := Encode(&w)
	return append([]byte{tagError}, b...)
}

// decodeMsg returns the content of a tagged message, or the error that it carries.
func decodeMsg(m []byte) ([]byte, error) {
	switch {
	case len(m) == 0:
		return nil, structs.Errorf(structs.CodeInternal, "the peer sent an empty message")
	case m[0] == tagData:
		return m[1:], nil
	case m[0] == tagError:
		var w wireError
		if err := Decode(m[1:], &w); err != nil || w.Code == "" {
			return nil, structs.Errorf(structs.CodeInternal, "the peer sent an error that does not decode")
		}
		return nil, &structs.Error{Code: w.Code, Msg: w.Msg, RetryAfter: w.RetryAfter}
	}
	return nil, structs.Errorf(structs.CodeInternal, "the peer sent a message of unknown kind %d", m[0])
}

// Stream is a two-way stream of frames of a stream method's call. One goroutine may send while another receives; Send
// may be called concurrently. Send waits while the peer does not read: that is the back-pressure. The side that opened
// a stream must call Close, also after an error. A handler's stream is closed when the handler returns.
type Stream struct {
	p      pipe
	ctx    context.Context
	cancel context.CancelFunc
	what   string // method, for messages

	mu struct {
		sync.Mutex
		sentFin bool
		ended   error // why receiving has ended, or nil
	}
}

func newStream(ctx context.Context, p pipe, what string) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{p: p, ctx: ctx, cancel: cancel, what: what}
	// The stream ends with its context.
	context.AfterFunc(ctx, func() { s.p.reset(resetCancelled) })
	return s
}

// Context returns a context that ends with the stream.
func (s *Stream) Context() context.Context { return s.ctx }

// Send sends one frame of at most MaxFrame bytes. It does not keep frame. After the peer has ended the stream, it
// returns the peer's error, or io.EOF if there was none.
func (s *Stream) Send(frame []byte) error {
	if len(frame) > MaxFrame {
		return structs.Errorf(structs.CodeTooLarge, "%s: a frame of %d bytes is over the limit of %d", s.what, len(frame), MaxFrame)
	}
	s.mu.Lock()
	fin := s.mu.sentFin
	s.mu.Unlock()
	if fin {
		return structs.Errorf(structs.CodeInternal, "%s: send after CloseWrite", s.what)
	}
	buf := make([]byte, 1+len(frame))
	copy(buf[1:], frame)
	return s.fail(s.p.send(s.ctx, buf, false))
}

// Recv returns the next frame. The error is io.EOF once the peer has closed its side, or what ended the stream.
func (s *Stream) Recv() ([]byte, error) {
	s.mu.Lock()
	ended := s.mu.ended
	s.mu.Unlock()
	if ended != nil {
		return nil, ended
	}
	m, err := s.p.recv(s.ctx, MaxFrame+1)
	if err == nil {
		m, err = decodeMsg(m)
	}
	if err != nil {
		err = s.fail(err)
		s.mu.Lock()
		s.mu.ended = err
		s.mu.Unlock()
		return nil, err
	}
	return m, nil
}

// fail returns err for the user of the stream.
func (s *Stream) fail(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if s.ctx.Err() != nil {
		return ctxError(s.ctx, s.what)
	}
	return err
}

// SendMsg sends v encoded as one frame.
func (s *Stream) SendMsg(v any) error {
	b, err := Encode(v)
	if err != nil {
		return err
	}
	return s.Send(b)
}

// RecvMsg decodes the next frame into v, a pointer.
func (s *Stream) RecvMsg(v any) error {
	b, err := s.Recv()
	if err != nil {
		return err
	}
	if err := Decode(b, v); err != nil {
		return structs.Errorf(structs.CodeInvalid, "%s: %v", s.what, err)
	}
	return nil
}

// CloseWrite ends this side's frames. The peer's Recv then returns io.EOF; receiving is still possible.
func (s *Stream) CloseWrite() error { return s.finish(nil) }

// finish sends the last message: empty, or an error.
func (s *Stream) finish(cause error) error {
	s.mu.Lock()
	if s.mu.sentFin {
		s.mu.Unlock()
		return nil
	}
	s.mu.sentFin = true
	s.mu.Unlock()
	if cause != nil {
		return s.fail(s.p.send(s.ctx, encodeError(cause), true))
	}
	return s.fail(s.p.send(s.ctx, nil, true))
}

// Close ends both directions. With a cause, the peer's Recv returns it (as CodeInternal unless it is a *structs.Error).
// Without one, frames already sent are delivered before the peer sees io.EOF.
func (s *Stream) Close(cause error) {
	if s.finish(cause) == nil {
		s.p.reset(resetDone)
	}
	s.cancel()
}

// Splice copies frames in both directions between two streams until both have ended. It returns the error that ended b,
// for a handler that forwards a stream.
func Splice(a, b *Stream) error {
	up := make(chan struct{})
	go func() {
		defer close(up)
		if err := copyFrames(b, a); err != nil {
			b.Close(err)
			return
		}
		b.CloseWrite()
	}()
	err := copyFrames(a, b)
	// b has ended, so frames from a go nowhere.
	b.Close(nil)
	if a.ctx.Err() != nil {
		err = ctxError(a.ctx, a.what)
	}
	return err
}

func copyFrames(dst, src *Stream) error {
	for {
		f, err := src.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := dst.Send(f); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}
