package supervisor

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"time"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/internal/pack"
)

// The calls travel as gob, net/rpc's own form, or as frames of msgpack, which cost less: gob tells every
// connection anew what its types look like and goes through reflection for each field. A connection is of gob unless it
// begins with preamble, whose first byte no gob stream has. Every connection to a supervisor begins with a Hello in gob,
// so that agents and supervisors of all builds understand each other; only when that says Frames is a second one made.
// Both forms name the fields, and leave out and skip what only one side knows.
//
// A frame is the length of what follows (4 bytes, little-endian, as all numbers), the call's number (8), the length of the
// method (1), the method, the length of the error (4), the error, and the value.
const (
	preamble = "\x00MF1"
	frameMax = 256 << 20 // a list of all tasks that a supervisor may hold is a tenth of it
)

// frames is an rpc.ClientCodec and, as serverFrames, an rpc.ServerCodec. net/rpc never writes or reads two at once.
type frames struct {
	c    io.ReadWriteCloser
	r    *bufio.Reader
	out  []byte // reused
	body []byte // of the frame whose header was read
}

func (f *frames) write(seq uint64, method, failure string, v any) error {
	if len(method) > 255 {
		return fmt.Errorf("method name of %d bytes", len(method))
	}
	b := append(f.out[:0], 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, seq)
	b = append(append(b, byte(len(method))), method...)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(failure))), failure...)
	b, err := appendValue(b, v)
	if err != nil {
		return err
	}
	if len(b) > frameMax {
		return fmt.Errorf("a message of %d bytes, %d is the limit", len(b), frameMax)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	if f.out = b; cap(b) > 64<<10 {
		f.out = nil
	}
	_, err = f.c.Write(b)
	return err
}

var errFrame = errors.New("a frame is broken")

func (f *frames) read() (seq uint64, method, failure string, err error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, "", "", err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 13 || n > frameMax {
		return 0, "", "", errFrame
	}
	b := make([]byte, n) // not reused: what is decoded may point into it
	if _, err := io.ReadFull(f.r, b); err != nil {
		return 0, "", "", err
	}
	seq = binary.LittleEndian.Uint64(b)
	b = b[8:]
	k := int(b[0])
	if len(b) < 1+k+4 {
		return 0, "", "", errFrame
	}
	method, b = string(b[1:1+k]), b[1+k:]
	k = int(binary.LittleEndian.Uint32(b))
	if len(b)-4 < k {
		return 0, "", "", errFrame
	}
	failure, f.body = string(b[4:4+k]), b[4+k:]
	return seq, method, failure, nil
}

func (f *frames) take(v any) error {
	b := f.body
	f.body = nil
	if v == nil {
		return nil
	}
	return decodeValue(b, v)
}

// WriteRequest implements rpc.ClientCodec.
func (f *frames) WriteRequest(r *rpc.Request, v any) error {
	return f.write(r.Seq, r.ServiceMethod, "", v)
}

// ReadResponseHeader implements rpc.ClientCodec.
func (f *frames) ReadResponseHeader(r *rpc.Response) (err error) {
	r.Seq, r.ServiceMethod, r.Error, err = f.read()
	return err
}

// ReadResponseBody implements rpc.ClientCodec.
func (f *frames) ReadResponseBody(v any) error { return f.take(v) }

// Close implements rpc.ClientCodec and rpc.ServerCodec.
func (f *frames) Close() error { return f.c.Close() }

type serverFrames struct{ frames }

// ReadRequestHeader implements rpc.ServerCodec.
func (f *serverFrames) ReadRequestHeader(r *rpc.Request) (err error) {
	r.Seq, r.ServiceMethod, _, err = f.read()
	return err
}

// ReadRequestBody implements rpc.ServerCodec.
func (f *serverFrames) ReadRequestBody(v any) error { return f.take(v) }

// WriteResponse implements rpc.ServerCodec. A response that cannot be written leaves its caller waiting: the connection is
// closed instead.
func (f *serverFrames) WriteResponse(r *rpc.Response, v any) error {
	err := f.write(r.Seq, r.ServiceMethod, r.Error, v)
	if err != nil {
		f.c.Close()
	}
	return err
}

// begun is a connection of which the beginning has been read into a buffer.
type begun struct {
	net.Conn
	r *bufio.Reader
}

func (b begun) Read(p []byte) (int, error) { return b.r.Read(p) }

// serveConn answers the calls of a connection, in the form in which it comes, until it ends.
func serveConn(srv *rpc.Server, c net.Conn) {
	r := bufio.NewReader(c)
	first, err := r.Peek(1)
	if err != nil {
		c.Close()
		return
	}
	if first[0] != preamble[0] {
		srv.ServeConn(begun{c, r})
		return
	}
	var got [len(preamble)]byte
	if _, err := io.ReadFull(r, got[:]); err != nil || string(got[:]) != preamble {
		c.Close()
		return
	}
	srv.ServeCodec(&serverFrames{frames{c: c, r: r}})
}

// newFrames begins a connection of frames.
func newFrames(c net.Conn) (*rpc.Client, error) {
	if _, err := io.WriteString(c, preamble); err != nil {
		c.Close()
		return nil, err
	}
	return rpc.NewClientWithCodec(&frames{c: c, r: bufio.NewReader(c)}), nil
}

// appendValue writes an argument or a reply.
func appendValue(b []byte, v any) ([]byte, error) {
	if r, ok := v.(*Reply); ok {
		w := sentReply{Status: r.Status.sent(), Kind: r.Kind, Msg: r.Msg}
		for i := range r.List {
			w.List = append(w.List, r.List[i].sent())
		}
		return pack.Append(b, &w), nil
	}
	out, ok := pack.Wire.Append(b, v)
	if !ok {
		return nil, fmt.Errorf("a value of type %T cannot be sent", v)
	}
	return out, nil
}

func decodeValue(b []byte, v any) error {
	if r, ok := v.(*Reply); ok {
		var w sentReply
		if err := pack.Decode(b, &w); err != nil {
			return err
		}
		*r = Reply{Status: w.Status.status(), Kind: w.Kind, Msg: w.Msg}
		for i := range w.List {
			r.List = append(r.List, w.List[i].status())
		}
		return nil
	}
	ok, err := pack.Wire.Decode(b, v)
	if !ok {
		return fmt.Errorf("a value of type %T cannot be received", v)
	}
	return err
}

// sentReply is a Reply as it travels: times are nanoseconds since 1970, 0 for none.
type sentReply struct {
	Status    sentStatus
	List      []sentStatus
	Kind, Msg string
}

type sentStatus struct {
	ID        string
	PID       int
	StartedAt int64
	Group     cgroup.Group
	Isolated  bool
	Ended     bool
	Exit      sentExit
}

type sentExit struct {
	Code, Signal    int
	OOMKilled, Lost bool
	Err             string
	EndedAt         int64
	LostLogs        int64
}

func (s *Status) sent() sentStatus {
	e := &s.Exit
	return sentStatus{
		ID: s.ID, PID: s.PID, StartedAt: nanos(s.StartedAt), Group: s.Group, Isolated: s.Isolated, Ended: s.Ended,
		Exit: sentExit{Code: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled, Lost: e.Lost, Err: e.Err, EndedAt: nanos(e.EndedAt), LostLogs: e.LostLogs},
	}
}

func (s *sentStatus) status() Status {
	e := &s.Exit
	return Status{
		ID: s.ID, PID: s.PID, StartedAt: timeOf(s.StartedAt), Group: s.Group, Isolated: s.Isolated, Ended: s.Ended,
		Exit: Exit{Code: e.Code, Signal: e.Signal, OOMKilled: e.OOMKilled, Lost: e.Lost, Err: e.Err, EndedAt: timeOf(e.EndedAt), LostLogs: e.LostLogs},
	}
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
