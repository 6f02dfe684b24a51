package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/structs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type echoReq struct {
	Text string
	Data []byte
	At   time.Time
	N    int
	Tags map[string]string
}

type echoResp struct {
	Text string
	Data []byte
	At   time.Time
	From string
}

var (
	mEcho    = Method[echoReq, echoResp]{"Test.Echo"}
	mWait    = Method[echoReq, echoResp]{"Test.Wait"}
	mFail    = Method[echoReq, echoResp]{"Test.Fail"}
	mReverse = Method[echoReq, echoResp]{"Test.Reverse"}
	mUnknown = Method[echoReq, echoResp]{"Test.Unknown"}
	mWrong   = Method[string, echoResp]{"Test.Echo"}
	mBig     = Method[echoReq, echoResp]{"Test.Big"}
	mPipe    = StreamMethod[echoReq]{"Test.Pipe"}
	mHang    = StreamMethod[echoReq]{"Test.Hang"}
	mEmit    = StreamMethod[echoReq]{"Test.Emit"}
)

// counts records what the handlers saw.
type counts struct {
	calls, cancelled atomic.Int64
	mu               sync.Mutex
	metered          map[structs.ErrorCode]int
}

func (c *counts) Call(_ string, _ Peer, code structs.ErrorCode, _ time.Duration, _, _ int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metered[code]++
}
func (c *counts) Refused(string) {}

func testRegistry() (*Registry, *counts) {
	n := &counts{metered: map[structs.ErrorCode]int{}}
	r := NewRegistry(nil, n)
	Handle(r, mEcho, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		n.calls.Add(1)
		return &echoResp{Text: q.Text, Data: q.Data, At: q.At, From: c.Namespace}, nil
	})
	Handle(r, mWait, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		n.calls.Add(1)
		<-ctx.Done()
		n.cancelled.Add(1)
		return nil, ctx.Err()
	})
	Handle(r, mFail, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		switch q.Text {
		case "panic":
			panic("boom")
		case "typed":
			return nil, fmt.Errorf("wrapped: %w", structs.Errorf(structs.CodeConflict, "already there"))
		case "nil":
			return nil, nil
		}
		return nil, errors.New("secret path /var/lib/x")
	})
	Handle(r, mReverse, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		if c.Back == nil {
			return nil, structs.Errorf(structs.CodeUnsupported, "no way back")
		}
		return Invoke(ctx, c.Back, mEcho, Header{Namespace: "back"}, q)
	})
	Handle(r, mBig, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		return &echoResp{Data: make([]byte, q.N)}, nil
	})
	HandleStream(r, mPipe, func(ctx context.Context, c *Call, q *echoReq, s *Stream) error {
		for {
			f, err := s.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if string(f) == "fail" {
				return structs.Errorf(structs.CodeNotFound, "told to fail")
			}
			if err := s.Send(append([]byte(q.Text), f...)); err != nil {
				return err
			}
		}
	})
	HandleStream(r, mHang, func(ctx context.Context, c *Call, q *echoReq, s *Stream) error {
		n.calls.Add(1)
		<-ctx.Done()
		n.cancelled.Add(1)
		return ctx.Err()
	})
	HandleStream(r, mEmit, func(ctx context.Context, c *Call, q *echoReq, s *Stream) error {
		for i := range q.N {
			if err := s.SendMsg(&echoReq{N: i, Data: q.Data}); err != nil {
				n.cancelled.Add(1)
				return err
			}
			n.calls.Add(1)
		}
		return nil
	})
	return r, n
}

// serveTCP runs a server on loopback and returns its address.
func serveTCP(t testing.TB, cfg ServerConfig) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(cfg)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, l.Addr().String()
}

func newPool(t testing.TB, cfg PoolConfig) *Pool {
	p := NewPool(cfg)
	t.Cleanup(func() { p.Close() })
	return p
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}

// callers returns the ways to reach a registry. All must behave the same.
func callers(t *testing.T) map[string]func() (Caller, *counts) {
	return map[string]func() (Caller, *counts){
		"socket": func() (Caller, *counts) {
			r, n := testRegistry()
			_, addr := serveTCP(t, ServerConfig{Registry: r})
			back, _ := testRegistry()
			return newPool(t, PoolConfig{Registry: back}).To(addr), n
		},
		"local": func() (Caller, *counts) {
			r, n := testRegistry()
			back, _ := testRegistry()
			return r.Local(Peer{}, back.Local(Peer{}, nil)), n
		},
		"shared": func() (Caller, *counts) {
			r, n := testRegistry()
			back, _ := testRegistry()
			return r.LocalShared(Peer{}, back.Local(Peer{}, nil)), n
		},
		"forwarded": func() (Caller, *counts) {
			r, n := testRegistry()
			_, addr := serveTCP(t, ServerConfig{Registry: r})
			back, _ := testRegistry()
			pool := newPool(t, PoolConfig{Registry: back})
			mid, _ := testRegistry()
			mid.Wrap(func(next Handler) Handler {
				return func(ctx context.Context, c *Call) (*Reply, error) { return c.Forward(ctx, pool.To(addr)) }
			})
			_, maddr := serveTCP(t, ServerConfig{Registry: mid})
			return newPool(t, PoolConfig{}).To(maddr), n
		},
	}
}

func each(t *testing.T, f func(t *testing.T, c Caller, n *counts)) {
	for name, mk := range callers(t) {
		t.Run(name, func(t *testing.T) {
			c, n := mk()
			f(t, c, n)
		})
	}
}

func TestRoundTrip(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
		for _, size := range []int{0, 1, 1000, fragment - 1, fragment, fragment + 1, window, window + 1, 3 << 20} {
			data := bytes.Repeat([]byte{7, 9}, size/2)
			got, err := Invoke(t.Context(), c, mEcho, Header{Namespace: "ns"}, &echoReq{Text: "hi", Data: data, At: at})
			if err != nil {
				t.Fatalf("size %d: %v", size, err)
			}
			if got.Text != "hi" || !bytes.Equal(got.Data, data) || !got.At.Equal(at) || got.From != "ns" {
				t.Fatalf("size %d: got %.100v", size, got)
			}
		}
	})
}

func TestErrors(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		for _, x := range []struct {
			text string
			code structs.ErrorCode
			has  string
		}{
			{"panic", structs.CodeInternal, "log has the detail"},
			{"typed", structs.CodeConflict, "already there"},
			{"plain", structs.CodeInternal, "log has the detail"},
		} {
			_, err := Invoke(t.Context(), c, mFail, Header{}, &echoReq{Text: x.text})
			if structs.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.has) {
				t.Errorf("%s: %v; want structs.CodeOf(err) = %v, %q in err.Error()", x.text, err, x.code, x.has)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "boom") {
				t.Errorf("%s: detail leaked: %v", x.text, err)
			}
		}
		if r, err := Invoke(t.Context(), c, mFail, Header{}, &echoReq{Text: "nil"}); err != nil || r == nil {
			t.Errorf("nil response: %v, %v", r, err)
		}
		_, err := Invoke(t.Context(), c, mUnknown, Header{}, &echoReq{})
		if structs.CodeOf(err) != structs.CodeNotFound {
			t.Errorf("unknown method: %v", err)
		}
		s := "not an object"
		_, err = Invoke(t.Context(), c, mWrong, Header{}, &s)
		if structs.CodeOf(err) != structs.CodeInvalid {
			t.Errorf("wrong body: %v", err)
		}
		if _, err := c.InvokeRaw(t.Context(), Header{Method: "Test.Pipe"}, Raw{0x80}); structs.CodeOf(err) != structs.CodeInvalid {
			t.Errorf("stream method called plainly: %v", err)
		}
		_, err = Invoke(t.Context(), c, mEcho, Header{}, &echoReq{Data: make([]byte, MaxBody+1)})
		if _, shared := c.(*local); !shared && structs.CodeOf(err) != structs.CodeTooLarge {
			t.Errorf("big request: %v", err)
		}
		if _, isLocal := c.(*local); !isLocal {
			_, err = Invoke(t.Context(), c, mBig, Header{}, &echoReq{N: MaxReply + 1})
			if structs.CodeOf(err) != structs.CodeTooLarge {
				t.Errorf("big response: %v", err)
			}
			_, err = Invoke(t.Context(), c, mEcho, Header{Token: strings.Repeat("x", MaxHeader)}, &echoReq{})
			if structs.CodeOf(err) != structs.CodeTooLarge {
				t.Errorf("big header: %v", err)
			}
		}
		if _, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{}); err != nil {
			t.Errorf("after the errors: %v", err)
		}
	})
}

func TestCancelAndDeadline(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := Invoke(ctx, c, mWait, Header{}, &echoReq{})
			got <- err
		}()
		eventually(t, "the call arrives", func() bool { return n.calls.Load() == 1 })
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled call: %v", err)
		}
		eventually(t, "the handler is cancelled", func() bool { return n.cancelled.Load() == 1 })

		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := Invoke(ctx, c, mWait, Header{}, &echoReq{}); structs.CodeOf(err) != structs.CodeTimeout {
			t.Errorf("deadline: %v", err)
		}
		eventually(t, "the handler's deadline", func() bool { return n.cancelled.Load() == 2 })
		<-ctx.Done() // the handler's clock may be slightly ahead of ours
		if _, err := Invoke(ctx, c, mEcho, Header{}, &echoReq{}); structs.CodeOf(err) != structs.CodeTimeout {
			t.Errorf("deadline passed before: %v", err)
		}

		// The caller of a stream leaves after it has sent all it may, while the handler neither reads nor writes.
		ctx, cancel = context.WithCancel(t.Context())
		s, err := OpenStream(ctx, c, mHang, Header{}, &echoReq{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the stream arrives", func() bool { return n.calls.Load() == 3 })
		sent := make(chan error, 1)
		go func() {
			for {
				if err := s.Send(make([]byte, 32<<10)); err != nil {
					sent <- err
					return
				}
			}
		}()
		select {
		case err := <-sent:
			t.Fatalf("nobody reads, yet Send failed: %v", err)
		case <-time.After(20 * time.Millisecond): // not a wait for anything: it should stay blocked
		}
		cancel()
		if err := <-sent; !errors.Is(err, context.Canceled) {
			t.Errorf("send on a cancelled stream: %v", err)
		}
		eventually(t, "the stream's handler is cancelled", func() bool { return n.cancelled.Load() == 3 })
	})
}

func TestStream(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		s, err := OpenStream(t.Context(), c, mPipe, Header{}, &echoReq{Text: "> "})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			f := fmt.Sprintf("frame %d", i)
			if err := s.Send([]byte(f)); err != nil {
				t.Fatal(err)
			}
			got, err := s.Recv()
			if err != nil || string(got) != "> "+f {
				t.Fatalf("%q, %v; want %v", got, err, "> "+f)
			}
		}
		big := bytes.Repeat([]byte("x"), MaxFrame-2)
		if err := s.Send(big); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Recv(); err != nil || len(got) != MaxFrame {
			t.Fatalf("big frame: %d, %v", len(got), err)
		}
		if err := s.Send(make([]byte, MaxFrame+1)); structs.CodeOf(err) != structs.CodeTooLarge {
			t.Errorf("frame over the limit: %v", err)
		}
		if err := s.Send(nil); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Recv(); err != nil || string(got) != "> " {
			t.Fatalf("empty frame: %q, %v", got, err)
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		s.Close(nil)

		s, _ = OpenStream(t.Context(), c, mPipe, Header{}, &echoReq{})
		s.Send([]byte("one"))
		s.Send([]byte("fail"))
		if got, err := s.Recv(); err != nil || string(got) != "one" {
			t.Errorf("before the error: %q, %v", got, err)
		}
		for range 2 {
			if _, err := s.Recv(); structs.CodeOf(err) != structs.CodeNotFound || !strings.Contains(err.Error(), "told to fail") {
				t.Errorf("the handler's error: %v", err)
			}
		}
		s.Close(nil)

		s, err = OpenStream(t.Context(), c, StreamMethod[echoReq]{"Test.Nothing"}, Header{}, &echoReq{})
		if err == nil {
			_, err = s.Recv()
			s.Close(nil)
		}
		if structs.CodeOf(err) != structs.CodeNotFound {
			t.Errorf("unknown stream: %v", err)
		}
	})
}

// A reader that stops reading stops the sender, while the rest of the session continues.
func TestSlowReader(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		const frames = 200
		s, err := OpenStream(t.Context(), c, mEmit, Header{}, &echoReq{N: frames, Data: make([]byte, 60<<10)})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the sender starts", func() bool { return n.calls.Load() > 2 })
		for range 100 { // other calls succeed while the sender is stopped
			if _, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{Data: make([]byte, 10<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := n.calls.Load() - 100; got > frames/2 {
			t.Errorf("the sender sent %d of %d frames to a reader that read none", got, frames)
		}
		for i := range frames {
			var m echoReq
			if err := s.RecvMsg(&m); err != nil || m.N != i {
				t.Fatalf("frame %d: %d, %v", i, m.N, err)
			}
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("end: %v", err)
		}
		s.Close(nil)
	})
}

func TestConcurrent(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		const calls = 1000
		errs := make(chan error, calls)
		for i := range calls {
			go func() {
				text := fmt.Sprint(i)
				r, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{Text: text, Data: make([]byte, i*10)})
				if err == nil && (r.Text != text || len(r.Data) != i*10) {
					err = fmt.Errorf("call %d got the answer of %s", i, r.Text)
				}
				errs <- err
			}()
		}
		for range calls {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestReverse(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		r, err := Invoke(t.Context(), c, mReverse, Header{}, &echoReq{Text: "hello"})
		if err != nil || r.Text != "hello" || r.From != "back" {
			t.Errorf(`%v, %v; want r.Text = "hello", r.From = "back"`, r, err)
		}
	})
	// A side that serves no methods says so.
	r, _ := testRegistry()
	_, addr := serveTCP(t, ServerConfig{Registry: r})
	_, err := Invoke(t.Context(), newPool(t, PoolConfig{}).To(addr), mReverse, Header{}, &echoReq{})
	if structs.CodeOf(err) != structs.CodeNotFound {
		t.Errorf("no registry on the way back: %v", err)
	}
}

func TestWrapOrderAndHops(t *testing.T) {
	r, n := testRegistry()
	var order []string
	for _, name := range []string{"outer", "inner"} {
		r.Wrap(func(next Handler) Handler {
			return func(ctx context.Context, c *Call) (*Reply, error) {
				req, err := c.Request()
				if err != nil {
					return nil, err
				}
				order = append(order, name+" "+c.Info.Name+" "+req.(*echoReq).Text)
				return next(ctx, c)
			}
		})
	}
	if _, err := Invoke(t.Context(), r.Local(Peer{}, nil), mEcho, Header{}, &echoReq{Text: "a"}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(order) != "[outer Test.Echo a inner Test.Echo a]" {
		t.Errorf("order: %q", order)
	}
	if n.metered[""] != 1 {
		t.Errorf("metered: %v", n.metered)
	}

	loop := NewRegistry(nil, nil)
	Handle(loop, mEcho, func(context.Context, *Call, *echoReq) (*echoResp, error) { return nil, nil })
	hops := 0
	loop.Wrap(func(Handler) Handler {
		return func(ctx context.Context, c *Call) (*Reply, error) {
			hops++
			return c.Forward(ctx, loop.Local(Peer{}, nil))
		}
	})
	_, err := Invoke(t.Context(), loop.Local(Peer{}, nil), mEcho, Header{}, &echoReq{})
	if structs.CodeOf(err) != structs.CodeNoLeader || hops != MaxHops+1 {
		t.Errorf("a loop of forwards: %v after %d hops", err, hops)
	}
}

func TestStreamLimit(t *testing.T) {
	r, n := testRegistry()
	_, addr := serveTCP(t, ServerConfig{Registry: r, MaxStreams: 10})
	c := newPool(t, PoolConfig{}).To(addr)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { Invoke(ctx, c, mWait, Header{}, &echoReq{}) })
	}
	eventually(t, "ten calls in progress", func() bool { return n.calls.Load() == 10 })
	if _, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{}); structs.CodeOf(err) != structs.CodeBusy {
		t.Errorf("the eleventh call: %v", err)
	}
	cancel()
	wg.Wait()
	eventually(t, "room again", func() bool {
		_, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{})
		return err == nil
	})
}

func TestSessionLoss(t *testing.T) {
	r, n := testRegistry()
	s, addr := serveTCP(t, ServerConfig{Registry: r})
	p := newPool(t, PoolConfig{})
	c := p.To(addr)
	got := make(chan error, 1)
	go func() {
		_, err := Invoke(t.Context(), c, mWait, Header{}, &echoReq{})
		got <- err
	}()
	eventually(t, "the call arrives", func() bool { return n.calls.Load() == 1 })
	s.mu.Lock()
	for sess := range s.mu.sessions {
		go sess.Close()
	}
	s.mu.Unlock()
	if err := <-got; structs.CodeOf(err) != structs.CodeUnknown {
		t.Errorf("connection lost under a call: %v", err)
	}
	eventually(t, "the handler is cancelled", func() bool { return n.cancelled.Load() == 1 })
	if _, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{}); err != nil {
		t.Errorf("the next call dials again: %v", err)
	}
	s.Close()
	// The first call may still be sent into the dying connection. Then its outcome is unknown.
	eventually(t, "calls are refused as unsent", func() bool {
		_, err := Invoke(t.Context(), c, mEcho, Header{}, &echoReq{})
		if code := structs.CodeOf(err); code != structs.CodeUnavailable && code != structs.CodeUnknown {
			t.Fatalf("nobody listens: %v", err)
		}
		return structs.CodeOf(err) == structs.CodeUnavailable
	})
}

func BenchmarkCall(b *testing.B) {
	r, _ := testRegistry()
	_, addr := serveTCP(b, ServerConfig{Registry: r})
	c := newPool(b, PoolConfig{}).To(addr)
	req := &echoReq{Text: "hello", Data: make([]byte, 100)}
	b.Run("sequential", func(b *testing.B) {
		for b.Loop() {
			if _, err := Invoke(b.Context(), c, mEcho, Header{}, req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := Invoke(b.Context(), c, mEcho, Header{}, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("local", func(b *testing.B) {
		c := r.Local(Peer{}, nil)
		for b.Loop() {
			if _, err := Invoke(b.Context(), c, mEcho, Header{}, req); err != nil {
				b.Fatal(err)
			}
		}
	})
}
