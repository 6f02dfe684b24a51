package rpc

import (
	"io"

	"github.com/muster-sched/muster/structs"
)

// resetReason is the reason for a reset, as sent on the wire.
type resetReason uint8

const (
	resetDone      resetReason = iota // all has been received or sent
	resetCancelled                    // its context ended
	resetBusy                         // over the limit of concurrent streams; the call has not begun
	resetProtocol                     // the other side broke the rules
	resetClosing                      // shutting down
	resetNoService                    // no methods are served on this connection
)

// err returns the reason as an error for the other side.
func (r resetReason) err() error {
	switch r {
	case resetDone:
		return io.EOF
	case resetCancelled:
		return structs.Errorf(structs.CodeTimeout, "the peer cancelled the call")
	case resetBusy:
		return structs.Errorf(structs.CodeBusy, "the peer has too many calls on this connection; retry later")
	case resetNoService:
		return structs.Errorf(structs.CodeNotFound, "the peer serves no methods on this connection")
	case resetClosing:
		return structs.Errorf(structs.CodeUnavailable, "the peer is shutting down")
	}
	return structs.Errorf(structs.CodeInternal, "the peer refused the stream: protocol error")
}

// errClosed is the error of a stream that was reset on this side. What was sent on it may have taken effect.
var errClosed = structs.Errorf(structs.CodeUnknown, "the stream is closed")
