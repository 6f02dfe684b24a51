package rpc

import (
	"context"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Local returns a Caller that reaches this registry without a socket, through the same wrapper as remote calls.
// Requests and responses are copied through the codec, so that neither side can change the other's values. back calls
// methods of the caller's side; it may be nil.
func (r *Registry) Local(peer Peer, back Caller) Caller {
	peer.Local = true
	return &local{r: r, peer: peer, back: back}
}

// LocalShared is Local without the copy: handler and caller share request and response. It is for callers that own the
// request and only read the response, such as the HTTP API.
func (r *Registry) LocalShared(peer Peer, back Caller) Caller {
	peer.Local = true
	return &local{r: r, peer: peer, back: back, shared: true}
}

type local struct {
	r      *Registry
	peer   Peer
	back   Caller
	shared bool
}

func (l *local) call(h Header) (*Call, error) {
	m, err := l.r.find(&h)
	if err != nil {
		return nil, err
	}
	return &Call{Header: h, Peer: l.peer, Info: m, Back: l.back, Start: time.Now()}, nil
}

// run dispatches a call. It stops waiting when ctx ends, as a call over a socket would.
func (l *local) run(ctx context.Context, c *Call) (*Reply, error) {
	ctx, cancel := l.r.callContext(ctx, &c.Header)
	defer cancel()
	if ctx.Err() != nil {
		return nil, ctxError(ctx, c.Method)
	}
	type answer struct {
		reply *Reply
		err   error
	}
	ch := make(chan answer, 1)
	go func() {
		reply, err := l.r.dispatch(ctx, c)
		l.r.measure(c, err, 0, 0)
		ch <- answer{reply, err}
	}()
	select {
	case a := <-ch:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, ctxError(ctx, c.Method)
	}
}

func (l *local) Invoke(ctx context.Context, h Header, req, resp any) error {
	h.Stream = false
	h.setTimeout(ctx)
	c, err := l.call(h)
	if err != nil {
		return err
	}
	raw, isRaw := req.(Raw)
	switch {
	case isRaw:
		c.raw = raw
	case l.shared && reflect.TypeOf(req) == reflect.TypeOf(c.Info.newReq()):
		c.decoded = req
	default:
		if c.raw, err = Encode(req); err != nil {
			return structs.Errorf(structs.CodeInvalid, "%s: %v", h.Method, err)
		}
		if len(c.raw) > MaxBody {
			return tooLarge(h.Method, len(c.raw))
		}
	}
	reply, err := l.run(ctx, c)
	if err != nil || resp == nil {
		return err
	}
	if l.shared && reply != nil && reply.value != nil && reflect.TypeOf(reply.value) == reflect.TypeOf(resp) {
		reflect.ValueOf(resp).Elem().Set(reflect.ValueOf(reply.value).Elem())
		return nil
	}
	b, err := reply.Bytes()
	if err != nil {
		return structs.Errorf(structs.CodeInternal, "%s: %v", h.Method, err)
	}
	if err := Decode(b, resp); err != nil {
		return structs.Errorf(structs.CodeInternal, "%s: the response does not decode: %v", h.Method, err)
	}
	return nil
}

func (l *local) InvokeRaw(ctx context.Context, h Header, body []byte) ([]byte, error) {
	h.Stream = false
	h.setTimeout(ctx)
	c, err := l.call(h)
	if err != nil {
		return nil, err
	}
	if len(body) > MaxBody {
		return nil, tooLarge(h.Method, len(body))
	}
	c.raw = body
	reply, err := l.run(ctx, c)
	if err != nil {
		return nil, err
	}
	b, err := reply.Bytes()
	if err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "%s: %v", h.Method, err)
	}
	return b, nil
}

func (l *local) Open(ctx context.Context, h Header, req any) (*Stream, error) {
	h.Stream = true
	h.setTimeout(ctx)
	c, err := l.call(h)
	if err != nil {
		return nil, err
	}
	if c.raw, err = Encode(req); err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "%s: %v", h.Method, err)
	}
	if len(c.raw) > MaxBody {
		return nil, tooLarge(h.Method, len(c.raw))
	}
	near, far := pipePair()
	out := newStream(ctx, near, h.Method)
	hctx, cancel := l.r.callContext(context.WithoutCancel(ctx), &c.Header)
	go func() {
		defer cancel()
		serveStream(l.r, hctx, c, far)
	}()
	return out, nil
}

// serveStream runs a stream method's handler on p, then ends the stream.
func serveStream(r *Registry, ctx context.Context, c *Call, p pipe) {
	c.stream = newStream(ctx, p, c.Method)
	defer p.onGone(c.stream.cancel)()
	_, err := r.dispatch(c.stream.ctx, c)
	r.measure(c, err, len(c.raw), 0)
	c.stream.Close(err)
}

func tooLarge(method string, n int) error {
	return structs.Errorf(structs.CodeTooLarge, "%s: a body of %d bytes is over the limit of %d", method, n, MaxBody)
}

// memPipe is one end of a pair of pipes in this process. Each direction buffers memDepth messages; then send waits.
type memPipe struct {
	out, in chan memMsg
	mine    *memEnd
	peers   *memEnd
}

// memEnd is the state of one end that the other end reads.
type memEnd struct {
	once   sync.Once
	left   chan struct{} // closed when this end is reset
	reason resetReason
}

type memMsg struct {
	b   []byte
	fin bool
}

const memDepth = 8

func pipePair() (a, b *memPipe) {
	ab, ba := make(chan memMsg, memDepth), make(chan memMsg, memDepth)
	ea, eb := &memEnd{left: make(chan struct{})}, &memEnd{left: make(chan struct{})}
	return &memPipe{out: ab, in: ba, mine: ea, peers: eb}, &memPipe{out: ba, in: ab, mine: eb, peers: ea}
}

func (p *memPipe) send(ctx context.Context, b []byte, fin bool) error {
	select {
	case <-p.mine.left:
		return errClosed
	case <-p.peers.left:
		return p.gone()
	default:
	}
	select {
	case p.out <- memMsg{b, fin}:
		return nil
	case <-p.mine.left:
		return errClosed
	case <-p.peers.left:
		return p.gone()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *memPipe) recv(ctx context.Context, limit int) ([]byte, error) {
	got := func(m memMsg) ([]byte, error) {
		if m.fin && len(m.b) == 0 {
			return nil, io.EOF
		}
		return m.b, nil
	}
	select {
	case m := <-p.in:
		return got(m)
	default:
	}
	select {
	case m := <-p.in:
		return got(m)
	case <-p.mine.left:
		return nil, errClosed
	case <-p.peers.left:
		select { // the peer may have sent before it left
		case m := <-p.in:
			return got(m)
		default:
		}
		return nil, p.gone()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// gone returns why nothing is exchanged any more after the peer left. A peer that answers a reset of this side leaves, too, and what
// this side did comes first: only the peer's own reset says that a call was not carried out.
func (p *memPipe) gone() error {
	select {
	case <-p.mine.left:
		return errClosed
	default:
		return p.peers.reason.err()
	}
}

func (p *memPipe) reset(r resetReason) {
	p.mine.once.Do(func() {
		p.mine.reason = r
		close(p.mine.left)
	})
}

func (p *memPipe) onGone(cancel func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-p.peers.left:
			cancel()
		case <-done:
		}
	}()
	return func() { close(done) }
}
