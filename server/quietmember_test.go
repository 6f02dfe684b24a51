package server

import (
	"encoding/binary"

	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/rpc"
)

// quietMember is a member of the gossip that announces itself and answers pings, and does nothing else. Members that know
// each other take memory and processor time that grow with the square of their number, here all in one process; of
// quiet ones a test can have thousands. It speaks memberlist's protocol without encryption and checksums.
//
// It raises no doubt about others, so in a fleet of quiet members doubt comes from sessions, heartbeats and the servers alone.
type quietMember struct {
	name string
	meta []byte
	h    *memnet.Host
	t    *memnet.GossipTransport
	done chan struct{}
}

// Messages of memberlist that a quiet member sends and understands.
const (
	quietPing, quietAck, quietAlive, quietCompound = 0, 2, 4, 7
)

func newQuietMember(h *memnet.Host, t *memnet.GossipTransport, meta gossip.Meta) (*quietMember, error) {
	b, err := rpc.Encode(&meta)
	if err != nil {
		return nil, err
	}
	q := &quietMember{name: h.Name() + "." + meta.Region, meta: b, h: h, t: t, done: make(chan struct{})}
	go q.run()
	return q, nil
}

// run answers until Close. Connections are only accepted, which is all that a probe wants.
func (q *quietMember) run() {
	for {
		select {
		case p := <-q.t.PacketCh():
			q.handle(p)
		case c := <-q.t.StreamCh():
			c.Close()
		case <-q.done:
			return
		}
	}
}

func (q *quietMember) handle(p *memberlist.Packet) {
	parts := [][]byte{p.Buf}
	if p.Buf[0] == quietCompound {
		parts = nil
		n := int(p.Buf[1])
		at := 2 + 2*n
		for i := range n {
			size := int(binary.BigEndian.Uint16(p.Buf[2+2*i:]))
			parts = append(parts, p.Buf[at:at+size])
			at += size
		}
	}
	for _, b := range parts {
		var ping struct {
			SeqNo uint32
			Node  string
		}
		if b[0] == quietPing && rpc.Decode(b[1:], &ping) == nil && ping.Node == q.name {
			q.send(quietAck, &struct{ SeqNo uint32 }{ping.SeqNo}, p.From.String())
		}
	}
}

func (q *quietMember) send(kind byte, body any, to string) error {
	b, err := rpc.Encode(body)
	if err == nil {
		_, err = q.t.WriteTo(append([]byte{kind}, b...), to)
	}
	return err
}

// Join announces this member to each of the addresses.
func (q *quietMember) Join(addrs []string) (int, error) {
	for i, addr := range addrs {
		ip, port, err := q.t.FinalAdvertiseAddr("", 0)
		if err != nil {
			return i, err
		}
		if err := q.send(quietAlive, &struct {
			Incarnation uint32
			Node        string
			Addr        []byte
			Port        uint16
			Meta        []byte
			Vsn         []uint8
		}{1, q.name, ip.To4(), uint16(port), q.meta, []uint8{1, 2, 2, 2, 5, 4}}, addr); err != nil {
			return i, err
		}
	}
	return len(addrs), nil
}

// Close ends the member.
func (q *quietMember) Close() error {
	close(q.done)
	return q.t.Shutdown()
}
