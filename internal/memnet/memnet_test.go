package memnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

// pair is a connection from host a to host b.
func pair(t *testing.T, n *Network) (near, far net.Conn) {
	t.Helper()
	l, err := n.Host("b").Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = n.Host("a").Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func TestConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pair(t, New())
		data := bytes.Repeat([]byte("0123456789"), 100<<10) // four times the buffer
		go func() {
			near.Write(data)
			near.Close()
		}()
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if _, err := far.Write([]byte("x")); err == nil {
			t.Error("write to a closed peer")
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read from a closed connection: %v", err)
		}
		far.Close()
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := pair(t, New())
		start := time.Now()
		near.SetReadDeadline(start.Add(3 * time.Second))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("read: %v after %s", err, time.Since(start))
		}
		near.SetReadDeadline(time.Time{})
		start = time.Now()
		near.SetWriteDeadline(start.Add(2 * time.Second))
		n, err := near.Write(make([]byte, 2*connBuffer))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n != connBuffer || time.Since(start) != 2*time.Second {
			t.Errorf("write: %d, %v after %s", n, err, time.Since(start))
		}
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%v is not a net.Error with Timeout", err)
		}
		near.Close()
		far.Close()
	})
}

func TestDelayKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := pair(t, n)
		start := time.Now()
		n.SetDelay(50 * time.Millisecond)
		near.Write([]byte("slow "))
		n.SetDelay(0)
		near.Write([]byte("fast"))
		near.Close()
		got, _ := io.ReadAll(far)
		if string(got) != "slow fast" || time.Since(start) != 50*time.Millisecond {
			t.Errorf("%q after %s", got, time.Since(start))
		}
		far.Close()
	})
}

func TestCutsHoldWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := pair(t, n)
		n.Cut("a", "b")
		near.Write([]byte("later"))
		far.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := far.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read across the cut: %v", err)
		}
		far.Write([]byte("now")) // the other way is open
		b := make([]byte, 9)
		if k, err := near.Read(b); err != nil || string(b[:k]) != "now" {
			t.Errorf(`%q, %v; want "now"`, b[:k], err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Host("a").Dial(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial across the cut: %v", err)
		}
		n.Heal()
		far.SetReadDeadline(time.Time{})
		if k, err := far.Read(b); err != nil || string(b[:k]) != "later" {
			t.Errorf(`%q, %v; want "later"`, b[:k], err)
		}
		near.Close()
		far.Close()
	})
}

func TestKillAndPowerOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := pair(t, n)
		n.Kill("b")
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("peer killed: %v", err)
		}
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("killed: %v", err)
		}
		if _, err := n.Host("a").Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to a killed host: %v", err)
		}
		if _, err := n.Host("b").Listen(1); err == nil {
			t.Error("a killed host listens")
		}
		n.Revive("b")
		near.Close()
		far.Close()

		near, far = pair(t, n)
		n.PowerOff("b")
		near.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("peer without power: %v", err)
		}
		near.SetReadDeadline(time.Time{})
		n.Revive("b")
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("peer is back and does not know us: %v", err)
		}
		near.Close()
		far.Close()
	})
}

func TestDialErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a := n.Host("a")
		n.Host("b")
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		for _, bad := range []string{"nowhere:1", "b", "b:x", "b:70000", ""} {
			if _, err := a.Dial(t.Context(), bad); err == nil {
				t.Errorf("dial %q", bad)
			}
		}
		l, err := a.Listen(5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Listen(5); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen twice: %v", err)
		}
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after close: %v", err)
		}
		if l, err = a.Listen(5); err != nil {
			t.Errorf("listen again: %v", err)
		} else {
			l.Close()
		}
	})
}

// Gossip with production timings: all join, a dead one is found dead, a partition heals.
func TestGossip(t *testing.T) {
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := New()
				n.SetDelay(time.Millisecond)
				var lists []*memberlist.Memberlist
				for i := range 5 {
					h := n.Host(fmt.Sprintf("n%d", i))
					tr, err := h.Gossip(7946)
					if err != nil {
						t.Fatal(err)
					}
					c := memberlist.DefaultLANConfig()
					c.Name = h.Name()
					c.Transport = tr
					c.SecretKey = bytes.Repeat([]byte{1}, 32)
					c.LogOutput = io.Discard
					m, err := memberlist.Create(c)
					if err != nil {
						t.Fatal(err)
					}
					lists = append(lists, m)
					if i > 0 {
						if _, err := m.Join([]string{n.Host("n0").IP().String() + ":7946"}); err != nil {
							t.Fatal(err)
						}
					}
				}
				alive := func(want int, who ...int) bool {
					for _, i := range who {
						if lists[i].NumMembers() != want {
							return false
						}
					}
					return true
				}
				wait := func(what string, f func() bool) {
					t.Helper()
					for range 600 {
						if f() {
							return
						}
						time.Sleep(time.Second)
					}
					t.Fatalf("not within 10 minutes: %s", what)
				}
				wait("all see five", func() bool { return alive(5, 0, 1, 2, 3, 4) })
				n.PowerOff("n4")
				wait("four see four", func() bool { return alive(4, 0, 1, 2, 3) })
				n.Partition([]string{"n0", "n1"}, []string{"n2", "n3"})
				wait("two halves", func() bool { return alive(2, 0, 1, 2, 3) })
				n.Heal()
				if _, err := lists[0].Join([]string{n.Host("n2").IP().String() + ":7946"}); err != nil {
					t.Fatal(err)
				}
				wait("four again", func() bool { return alive(4, 0, 1, 2, 3) })
				for _, m := range lists {
					if err := m.Shutdown(); err != nil {
						t.Error(err)
					}
				}
				// A probe in progress outlives Shutdown until its timer fires, and time stops when the bubble's main
				// goroutine ends.
				time.Sleep(10 * time.Second)
			})
		})
	}
}
