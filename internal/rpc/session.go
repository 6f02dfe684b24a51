package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/structs"
)

// Session is a connection that carries calls in both directions. As a Caller, it calls the other side.
type Session struct {
	m    *mux
	peer Peer
	reg  *Registry // serves calls of the other side; nil: they are refused
	log  hclog.Logger
}

// DefaultMaxStreams is the default limit of calls that the other side of a session may have in progress.
const DefaultMaxStreams = 1024

// newSession returns a session on conn that has not been started. reg serves the other side; it may be nil.
func newSession(conn net.Conn, dialled bool, peer Peer, reg *Registry, maxStreams int, log hclog.Logger) *Session {
	if maxStreams <= 0 {
		maxStreams = DefaultMaxStreams
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	s := &Session{peer: peer, reg: reg, log: log}
	var accept func(*muxStream)
	if reg != nil {
		accept = func(st *muxStream) { go s.serve(st) }
	}
	s.m = newMux(conn, dialled, maxStreams, accept)
	return s
}

// Peer returns the identity of the other end.
func (s *Session) Peer() Peer { return s.peer }

// Close ends the session and all its calls in both directions.
func (s *Session) Close() error {
	s.m.close(errors.New("closed on this side"))
	return nil
}

// Closed is closed when the session is over.
func (s *Session) Closed() <-chan struct{} { return s.m.closed }

// Err returns why the session is over, or nil if it is not.
func (s *Session) Err() error { return s.m.isClosed() }

// Silent returns how long nothing has arrived from the other side.
func (s *Session) Silent() time.Duration {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return time.Since(s.m.mu.heard)
}

// Ping asks the other side for a sign of life and does not wait for it.
func (s *Session) Ping() { s.m.control(kindPing, 0, make([]byte, 8)) }

// GoAway asks the other side to start no new calls on this session. Calls in progress continue.
func (s *Session) GoAway() { s.m.control(kindGoAway, 0, nil) }

// start opens a stream and sends header and body. If it fails, the call does not begin at the peer, which waits for the
// last byte of the body. The stream is nil if it was not opened.
func (s *Session) start(ctx context.Context, h Header, body []byte, fin bool) (*muxStream, error) {
	if len(body) > MaxBody {
		return nil, tooLarge(h.Method, len(body))
	}
	if ctx.Err() != nil {
		return nil, ctxError(ctx, h.Method)
	}
	h.setTimeout(ctx)
	head, err := Encode(&h)
	if err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "%s: %v", h.Method, err)
	}
	if len(head) > MaxHeader {
		return nil, structs.Errorf(structs.CodeTooLarge, "%s: a header of %d bytes is over the limit of %d", h.Method, len(head), MaxHeader)
	}
	st, err := s.m.open()
	if err != nil {
		return nil, err
	}
	if err = st.send(ctx, head, false); err == nil {
		err = st.send(ctx, body, fin)
	}
	return st, err
}

// InvokeRaw implements Caller.
func (s *Session) InvokeRaw(ctx context.Context, h Header, body []byte) ([]byte, error) {
	h.Stream = false
	st, err := s.start(ctx, h, body, true)
	if st == nil {
		return nil, s.failed(ctx, h.Method, err, false)
	}
	defer st.reset(resetCancelled) // sends nothing if the call has ended
	// If sending failed, the peer may have answered before it read everything.
	m, rerr := st.recv(ctx, MaxReply+1)
	switch {
	case rerr == nil:
		return decodeMsg(m)
	case err != nil:
		return nil, s.failed(ctx, h.Method, err, false)
	}
	return nil, s.failed(ctx, h.Method, rerr, true)
}

// failed returns the error of a call for its caller. sent reports whether all of the call was sent. Then the error is
// never CodeUnavailable, because the peer may have done what was asked, unless it speaks HTTP.
func (s *Session) failed(ctx context.Context, method string, err error, sent bool) error {
	if ctx.Err() != nil {
		return ctxError(ctx, method)
	}
	if s.isHTTP() {
		return structs.Errorf(structs.CodeUnavailable, "%s on %s: %v", method, s.peer.Addr, errHTTP)
	}
	code, what := structs.CodeInternal, err.Error()
	var e *structs.Error
	if errors.As(err, &e) {
		code, what = e.Code, e.Msg
	}
	lost := code == structs.CodeUnknown || code == structs.CodeUnavailable
	switch ended := err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF); {
	case sent && ended:
		return structs.Errorf(structs.CodeUnknown, "%s: %s ended the call without an answer; it may or may not have been done", method, s.peer.Addr)
	case ended:
		return structs.Errorf(structs.CodeInternal, "%s: %s ended the call before it was sent, without an answer", method, s.peer.Addr)
	case sent && lost:
		return structs.Errorf(structs.CodeUnknown, "%s: the connection to %s was lost while the call was in progress; it may or may not have been done%s", method, s.peer.Addr, s.refused())
	case lost:
		code = structs.CodeUnavailable
	}
	return structs.Errorf(code, "%s on %s: %s", method, s.peer.Addr, what)
}

// isHTTP reports whether the session ended because the peer speaks HTTP.
func (s *Session) isHTTP() bool { return errors.Is(s.m.isClosed(), errHTTP) }

// refused says that the peer refused this side's certificate, which in TLS 1.3 arrives after the first call, or that its port is for something
// else; otherwise it is empty.
func (s *Session) refused() string {
	why := s.m.isClosed()
	if op := (*net.OpError)(nil); errors.As(why, &op) && op.Op == "remote error" {
		return ": " + op.Error()
	}
	if port := wrongPort(""); errors.As(why, &port) {
		return ": " + string(port)
	}
	return ""
}

// Invoke implements Caller.
func (s *Session) Invoke(ctx context.Context, h Header, req, resp any) error {
	return invoke(ctx, s, h, req, resp)
}

// invoke implements Invoke with InvokeRaw.
func invoke(ctx context.Context, c Caller, h Header, req, resp any) error {
	body, err := Encode(req)
	if err != nil {
		return structs.Errorf(structs.CodeInvalid, "%s: %v", h.Method, err)
	}
	out, err := c.InvokeRaw(ctx, h, body)
	if err != nil || resp == nil {
		return err
	}
	if err := Decode(out, resp); err != nil {
		return structs.Errorf(structs.CodeInternal, "%s: the response does not decode: %v", h.Method, err)
	}
	return nil
}

// Open implements Caller.
func (s *Session) Open(ctx context.Context, h Header, req any) (*Stream, error) {
	body, err := Encode(req)
	if err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "%s: %v", h.Method, err)
	}
	h.Stream = true
	st, err := s.start(ctx, h, body, false)
	if err != nil && !(st != nil && err == io.EOF) { // a peer that ended the stream before it read everything has answered: Recv returns that
		if st != nil {
			st.reset(resetCancelled)
		}
		return nil, s.failed(ctx, h.Method, err, false)
	}
	st.widen()
	return newStream(ctx, st, h.Method), nil
}

// headerPatience bounds the time for a stream's header and body to arrive.
const headerPatience = 30 * time.Second

// serve answers one call of the other side. It returns after the handler.
func (s *Session) serve(st *muxStream) {
	defer s.m.served()
	rctx, rcancel := context.WithTimeout(context.Background(), headerPatience)
	c, err := s.receive(rctx, st)
	rcancel()
	if err != nil {
		if !isStructs(err) {
			err = structs.Errorf(structs.CodeTimeout, "the call's header and body did not arrive within %s", headerPatience)
		}
		if c.Info != nil {
			s.reg.measure(c, err, 0, 0)
		} else {
			s.reg.metrics.Refused("call")
		}
		s.answer(st, encodeError(err))
		return
	}
	ctx, cancel := s.reg.callContext(context.Background(), &c.Header)
	defer cancel()
	if c.Info.Stream {
		st.widen()
		serveStream(s.reg, ctx, c, st)
		return
	}
	stop := st.onGone(cancel) // when the caller gives up, cancel the handler
	reply, err := s.reg.dispatch(ctx, c)
	stop()
	scratch := scratches.Get().(*[]byte)
	out := (*scratch)[:0]
	if err == nil {
		if out, err = tagged(out, reply); err != nil {
			s.log.Error("response refused", "method", c.Method, "error", err)
		}
	}
	if err != nil {
		out = encodeError(err)
	}
	s.answer(st, out)
	s.reg.measure(c, err, len(c.raw), len(out))
	release(scratch, out) // the connection has a copy
}

func isStructs(err error) bool {
	var e *structs.Error
	return errors.As(err, &e)
}

// tagged appends a reply as a response message.
func tagged(to []byte, reply *Reply) ([]byte, error) {
	out, err := reply.appendTo(append(to, tagData))
	if err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "the response does not encode")
	}
	if n := len(out) - len(to) - 1; n > MaxReply {
		return nil, structs.Errorf(structs.CodeTooLarge, "the response of %d bytes is over the limit of %d; ask for less, or use pages", n, MaxReply)
	}
	return out, nil
}

// receive reads header and body. The call is never nil; its Info is nil if the method is unknown.
func (s *Session) receive(ctx context.Context, st *muxStream) (*Call, error) {
	c := &Call{Peer: s.peer, Session: s, Back: s, Start: time.Now()}
	head, err := st.recv(ctx, MaxHeader)
	if err == io.EOF {
		return c, structs.Errorf(structs.CodeInvalid, "the call has no header")
	}
	if err != nil {
		return c, err
	}
	if err := Decode(head, &c.Header); err != nil {
		return c, structs.Errorf(structs.CodeInvalid, "the call's header does not decode: %v", err)
	}
	if c.Info, err = s.reg.find(&c.Header); err != nil {
		return c, err
	}
	body, err := st.recv(ctx, MaxBody)
	if err == io.EOF {
		return c, structs.Errorf(structs.CodeInvalid, "%s: the call has no body", c.Method)
	}
	if err != nil {
		return c, err
	}
	c.raw = body
	return c, nil
}

// answerPatience bounds the time in which the other side must accept an answer.
const answerPatience = time.Minute

func (s *Session) answer(st *muxStream, msg []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), answerPatience)
	defer cancel()
	r := resetDone
	if st.send(ctx, msg, true) != nil {
		r = resetCancelled
	}
	st.reset(r)
}
