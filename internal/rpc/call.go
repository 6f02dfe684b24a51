package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Limits of one call. A message over its limit is refused with CodeTooLarge by its sender, and by the receiver in case
// the sender does not check.
const (
	MaxHeader = 64 << 10 // bytes of an encoded Header
	MaxBody   = 4 << 20  // bytes of a request body
	MaxReply  = 32 << 20 // bytes of a response body, enough for a list of 50,000 nodes
	MaxFrame  = 1 << 20  // bytes of one frame of a stream
	MaxHops   = 4        // how often a call may be forwarded
)

// Header precedes a request.
type Header struct {
	Method    string   `codec:"m,omitempty"` // filled in by Invoke and OpenStream
	TimeoutNs int64    `codec:"t,omitempty"` // time left when the header was written, taken from the context; 0: no limit
	Token     string   `codec:"k,omitempty"` // secret of the caller's ACL token; "": anonymous
	Region    string   `codec:"r,omitempty"` // region that should answer; "": the receiver's
	Namespace string   `codec:"n,omitempty"`
	Trace     [16]byte `codec:"x"`           // the same on every hop, for logs
	Hops      uint8    `codec:"h,omitempty"` // how often the call was forwarded; see Call.Forward
	Stream    bool     `codec:"s,omitempty"` // filled in by Open
	Inside    bool     `codec:"i,omitempty"` // the caller is a part of the process of the server that forwarded the call; trusted from servers only
}

// Peer identifies the other end of a connection.
type Peer struct {
	Addr   string // "host:port"; "" in this process
	Role   string // "server", "client" or "cli" from the verified certificate; "" without TLS
	Region string // from the verified certificate
	Name   string // common name of the certificate
	TLS    bool
	Local  bool // in the same process
}

// Call is one incoming call. A wrapper sees it before the handler does.
type Call struct {
	Header
	Peer    Peer
	Info    *MethodInfo // never nil
	Session *Session    // the session it arrived on; nil for a call in this process
	Back    Caller      // calls methods of the caller's side; nil if that side serves none
	Start   time.Time   // when the header was read

	stream *Stream // nil unless it is a stream method

	mu      sync.Mutex
	raw     Raw // or nil
	decoded any // *Req or nil
}

// Body returns the encoded request.
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

// Request returns the decoded request, a *Req of the method. It is decoded once; wrapper and handler share the value.
// If the body does not decode, the error is CodeInvalid.
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

// Stream returns the stream of a stream method, or nil.
func (c *Call) Stream() *Stream { return c.stream }

// Forward passes the call to another server with body and frames unchanged, and returns its answer. At MaxHops it
// fails, because two servers that each believe the other leads would forward a call for ever.
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

// Reply is a handler's answer: a value to encode, or encoded bytes. The reply of a stream method is nil.
type Reply struct {
	value any
	raw   Raw
}

// ValueReply returns a reply with a value, a *Resp of the method.
func ValueReply(v any) *Reply { return &Reply{value: v} }

// RawReply returns a reply with an encoded response.
func RawReply(b []byte) *Reply { return &Reply{raw: b} }

// Value returns the response as a value, or nil if the reply holds only bytes.
func (r *Reply) Value() any { return r.value }

// Bytes returns the encoded response.
func (r *Reply) Bytes() (Raw, error) {
	if r == nil {
		return Raw{encodedNil}, nil
	}
	if r.raw != nil {
		return r.raw, nil
	}
	return Encode(r.value)
}

const encodedNil = 0xc0

// appendTo appends what Bytes returns.
func (r *Reply) appendTo(to []byte) ([]byte, error) {
	switch {
	case r == nil:
		return append(to, encodedNil), nil
	case r.raw != nil:
		return append(to, r.raw...), nil
	}
	return appendEncoded(to, r.value)
}

// Caller makes calls to another party: a session, a pooled address, or a registry in this process.
//
// Errors are *structs.Error, except that a cancelled context gives context.Canceled. CodeUnavailable means that the
// request was not sent, so it is safe to try another server. CodeUnknown means that the connection was lost after it
// was sent.
type Caller interface {
	// Invoke calls h.Method with req, a value to encode or Raw, and decodes the response into resp, a pointer or nil.
	Invoke(ctx context.Context, h Header, req, resp any) error
	// InvokeRaw is Invoke with encoded bodies.
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

// ctxError returns the error that callers get when their context has ended.
func ctxError(ctx context.Context, what string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return structs.Errorf(structs.CodeTimeout, "%s: the deadline passed", what)
	}
	return err
}

// setTimeout sets the time that is left of ctx.
func (h *Header) setTimeout(ctx context.Context) {
	h.TimeoutNs = 0
	if d, ok := ctx.Deadline(); ok {
		h.TimeoutNs = max(1, int64(time.Until(d)))
	}
}
