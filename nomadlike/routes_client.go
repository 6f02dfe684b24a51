package nomadlike

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Limits of streams.
const (
	streamWriteTime = 30 * time.Second // limit of one write to a slow reader, then the stream ends
	execFrameMax    = 1 << 20          // bytes of one websocket message [closed with 1009]
	catMax          = 1 << 30          // the most bytes that cat and readat send
)

func clientRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/client/fs/ls/{id}", rpc: methods.ClientFSList.Name, handle: fsList},
		{methods: "GET", pattern: "/v1/client/fs/stat/{id}", rpc: methods.ClientFSStat.Name, handle: fsStat},
		{methods: "GET", pattern: "/v1/client/fs/cat/{id}", rpc: methods.ClientFSStream.Name, handle: fsCat},
		{methods: "GET", pattern: "/v1/client/fs/readat/{id}", rpc: methods.ClientFSStream.Name, handle: fsReadAt},
		{methods: "GET", pattern: "/v1/client/fs/stream/{id}", rpc: methods.ClientFSStream.Name, handle: fsStream},
		{methods: "GET", pattern: "/v1/client/fs/logs/{id}", rpc: methods.ClientLogs.Name, handle: fsLogs},
		{methods: "GET", pattern: "/v1/client/allocation/{id}/exec", rpc: methods.ClientExec.Name, handle: allocExec},
		{methods: "GET", pattern: "/v1/client/allocation/{id}/port-forward", rpc: methods.ClientForward.Name, handle: allocForward},
		{methods: "PUT,POST", pattern: "/v1/client/allocation/{id}/restart", rpc: methods.ClientRestart.Name, handle: allocRestart},
		{methods: "PUT,POST", pattern: "/v1/client/allocation/{id}/signal", rpc: methods.ClientSignal.Name, handle: allocSignal},
		{methods: "GET", pattern: "/v1/client/allocation/{id}/stats", rpc: methods.ClientStats.Name, handle: allocStats},
		{methods: "GET", pattern: "/v1/client/allocation/{id}/checks", rpc: methods.ClientChecks.Name, handle: clientChecks},
		{methods: "GET,PUT,POST", pattern: "/v1/client/allocation/{id}/gc", rpc: methods.ClientGC.Name, handle: clientGC, effects: true},
		{methods: "GET", pattern: "/v1/client/stats", rpc: methods.ClientHostStats.Name, handle: hostStats},
		{methods: "PUT,POST", pattern: "/v1/client/gpu/release", rpc: methods.ClientGPURelease.Name, handle: clientGPURelease},
		{methods: "GET,PUT,POST", pattern: "/v1/client/gc", rpc: methods.ClientGCAll.Name, handle: clientGCAll, effects: true},
		{methods: "GET", pattern: "/v1/client/metadata", rpc: methods.ClientMetaRead.Name, handle: metaRead},
		{methods: "PUT,POST", pattern: "/v1/client/metadata", rpc: methods.ClientMetaApply.Name, handle: metaApply},
	}
}

func (c *call) path() string {
	p := c.r.URL.Query().Get("path")
	if p == "" {
		return "/"
	}
	return p
}

func fsList(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientFSList, &methods.FSRequest{AllocID: id, Path: c.path()})
	if err != nil {
		return nil, err
	}
	return each(resp.Files, fileInfoOf), nil
}

func fileInfoOf(f methods.FileInfo) *wire.AllocFileInfo {
	return &wire.AllocFileInfo{Name: f.Name, IsDir: f.IsDir, Size: f.Size, FileMode: f.Mode, ModTime: f.ModTime.Time(), ContentType: f.ContentType}
}

func fsStat(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientFSStat, &methods.FSRequest{AllocID: id, Path: c.path()})
	if err != nil {
		return nil, err
	}
	return fileInfoOf(resp.Info), nil
}

// int reads a whole-number query parameter that may be absent (0) but not negative.
func (c *call) int(name string) (int64, error) {
	v := c.r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, structs.Errorf(structs.CodeInvalid, "error parsing %s %q: want a whole number, 0 or more", name, clip(v, 40))
	}
	return n, nil
}

func fsCat(c *call) (any, error) {
	return c.plainFile(&methods.FSStreamRequest{Path: c.path(), Origin: "start", Limit: catMax})
}

func fsReadAt(c *call) (any, error) {
	off, err := c.int("offset")
	if err != nil {
		return nil, err
	}
	limit, err := c.int("limit")
	if err != nil {
		return nil, err
	}
	if limit == 0 || limit > catMax {
		limit = catMax
	}
	return c.plainFile(&methods.FSStreamRequest{Path: c.path(), Origin: "start", Offset: off, Limit: limit})
}

func (c *call) plainFile(req *methods.FSStreamRequest) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	req.AllocID = id
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.ClientFSStream, c.hdr, req)
	if err != nil {
		return nil, err
	}
	return nil, c.frames(st, true, nil)
}

func (c *call) origin() (string, int64, error) {
	o := c.r.URL.Query().Get("origin")
	if o == "" {
		o = "start"
	}
	if o != "start" && o != "end" {
		return "", 0, structs.Errorf(structs.CodeInvalid, "Invalid origin %q: want \"start\" or \"end\"", clip(o, 40))
	}
	off, err := c.int("offset")
	return o, off, err
}

func fsStream(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	req := &methods.FSStreamRequest{AllocID: id, Path: c.path(), Follow: true}
	if req.Origin, req.Offset, err = c.origin(); err != nil {
		return nil, err
	}
	if c.r.URL.Query().Has("follow") {
		if req.Follow, err = c.flag("follow"); err != nil {
			return nil, err
		}
	}
	plain, err := c.flag("plain")
	if err != nil {
		return nil, err
	}
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.ClientFSStream, c.hdr, req)
	if err != nil {
		return nil, err
	}
	return nil, c.frames(st, plain, nil)
}

func fsLogs(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	q := c.r.URL.Query()
	req := &methods.LogsRequest{AllocID: id, Task: q.Get("task"), Type: q.Get("type")}
	if req.Task == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "must provide task name: add ?task=NAME")
	}
	if req.Type != "stdout" && req.Type != "stderr" {
		return nil, structs.Errorf(structs.CodeInvalid, "Must provide log type (stdout/stderr), got %q", clip(req.Type, 40))
	}
	if req.Origin, req.Offset, err = c.origin(); err != nil {
		return nil, err
	}
	if req.Follow, err = c.flag("follow"); err != nil {
		return nil, err
	}
	plain, err := c.flag("plain")
	if err != nil {
		return nil, err
	}
	stamps, err := c.flag("timestamps")
	if err != nil {
		return nil, err
	}
	if req.Since, err = c.when("since"); err != nil {
		return nil, err
	}
	req.Times = stamps || req.Since > 0
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.ClientLogs, c.hdr, req)
	if err != nil {
		return nil, err
	}
	if plain && stamps {
		return nil, c.frames(st, plain, new(wire.Stamper))
	}
	return nil, c.frames(st, plain, nil)
}

// frames copies a stream of FSFrames to the client: as bytes when plain, else as one JSON object each. It waits for the
// first frame before it sends the status, so that a refusal is an ordinary error answer. stamps, if not nil, is for plain
// bytes.
func (c *call) frames(st *rpc.Stream, plain bool, stamps *wire.Stamper) error {
	defer st.Close(nil)
	rc := http.NewResponseController(c.w)
	started := false
	start := func() {
		if started {
			return
		}
		started = true
		if plain {
			c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		} else {
			c.w.Header().Set("Content-Type", "application/json")
		}
		c.w.WriteHeader(http.StatusOK)
	}
	enc := json.NewEncoder(c.w)
	for {
		var f methods.FSFrame
		if err := st.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				start()
				return errWritten
			}
			if !started {
				return err
			}
			return errWritten
		}
		start()
		_ = rc.SetWriteDeadline(time.Now().Add(streamWriteTime))
		var err error
		switch {
		case plain && stamps != nil:
			_, err = c.w.Write(stamps.Stamp(f.Data, int64(f.Time)))
		case plain:
			_, err = c.w.Write(f.Data)
		case f.Data == nil && f.Event == "":
			_, err = io.WriteString(c.w, "{}\n")
		default:
			err = enc.Encode(wire.StreamFrame{Offset: f.Offset, Data: f.Data, File: f.File, FileEvent: f.Event, Time: int64(f.Time)})
		}
		if err != nil || rc.Flush() != nil {
			return errWritten
		}
	}
}

func allocRestart(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	var body struct {
		TaskName string
		AllTasks bool
	}
	if err := c.optionalBody(&body); err != nil {
		return nil, err
	}
	return c.writtenNode(invoke(c, methods.ClientRestart, &methods.AllocRestartRequest{AllocID: id, Task: body.TaskName, All: body.AllTasks}))
}

// optionalBody decodes a body if there is one.
func (c *call) optionalBody(v any) error {
	raw, err := c.rawBody(BodyMax)
	if err != nil || len(raw) == 0 {
		return err
	}
	_, err = wire.Decode(raw, v)
	return err
}

func (c *call) writtenNode(resp *methods.WriteResponse, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return map[string]any{"Index": uint64(resp.Index)}, nil
}

func allocSignal(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	var body struct{ Task, Signal string }
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return c.writtenNode(invoke(c, methods.ClientSignal, &methods.AllocSignalRequest{AllocID: id, Task: body.Task, Signal: body.Signal}))
}

func allocStats(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientStats, &methods.AllocNodeRequest{AllocID: id, Task: c.r.URL.Query().Get("task")})
	if err != nil {
		return nil, err
	}
	return allocStatsOf(resp), nil
}

func clientChecks(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientChecks, &methods.AllocNodeRequest{AllocID: id})
	if err != nil {
		return nil, err
	}
	return wire.ChecksFrom(resp.Checks), nil
}

func clientGC(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	return c.writtenNode(invoke(c, methods.ClientGC, &methods.AllocNodeRequest{AllocID: id}))
}

// nodeParam returns the node that a request names, or this agent's own.
func (c *call) nodeParam() (structs.NodeID, error) {
	s := c.r.URL.Query().Get("node_id")
	if s == "" {
		if id := c.cfg.Agent.LocalNode(); !id.IsZero() {
			return id, nil
		}
		return structs.NodeID{}, structs.Errorf(structs.CodeInvalid, "missing node_id: this agent runs no client, so say which node is meant")
	}
	id, err := structs.ParseID[structs.NodeID](s)
	if err != nil {
		return id, structs.Errorf(structs.CodeInvalid, "node_id: %v", err)
	}
	return id, nil
}

func hostStats(c *call) (any, error) {
	id, err := c.nodeParam()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientHostStats, &methods.AllocNodeRequest{NodeID: id})
	if err != nil {
		return nil, err
	}
	return hostStatsOf(resp), nil
}

// clientGPURelease closes a node's GPU driver for a while: ?for=10m.
func clientGPURelease(c *call) (any, error) {
	id, err := c.nodeParam()
	if err != nil {
		return nil, err
	}
	req := &methods.GPUReleaseRequest{NodeID: id}
	if v := c.r.URL.Query().Get("for"); v != "" {
		if req.For, err = time.ParseDuration(v); err != nil || req.For <= 0 {
			return nil, structs.Errorf(structs.CodeInvalid, "for: want a time above 0 such as 10m, got %q", v)
		}
	}
	return c.writtenNode(invoke(c, methods.ClientGPURelease, req))
}

func clientGCAll(c *call) (any, error) {
	id, err := c.nodeParam()
	if err != nil {
		return nil, err
	}
	return c.writtenNode(invoke(c, methods.ClientGCAll, &methods.AllocNodeRequest{NodeID: id}))
}

func metaRead(c *call) (any, error) {
	id, err := c.nodeParam()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientMetaRead, &methods.AllocNodeRequest{NodeID: id})
	if err != nil {
		return nil, err
	}
	return map[string]any{"Meta": resp.Meta, "Dynamic": resp.Dynamic, "Static": resp.Static}, nil
}

func metaApply(c *call) (any, error) {
	var body struct {
		NodeID string
		Meta   map[string]*string
	}
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if len(body.Meta) > structs.NodeMetaKeysMax { // the node refuses them too, after they have travelled there
		return nil, structs.Errorf(structs.CodeInvalid, "%d keys; a node has at most %d keys of dynamic metadata", len(body.Meta), structs.NodeMetaKeysMax)
	}
	if body.NodeID != "" && c.r.URL.Query().Get("node_id") == "" {
		q := c.r.URL.Query()
		q.Set("node_id", body.NodeID)
		c.r.URL.RawQuery = q.Encode()
	}
	id, err := c.nodeParam()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ClientMetaApply, &methods.NodeMetaRequest{NodeID: id, Meta: body.Meta})
	if err != nil {
		return nil, err
	}
	return map[string]any{"Meta": resp.Meta, "Dynamic": resp.Dynamic, "Static": resp.Static}, nil
}

// execHandshake is the first message when ws_handshake is asked for: browsers cannot send a token header.
type execHandshake struct {
	Version   int    `json:"version"`
	AuthToken string `json:"auth_token"`
}

// execSilence is how long an exec session lasts after a client that sends heartbeats (every 10 s) has stopped sending
// them.
const execSilence = time.Minute

func allocExec(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	q := c.r.URL.Query()
	req := &methods.ExecRequest{AllocID: id, Task: q.Get("task")}
	if req.TTY, err = c.flag("tty"); err != nil {
		return nil, err
	}
	if r := q.Get("rank"); r != "" {
		if req.Rank, err = strconv.Atoi(r); err != nil || req.Rank < 0 {
			return nil, structs.Errorf(structs.CodeInvalid, "rank %q is not a number from 0", clip(r, 20))
		}
		req.Ranked = true
	}
	if err := json.Unmarshal([]byte(q.Get("command")), &req.Command); err != nil || len(req.Command) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "command must be a JSON list of at least one string, got %q", clip(q.Get("command"), 80))
	}
	if req.Task == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "task must be named: add ?task=NAME")
	}
	handshake, err := c.flag("ws_handshake")
	if err != nil {
		return nil, err
	}
	ws, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // ServeHTTP has checked the origin
	if err != nil {
		return nil, errWritten
	}
	defer ws.CloseNow()
	ws.SetReadLimit(execFrameMax)
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	if handshake {
		var h execHandshake
		hctx, hcancel := context.WithTimeout(ctx, 10*time.Second)
		_, b, err := ws.Read(hctx)
		hcancel()
		if err != nil || json.Unmarshal(b, &h) != nil || h.Version != 1 {
			ws.Close(websocket.StatusProtocolError, "want a handshake with version 1")
			return nil, errWritten
		}
		c.hdr.Token = h.AuthToken
	}
	st, err := rpc.OpenStream(ctx, c.cfg.Backend, methods.ClientExec, c.hdr, req)
	if err != nil {
		if errors.Is(err, structs.ErrTokenNotFound) {
			_ = c.cfg.Rates.Wrong(c.r)
		}
		closeExec(ws, err)
		return nil, errWritten
	}
	go func() {
		defer cancel()
		beats := false
		for {
			rctx, done := ctx, func() {}
			if beats { // a client that sent heartbeats and stopped is gone, even if its connection still looks open
				rctx, done = context.WithTimeout(ctx, execSilence)
			}
			_, b, err := ws.Read(rctx)
			done()
			if err != nil {
				return
			}
			var f wire.ExecStreamingInput
			if json.Unmarshal(b, &f) != nil {
				ws.Close(websocket.StatusUnsupportedData, "want JSON frames")
				return
			}
			out := methods.ExecFrame{}
			if f.Stdin != nil {
				out.Stdin, out.StdinClose = f.Stdin.Data, f.Stdin.Close
			}
			if f.TTYSize != nil {
				out.Resize = &methods.TTYSize{Height: f.TTYSize.Height, Width: f.TTYSize.Width}
			}
			if out.Stdin == nil && !out.StdinClose && out.Resize == nil {
				beats = true
				continue // a heartbeat
			}
			if st.SendMsg(&out) != nil {
				return
			}
		}
	}()
	for {
		var f methods.ExecFrame
		if err := st.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				ws.Close(websocket.StatusNormalClosure, "")
			} else {
				closeExec(ws, err)
			}
			return nil, errWritten
		}
		out := wire.ExecStreamingOutput{}
		if f.Stdout != nil || f.StdoutClose {
			out.Stdout = &wire.ExecStreamingIO{Data: f.Stdout, Close: f.StdoutClose}
		}
		if f.Stderr != nil || f.StderrClose {
			out.Stderr = &wire.ExecStreamingIO{Data: f.Stderr, Close: f.StderrClose}
		}
		if f.Exited {
			out.Exited, out.Result = true, &wire.ExecStreamingExitResult{ExitCode: f.ExitCode}
		}
		b, err := json.Marshal(out)
		if err != nil {
			return nil, err
		}
		wctx, wcancel := context.WithTimeout(ctx, streamWriteTime)
		err = ws.Write(wctx, websocket.MessageText, b)
		wcancel()
		if err != nil {
			return nil, errWritten
		}
	}
}

// closeExec closes a websocket with an error, as Nomad's client expects: the reason after the code.
func closeExec(ws *websocket.Conn, err error) {
	msg := err.Error()
	if len(msg) > 120 {
		msg = msg[:120]
	}
	_ = ws.Close(websocket.StatusInternalError, msg)
}

// lines writes newline-delimited JSON, with deadlines for slow readers.
type lines struct {
	w  *bufio.Writer
	rc *http.ResponseController
}

func newLines(w http.ResponseWriter) *lines {
	return &lines{bufio.NewWriter(w), http.NewResponseController(w)}
}

func (l *lines) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(streamWriteTime))
	_, _ = l.w.Write(b)
	_ = l.w.WriteByte('\n')
	if err := l.w.Flush(); err != nil {
		return err
	}
	return l.rc.Flush()
}
