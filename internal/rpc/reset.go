package rpc

import (
	"io"

	"github.com/muster-sched/muster/structs"
)

// resetReason says on the wire why a side gave up a stream.
type resetReason uint8

const (
	resetDone      resetReason = iota // it has all it wants, or has said all
	resetCancelled                    // its context ended
	resetBusy                         // over the limit of concurrent streams or of buffered bytes
	resetProtocol                     // the other side broke the rules
	resetClosing                      // it shuts down
	resetNoService                    // it serves no methods on this connection
)

// err is the reason as the other side sees it.
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

var errClosed = structs.Errorf(structs.CodeUnavailable, "the stream is closed")
