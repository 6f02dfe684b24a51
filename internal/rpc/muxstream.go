package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// muxStream is one stream of a mux. It implements pipe.
type muxStream struct {
	m       *mux
	id      uint64        // 0 until its first frame is queued; guarded by m.mu
	ours    bool          // opened by this side
	sending chan struct{} // buffered: 1; a lock that can be waited for with a context
	arrival chan struct{} // buffered: 1; fragments or the peer's end have arrived
	credits chan struct{} // buffered: 1; credit has arrived
	ended   chan struct{} // closed when the stream breaks: reset by either side, or connection lost

	mu struct {
		sync.Mutex
		in      []muxFragment
		inBytes int64 // payload bytes in `in`
		inFin   bool  // the peer's last fragment has arrived
		outFin  bool
		credit  int64  // bytes we may send
		allowed int64  // bytes the peer may send
		partial int64  // bytes of the incomplete message that recv has taken from `in`
		charged int64  // bytes charged to the session's flow
		wide    bool   // may have credit up to window while no message is incomplete
		dropped bool   // what arrives is discarded
		err     error  // why the stream broke
		onEnd   func() // called once when ended is closed; or nil
	}
}

type muxFragment struct {
	b        []byte
	end, fin bool
}

func newMuxStream(m *mux, id uint64, ours bool) *muxStream {
	s := &muxStream{
		m: m, id: id, ours: ours,
		sending: make(chan struct{}, 1),
		arrival: make(chan struct{}, 1),
		credits: make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	s.mu.credit, s.mu.allowed = windowFree, windowFree
	return s
}

func (s *muxStream) endErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.err
}

// end breaks the stream. Data that has arrived can still be received.
func (s *muxStream) end(err error) {
	s.mu.Lock()
	if s.mu.err != nil {
		s.mu.Unlock()
		return
	}
	s.mu.err = err
	close(s.ended)
	f := s.mu.onEnd
	s.mu.onEnd = nil
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

func (s *muxStream) onGone(cancel func()) (stop func()) {
	s.mu.Lock()
	over := s.mu.err != nil
	if !over {
		s.mu.onEnd = cancel
	}
	s.mu.Unlock()
	if over {
		cancel()
	}
	return func() {
		s.mu.Lock()
		s.mu.onEnd = nil
		s.mu.Unlock()
	}
}

// drop discards data that was received and will not be consumed.
func (s *muxStream) drop() {
	s.mu.Lock()
	n := s.mu.charged
	s.mu.in, s.mu.inBytes, s.mu.allowed, s.mu.partial, s.mu.charged, s.mu.dropped = nil, 0, 0, 0, 0, true
	s.mu.Unlock()
	s.m.flow.put(s, n)
}

func (s *muxStream) reset(r resetReason) {
	s.mu.Lock()
	over := s.mu.inFin && s.mu.outFin
	s.mu.Unlock()
	if s.m.forget(s) && !over {
		s.m.control(kindReset, s.id, []byte{byte(r)})
	}
	s.end(errClosed)
	s.drop()
}

// arrived handles a data frame. An error is the peer's fault and closes the session.
func (s *muxStream) arrived(flags byte, b []byte) error {
	s.mu.Lock()
	if s.mu.err != nil { // the stream was reset here
		s.mu.Unlock()
		return nil
	}
	fault := ""
	switch {
	case s.mu.inFin:
		fault = "data after the last message"
	case int64(len(b)) > s.mu.allowed:
		fault = "data beyond the granted credit"
	case len(s.mu.in) >= window/64 && len(b) < 64:
		fault = "a flood of tiny fragments"
	}
	if fault != "" {
		s.mu.Unlock()
		return fmt.Errorf("stream %d: %s", s.id, fault)
	}
	s.mu.in = append(s.mu.in, muxFragment{b, flags&flagEnd != 0, flags&flagFin != 0})
	s.mu.inBytes += int64(len(b))
	s.mu.allowed -= int64(len(b))
	over := false
	if flags&flagFin != 0 {
		s.mu.inFin = true
		over = s.mu.outFin
	}
	s.mu.Unlock()
	notify(s.arrival)
	if over {
		s.m.forget(s)
	}
	return nil
}

func (s *muxStream) granted(n int64) error {
	s.mu.Lock()
	s.mu.credit += n
	over := s.mu.credit > window
	s.mu.Unlock()
	if over {
		return fmt.Errorf("stream %d: credit beyond the window", s.id)
	}
	notify(s.credits)
	return nil
}

func (s *muxStream) send(ctx context.Context, msg []byte, fin bool) error {
	select {
	case s.sending <- struct{}{}:
	case <-s.ended:
		return s.endErr()
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.sending }()
	for first := true; first || len(msg) > 0; first = false {
		n, err := s.takeCredit(ctx, len(msg))
		if err != nil {
			return err
		}
		flags := byte(0)
		if n == len(msg) {
			flags = flagEnd
			if fin {
				flags |= flagFin
			}
		}
		if err := s.m.sendData(ctx, s, flags, msg[:n]); err != nil {
			return err
		}
		msg = msg[n:]
	}
	if fin {
		s.mu.Lock()
		s.mu.outFin = true
		over := s.mu.inFin
		s.mu.Unlock()
		if over {
			s.m.forget(s)
		}
	}
	return nil
}

// takeCredit waits for credit for at least one byte (an empty message needs none) and takes at most one fragment.
func (s *muxStream) takeCredit(ctx context.Context, want int) (int, error) {
	want = min(want, fragment)
	for {
		s.mu.Lock()
		if s.mu.err != nil {
			err := s.mu.err
			s.mu.Unlock()
			return 0, err
		}
		if n := min(int64(want), s.mu.credit); n > 0 || want == 0 {
			s.mu.credit -= n
			s.mu.Unlock()
			return int(n), nil
		}
		s.mu.Unlock()
		select {
		case <-s.credits:
		case <-s.ended:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// recv assembles the next message. The peer gets credit for the rest of a large message as the session's flow allows.
func (s *muxStream) recv(ctx context.Context, limit int) ([]byte, error) {
	var msg []byte
	pieces := 0
	for {
		s.mu.Lock()
		if len(s.mu.in) == 0 {
			fin, err := s.mu.inFin, s.mu.err
			s.mu.Unlock()
			if fin && msg == nil {
				return nil, io.EOF
			}
			if err != nil {
				return nil, err
			}
			if msg != nil {
				s.grant() // recv may have been woken because there is room
			}
			select {
			case <-s.arrival:
			case <-s.ended:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			continue
		}
		f := s.mu.in[0]
		s.mu.in[0] = muxFragment{}
		s.mu.in = s.mu.in[1:]
		s.mu.inBytes -= int64(len(f.b))
		s.mu.partial += int64(len(f.b))
		s.mu.Unlock()
		if len(msg)+len(f.b) > limit {
			return nil, structs.Errorf(structs.CodeTooLarge, "a message of more than %d bytes", limit)
		}
		if msg == nil {
			msg = f.b
		} else {
			msg = append(msg, f.b...)
		}
		if pieces++; !f.end {
			s.grant()
			continue
		}
		s.complete(pieces > 1)
		if f.fin && len(msg) == 0 {
			return nil, io.EOF
		}
		return msg, nil
	}
}

// complete notes that recv has a whole message, which no longer counts as the session's. Only a message of
// several pieces may have waited for credit.
func (s *muxStream) complete(several bool) {
	s.mu.Lock()
	s.mu.partial = 0
	if s.mu.inFin {
		s.mu.allowed = 0
	}
	back := s.mu.charged - s.chargeable(0)
	s.mu.charged -= back
	s.mu.Unlock()
	if back != 0 || several {
		s.m.flow.put(s, back)
	}
	s.grant()
}

// chargeable returns what the stream is charged for if the peer may send n more bytes than now. The caller holds mu.
func (s *muxStream) chargeable(n int64) int64 {
	if s.mu.dropped {
		return 0
	}
	return max(0, s.mu.allowed+n+s.mu.inBytes+s.mu.partial-windowFree)
}

// widen lets the peer send frames ahead of the reader, as far as the session's flow allows.
func (s *muxStream) widen() {
	s.mu.Lock()
	s.mu.wide = true
	s.mu.Unlock()
	s.grant()
}

// grant gives the peer new credit once it has used half of what it had: up to window for wide streams and while a
// message is incomplete, else windowFree.
func (s *muxStream) grant() {
	n := s.grantable()
	if n == 0 {
		return
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(n))
	s.m.control(kindCredit, s.id, b[:])
}

// grantable charges the stream for the credit that it returns.
func (s *muxStream) grantable() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.inFin || s.mu.err != nil {
		return 0
	}
	want := int64(windowFree)
	if s.mu.partial > 0 || s.mu.wide {
		want = window
	}
	n := want - s.mu.allowed - s.mu.inBytes
	if n < want/2 {
		return 0
	}
	if cost := s.chargeable(n) - s.mu.charged; cost > 0 && !s.m.flow.take(s, cost, s.mu.partial > 0) {
		n = windowFree - s.mu.allowed - s.mu.inBytes - s.mu.partial // this much is free
		if n < windowFree/2 {
			return 0
		}
	}
	s.mu.charged = s.chargeable(n)
	s.mu.allowed += n
	return n
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
