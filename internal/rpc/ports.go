package rpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/muster-sched/muster/structs"
)

// httpAnswer begins each answer of an HTTP server.
var httpAnswer = []byte("HTTP/")

// wrongPort is why a session ended whose other side never spoke the protocol.
type wrongPort string

func (e wrongPort) Error() string { return string(e) }

// errHTTP is the wrongPort of a peer that speaks HTTP. Such a peer has done nothing of what it was asked.
var errHTTP = wrongPort(fmt.Sprintf("HTTP is served there (port %d by default); servers take calls on another port (%d by default)", structs.PortHTTP, structs.PortCalls))

// otherProtocol names what a client speaks that begins a connection for calls with a byte; "" if that is not known.
func otherProtocol(first byte) string {
	switch {
	case first >= 'A' && first <= 'Z':
		return "HTTP"
	case first == 6 || first == 9 || first == 10 || first == 244: // memberlist's exchange of states: plain, compressed, encrypted, with a label
		return "gossip"
	}
	return ""
}

// probeTimeout bounds AnswersHTTP.
const probeTimeout = 2 * time.Second

// AnswersHTTP reports whether HTTP is served at an address. (A server of HTTPS also answers a plain request.) The error is
// that of dial.
func AnswersHTTP(ctx context.Context, dial Dialer, addr string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := dial(ctx, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, "HEAD / HTTP/1.0\r\n\r\n"); err != nil {
		return false, nil
	}
	head := make([]byte, len(httpAnswer))
	_, err = io.ReadFull(conn, head)
	return err == nil && bytes.Equal(head, httpAnswer), nil
}
