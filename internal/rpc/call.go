package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Limits of one call. A message over its limit is refused with CodeTooLarge by the side that would send it, and by the
// side that receives it should the sender not care.
const (
	MaxHeader = 64 << 10 // bytes of an encoded Header
	MaxBody   = 4 << 20  // bytes of a request body
	MaxReply  = 32 << 20 // bytes of a response body: a list of 50,000 nodes; half of what a session may hold unread
	MaxFrame  = 1 << 20  // bytes of one frame of a stream
	MaxHops   = 4        // times a call may be forwarded
)

// Header goes before a request.
type Header struct {
	Method    string   `codec:"m,omitempty"` // filled in by Invoke and OpenStream
	TimeoutNs int64    `codec:"t,omitempty"` // time left when the header was written; 0 is none. Filled in from the context
	Token     string   `codec:"k,omitempty"` // secret of the caller's ACL token; "" is anonymous
	Region    string   `codec:"r,omitempty"` // region that shall answer; "" is the receiver's
	Namespace string   `codec:"n,omitempty"`
	Trace     [16]byte `codec:"x"`           // the same through every hop, for logs
	Hops      uint8    `codec:"h,omitempty"` // how often it was forwarded; see Call.Forward
	Stream    bool     `codec:"s,omitempty"` // filled in by Open
}

// Peer is who is at the other end of a connection.
type Peer struct {
	Addr   string // "host:port", or "" in process
	Role   string // "server", "client" or "cli" from the verified certificate; "" without TLS
	Region string // from the certificate
	Name   string // the certificate's common name
	TLS    bool
	Local  bool // in the same process
}

// Call is one call that arrived. A wrapper sees it before the handler does.
type Call struct {
	Header
	Peer    Peer
	Info    *MethodInfo // never nil
	Session *Session    // the session it arrived on, or nil in process
	Back    Caller      // calls methods on whoever made this call, or nil if that side serves none
	Start   time.Time   // when the header was read

	stream *Stream // of a stream method, else nil

	mu      sync.Mutex
	raw     Raw // or nil
	decoded any // *Req or nil
}

// Body is the encoded request.
func (c *Call) Body() (Raw, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.raw == nil {
		b, err := Encode(c.decoded)
		if err != nil {
			return nil, err
		}
		c.raw = b
	}
	return c.raw, nil
}

// Request is the decoded request, a *Req of the method. It is decoded once; wrapper and handler see the same value.
// A body that does not decode is CodeInvalid.
func (c *Call) Request() (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.decoded == nil {
		v := c.Info.newReq()
		if err := Decode(c.raw, v); err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "%s: %v", c.Method, err)
		}
		c.decoded = v
	}
	return c.decoded, nil
}

// Stream is the stream of a stream method, or nil.
func (c *Call) Stream() *Stream { return c.stream }

// Forward sends the call on to another server, body and frames untouched, and answers with what it answered. At
// MaxHops it is refused: two servers that each believe the other leads would pass a call around for ever.
func (c *Call) Forward(ctx context.Context, to Caller) (*Reply, error) {
	if c.Hops >= MaxHops {
		return nil, structs.Errorf(structs.CodeNoLeader, "%s was forwarded %d times without reaching a server that answers it", c.Method, c.Hops)
	}
	h := c.Header
	h.Hops++
	body, err := c.Body()
	if err != nil {
		return nil, err
	}
	if c.stream == nil {
		out, err := to.InvokeRaw(ctx, h, body)
		if err != nil {
			return nil, err
		}
		return RawReply(out), nil
	}
	out, err := to.Open(ctx, h, body)
	if err != nil {
		return nil, err
	}
	return nil, Splice(c.stream, out)
}

// Reply is what a handler answers: a value to encode, or bytes that are encoded already. A stream method answers nil.
type Reply struct {
	value any
	raw   Raw
}

// ValueReply answers with v, a *Resp of the method.
func ValueReply(v any) *Reply { return &Reply{value: v} }

// RawReply answers with an encoded response.
func RawReply(b []byte) *Reply { return &Reply{raw: b} }

// Value is the response as a value, or nil if it is only there encoded.
func (r *Reply) Value() any { return r.value }

// Bytes is the response encoded.
func (r *Reply) Bytes() (Raw, error) {
	if r == nil {
		return Raw{0xc0}, nil
	}
	if r.raw != nil {
		return r.raw, nil
	}
	return Encode(r.value)
}

// Caller makes calls on some other party: a session, a pooled address, or a registry in this process.
//
// Errors are *structs.Error, except that a cancelled context gives context.Canceled. CodeUnavailable says that the
// request was not sent, so that trying elsewhere is safe; CodeUnknown that the connection was lost after it was sent.
type Caller interface {
	// Invoke calls h.Method with req, a value to encode or Raw, and decodes the response into resp, a pointer or nil.
	Invoke(ctx context.Context, h Header, req, resp any) error
	// InvokeRaw is Invoke with both bodies encoded.
	InvokeRaw(ctx context.Context, h Header, body []byte) ([]byte, error)
	// Open starts a stream method. The stream lives until it is closed, its context ends, or the peer ends it.
	Open(ctx context.Context, h Header, req any) (*Stream, error)
}

// Invoke calls a method with its own types.
func Invoke[Req, Resp any](ctx context.Context, c Caller, m Method[Req, Resp], h Header, req *Req) (*Resp, error) {
	h.Method = m.Name
	resp := new(Resp)
	if err := c.Invoke(ctx, h, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// OpenStream starts a stream method with its own request type.
func OpenStream[Req any](ctx context.Context, c Caller, m StreamMethod[Req], h Header, req *Req) (*Stream, error) {
	h.Method = m.Name
	return c.Open(ctx, h, req)
}

// ctxError is the error of an ended context as callers see it.
func ctxError(ctx context.Context, what string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return structs.Errorf(structs.CodeTimeout, "%s: the deadline passed", what)
	}
	return err
}

// setTimeout fills in the time left of ctx.
func (h *Header) setTimeout(ctx context.Context) {
	h.TimeoutNs = 0
	if d, ok := ctx.Deadline(); ok {
		h.TimeoutNs = max(1, int64(time.Until(d)))
	}
}
