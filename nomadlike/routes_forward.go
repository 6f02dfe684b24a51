package nomadlike

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// forwardBeat is the interval of heartbeats, which are text messages, on a forwarded connection.
const forwardBeat = 10 * time.Second

// allocForward carries a connection to a port of an allocation. Binary messages are its bytes, and an empty one ends a
// direction. Errors come before the upgrade, as ordinary answers.
func allocForward(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	q := c.r.URL.Query()
	req := &methods.ForwardRequest{AllocID: id, Task: q.Get("task"), Ports: q["port"]}
	if req.Watch, err = c.flag("watch"); err != nil {
		return nil, err
	}
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return nil, structs.Errorf(structs.CodeInvalid, "ports are forwarded over a websocket: the request has to ask for one")
	}
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	st, err := rpc.OpenStream(ctx, c.cfg.Backend, methods.ClientForward, c.hdr, req)
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	var first methods.ForwardFrame
	if err := st.RecvMsg(&first); err != nil {
		return nil, err
	}
	ws, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // ServeHTTP has checked the origin
	if err != nil {
		return nil, errWritten
	}
	defer ws.CloseNow()
	ws.SetReadLimit(execFrameMax / 2) // a frame of the session has to hold it
	go func() {
		defer cancel()
		forwardUp(ctx, ws, st)
	}()
	go func() {
		t := time.NewTicker(forwardBeat)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if ws.Write(ctx, websocket.MessageText, []byte("{}")) != nil {
					return
				}
			}
		}
	}()
	for {
		var f methods.ForwardFrame
		if err := st.RecvMsg(&f); err != nil {
			var se *structs.Error
			if errors.As(err, &se) && ctx.Err() == nil {
				closeExec(ws, err)
			} else {
				ws.Close(websocket.StatusNormalClosure, "")
			}
			return nil, errWritten
		}
		if len(f.Data) > 0 && ws.Write(ctx, websocket.MessageBinary, f.Data) != nil {
			return nil, errWritten
		}
		if f.Close && ws.Write(ctx, websocket.MessageBinary, nil) != nil {
			return nil, errWritten
		}
	}
}

// forwardUp copies what the client sends to the node, until the client is gone.
func forwardUp(ctx context.Context, ws *websocket.Conn, st *rpc.Stream) {
	beats := false
	for {
		rctx, done := ctx, func() {}
		if beats { // a client that sent heartbeats and stopped is gone, even if its connection still looks open
			rctx, done = context.WithTimeout(ctx, execSilence)
		}
		kind, b, err := ws.Read(rctx)
		done()
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			beats = true
			continue
		}
		if st.SendMsg(&methods.ForwardFrame{Data: b, Close: len(b) == 0}) != nil {
			return
		}
	}
}
