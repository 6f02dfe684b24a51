package rpc

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// settled reports whether no stream of a session is charged for anything.
func settled(s *Session) bool {
	f := &s.m.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.charged == 0 && f.mu.turn == nil && len(f.mu.waiting) == 0
}

// Many large answers at once over one session wait for each other instead of failing, and small calls pass them.
func TestManyLargeAnswers(t *testing.T) {
	r, _ := testRegistry()
	_, addr := serveTCP(t, ServerConfig{Registry: r, MaxStreams: 2000})
	pool := newPool(t, PoolConfig{})
	s, err := pool.Session(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	const size = 3 << 20
	lists := 90
	if testing.Short() {
		lists = 30 // still more than the budget has room for
	}
	var wg sync.WaitGroup
	var done atomic.Int64
	for range lists {
		wg.Go(func() {
			defer done.Add(1)
			resp, err := Invoke(t.Context(), s, mBig, Header{}, &echoReq{N: size})
			if err != nil || len(resp.Data) != size {
				t.Errorf("a large answer: %v", err)
			}
		})
	}
	wg.Go(func() { // a stream whose reader is slow does not hold up the others
		st, err := OpenStream(t.Context(), s, mEmit, Header{}, &echoReq{N: 20, Data: make([]byte, 900<<10)})
		if err != nil {
			t.Error(err)
			return
		}
		defer st.Close(nil)
		for i := range 20 {
			var m echoReq
			if err := st.RecvMsg(&m); err != nil || m.N != i {
				t.Errorf("frame %d: %d, %v", i, m.N, err)
				return
			}
			for range 3 { // slowly
				if _, err := Invoke(t.Context(), s, mEcho, Header{}, &echoReq{}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	small, slowest, most := 0, time.Duration(0), int64(0)
	for done.Load() < int64(lists) {
		began := time.Now()
		if _, err := Invoke(t.Context(), s, mEcho, Header{}, &echoReq{Data: make([]byte, 1000)}); err != nil {
			t.Fatalf("a small call among large ones: %v", err)
		}
		small, slowest = small+1, max(slowest, time.Since(began))
		s.m.flow.mu.Lock()
		most = max(most, s.m.flow.mu.charged)
		s.m.flow.mu.Unlock()
	}
	wg.Wait()
	t.Logf("%d small calls beside %d large answers, the slowest took %s; at most %d KiB charged", small, lists, slowest, most>>10)
	if most > flowBudget+MaxReply {
		t.Errorf("%d bytes charged, want at most %d", most, flowBudget+MaxReply)
	}
	// Behind whole messages there would be one small call to a large one. Among their fragments there are thousands, or
	// eight to a large one where one processor does everything, however long that takes.
	if small < 3*lists {
		t.Errorf("%d small calls were answered while %d large ones were on their way: they wait for them", small, lists)
	}
	eventually(t, "nothing is charged", func() bool { return settled(s) })
}

// Answers of the largest size exceed the budget together. They pass one after the other, also when callers give up.
func TestTurns(t *testing.T) {
	var f flow
	stream := func() *muxStream { return newMuxStream(nil, 0, true) }
	a, b, c, d := stream(), stream(), stream(), stream()
	if !f.take(a, flowBudget, true) || !f.take(b, window, true) {
		t.Fatal("the budget, and one above it, must be granted")
	}
	if f.take(c, window, true) || f.take(d, window, true) || f.take(c, window, true) {
		t.Fatal("only one may exceed the budget")
	}
	if f.take(a, window, false) {
		t.Fatal("a stream without an incomplete message exceeded the budget")
	}
	if !f.take(b, window, true) {
		t.Fatal("who has the turn keeps it")
	}
	woken := func(s *muxStream) bool {
		select {
		case <-s.arrival:
			return true
		default:
			return false
		}
	}
	f.put(b, 2*window) // b is complete
	if !woken(c) || woken(d) || f.mu.turn != c {
		t.Fatal("the turn goes to the oldest that waits")
	}
	f.put(c, 0) // c gave up
	if !woken(d) || f.mu.turn != d || len(f.mu.waiting) != 0 {
		t.Fatal("the turn goes on when its owner gives up")
	}
	f.put(d, 0)
	f.put(a, flowBudget)
	if f.mu.charged != 0 || f.mu.turn != nil {
		t.Errorf("%d bytes are charged at the end", f.mu.charged)
	}
}

// A call whose connection breaks is unknown if all of it was sent, and only then.
func TestLostCall(t *testing.T) {
	for _, x := range []struct {
		name string
		body int // bytes of the request
		read int // bytes that the peer reads before it closes the connection
		want structs.ErrorCode
	}{
		{"before the last byte", 1 << 20, 10 << 10, structs.CodeUnavailable},
		{"after the last byte", 1 << 10, 1 << 10, structs.CodeUnknown},
	} {
		t.Run(x.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var seen atomic.Int64
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					seen.Add(1)
					for n := 0; n < x.read; {
						k, err := conn.Read(make([]byte, x.read-n))
						if err != nil {
							break
						}
						n += k
					}
					conn.Close()
				}
			}()
			c := newPool(t, PoolConfig{}).To(l.Addr().String())
			_, err = Invoke(t.Context(), c, mEcho, Header{}, &echoReq{Data: make([]byte, x.body)})
			if structs.CodeOf(err) != x.want {
				t.Errorf("%v; want %s", err, x.want)
			}
			if n := seen.Load(); x.want == structs.CodeUnknown && n != 1 {
				t.Errorf("a call of unknown outcome was sent %d times", n)
			}
		})
	}
}

// A stream that was reset here does not say that its call was not sent.
func TestClosedStreamIsUnknown(t *testing.T) {
	each(t, func(t *testing.T, c Caller, n *counts) {
		s, err := OpenStream(t.Context(), c, mHang, Header{}, &echoReq{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the handler runs", func() bool { return n.calls.Load() == 1 })
		s.p.reset(resetCancelled)
		if _, err := s.Recv(); structs.CodeOf(err) != structs.CodeUnknown {
			t.Errorf("after a reset: %v", err)
		}
		s.Close(nil)
	})
}
