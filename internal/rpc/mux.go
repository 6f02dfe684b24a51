package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// A mux is the multiplexer of a session. Frames have a fixed header; all numbers are big-endian:
//
//	kind u8 | flags u8 | length u32 | stream u64 | payload
//
//	data    a fragment of a message; flagEnd on a message's last fragment, flagFin on the last message of a side,
//	        flagOpen on the very first frame of a stream
//	credit  payload u32: that many more payload bytes of data may be sent on the stream
//	reset   payload u8 (resetReason): the sender gave up both directions of the stream
//	ping    payload 8 bytes, answered by a pong with the same
//	goaway  no new streams, please
//
// Each side may send windowFree bytes on a stream; reading returns credit, up to `window` for messages that need more
// (see flow). Streams of the dialling side have odd numbers, those of the accepting side even ones, always growing. A stream is over when both sides have sent
// flagFin, or one has sent a reset. Frames for a stream that is over are dropped, because the two ends learn of its end
// at different times.
//
// Why not yamux: it needs about eight small writes a call where this needs two; it cannot cancel a handler that does
// not read when the caller gives up; and its global pool of timers fails inside testing/synctest, in which whole
// clusters are tested.
const (
	kindData   = 1
	kindCredit = 2
	kindReset  = 3
	kindPing   = 4
	kindPong   = 5
	kindGoAway = 6

	flagEnd  = 1
	flagFin  = 2
	flagOpen = 4

	frameHeader = 14

	windowFree   = 32 << 10  // bytes a side may send on a stream without being granted more
	window       = 256 << 10 // most bytes a side may send on a stream before the peer reads
	flowBudget   = 32 << 20  // bytes beyond windowFree granted to all streams of a session; above it they take turns
	fragment     = 64 << 10  // largest payload of a data frame
	outHigh      = 1 << 20   // bytes queued for the socket; above it senders wait
	outSmall     = 4 << 10   // a frame of at most so many bytes waits only above 2*outHigh, so that small calls pass large ones
	outMax       = 8 << 20   // bytes queued; above it the session is closed: the peer sends requests and does not read the answers
	pingEvery    = 15 * time.Second
	pingPatience = 30 * time.Second // if no frame arrives for this long after a ping was due, the session is closed
	writeStall   = 30 * time.Second // a single write to the socket that takes longer closes the session
)

// mux multiplexes streams over one connection. Its goroutines, reader and writer, end with the connection; the writer
// also sends pings.
type mux struct {
	conn    net.Conn
	dialled bool
	accept  func(*muxStream) // called by the reader for each stream that the peer opens; must not block
	max     int              // most streams of the peer at once
	closed  chan struct{}
	kick    chan struct{} // buffered: 1; something is queued to write
	flow    flow

	mu struct {
		sync.Mutex
		streams map[uint64]*muxStream
		inbound int    // streams of the peer whose handlers have not returned
		nextID  uint64 // of the next stream opened here
		lastID  uint64 // newest stream of the peer
		out     []byte
		room    chan struct{} // closed and replaced when out falls below outHigh
		err     error         // why the session is closed, or nil
		goaway  bool          // the peer wants no new streams
		pinged  uint64        // number of the newest ping of a probe
		ponged  uint64        // number of the newest pong
		heard   time.Time     // when a frame last arrived
		spoke   bool          // a frame has arrived
	}
}

func newMux(conn net.Conn, dialled bool, maxStreams int, accept func(*muxStream)) *mux {
	m := &mux{conn: conn, dialled: dialled, accept: accept, max: maxStreams, closed: make(chan struct{}), kick: make(chan struct{}, 1)}
	m.mu.streams = map[uint64]*muxStream{}
	m.mu.room = make(chan struct{})
	m.mu.heard = time.Now()
	m.mu.nextID = 2
	if dialled {
		m.mu.nextID = 1
	}
	return m
}

// start runs the two goroutines; accept may be called from here on.
func (m *mux) start(r *bufio.Reader) {
	go m.read(r)
	go m.write()
}

// close ends the session and all its streams. It does not wait.
func (m *mux) close(cause error) {
	m.mu.Lock()
	if m.mu.err != nil {
		m.mu.Unlock()
		return
	}
	m.mu.err = cause
	streams := m.mu.streams
	m.mu.streams = map[uint64]*muxStream{}
	close(m.closed)
	m.mu.Unlock()
	m.conn.Close()
	for _, s := range streams {
		s.end(errLost(cause))
	}
}

// errLost is the error of a stream whose connection was lost. Whether the peer has acted on what was sent is not known.
func errLost(cause error) error {
	return structs.Errorf(structs.CodeUnknown, "the connection was lost: %v", cause)
}

// isClosed returns why the session ended, or nil if it has not.
func (m *mux) isClosed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}

// mute reports whether the session is open and no frame has ever arrived.
func (m *mux) mute() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err == nil && !m.mu.spoke
}

// open returns a new stream. The peer learns of it with the first message.
func (m *mux) open() (*muxStream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.err != nil {
		return nil, structs.Errorf(structs.CodeUnavailable, "the connection is closed: %v", m.mu.err)
	}
	if m.mu.goaway {
		return nil, resetClosing.err()
	}
	s := newMuxStream(m, 0, true)
	return s, nil
}

// append queues a frame. The caller holds mu. The first data frame of a stream gives the stream its number, so that
// numbers grow on the wire whichever opener is first.
func (m *mux) append(kind, flags byte, s *muxStream, id uint64, payload []byte) {
	if s != nil && s.id == 0 {
		s.id = m.mu.nextID
		m.mu.nextID += 2
		m.mu.streams[s.id] = s
		flags |= flagOpen
	}
	if s != nil {
		id = s.id
	}
	var h [frameHeader]byte
	h[0], h[1] = kind, flags
	binary.BigEndian.PutUint32(h[2:], uint32(len(payload)))
	binary.BigEndian.PutUint64(h[6:], id)
	m.mu.out = append(append(m.mu.out, h[:]...), payload...)
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// sendData queues a data frame, and waits while outHigh bytes are queued.
func (m *mux) sendData(ctx context.Context, s *muxStream, flags byte, payload []byte) error {
	for {
		m.mu.Lock()
		if m.mu.err != nil {
			err := m.mu.err
			m.mu.Unlock()
			return errLost(err)
		}
		if n := len(m.mu.out); n < outHigh || n < 2*outHigh && len(payload) <= outSmall {
			m.append(kindData, flags, s, 0, payload)
			m.mu.Unlock()
			return nil
		}
		room := m.mu.room
		m.mu.Unlock()
		select {
		case <-room:
		case <-m.closed:
		case <-s.ended:
			return s.endErr()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// control queues a frame without waiting. Beyond outMax it closes the session, because the peer does not read.
func (m *mux) control(kind byte, id uint64, payload []byte) {
	m.mu.Lock()
	if m.mu.err != nil {
		m.mu.Unlock()
		return
	}
	over := len(m.mu.out) > outMax
	if !over {
		m.append(kind, 0, nil, id, payload)
	}
	m.mu.Unlock()
	if over {
		m.close(fmt.Errorf("the peer does not read its answers"))
	}
}

func (m *mux) write() {
	ping := time.NewTimer(pingEvery)
	defer ping.Stop()
	var spare []byte
	for {
		select {
		case <-m.kick:
		case <-ping.C:
			ping.Reset(pingEvery)
			m.mu.Lock()
			silent := time.Since(m.mu.heard)
			m.mu.Unlock()
			if silent > pingEvery+pingPatience {
				m.close(fmt.Errorf("nothing received for %s", silent.Round(time.Second)))
				return
			}
			m.control(kindPing, 0, make([]byte, 8))
			continue
		case <-m.closed:
			return
		}
		m.mu.Lock()
		buf := m.mu.out
		m.mu.out, spare = spare[:0], nil
		m.mu.Unlock()
		if len(buf) == 0 {
			spare = buf
			continue
		}
		m.conn.SetWriteDeadline(time.Now().Add(writeStall))
		if _, err := m.conn.Write(buf); err != nil {
			m.close(fmt.Errorf("write: %w", err))
			return
		}
		if len(buf) >= outHigh {
			m.mu.Lock()
			close(m.mu.room)
			m.mu.room = make(chan struct{})
			m.mu.Unlock()
		}
		spare = buf
		if cap(spare) > outHigh/4 {
			spare = nil
		}
	}
}

func (m *mux) read(r *bufio.Reader) {
	var h [frameHeader]byte
	for first := true; ; first = false {
		if _, err := io.ReadFull(r, h[:]); err != nil {
			switch {
			case err == io.EOF && first && m.dialled:
				err = wrongPort(fmt.Sprintf("closed by the peer before its first answer; is that the port of a server for calls (%d by default)?", structs.PortCalls))
			case err == io.EOF:
				err = fmt.Errorf("closed by the peer")
			}
			m.close(err)
			return
		}
		if first && bytes.HasPrefix(h[:], httpAnswer) {
			m.close(errHTTP)
			return
		}
		n, id := binary.BigEndian.Uint32(h[2:]), binary.BigEndian.Uint64(h[6:])
		if n > fragment {
			m.close(fmt.Errorf("protocol error: a frame of %d bytes is over the limit of %d", n, fragment))
			return
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(r, payload); err != nil {
			m.close(err)
			return
		}
		m.mu.Lock()
		m.mu.heard, m.mu.spoke = time.Now(), true
		m.mu.Unlock()
		if err := m.frame(h[0], h[1], id, payload); err != nil {
			m.close(fmt.Errorf("protocol error: %w", err))
			return
		}
	}
}

// frame handles one frame. On an error the session is closed.
func (m *mux) frame(kind, flags byte, id uint64, payload []byte) error {
	switch kind {
	case kindPing:
		if len(payload) != 8 {
			return fmt.Errorf("a ping of %d bytes", len(payload))
		}
		m.control(kindPong, 0, payload)
		return nil
	case kindPong:
		if len(payload) != 8 {
			return fmt.Errorf("a pong of %d bytes", len(payload))
		}
		m.mu.Lock()
		m.mu.ponged = max(m.mu.ponged, binary.BigEndian.Uint64(payload))
		m.mu.Unlock()
		return nil
	case kindGoAway:
		m.mu.Lock()
		m.mu.goaway = true
		m.mu.Unlock()
		return nil
	case kindData, kindCredit, kindReset:
	default:
		return fmt.Errorf("unknown frame kind %d", kind)
	}
	if id == 0 {
		return fmt.Errorf("frame kind %d for stream 0", kind)
	}
	var s *muxStream
	if kind == kindData && flags&flagOpen != 0 {
		var err error
		if s, err = m.opened(id); err != nil {
			return err
		}
		if s == nil {
			r := resetBusy
			if m.accept == nil {
				r = resetNoService
			}
			m.control(kindReset, id, []byte{byte(r)})
			return nil
		}
		if err := s.arrived(flags, payload); err != nil {
			return err
		}
		m.accept(s)
		return nil
	}
	m.mu.Lock()
	s = m.mu.streams[id]
	m.mu.Unlock()
	if s == nil {
		return nil // the stream is over here, and the peer does not know yet
	}
	switch kind {
	case kindData:
		return s.arrived(flags, payload)
	case kindCredit:
		if len(payload) != 4 {
			return fmt.Errorf("a credit of %d bytes", len(payload))
		}
		return s.granted(int64(binary.BigEndian.Uint32(payload)))
	default:
		if len(payload) != 1 {
			return fmt.Errorf("a reset of %d bytes", len(payload))
		}
		m.forget(s)
		s.end(resetReason(payload[0]).err())
		return nil
	}
}

// opened registers a stream of the peer. It returns nil, nil if the peer has too many.
func (m *mux) opened(id uint64) (*muxStream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id%2 == m.mu.nextID%2 || id <= m.mu.lastID {
		return nil, fmt.Errorf("stream %d opened out of turn", id)
	}
	m.mu.lastID = id
	if m.accept == nil || m.mu.inbound >= m.max || m.mu.err != nil {
		return nil, nil
	}
	s := newMuxStream(m, id, false)
	m.mu.streams[id] = s
	m.mu.inbound++
	return s, nil
}

// forget removes a stream that is over. It returns false if that has been done.
func (m *mux) forget(s *muxStream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.streams[s.id] != s {
		return false
	}
	delete(m.mu.streams, s.id)
	return true
}

// served releases the place of a stream of the peer. The place is taken until its handler has returned, not only until
// the stream is over. Otherwise a peer that opens and resets streams in a loop could start handlers without limit.
func (m *mux) served() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.inbound--
}

// probe closes the session unless the peer answers a ping within patience. A peer whose answers are delayed by other
// frames counts as alive.
func (m *mux) probe(patience time.Duration) {
	m.mu.Lock()
	m.mu.pinged++
	n := m.mu.pinged
	m.mu.Unlock()
	m.control(kindPing, 0, binary.BigEndian.AppendUint64(nil, n))
	time.AfterFunc(patience, func() {
		m.mu.Lock()
		dead := m.mu.err == nil && m.mu.ponged < n && time.Since(m.mu.heard) > patience/2
		m.mu.Unlock()
		if dead {
			m.close(fmt.Errorf("no answer to a ping within %s", patience))
		}
	})
}

// leaving reports whether the peer has asked for no new streams.
func (m *mux) leaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.goaway
}
