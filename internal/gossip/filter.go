package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/rpc"
)

// Message types of memberlist's protocol.
const (
	msgPing = iota
	msgIndirectPing
	msgAck
	msgSuspect
	msgAlive
	msgDead
	msgPushPull
	msgCompound
	msgUser
	msgCompress
	msgEncrypt
	msgNack
	msgCRC
	msgErr
)

// Limits of what is passed to memberlist.
const (
	packetMax     = 64 << 10
	streamMax     = 16 << 20 // of one message on a connection: the whole member list
	compoundMax   = 255
	streamPending = 64               // connections whose first message is being read; further ones are closed
	streamTimeout = 10 * time.Second // for that message
)

// filter is a transport that decrypts and checks packets and connections before memberlist parses them (D12).
// memberlist v0.6.0 trusts every holder of the key: compressed messages may exhaust memory, and some malformed ones
// make it panic. Our members never compress, so compressed messages are refused; lengths of compounds are checked; all
// other messages have a type and size that memberlist expects. Connections are passed on with their first message
// replayed.
type filter struct {
	memberlist.Transport
	ring *memberlist.Keyring // or nil: plaintext
	log  hclog.Logger
	seen func(suspect string) // called with the name in each suspicion that others send; must not block

	packets chan *memberlist.Packet
	streams chan net.Conn
	slots   chan struct{}
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

func newFilter(inner memberlist.Transport, ring *memberlist.Keyring, log hclog.Logger, seen func(suspect string)) *filter {
	f := &filter{Transport: inner, ring: ring, log: log, seen: seen,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		slots: make(chan struct{}, streamPending), done: make(chan struct{})}
	f.wg.Add(2)
	go f.packetLoop()
	go f.streamLoop()
	return f
}

func (f *filter) PacketCh() <-chan *memberlist.Packet { return f.packets }
func (f *filter) StreamCh() <-chan net.Conn           { return f.streams }

// Shutdown implements memberlist.Transport.
func (f *filter) Shutdown() error {
	err := f.Transport.Shutdown()
	f.once.Do(func() { close(f.done) })
	f.wg.Wait()
	return err
}

func (f *filter) packetLoop() {
	defer f.wg.Done()
	for {
		select {
		case p := <-f.Transport.PacketCh():
			if p == nil {
				return
			}
			if err := f.checkPacket(p.Buf); err != nil {
				f.log.Debug("gossip packet refused", "from", p.From.String(), "error", err)
				continue
			}
			select {
			case f.packets <- p:
			case <-f.done:
				return
			}
		case <-f.done:
			return
		}
	}
}

func (f *filter) streamLoop() {
	defer f.wg.Done()
	for {
		select {
		case c := <-f.Transport.StreamCh():
			if c == nil {
				return
			}
			select {
			case f.slots <- struct{}{}:
			default:
				c.Close()
				continue
			}
			f.wg.Add(1)
			go func() {
				defer f.wg.Done()
				f.stream(c)
				<-f.slots
			}()
		case <-f.done:
			return
		}
	}
}

// stream checks the first message of a connection and passes the connection on.
func (f *filter) stream(c net.Conn) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-f.done:
			c.SetReadDeadline(time.Unix(1, 0))
		case <-stop:
		}
	}()
	c.SetReadDeadline(time.Now().Add(streamTimeout))
	head, err := f.checkStream(c)
	if err != nil {
		f.log.Debug("gossip connection refused", "from", c.RemoteAddr().String(), "error", err)
		c.Close()
		return
	}
	c.SetReadDeadline(time.Time{})
	select {
	case f.streams <- &replayed{Conn: c, head: bytes.NewReader(head)}:
	case <-f.done:
		c.Close()
	}
}

type replayed struct {
	net.Conn
	head *bytes.Reader
}

func (r *replayed) Read(b []byte) (int, error) {
	if r.head.Len() > 0 {
		return r.head.Read(b)
	}
	return r.Conn.Read(b)
}

// checkStream reads the first message and gives the bytes read.
func (f *filter) checkStream(c net.Conn) ([]byte, error) {
	head := make([]byte, 1)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	if f.ring == nil {
		return head, streamType(head[0])
	}
	if head[0] != msgEncrypt {
		return nil, fmt.Errorf("message type %d is not encrypted", head[0])
	}
	head = append(head, 0, 0, 0, 0)
	if _, err := io.ReadFull(c, head[1:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > streamMax {
		return nil, fmt.Errorf("a message of %d bytes is over the limit of %d", n, streamMax)
	}
	// Read in chunks, so that a false length allocates nothing.
	var buf bytes.Buffer
	buf.Write(head)
	if m, err := io.CopyN(&buf, c, int64(n)); err != nil {
		return nil, fmt.Errorf("message ends after %d of %d bytes: %w", m, n, err)
	}
	all := buf.Bytes()
	plain, err := f.decrypt(all[5:], all[:5])
	if err != nil {
		return nil, err
	}
	if len(plain) == 0 {
		return nil, errors.New("empty message")
	}
	return all, streamType(plain[0])
}

func streamType(t byte) error {
	switch t {
	case msgPushPull, msgUser, msgPing, msgAck, msgErr:
		return nil
	case msgCompress:
		return errors.New("compressed messages are refused")
	}
	return fmt.Errorf("message type %d does not belong on a connection", t)
}

func (f *filter) checkPacket(b []byte) error {
	if len(b) == 0 || len(b) > packetMax {
		return fmt.Errorf("packet of %d bytes", len(b))
	}
	plain := b
	if f.ring != nil {
		var err error
		if plain, err = f.decrypt(b, nil); err != nil {
			return err
		}
	}
	if err := checkMessage(plain, 0); err != nil {
		return err
	}
	f.suspects(plain)
	return nil
}

// suspects reports the suspicions in a checked message. memberlist's events come only when a suspicion has become a
// failure, seconds later.
func (f *filter) suspects(b []byte) {
	switch b[0] {
	case msgCRC:
		f.suspects(b[5:])
	case msgCompound:
		at := 2 + 2*int(b[1])
		for i := range int(b[1]) {
			size := int(binary.BigEndian.Uint16(b[2+2*i:]))
			f.suspects(b[at : at+size])
			at += size
		}
	case msgSuspect:
		var s struct{ Node string }
		if rpc.Decode(b[1:], &s) == nil && s.Node != "" {
			f.seen(s.Node)
		}
	}
}

// checkMessage looks at type, checksum header and compound lengths.
func checkMessage(b []byte, depth int) error {
	if len(b) == 0 {
		return errors.New("empty message")
	}
	switch b[0] {
	case msgPing, msgIndirectPing, msgAck, msgSuspect, msgAlive, msgDead, msgNack, msgUser:
		return nil
	case msgCRC:
		if len(b) < 6 || depth > 0 {
			return errors.New("misplaced or truncated checksum")
		}
		return checkMessage(b[5:], depth+1)
	case msgCompound:
		if depth > 1 {
			return errors.New("a compound inside a compound")
		}
		if len(b) < 2 {
			return errors.New("truncated compound")
		}
		n := int(b[1])
		if n > compoundMax || len(b) < 2+2*n {
			return fmt.Errorf("a compound of %d parts in %d bytes", n, len(b))
		}
		at := 2 + 2*n
		for i := range n {
			size := int(binary.BigEndian.Uint16(b[2+2*i:]))
			if size == 0 || at+size > len(b) {
				return fmt.Errorf("part %d of a compound is cut off", i)
			}
			if err := checkMessage(b[at:at+size], 2); err != nil {
				return err
			}
			at += size
		}
		return nil
	case msgCompress:
		return errors.New("compressed messages are refused")
	}
	return fmt.Errorf("message type %d does not belong in a packet", b[0])
}

// decrypt opens memberlist's encryption: version, nonce, AES-GCM; version 0 is padded.
func (f *filter) decrypt(b, extra []byte) ([]byte, error) {
	if len(b) < 1+12+16 || b[0] > 1 {
		return nil, errors.New("not encrypted, or truncated")
	}
	for _, key := range f.ring.GetKeys() {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}
		plain, err := gcm.Open(nil, b[1:13], b[13:], extra)
		if err != nil {
			continue
		}
		if b[0] == 0 {
			if len(plain) == 0 || int(plain[len(plain)-1]) > len(plain) {
				return nil, errors.New("bad padding")
			}
			plain = plain[:len(plain)-int(plain[len(plain)-1])]
		}
		return plain, nil
	}
	return nil, errors.New("no installed key opens it")
}
