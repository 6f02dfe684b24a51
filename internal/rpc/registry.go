package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/structs"
)

// Handler answers a call. The handler of a stream method uses c.Stream() and returns a nil Reply.
type Handler func(ctx context.Context, c *Call) (*Reply, error)

// MethodInfo is a registered method.
type MethodInfo struct {
	Name   string
	Stream bool

	newReq  func() any
	handler Handler
}

// Metrics receives every answered call and every refused connection.
type Metrics interface {
	// Call counts one answered call. code is "" for success.
	Call(method string, peer Peer, code structs.ErrorCode, took time.Duration, inBytes, outBytes int)
	// Refused counts a refused connection or stream, by a short fixed reason ("per-ip", "first-byte", ...).
	Refused(reason string)
}

type noMetrics struct{}

func (noMetrics) Call(string, Peer, structs.ErrorCode, time.Duration, int, int) {}
func (noMetrics) Refused(string)                                                {}

// Registry holds the methods that this process serves, and the wrappers around them. Call Handle, HandleStream and Wrap
// only before calls arrive.
type Registry struct {
	log     hclog.Logger
	metrics Metrics
	methods map[string]*MethodInfo
	wraps   []func(Handler) Handler
	timeout time.Duration
}

// NewRegistry returns an empty registry. log and metrics may be nil.
func NewRegistry(log hclog.Logger, metrics Metrics) *Registry {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	if metrics == nil {
		metrics = noMetrics{}
	}
	return &Registry{log: log, metrics: metrics, methods: map[string]*MethodInfo{}, timeout: maxUnary}
}

// maxUnary bounds a call without a deadline, so that a forgotten call cannot hold its stream for ever. It is longer
// than the longest blocking query.
const maxUnary = 15 * time.Minute

// Handle serves m with fn. Registering a method twice is a programming error and panics.
func Handle[Req, Resp any](r *Registry, m Method[Req, Resp], fn func(context.Context, *Call, *Req) (*Resp, error)) {
	r.add(&MethodInfo{
		Name:   m.Name,
		newReq: func() any { return new(Req) },
		handler: func(ctx context.Context, c *Call) (*Reply, error) {
			req, err := c.Request()
			if err != nil {
				return nil, err
			}
			resp, err := fn(ctx, c, req.(*Req))
			if err != nil {
				return nil, err
			}
			if resp == nil {
				resp = new(Resp)
			}
			return ValueReply(resp), nil
		},
	})
}

// HandleStream serves m with fn. The stream ends when fn returns, cleanly if the error is nil.
func HandleStream[Req any](r *Registry, m StreamMethod[Req], fn func(context.Context, *Call, *Req, *Stream) error) {
	r.add(&MethodInfo{
		Name:   m.Name,
		Stream: true,
		newReq: func() any { return new(Req) },
		handler: func(ctx context.Context, c *Call) (*Reply, error) {
			req, err := c.Request()
			if err != nil {
				return nil, err
			}
			return nil, fn(ctx, c, req.(*Req), c.stream)
		},
	})
}

func (r *Registry) add(m *MethodInfo) {
	if m.Name == "" || r.methods[m.Name] != nil {
		panic(fmt.Sprintf("rpc: method %q is served twice or has no name", m.Name))
	}
	r.methods[m.Name] = m
}

// Wrap adds w around every dispatch. The wrapper added first is the outermost.
func (r *Registry) Wrap(w func(next Handler) Handler) { r.wraps = append(r.wraps, w) }

// find returns the method that a header names, or the error for the caller.
func (r *Registry) find(h *Header) (*MethodInfo, error) {
	m := r.methods[h.Method]
	if m == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "unknown method %.80q; this process serves %d others", h.Method, len(r.methods))
	}
	if m.Stream != h.Stream {
		if m.Stream {
			return nil, structs.Errorf(structs.CodeInvalid, "%s is a stream method; open it as a stream", m.Name)
		}
		return nil, structs.Errorf(structs.CodeInvalid, "%s is not a stream method", m.Name)
	}
	return m, nil
}

// NewCall returns the call that a header and a body describe, to decide about a call that another process makes.
func (r *Registry) NewCall(h Header, body Raw) (*Call, error) {
	if m := r.methods[h.Method]; m != nil {
		h.Stream = m.Stream
	}
	m, err := r.find(&h)
	if err != nil {
		return nil, err
	}
	return &Call{Header: h, Info: m, raw: body, Start: time.Now()}, nil
}

// dispatch runs a call through the wrappers and the handler. It never panics, and its error may always cross the
// connection.
func (r *Registry) dispatch(ctx context.Context, c *Call) (reply *Reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("handler panicked", "method", c.Method, "peer", c.Peer.Addr, "panic", p, "stack", string(debug.Stack()))
			reply, err = nil, structs.Errorf(structs.CodeInternal, "%s failed; the server's log has the detail (trace %x)", c.Method, c.Trace)
		}
	}()
	h := c.Info.handler
	for i := len(r.wraps) - 1; i >= 0; i-- {
		h = r.wraps[i](h)
	}
	reply, err = h(ctx, c)
	if err != nil {
		err = r.crossing(c, err)
	}
	return reply, err
}

// crossing returns err in the form that the other side may see.
func (r *Registry) crossing(c *Call, err error) *structs.Error {
	var e *structs.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return structs.Errorf(structs.CodeTimeout, "%s: the deadline passed", c.Method)
	case errors.Is(err, context.Canceled): // by the caller; a relay may learn of it before its own context ends
		return structs.Errorf(structs.CodeTimeout, "%s: cancelled", c.Method)
	}
	r.log.Error("call failed", "method", c.Method, "peer", c.Peer.Addr, "trace", fmt.Sprintf("%x", c.Trace), "error", err)
	return structs.Errorf(structs.CodeInternal, "%s failed; the server's log has the detail (trace %x)", c.Method, c.Trace)
}

// callContext limits ctx to the header's timeout. Calls without a timeout, unless they are streams, get maxUnary.
func (r *Registry) callContext(ctx context.Context, h *Header) (context.Context, context.CancelFunc) {
	d := time.Duration(h.TimeoutNs)
	if d <= 0 || (!h.Stream && d > r.timeout) {
		if h.Stream {
			return context.WithCancel(ctx)
		}
		d = r.timeout
	}
	return context.WithTimeout(ctx, d)
}

func (r *Registry) measure(c *Call, err error, in, out int) {
	code := structs.ErrorCode("")
	if err != nil {
		code = structs.CodeOf(err)
	}
	r.metrics.Call(c.Method, c.Peer, code, time.Since(c.Start), in, out)
}
